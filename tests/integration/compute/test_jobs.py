"""Jobs from object to output, with real controllers, supervisors and sandboxes, and with servers that are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodus.core.clock import SystemClock
from nodus.core.kinds import ATTEMPT, JOB
from nodus.server.compute.local import logstore
from nodus.server.compute.local.attemptdir import AttemptDir
from nodus.server.store import Object, Store, objects
from nodus.testing.eventually import eventually

from .conftest import processes_with

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]
ROOT = Path(__file__).resolve().parents[3]


class Server:
    """A data directory, with a server process on it that can be killed, and a store of the test's own."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        data_dir.mkdir()
        self.store = Store.open(f"sqlite:///{data_dir / 'nodus.db'}", SystemClock(), data_dir=data_dir, sync=False)
        self.process: subprocess.Popen[str] | None = None

    def up(self) -> None:
        command = [sys.executable, "-m", "tests.integration.compute.server_process", str(self.data_dir)]
        log = (self.data_dir / "server.log").open("a")
        with log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", (self.data_dir / "server.log").read_text()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def add(self, name: str, *command: str, **spec: Any) -> Object:
        spec = {"command": list(command), "image": "nodus/base", "resources": {"memory": "256Mi"}, **spec}
        return self.store.write_sync(objects.create, JOB, "default", name, spec, status={"phase": "Queued"})

    def get(self, obj: Object) -> Object:
        return self.store.read_sync(objects.get_by_uid, obj.uid)

    def set_state(self, job: Object, state: str) -> None:
        now = self.get(job)
        self.store.write_sync(objects.update, now, spec={**now.spec, "state": state})

    def in_phase(self, job: Object, *phases: str, timeout_s: float = 30) -> Object:
        eventually(lambda: self.get(job).status.get("phase") in phases, timeout_s=timeout_s)
        return self.get(job)

    def attempts(self, job: Object) -> list[Object]:
        found = self.store.read_sync(objects.list_, ATTEMPT, None, labels={"nodus.dev/job": job.name}).items
        return sorted(found, key=lambda attempt: int(attempt.spec["epoch"]))

    def directory(self, attempt: Object) -> AttemptDir:
        return AttemptDir(self.data_dir / "attempts" / attempt.uid)

    def log(self, attempt: Object) -> str:
        return b"".join(p.data for p in logstore.read_pieces(self.directory(attempt).log)).decode()

    def supervisor(self, attempt: Object) -> int:
        eventually(lambda: (self.directory(attempt).read_status() or {}).get("phase") == "Running")
        return int((self.directory(attempt).read_status() or {})["supervisor"])

    def close(self) -> None:
        self.kill()
        for entry in (self.data_dir / "attempts").glob("*/"):
            attempt = AttemptDir(entry)
            if attempt.alive():
                os.kill(int((attempt.read_status() or {})["supervisor"]), signal.SIGKILL)
        self.store.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "data")
    made.up()
    yield made
    made.close()


def test_job_runs_and_leaves_its_outputs(server: Server) -> None:
    job = server.add("hello", "sh", "-c", "echo hello; echo result > /nodus/outputs/results.json")
    done = server.in_phase(job, "Succeeded", "Failed")
    [attempt] = server.attempts(job)
    assert done.status["phase"] == "Succeeded"
    assert [(item["name"], item["size"]) for item in done.status["outputs"]] == [("results.json", 7)]
    assert server.store.blobs.read_bytes(done.status["outputs"][0]["sha256"]) == b"result\n"
    assert server.log(attempt) == "hello\n"
    assert attempt.status["timings"]["commandStartedTime"] <= done.status["completionTime"]


def test_failing_job_is_tried_again_with_its_state_and_then_fails(server: Server) -> None:
    job = server.add("fails", "sh", "-c", "echo x >> /nodus/state/n; wc -l < /nodus/state/n; exit 7", backoffLimit=2)
    done = server.in_phase(job, "Succeeded", "Failed")
    attempts = server.attempts(job)
    assert (done.status["reason"], done.status["exitCode"]) == ("BackoffLimitExceeded", 7)
    assert done.status["attempts"] == {"current": 3, "max": 3, "total": 3}
    assert [(a.status["phase"], a.status["exitCode"], server.log(a)) for a in attempts] == [
        ("Failed", 7, "1\n"),
        ("Failed", 7, "2\n"),
        ("Failed", 7, "3\n"),
    ]


def test_server_killed_while_a_job_runs_goes_on_where_it_was(server: Server) -> None:
    wait = "echo start >> /nodus/outputs/count; while [ ! -e /nodus/state/go ]; do sleep 0.05; done; exit 4"
    job = server.add("long", "sh", "-c", wait)
    server.in_phase(job, "Running")
    [attempt] = server.attempts(job)
    pid = server.supervisor(attempt)
    server.kill()
    assert server.directory(attempt).alive()
    server.up()
    server.in_phase(job, "Running")
    assert server.supervisor(attempt) == pid
    (server.data_dir / "jobs" / job.uid / "state" / "go").touch()
    done = server.in_phase(job, "Succeeded", "Failed")
    assert (done.status["exitCode"], len(server.attempts(job))) == (4, 1)
    assert (server.directory(attempt).outputs / "count").read_text() == "start\n"


def test_job_that_ended_while_no_server_ran_is_found_ended(server: Server) -> None:
    job = server.add(
        "short", "sh", "-c", "while [ ! -e /nodus/state/go ]; do sleep 0.05; done; echo r > /nodus/outputs/r"
    )
    server.in_phase(job, "Running")
    [attempt] = server.attempts(job)
    server.kill()
    (server.data_dir / "jobs" / job.uid / "state" / "go").touch()
    eventually(lambda: not server.directory(attempt).alive())
    server.up()
    done = server.in_phase(job, "Succeeded", "Failed")
    assert (done.status["phase"], [item["name"] for item in done.status["outputs"]]) == ("Succeeded", ["r"])


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.03, 0.06, 0.1])
def test_server_killed_at_a_moment_of_the_start_runs_the_command_once(server: Server, after_s: float) -> None:
    job = server.add("once", "sh", "-c", "echo ran >> /nodus/state/count; sleep 0.3")
    with contextlib.suppress(subprocess.TimeoutExpired):
        # Not a wait for something: the moment of the kill is what the test varies.
        server.process.wait(after_s or 0.001)  # type: ignore[union-attr]
    server.kill()
    server.up()
    done = server.in_phase(job, "Succeeded", "Failed")
    assert (done.status["phase"], len(server.attempts(job))) == ("Succeeded", 1)
    assert (server.data_dir / "jobs" / job.uid / "state" / "count").read_text() == "ran\n"


def test_supervisor_killed_makes_a_new_attempt_with_the_same_state(server: Server) -> None:
    job = server.add("lost", "sh", "-c", "echo x >> /nodus/state/n; [ $(wc -l < /nodus/state/n) = 2 ] || sleep 60")
    server.in_phase(job, "Running")
    eventually((server.data_dir / "jobs" / job.uid / "state" / "n").exists)
    os.kill(server.supervisor(server.attempts(job)[0]), signal.SIGKILL)
    done = server.in_phase(job, "Succeeded", "Failed")
    assert [a.status["phase"] for a in server.attempts(job)] == ["Lost", "Succeeded"]
    assert done.status["phase"] == "Succeeded"


def test_job_suspends_resumes_and_cancels(server: Server) -> None:
    job = server.add("pause", "sh", "-c", "echo x >> /nodus/state/n; exec sleep 77123")
    server.in_phase(job, "Running")
    server.set_state(job, "Suspended")
    server.in_phase(job, "Suspended")
    assert processes_with("77123") == []
    server.set_state(job, "Running")
    server.in_phase(job, "Running")
    server.set_state(job, "Cancelled")
    done = server.in_phase(job, "Cancelled")
    assert [(a.status["phase"], a.status["reason"]) for a in server.attempts(job)] == [
        ("Cancelled", "Suspended"),
        ("Cancelled", "Cancelled"),
    ]
    assert (done.status["reason"], processes_with("77123")) == ("Cancelled", [])


def test_timeout_and_memory_have_their_own_reasons(server: Server) -> None:
    slow = server.add("slow", "sleep", "60", timeout="1s", backoffLimit=3)
    big = server.add("big", "python", "-c", "x = [bytes(10**6) for _ in range(10**6)]", resources={"memory": "64Mi"})
    assert server.in_phase(slow, "Failed").status["reason"] == "DeadlineExceeded"
    assert server.in_phase(big, "Failed").status["reason"] == "OOMKilled"
    assert len(server.attempts(slow)) == 1


def test_deterministic_failure_is_not_tried_again(server: Server) -> None:
    message = '{"reason": "StateMismatch", "message": "not mine", "fix": "Delete it.", "retryable": false}'
    script = f"echo '{message}' > /nodus/termination/message.json; exit 1"
    job = server.add("mismatch", "sh", "-c", script, backoffLimit=5)
    status = server.in_phase(job, "Failed").status
    assert (status["reason"], status["message"], status["fix"]) == ("StateMismatch", "not mine", "Delete it.")
    assert len(server.attempts(job)) == 1


def test_jobs_that_need_the_whole_machine_run_one_after_another(server: Server) -> None:
    cpus = len(os.sched_getaffinity(0))
    names = ("first", "second", "third")
    jobs = [
        server.add(name, "sh", "-c", "date +%s.%N; sleep 0.2; date +%s.%N", resources={"cpu": cpus}) for name in names
    ]
    times = []
    for job in jobs:
        server.in_phase(job, "Succeeded")
        times.append([float(line) for line in server.log(server.attempts(job)[0]).split()])
    assert times[0][1] <= times[1][0] and times[1][1] <= times[2][0]


def test_job_that_asks_for_too_much_says_why_and_holds_up_nobody(server: Server) -> None:
    huge = server.add("huge", "true", resources={"cpu": 4096})
    small = server.add("small", "true")
    server.in_phase(small, "Succeeded")
    status = eventually(lambda: (s := server.get(huge).status).get("message") and s)
    assert (status["phase"], status["reason"]) == ("Queued", "Unschedulable")
    assert "4096 CPUs" in status["message"]


def test_deleted_job_leaves_no_process_and_no_files(server: Server) -> None:
    job = server.add("gone", "sleep", "88123")
    server.in_phase(job, "Running")
    [attempt] = server.attempts(job)
    server.store.write_sync(objects.delete, server.get(job))
    eventually(lambda: processes_with("88123") == [])
    eventually(lambda: not server.directory(attempt).path.exists())
    eventually(lambda: not (server.data_dir / "jobs" / job.uid).exists())


def test_server_killed_again_and_again_runs_every_command_once(server: Server) -> None:
    jobs = [server.add(f"job-{n}", "sh", "-c", "echo ran >> /nodus/state/n; sleep 0.2") for n in range(12)]
    for after_s in (0.05, 0.15, 0.4, 0.1, 0.25):
        with contextlib.suppress(subprocess.TimeoutExpired):
            # Not a wait for something: the moment of the kill is what the test varies.
            server.process.wait(after_s)  # type: ignore[union-attr]
        server.kill()
        server.up()
    for job in jobs:
        assert server.in_phase(job, "Succeeded", "Failed").status["phase"] == "Succeeded"
        assert (server.data_dir / "jobs" / job.uid / "state" / "n").read_text() == "ran\n"
        assert len(server.attempts(job)) == 1
