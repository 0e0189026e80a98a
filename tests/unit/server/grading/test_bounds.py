"""What strangers' environments, packages and images say is bounded, and of the types that it should be."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.server.grading.builds import BuildFailed, Builds, BuildStore, Built, Order
from nodus.server.grading.builds.base import Report
from nodus.server.grading.builds.facts import checked_info
from nodus.server.grading.builds.pip import _packages
from nodus.server.grading.environments import MIB
from nodus.server.grading.oci.layers import BadImage, Limits
from nodus.server.grading.oci.manifests import parse_manifest
from nodus.server.grading.runner import LINE_BYTES, LINE_VALUES, MOST_VALUES, RunnerFailed, _Lines

LIMIT = 64 * MIB


def _read(data: bytes, *, strict: bool = True, step: int = 65536) -> list[dict[str, Any]]:
    lines = _Lines(LIMIT, strict=strict)
    for start in range(0, len(data), step):
        lines.feed(data[start : start + step])
    lines.end()
    assert lines.odd is False
    return lines.found


def test_lines_are_read_wherever_they_are_cut() -> None:
    data = b'{"a": 1}\n\n{"b": "\xc3\xa9"}\r\n{"c": [1, 2]}'
    for step in (1, 2, 7, 100):
        assert _read(data, step=step) == [{"a": 1}, {"b": "é"}, {"c": [1, 2]}]
    assert _read(b'hello\n[1]\n{bad\n{"a": 1}\n', strict=False) == [{"a": 1}]


def test_long_prompts_are_tasks() -> None:
    prompt = 'x = [1, 2, {"a": 3}]; ' * 40_000  # much that looks like values, all of it in one text
    foreign = "\u65e5" * 500_000
    lines = [{"taskId": str(n), "prompt": text} for n, text in enumerate((prompt, foreign))]
    assert _read("".join(json.dumps(line) + "\n" for line in lines).encode()) == lines


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"prompt": "' + b"x" * LINE_BYTES + b'"}\n', "more than 4 MiB of tasks in one line"),
        (b"x" * (LINE_BYTES + 1), "more than 4 MiB of tasks in one line"),
        (b'{"metadata": [' + b"[]," * (LINE_BYTES // 3 - 10) + b"[]]}\n", f"a task of more than {LINE_VALUES} values"),
        (b'{"metadata": [' + b'{"a":{}},' * 50_000 + b"{}]}\n", f"more than {MOST_VALUES} values"),
        (b"\n" * 60_000, f"more than {MOST_VALUES} values"),
        (b'{"p": "' + b"x" * (MIB - 20) + b'"}\n', "more than 64 MiB of tasks"),
    ],
)
def test_too_much_is_refused_before_it_is_parsed(line: bytes, says: str) -> None:
    lines = _Lines(LIMIT, strict=True)
    with pytest.raises(RunnerFailed, match=says):
        for _ in range(70):
            lines.feed(line)


def test_a_line_that_is_no_result_is_a_fault_and_costs_nothing() -> None:
    lines = _Lines(LIMIT, strict=True)
    tracemalloc.start()
    lines.feed(b"[" + b"[]," * 300_000 + b"[]]\n")
    lines.feed(b'"' + b'\\"' * 500_000 + b"\n")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert lines.odd and not lines.found and most < 10 * MIB


@pytest.mark.parametrize("splits", [5, None, [["train", 4]], {"train": 1e400}, {"train": -1}, {"\ud800": 4}, {"a": 1}])
def test_forged_info_is_refused(splits: object) -> None:
    with pytest.raises(BuildFailed, match="no splits with numbers of tasks"):
        checked_info({"splits": splits})


def test_of_info_only_what_is_known_is_kept() -> None:
    said = {"splits": {"train": 4, "test": 0}, "kind": "\ud800\0" + "x" * 500, "maxTurns": "\ud800", "episodes": 1}
    kept = checked_info({**said, "shared": 2, "protocol": True, "more": "x"})
    assert kept == {"splits": {"train": 4, "test": 0}, "kind": ("?\\0" + "x" * 98), "shared": 2}


def test_names_of_packages_can_be_stored(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text('{"install": [{"metadata": {"name": "a\\ud800", "version": "\\u0000"}}]}')
    assert _packages(report) == {"a?": "\\0"}


class _Recipe:
    """Fails as a stranger's environment says."""

    steps = ("load",)

    def key(self, order: Order) -> str:
        return "key"

    def build(self, order: Order, work: Path, report: Report) -> Built:
        report.step("load", "\ud800")
        report.say("\udfff\0")
        raise BuildFailed("it says \ud800", "\udc00")


class _Broken:
    """A log on a disk that is full."""

    def write(self, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None: ...


class _Log:
    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    def close(self) -> None: ...


@pytest.mark.parametrize("broken", [False, True])
async def test_halves_of_characters_and_broken_logs_leave_no_build_without_an_end(tmp_path: Path, broken: bool) -> None:
    log = _Log()
    builds = Builds(BuildStore(tmp_path), {"pip": _Recipe()}, lambda _: _Broken() if broken else log, FakeClock())
    builds.begin(Order("u1", "env-a-1", "a", "1", {"pip": {"name": "a"}}))
    await builds.wait("u1", timeout_s=10.0)
    state = builds.state("u1")
    assert state is not None and state.failure is not None
    json.dumps([step.to_wire() for step in state.steps], ensure_ascii=False).encode()
    if not broken:
        assert (state.failure.message, state.failure.fix) == ("it says ?", "?")
        assert b"failed: it says ?" in log.data and state.steps[0].message == "it says ?"


@pytest.mark.parametrize(
    "manifest",
    [
        {"manifests": 5},
        {"manifests": {"a": 1}},
        {"manifests": [5, {"platform": 5}, {"platform": {"os": "\ud800", "architecture": [1]}}]},
        {"mediaType": ["x"], "layers": 5},
        {"layers": {"a": 1}},
        {"layers": [5]},
        {"config": 5, "layers": [{}]},
        {"config": {"digest": "sha256:" + "0" * 64, "size": int("9" * 4000)}, "layers": [{}]},
    ],
)
def test_manifests_of_other_types_are_bad_images(manifest: dict[str, Any]) -> None:
    with pytest.raises(BadImage) as refused:
        parse_manifest(json.dumps(manifest).encode(), Limits())
    refused.value.message.encode()
