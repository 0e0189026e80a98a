"""A pool over graders of any backend: all it needs is the protocol, and it places them beside who submits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nodus.core.clock import FakeClock
from nodus.server.compute.graders import GraderIsolation, GraderNotStarted, GraderSpec
from nodus.server.grading import Completion, ResolvedEnvironment
from nodus.server.grading.pool import GraderPool
from nodus.server.grading.runner import RunnerFailed, Runners, run_once

ENVIRONMENT = ResolvedEnvironment("words", "1.2.3", "sha256:0", "my_task", Path("/environments/words"))


class FakeGrader:
    """A grader in this process: every completion is correct."""

    argv = ("nodus-env",)
    isolation = "fake"

    def __init__(self, spec: GraderSpec, results: list[bytes]) -> None:
        self.spec = spec
        self.results = results
        self.ended = self.closed = False

    def exchange(self, requests: bytearray, timeout_s: float) -> bytes | None:
        if self.ended:
            return b""
        for line in requests.splitlines():
            asked = json.loads(line)
            verdict = {"id": asked["id"], "taskId": asked["taskId"], "verdict": "Correct", "reward": 1.0}
            self.results.append(json.dumps(verdict).encode() + b"\n")
        requests.clear()
        return self.results.pop(0) if self.results else None

    def end_requests(self) -> None:
        self.results.append(b"")

    def wait(self, timeout_s: float) -> int | None:
        return None if self.spec.directory is None else 0

    def kill(self) -> int:
        self.ended = True
        return 137

    def interrupt(self) -> None:
        self.ended = True

    def oom_kills(self) -> int:
        return 0

    def log_tail(self) -> str:
        return "the end of \0 its log"

    def close(self) -> None:
        self.kill()
        self.closed = True


class FakeHost:
    """Starts graders in this process; `refuses` says why it does not."""

    def __init__(self, results: bytes = b'{"ready": true}\n') -> None:
        self.results = results
        self.started: list[FakeGrader] = []
        self.refuses: str | None = None

    async def sweep(self) -> None: ...

    async def isolation(self) -> GraderIsolation:
        return GraderIsolation()

    def python(self, version: str | None = None) -> str | None:
        return None

    def start(self, spec: GraderSpec) -> FakeGrader:
        if self.refuses:
            raise GraderNotStarted(self.refuses)
        self.started.append(FakeGrader(spec, [self.results]))
        return self.started[-1]

    async def close(self) -> None: ...


def _items(count: int) -> list[Completion]:
    return [Completion(f"task-{number}", 0, "x") for number in range(count)]


async def test_graders_are_started_as_the_environment_says() -> None:
    host = FakeHost()
    pool = GraderPool(Runners(host, ENVIRONMENT, unsafe=True), FakeClock())
    (verdict,) = await pool.grade(_items(1), 1, beside="attempt-1")
    await pool.close()
    arguments = ["--loader", "my_task", "--name", "words", "--version", "1.2.3", "grade", "--timeout", "10"]
    expected = GraderSpec(ENVIRONMENT.directory, arguments, ENVIRONMENT.memory_bytes, "attempt-1", unsafe=True)
    assert [grader.spec for grader in host.started] == [expected]
    assert (verdict.verdict, verdict.evidence["isolation"]) == ("Correct", "fake")


async def test_graders_follow_the_attempt_to_its_host() -> None:
    host = FakeHost()
    pool = GraderPool(Runners(host, ENVIRONMENT), FakeClock())
    for beside in ("attempt-1", "attempt-1", "attempt-2"):
        assert len(await pool.grade(_items(8), 2, beside)) == 8
    assert pool.graders <= 2
    places = [grader.spec.beside for grader in host.started]
    assert places == sorted(places) and set(places) == {"attempt-1", "attempt-2"}
    assert len(places) <= 4, "a second batch of the same attempt goes to the graders that are there"
    await pool.close()
    assert all(grader.closed for grader in host.started), "those of the attempt before are waited for too"


async def test_host_that_starts_no_grader_is_a_failure_and_not_a_reward() -> None:
    host = FakeHost()
    host.refuses = "the job's host is gone"
    pool = GraderPool(Runners(host, ENVIRONMENT), FakeClock())
    (verdict,) = await pool.grade(_items(1), 1)
    await pool.close()
    assert (verdict.verdict, verdict.reward) == ("InfrastructureFailure", None)
    assert verdict.reason == "the job's host is gone"
    assert verdict.evidence["process"][-3:] == ["grade", "--timeout", "10"]


async def test_one_command_gives_its_lines_and_leaves_nothing() -> None:
    host = FakeHost(b'{"taskId": "a"}\n{"taskId": "b"}\n')
    lines = await run_once(Runners(host, ENVIRONMENT), ["tasks", "--split", "test"], 5.0, 1000)
    assert lines == [{"taskId": "a"}, {"taskId": "b"}]
    (grader,) = host.started
    assert grader.closed and grader.spec.beside is None
    assert list(grader.spec.arguments)[-3:] == ["tasks", "--split", "test"]


async def test_command_that_ends_its_results_and_goes_on_is_stopped_in_time() -> None:
    host = FakeHost(b"{}\n")
    catalog = ResolvedEnvironment("words", "1.2.3", "sha256:0", "my_task")  # the fake's never end
    with pytest.raises(RunnerFailed, match="took longer than 5 s") as caught:
        await run_once(Runners(host, catalog), ["tasks"], 5.0, 1000)
    assert "its log" in caught.value.trace and "\0" not in caught.value.trace
    assert host.started[0].closed
