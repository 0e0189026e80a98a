"""The command line's parts that need no server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import pytest

from nodus import errors
from nodus.cli import colour
from nodus.cli.conditions import split_path
from nodus.cli.description import describe
from nodus.cli.estimates import estimate_line
from nodus.cli.formats import as_list, check_format, to_yaml, typed_name
from nodus.cli.manifests import read_manifests
from nodus.cli.render import error_lines
from nodus.cli.runview import say
from nodus.cli.session import Options, Session
from nodus.cli.tables import TablePrinter, plain_table
from nodus.cli.targets import parse_target
from nodus.client.http import ConnectionFailed
from nodus.core.sizes import size_text

TABLE = {
    "columnDefinitions": [{"name": "Name"}, {"name": "Max-Cost"}, {"name": "Offering", "priority": 1}],
    "rows": [
        {"cells": ["a", "$5", "cpu"], "object": {"metadata": {"name": "a", "namespace": "p", "labels": {"k": "v"}}}},
        {"cells": ["longer-name", None, True]},
    ],
}


def test_table_prints_the_servers_columns() -> None:
    assert TablePrinter().lines(TABLE) == ["NAME          MAX-COST", "a             $5", "longer-name"]


def test_table_wide_and_with_project_and_labels() -> None:
    assert TablePrinter(wide=True, project_column=True, show_labels=True).lines(TABLE) == [
        "NAMESPACE   NAME          MAX-COST   OFFERING   LABELS",
        "p           a             $5         cpu        k=v",
        "            longer-name              true       <none>",
    ]


def test_table_header_comes_once_and_widths_stay() -> None:
    printer = TablePrinter()
    printer.lines(TABLE)
    assert printer.lines({"rows": [{"cells": ["b", "$1"]}]}) == ["b             $1"]


def test_plain_table_has_the_same_layout() -> None:
    assert plain_table(("NAME", "SIZE"), [("a", 1), ("bb", None)]) == ["NAME   SIZE", "a      1", "bb"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("'{.status.phase}'=Succeeded", ("{.status.phase}", "Succeeded")),
        ("{.status.phase}=Succeeded", ("{.status.phase}", "Succeeded")),
        ("'{.status.phase}'='Succeeded'", ("{.status.phase}", "Succeeded")),
        ("{.status.job}", ("{.status.job}", None)),
        (".status.phase=Ready", (".status.phase", "Ready")),
    ],
)
def test_wait_condition_issplit_path(text: str, expected: tuple[str, str | None]) -> None:
    assert split_path(text) == expected


def test_error_shows_causes_fix_and_request() -> None:
    error = errors.Invalid(
        "TrainingJob is invalid",
        fix="Correct it.",
        request_id="req_1",
        causes=[errors.Cause("spec.a", "x", "unknown field")],
    )
    assert error_lines(error) == [
        "Error from server (Invalid): TrainingJob is invalid",
        "  spec.a: unknown field",
        "fix: Correct it.",
        "request-id: req_1",
    ]


def test_error_does_not_say_its_causes_twice() -> None:
    cause = errors.Cause("spec.a", "x", "unknown field")
    error = errors.Invalid('Job "j" is invalid: spec.a: unknown field', causes=[cause])
    assert error_lines(error) == ['Error from server (Invalid): Job "j" is invalid', "  spec.a: unknown field"]
    error = errors.Invalid("spec.a: unknown field", causes=[cause])
    assert error_lines(error) == ["Error from server (Invalid): spec.a: unknown field"]


def test_describe_says_what_a_runtime_takes() -> None:
    properties = {
        "steps": {"type": "integer", "default": 50, "minimum": -1, "maximum": 9, "description": "Optimizer steps"},
        "lora": {"type": "object", "properties": {"r": {"type": "integer", "enum": [4, 8]}}},
    }
    spec = {
        "image": "i", "task": "GRPO", "parameters": {"type": "object", "properties": properties},
        "presets": [{"model": "M", "method": "LoRA", "resources": {"gpu": {"type": ["A", "B"], "count": 1}}}],
    }  # fmt: skip
    lines = list(
        describe(
            {"kind": "TrainingRuntime", "metadata": {"name": "r", "namespace": "nodus"}, "spec": spec},
            attempts=[],
            events=[],
        )
    )
    assert "Reference:      nodus/r" in lines
    assert [line.split() for line in lines if line.startswith("  ")][1:3] == [
        ["steps", "integer", "50", "-1", "to", "9", "Optimizer", "steps"],
        ["lora.r", "integer", "4,", "8"],
    ]
    assert lines[-1].split() == ["M", "LoRA", "1", "x", "A", "or", "B"]


@pytest.mark.parametrize(
    ("kind", "spec", "status", "line"),
    [
        ("Volume", {"size": "1Gi"}, {"used": "541616202", "revision": 1}, "Used:           516.5Mi"),
        ("Secret", {"type": "Opaque"}, {"keys": ["A", "B"]}, "Keys:           A, B"),
        ("Job", {"command": ["sh", "-c", "echo hi"]}, {}, "Command:        sh -c 'echo hi'"),
        ("Environment", {"version": "2.0.0"}, {}, "Reference:      nodus/x@2.0.0"),
        ("APIKey", {"member": "ada"}, {"phase": "Active", "prefix": "nodus_ab"}, "  prefix: nodus_ab"),
        ("Process", {"number": 1}, {"phase": "Failed", "exitCode": 3}, "Exit code:      3"),
        ("Job", {}, {"outputs": [{"name": "a", "index": 2, "sizeBytes": 5}]}, "  2       a      5"),
        ("Job", {}, {"phase": "Cancelled", "reason": "Cancelled"}, "Phase:          Cancelled"),
    ],
)
def test_describe_shows_what_matters_of_a_kind(
    kind: str, spec: dict[str, object], status: dict[str, object], line: str
) -> None:
    obj = {"kind": kind, "metadata": {"name": "x", "namespace": "nodus"}, "spec": spec, "status": status}
    assert line in list(describe(obj, [], []))


def test_cells_of_objects_are_json() -> None:
    assert plain_table(("A",), [({"k": None},)]) == ["A", '{"k": null}']


@pytest.mark.parametrize(("size", "text"), [(0, "0"), (1023, "1023"), (1024, "1Ki"), (541616202, "516.5Mi")])
def test_sizes_are_for_people(size: int, text: str) -> None:
    assert size_text(size) == text


def test_error_of_this_machine_does_not_blame_the_server() -> None:
    assert error_lines(ConnectionFailed("nothing listens"))[0] == "error: nothing listens"


def test_missing_key_says_how_to_get_one() -> None:
    assert "nodus login" in error_lines(errors.Unauthorized("no key"))[1]


def test_printed_names_are_taken_as_arguments() -> None:
    printed = typed_name({"kind": "TrainingJob", "metadata": {"name": "x"}})
    target = parse_target(Session(Options()), [printed])
    assert (target.kind.kind, target.name) == ("TrainingJob", "x")


def test_names_and_lists() -> None:
    assert typed_name({"kind": "TrainingJob", "metadata": {"name": "x"}}) == "trainingjob.nodus.dev/x"
    assert as_list([{"a": 1}]) == {"apiVersion": "v1", "kind": "List", "items": [{"a": 1}]}


def test_yaml_is_readable_and_reads_back() -> None:
    import yaml

    shared = {"x": 1}
    obj = {"b": "two\nlines\n", "a": shared, "again": shared, "unit": "9", "on": "on", "empty": None}
    text = to_yaml(obj)
    assert yaml.safe_load(text) == obj
    assert text.startswith("b: |\n  two\n  lines\n") and "&id" not in text


def test_unknown_format_lists_those_there_are() -> None:
    with pytest.raises(click.UsageError, match="Did you mean 'json'"):
        check_format("jsn", ("json", "yaml"))


# Manifests
def test_manifests_come_in_file_order(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("apiVersion: v1\nkind: B\n---\n---\napiVersion: v1\nkind: C\n")
    (tmp_path / "a.json").write_text(
        '{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "A"}]}'
    )
    (tmp_path / "notes.txt").write_text("no manifest")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "d.yml").write_text("apiVersion: v1\nkind: D\n")
    assert [doc["kind"] for doc in read_manifests([str(tmp_path)])] == ["A", "B", "C"]
    assert [doc["kind"] for doc in read_manifests([str(tmp_path)], recursive=True)] == ["A", "B", "C", "D"]


def test_manifest_times_stay_text(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("apiVersion: v1\nkind: A\nspec: {expires: 2026-01-31T12:00:00Z, version: '1.0'}\n")
    assert read_manifests([str(tmp_path / "m.yaml")])[0]["spec"]["expires"] == "2026-01-31T12:00:00Z"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", r"m\.yaml, line 1, column 5: not valid YAML: while parsing a flow node"),
        ("- 1\n- 2\n", "document 1 of .* is no object with apiVersion and kind"),
        ("apiVersion: v1\n", r"has no kind$"),
        ("a: 1\n", r"has no apiVersion and no kind$"),
        ("", "there are no objects in"),
    ],
)
def test_bad_manifest_says_where(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "m.yaml").write_text(content)
    with pytest.raises(errors.NodusError, match=message):
        read_manifests([str(tmp_path / "m.yaml")])


def test_missing_manifest_is_named() -> None:
    with pytest.raises(errors.NodusError, match=r"nope\.yaml can't be read: No such file"):
        read_manifests(["nope.yaml"])


# Plans
@pytest.mark.parametrize(
    ("estimate", "line"),
    [
        (None, "job/x (dry run) · no estimate"),
        (
            {
                "topology": {"nodes": 2, "gpusPerNode": 8},
                "costUSD": {"p50": "0.50", "p90": "0.80"},
                "startup": {"cold": {"p50": "1m", "p90": "2m"}},
                "gangHoldUSD": "4.00",
                "blockingReasons": [{"code": "NoGPU", "message": "no H100 here"}],
                "warnings": [{"code": "Slow", "message": "slow"}],
            },
            "job/x (dry run) · 2 nodes × 8 GPUs · est. $0.50–0.80 · gang hold $4.00 · blocked: no H100 here · slow",
        ),
        (
            {"topology": {"nodes": 1}, "startup": {"cold": {"p50": "1m", "p90": "2m"}}, "holdUSD": "0.10"},
            "job/x (dry run) · 1 node, CPU · starts in ~1m–2m (cold) · hold $0.10",
        ),
        (
            {"topology": {"nodes": 1, "gpusPerNode": 0}, "costUSD": {"p50": "0.00", "p90": "0.00"}},
            "job/x (dry run) · 1 node, CPU · est. $0.00",
        ),
        (
            {
                "topology": {"nodes": 1, "gpusPerNode": 0},
                "costUSD": {"p50": "0.00", "p90": "0.00"},
                "holdUSD": "0.00",
                "duration": {"p50": "1m2s", "p90": "1m18s"},
                "measured": {"time": "2026-11-30T12:00:00Z", "runs": 3},
            },
            "job/x (dry run) · 1 node, CPU · est. $0.00 · takes ~1m2s–1m18s · measured here on 2026-11-30, 3 runs",
        ),
        (
            {"duration": {"p50": "5m", "p90": "5m"}, "holdUSD": "0.000000001", "measured": {"time": "2026", "runs": 1}},
            "job/x (dry run) · takes ~5m · hold $0.000000001 · measured here on 2026, 1 run",
        ),
        (
            {"costUSD": {"p50": "0.311111112", "p90": "12.005"}, "holdUSD": "0.005185186"},
            "job/x (dry run) · est. $0.31–12.00 · hold $0.0052",
        ),
        ({"costUSD": {"p50": "0.10", "p90": "0.1049"}, "holdUSD": "0.05"}, "job/x (dry run) · est. $0.10 · hold $0.05"),
    ],
)
def test_estimate_in_one_line(estimate: Any, line: str) -> None:
    obj = {"kind": "Job", "metadata": {"name": "x"}, "status": {"estimate": estimate}}
    assert estimate_line(obj, dry_run=True) == line


def test_others_text_beside_our_colours_moves_no_cursor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(colour, "is_terminal", lambda stream: True)
    say(
        f" {colour.paint('x', 'red', sys.stderr)} Failed",
        "   broken\x1b[2J\x1b[1A",
        f"{colour.paint('y', 'dim', sys.stderr)}\x9b2J",
    )
    assert capsys.readouterr().err == (" \x1b[31mx\x1b[0m Failed\n   broken\\x1b[2J\\x1b[1A\n\x1b[2my\x1b[0m\\x9b2J\n")
