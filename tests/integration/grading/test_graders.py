"""Graders of the local backend: what can't be started, what is there on this machine, and what ends them."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nodus.server.compute.graders import GraderNotStarted, GraderSpec
from nodus.server.compute.local.graders import LocalGraders
from tests.integration.grading.conftest import nothing_left_of

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(60)]

MEMORY_BYTES = 256 << 20


@pytest.fixture
async def graders() -> AsyncIterator[LocalGraders]:
    made = LocalGraders()
    yield made
    await made.close()


@pytest.fixture
def spec(tmp_path: Path) -> GraderSpec:
    """Return a grader of an environment whose name no other process has in its arguments."""
    (tmp_path / "task.py").write_text(
        "def tasks(split): return [(split, 'a')]\ndef reward(completion, answer): return 1\n"
    )
    tmp_path.chmod(0o755)
    name = f"env-{secrets.token_hex(6)}"
    return GraderSpec(tmp_path, ["--loader", "task", "--name", name, "grade"], MEMORY_BYTES, beside="attempt-1")


async def test_grader_answers_and_ends_with_its_requests(graders: LocalGraders, spec: GraderSpec) -> None:
    grader = graders.start(spec)
    ready = grader.exchange(bytearray(), 30.0)
    assert ready is not None and json.loads(ready)["ready"] is True
    assert grader.exchange(bytearray(), 0.0) is None
    requests = bytearray(b'{"id": 7, "taskId": "unknown", "completion": "x"}\n')
    answer = grader.exchange(requests, 30.0)
    assert answer is not None and json.loads(answer)["id"] == 7 and not requests
    grader.end_requests()
    assert (grader.exchange(bytearray(), 30.0), grader.wait(30.0)) == (b"", 0)
    grader.close()
    nothing_left_of(spec.arguments[3])


async def test_interrupted_grader_gives_no_more_results(graders: LocalGraders, spec: GraderSpec) -> None:
    grader = graders.start(spec)
    assert grader.wait(0.0) is None
    assert grader.exchange(bytearray(), 30.0)
    grader.interrupt()
    assert grader.exchange(bytearray(), 30.0) == b""
    assert grader.kill() == 137
    grader.close()


async def test_closed_graders_take_what_runs_along_and_start_nothing(graders: LocalGraders, spec: GraderSpec) -> None:
    grader = graders.start(spec)
    assert grader.exchange(bytearray(), 30.0)
    await graders.close()
    assert grader.exchange(bytearray(), 30.0) == b""
    nothing_left_of(spec.arguments[3])
    with pytest.raises(GraderNotStarted, match="the server is stopping"):
        graders.start(spec)
    grader.close()


async def test_machine_without_bubblewrap_says_that_no_grader_starts(
    graders: LocalGraders, spec: GraderSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GraderNotStarted, match="bubblewrap could not start"):
        graders.start(spec)
