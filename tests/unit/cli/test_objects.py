"""The object commands against a scripted server: what they send, and what they say."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodus.cli import main as cli
from nodus.core.patches import merge_patch
from tests.unit.client.fake_server import Asked, FakeServer, Reply, serving, status

JOBS = "/apis/nodus.dev/v1/namespaces/default/jobs"
Objects = dict[str, dict[str, Any]]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeServer]:
    """A server that keeps objects by their path, and the environment of its user."""
    with serving() as fake:
        stored: Objects = {}
        fake.script = lambda asked: answer(stored, asked)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("NODUS_API_URL", fake.url)
        monkeypatch.setenv("NODUS_API_KEY", "nodus_k")
        monkeypatch.chdir(tmp_path)
        put(stored, "running", phase="Running")
        put(stored, "done", phase="Succeeded")
        yield fake


def put(stored: Objects, name: str, phase: str) -> None:
    stored[f"{JOBS}/{name}"] = {
        "apiVersion": "nodus.dev/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1", "labels": {"a": "b"}},
        "spec": {"command": ["true"], "timeout": "5m"}, "status": {"phase": phase},
    }  # fmt: skip


def answer(stored: Objects, asked: Asked) -> Reply:
    """Answer as the API does, for one object at a time."""
    dry = asked.query.get("dryRun") == "All"
    if asked.method == "POST":
        document = asked.json
        if not dry:
            stored[f"{asked.path}/{document['metadata']['name']}"] = document
        return Reply(document, 201)
    found = stored.get(asked.path)
    if found is None:
        return status("NotFound", 404, f"{asked.path} not found")
    if asked.method == "PATCH":
        changed = merge_patch(found, asked.json)
        if changed["spec"].get("timeout") == "0s":
            return status("Invalid", 422, "Job is invalid: spec.timeout: too short", fix="Write more.")
        if not dry:
            stored[asked.path] = changed
        return Reply(changed)
    return Reply(found)


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        code = cli.main(list(words))
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def writes(server: FakeServer) -> list[tuple[str, str, Any]]:
    return [(asked.method, asked.path, asked.json) for asked in server.asked if asked.method != "GET"]


@pytest.mark.parametrize(
    ("verb", "state", "says"),
    [
        ("cancel", "Cancelled", "canceled"),
        ("suspend", "Suspended", "suspended"),
        ("resume", "Running", "resumed"),
        ("stop", "Stopped", "stopped"),
    ],
)
def test_states_are_merge_patches(run: Run, server: FakeServer, verb: str, state: str, says: str) -> None:
    assert run(verb, "job/running") == (0, f"job/running {says}\n", "")
    assert writes(server) == [("PATCH", f"{JOBS}/running", {"spec": {"state": state}})]


def test_start_leaves_its_time(run: Run, server: FakeServer) -> None:
    assert run("start", "job", "running") == (0, "job/running started\n", "")
    ((_, _, sent),) = writes(server)
    assert sent["spec"] == {"state": "Running"}
    assert sent["metadata"]["annotations"]["nodus.dev/start-requested-at"].endswith("Z")


def test_a_run_that_ended_is_not_written_to(run: Run, server: FakeServer) -> None:
    assert run("cancel", "job/done", "job/running")[1] == "job/done already ended: Succeeded\njob/running canceled\n"
    code, out, err = run("suspend", "job/done")
    assert (code, out) == (1, "") and err.startswith(
        "error: job/done has ended: Succeeded; it can't be suspended\nfix: "
    )
    assert [path for _, path, _ in writes(server)] == [f"{JOBS}/running"]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (
            "Input should be 'Running' or 'Stopped' (got 'Cancelled')",
            "error: job/running can't be canceled\n"
            "fix: It takes `nodus start job/running` and `nodus stop job/running`.\n",
        ),
        ("unknown field", "error: job/running can't be canceled: a Job has no state to change\n"),
        ("is frozen", "Error from server (Invalid): no\n  spec.state: is frozen\n"),
    ],
)
def test_a_state_that_the_kind_lacks_is_refused_in_verbs(run: Run, server: FakeServer, message: str, says: str) -> None:
    whole = server.script
    assert whole is not None
    causes = [{"field": "spec.state", "reason": "FieldValueInvalid", "message": message}]
    refusal = status("Invalid", 422, details={"causes": causes})
    server.script = lambda asked: refusal if asked.method == "PATCH" else whole(asked)
    assert run("cancel", "job/running") == (1, "", says)


def test_describe_leaves_out_the_events_of_an_earlier_object_of_the_name(run: Run, server: FakeServer) -> None:
    scripted = server.script
    assert scripted is not None

    def script(asked: Asked) -> Reply:
        if asked.path.endswith("/events"):
            uids = {"now": "done", "before": "another"}
            items = [{"reason": reason, "involvedObject": {"uid": uid}} for reason, uid in uids.items()]
            return Reply({"metadata": {}, "items": items})
        return Reply({"metadata": {}, "items": []}) if asked.path.endswith("/attempts") else scripted(asked)

    server.script = script
    code, out, _ = run("describe", "job/done")
    assert code == 0
    assert "now" in out and "before" not in out


def test_label_annotate_and_request_send_what_changes(run: Run, server: FakeServer) -> None:
    assert run("label", "job/running", "team=x", "note=a=b", "a-") == (0, "job/running labeled\n", "")
    assert (
        run("annotate", "job", "running", "why=because", "--dry-run")[1] == "job/running annotated (server dry run)\n"
    )
    would = yaml.safe_load(run("label", "job/running", "x=y", "--dry-run=client", "-o", "yaml")[1])
    assert would["metadata"]["labels"] == {"team": "x", "note": "a=b", "x": "y"}
    assert run("request", "restart", "job/running")[1] == "job/running restart requested\n"
    label, annotation, request = (sent["metadata"] for _, _, sent in writes(server))
    assert label == {"labels": {"team": "x", "note": "a=b", "a": None}}
    assert annotation == {"annotations": {"why": "because"}}
    assert list(request["annotations"]) == ["nodus.dev/restart-requested-at"]
    for words in (["job/running"], ["job/running", "plain"], ["x=y"], ["jobs", "x=y"], ["job/running", "x=y", "z"]):
        assert run("label", *words)[0] == 2


def test_diff_shows_what_apply_would_change_and_nothing_of_the_servers(run: Run, tmp_path: Path) -> None:
    manifest = {"apiVersion": "nodus.dev/v1", "kind": "Job", "metadata": {"name": "running", "labels": {"a": "b"}}}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(manifest | {"spec": {"command": ["true"], "timeout": "9m"}}))
    code, out, err = run("diff", "-f", str(path))
    assert (code, err) == (1, "")
    assert out.splitlines()[:2] == ["--- live/job/running", "+++ merged/job/running"]
    assert "-  timeout: 5m" in out and "+  timeout: 9m" in out and "resourceVersion" not in out and "\x1b" not in out
    path.write_text(yaml.safe_dump(manifest | {"spec": {"timeout": "5m"}}))
    assert run("diff", "-f", str(path)) == (0, "", "")
    path.write_text(yaml.safe_dump(manifest | {"metadata": {"name": "fresh"}, "spec": {}}))
    assert run("diff", "-f", str(path))[0] == 1


def edit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str) -> None:
    """Let the editor be a program that gets the file's name as $1."""
    script = tmp_path / "editor"
    script.write_text(f"#!/bin/sh\n{program}\n")
    script.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(script))
    monkeypatch.delenv("VISUAL", raising=False)


def test_edit_sends_only_the_changed_field(
    run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    edit(monkeypatch, tmp_path, "sed -i s/5m/7m/ $1")
    assert run("edit", "job/running") == (0, "job/running edited\n", "")
    assert writes(server) == [("PATCH", f"{JOBS}/running", {"spec": {"timeout": "7m"}})]
    edit(monkeypatch, tmp_path, ": > $1")
    assert run("edit", "job/running") == (0, "job/running unchanged\n", "")


def test_edit_comes_back_with_the_refusal_and_keeps_the_text(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The first time a value the server refuses, the second time nothing more: the user gives up.
    edit(monkeypatch, tmp_path, f"cp $1 {tmp_path}/seen; sed -i s/5m/0s/ $1")
    code, _, err = run("edit", "job/running")
    assert code == 1 and "spec.timeout: too short" in err
    assert "# Error from server (Invalid): " in (tmp_path / "seen").read_text()
    kept = Path(err.splitlines()[-1].rpartition(" ")[2])
    assert "timeout: 0s" in kept.read_text()
    os.unlink(kept)
    edit(monkeypatch, tmp_path, "sed -i s/running/other/ $1")
    assert "metadata.name can't be edited" in run("edit", "job/running")[2]
    edit(monkeypatch, tmp_path, "exit 3")
    assert "ended with exit code 3" in run("edit", "job/running")[2]
    monkeypatch.setenv("EDITOR", "no-such-editor")
    assert "can't be started" in run("edit", "job/running")[2]


def test_apply_names_the_run_of_a_group(run: Run, server: FakeServer, tmp_path: Path) -> None:
    kinds = {"resources": [{"name": "agentruns", "kind": "AgentRun", "namespaced": True, "shortNames": ["ar"]}]}
    stored: Objects = {}

    def script(asked: Asked) -> Reply:
        return Reply(kinds) if asked.path.count("/") == 3 else answer(stored, asked)

    server.script = script
    path = tmp_path / "run.yaml"
    run_of_group = {"agent": "w", "group": "nightly", "taskKey": "a", "input": "x"}
    path.write_text(yaml.safe_dump({"apiVersion": "nodus.dev/v1", "kind": "AgentRun", "spec": run_of_group}))
    assert run("apply", "-f", str(path)) == (0, "agentrun/nightly-a created\n", "")
    path.write_text(yaml.safe_dump({"apiVersion": "nodus.dev/v1", "kind": "AgentRun", "spec": {"agent": "w"}}))
    assert run("apply", "-f", str(path))[0] == 2


def test_a_selector_that_is_empty_deletes_nothing(run: Run, server: FakeServer) -> None:
    assert run("delete", "jobs", "-l", "")[0] == 2
    assert run("delete", "jobs")[0] == 2
    assert run("apply", "-f", "-", "--prune")[0] == 2
    assert writes(server) == []


def test_gpu_filters_are_field_selectors(run: Run, server: FakeServer) -> None:
    server.script = lambda asked: Reply({"rows": []})
    run("get", "gpus", "--gpu", "H100", "--count", "8", "--region", "us", "--interruptible")
    (asked,) = server.asked
    assert asked.path == "/apis/nodus.dev/v1/offerings"
    assert asked.query["fieldSelector"] == (
        "spec.accelerator.family=H100,spec.count=8,spec.regionClass=us,spec.interruptible=true"
    )
    assert run("get", "jobs", "--gpu", "H100")[0] == 2


def test_sort_orders_rows_by_a_field_that_tables_lack(run: Run, server: FakeServer) -> None:
    sizes = {"a": "10.5", "b": "9", "c": None}
    items = [{"metadata": {"name": name}, "status": {"cost": {"totalUSD": cost}}} for name, cost in sizes.items()]
    rows = [{"cells": [name], "object": {"metadata": {"name": name}}} for name in sizes]
    table = {"columnDefinitions": [{"name": "Name"}], "rows": rows}
    server.script = lambda asked: Reply(table if "Table" in asked.headers["accept"] else {"items": items})
    assert run("get", "jobs", "--sort-by", ".status.cost.totalUSD")[1].split() == ["NAME", "b", "a", "c"]
    listed = json.loads(run("get", "jobs", "--sort-by", ".status.cost.totalUSD", "-o", "json")[1])
    assert [item["metadata"]["name"] for item in listed["items"]] == ["b", "a", "c"]
    _, out, err = run("get", "jobs", "--sort-by", ".spec.nonsense")
    assert out.split() == ["NAME", "a", "b", "c"]
    assert err == "warning: not sorted: none of these objects has .spec.nonsense\n"


def test_limit_stops_paging(run: Run, server: FakeServer) -> None:
    def script(asked: Asked) -> Reply:
        start = int(asked.query.get("continue") or 0)
        count = min(int(asked.query.get("limit") or 2), 2)  # a server may give less than was asked for
        names = [str(number) for number in range(start, start + count)]
        metadata = {"resourceVersion": "1", "continue": str(start + count)}
        if "Table" in asked.headers["accept"]:
            rows = [{"cells": [name]} for name in names]
            return Reply({"columnDefinitions": [{"name": "Name"}], "rows": rows, "metadata": metadata})
        return Reply({"items": [{"metadata": {"name": name}} for name in names], "metadata": metadata})

    server.script = script
    assert run("get", "auditevents", "--limit", "3")[1].split() == ["NAME", "0", "1", "2"]
    assert [asked.query["limit"] for asked in server.asked] == ["3", "1"]
    assert run("get", "auditevents", "--limit", "3", "-o", "name")[1].split() == [
        f"auditevent.nodus.dev/{n}" for n in "012"
    ]
    assert len(server.asked) == 4
    for words in (["job/x", "--limit", "3"], ["jobs", "-w", "--limit", "3"], ["jobs", "--limit", "0"]):
        assert run("get", *words)[0] == 2


def test_sorting_comes_before_cutting(run: Run, server: FakeServer) -> None:
    items = [{"metadata": {"name": name}, "spec": {"n": n}} for name, n in (("a", 3), ("b", 1), ("c", 2))]
    rows = [{"cells": [item["metadata"]["name"]], "object": {"metadata": item["metadata"]}} for item in items]
    table = {"columnDefinitions": [{"name": "Name"}], "rows": rows}
    server.script = lambda asked: Reply(table if "Table" in asked.headers["accept"] else {"items": items})
    assert run("get", "jobs", "--sort-by", ".spec.n", "--limit", "2")[1].split() == ["NAME", "b", "c"]
    assert run("get", "jobs", "--sort-by", ".spec.n", "--limit", "2", "-o", "name")[1].split() == [
        "job.nodus.dev/b", "job.nodus.dev/c",
    ]  # fmt: skip
    assert {asked.query.get("limit") for asked in server.asked} <= {None, "500"}


def test_events_are_cut_to_the_newest(run: Run, server: FakeServer) -> None:
    items = [
        {"metadata": {"name": f"e{n}"}, "reason": f"R{n}", "lastTime": f"2026-01-0{n}T00:00:00Z"} for n in (3, 1, 2)
    ]
    server.script = lambda asked: Reply({"items": items, "metadata": {}})
    assert run("events", "--limit", "2", "-o", "jsonpath={.items[*].reason}")[1].split() == ["R2", "R3"]


def test_control_characters_of_others_do_not_reach_the_terminal(run: Run, server: FakeServer) -> None:
    name = "x\x1b[2Jy"
    table = {"columnDefinitions": [{"name": "Name"}], "rows": [{"cells": [name]}]}
    server.script = lambda asked: Reply(table)
    assert run("get", "jobs")[1] == "NAME\nx\\x1b[2Jy\n"
    server.script = lambda asked: status("BadRequest", 400, name)
    assert "\x1b" not in run("get", "jobs")[2]


def test_patch_in_its_forms(run: Run, server: FakeServer) -> None:
    change = '{"spec":{"timeout":"9m"}}'
    assert run("patch", "job/running", "-p", change, "--dry-run=client", "-o", "yaml")[1].count("timeout: 9m") == 1
    operations = '[{"op":"remove","path":"/spec/timeout"}]'
    assert (
        "timeout"
        not in run("patch", "job/running", "--type=json", "--patch", operations, "--dry-run=client", "-o", "yaml")[1]
    )
    assert writes(server) == []
    assert run("patch", "job/running", "--patch", change, "--dry-run")[1] == "job/running patched (server dry run)\n"
    assert run("patch", "job/running", "-p", "default", "-p", change)[1] == "job/running patched\n"
    assert [asked.query.get("dryRun") for asked in server.asked if asked.method == "PATCH"] == ["All", None]
    assert run("patch", "job/running", "--type=json", "--patch", '[{"op":"remove"}]', "--dry-run=client")[0] == 1


def test_other_spellings_and_what_is_not_here_yet(run: Run) -> None:
    assert "Put files into volumes" in run("vol", "--help")[1]
    code, _, err = run("inference", "chat", "hello")
    assert code == 2 and err.startswith(
        "error: 'inference' is not part of this release: it has no hosted inference yet."
    )


def test_create_tells_what_was_there_already(run: Run, server: FakeServer) -> None:
    server.script = lambda asked: Reply(asked.json, 200)
    assert run("create", "volume", "data")[1] == "volume/data unchanged\n"


def test_run_does_not_pass_off_an_earlier_job_of_the_name_as_a_new_one(run: Run, server: FakeServer) -> None:
    server.script = lambda asked: Reply(asked.json | {"status": {"phase": "Succeeded"}}, 200)
    code, out, err = run("run", "-d", "--no-source", "--name", "first", "--", "date")
    assert (code, out) == (0, "job/first\n")
    assert err.startswith("job/first is there already and runs no second time")


def test_run_names_the_outputs_that_were_not_written(run: Run, server: FakeServer) -> None:
    job = {"kind": "Job", "metadata": {"name": "j", "namespace": "default", "uid": "u", "resourceVersion": "1"},
           "spec": {"outputs": [{"name": "x", "path": "/workspace/x"}]}, "status": {"phase": "Succeeded"}}  # fmt: skip

    def script(asked: Asked) -> Reply:
        if asked.path.endswith("/events"):
            told = (
                ("u", "OutputMissing", "x was not written"),
                ("u", "Started", "runs"),
                ("v", "OutputMissing", "old"),
            )
            items = [{"involvedObject": {"uid": u}, "reason": reason, "message": text} for u, reason, text in told]
            return Reply({"metadata": {}, "items": items})
        if asked.path.endswith("/attempts"):
            return Reply({"metadata": {}, "items": []})
        return Reply(job, 201 if asked.method == "POST" else 200)

    server.script = script
    code, _, err = run("run", "--no-source", "--output", "x=/workspace/x", "--", "true")
    assert (code, err.splitlines()[-1]) == (0, "   ! x was not written")


def test_delete_goes_on_after_one_that_is_not_there(run: Run, server: FakeServer) -> None:
    code, out, err = run("delete", "job/nope", "job/done", "job/other")
    assert (code, out) == (1, "job/done deleted\n")
    assert "jobs/nope not found" in err and "jobs/other not found" in err


@pytest.mark.parametrize(
    ("words", "command", "workdir"),
    [
        ("exec sb/dev ls -la -i", ["ls", "-la", "-i"], None),
        ("exec --workdir /tmp sb/dev ls -p x", ["ls", "-p", "x"], "/tmp"),
        ("exec sb/dev --workdir=/tmp -- ls -- -x", ["ls", "--", "-x"], "/tmp"),
        ("-p default exec dev -- -odd", ["-odd"], None),
    ],
)
def test_exec_leaves_the_commands_flags_to_it(
    run: Run, server: FakeServer, words: str, command: list[str], workdir: str | None
) -> None:
    server.script = lambda asked: status("SandboxFailed", 409, "it broke")
    assert run(*words.split())[0] == 1
    [(_, _, document)] = writes(server)
    assert (document["spec"]["command"], document["spec"].get("workingDir")) == (command, workdir)


@pytest.mark.parametrize(
    ("words", "method"),
    [
        (["exec", "sb/dev", "--", "true"], "POST"),
        (["cp", "file", "sb/dev:/workspace/file"], "PUT"),
        (["cp", "sb/dev:/workspace/file", "file"], "files"),
    ],
)
def test_who_needs_a_sandbox_says_what_it_waits_for(
    run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch, words: list[str], method: str
) -> None:
    monkeypatch.setattr("nodus.cli.starting.PATIENCE_S", 0.01)
    Path("file").write_text("x")
    looked = threading.Event()

    def script(asked: Asked) -> Reply:
        if asked.method == method or asked.path.endswith(method):
            assert looked.wait(10)
            return status("SandboxFailed", 409, "it broke")
        if sum(one.path.endswith("/dev") for one in server.asked) > 2:
            looked.set()
        return Reply({"status": {"phase": "Pending", "message": "waiting for 1 CPU"}})

    server.script = script
    code, _, err = run(*words)
    assert code == 1
    assert err.count("sandbox/dev is Pending: waiting for 1 CPU; waiting for it\n") == 1


@pytest.mark.parametrize("words", [(), ("-o", "name"), ("--limit", "3")])
def test_processes_are_shown_in_the_order_in_which_they_began(
    run: Run, server: FakeServer, words: tuple[str, ...]
) -> None:
    begun = {"sb-dev-10": 5, "sb-dev-2": 5, "sb-dev-1": 3, "sb-old-7": 1}
    items = [
        {"metadata": {"name": name, "namespace": "default", "creationTimestamp": f"2026-01-01T00:00:0{second}Z"}}
        for name, second in begun.items()
    ]
    rows = [{"cells": [item["metadata"]["name"]], "object": item} for item in items]
    table = {"columnDefinitions": [{"name": "Name"}], "rows": rows}
    server.script = lambda asked: Reply(table if "Table" in asked.headers["accept"] else {"items": items})
    shown = [word.removeprefix("process.nodus.dev/") for word in run("get", "processes", *words)[1].split()]
    wanted = ["sb-old-7", "sb-dev-1", "sb-dev-2", "sb-dev-10"]
    assert [word for word in shown if word != "NAME"] == (wanted[1:] if "--limit" in words else wanted)


@pytest.mark.parametrize(("scope", "answer"), [("sandboxes:write", "yes\n"), ("processes:write", "no\n")])
def test_can_i_exec_asks_for_what_starting_a_command_takes(
    run: Run, server: FakeServer, scope: str, answer: str
) -> None:
    server.script = lambda asked: Reply({"scopes": [scope], "projects": ["default"]})
    assert run("auth", "can-i", "exec", "sandboxes")[1] == answer
