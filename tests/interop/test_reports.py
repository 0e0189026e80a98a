"""The published client's helpers inside of a run, unmodified, against the sockets of our supervisor."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodus.server.compute.local.attemptdir import AttemptDir
from nodus.server.compute.local.reported import read_reported
from nodus.server.compute.local.reporting import Reporting
from nodus.testing.eventually import eventually
from tests.interop.conftest import Desk

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

REPORTS = """
    import nodus
    from nodus import checkpoint, log
    log.phase("Warm")
    nodus.progress(3, 10)
    nodus.progress(4)
    log.metrics(step=1, loss=0.4, nan=float("nan"))
    log.task_started("eval", "t1")
    log.task("eval", "t1", outcome="Passed", reward=0.5, trace={"a": 1})
    log.unit("u1", 12.5)
"""
SAVES = """
    import time
    from nodus import checkpoint
    checkpoint.subscribe()
    while not checkpoint.requested():
        time.sleep(0.01)
    checkpoint.ack(checkpoint.pending_request())
    print("answered", checkpoint.requested())
"""


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    found = AttemptDir(tmp_path / "attempt")
    found.run.mkdir(parents=True)
    (tmp_path / "state").mkdir()
    return found


@pytest.fixture
def reporting(attempt: AttemptDir, tmp_path: Path) -> Iterator[Reporting]:
    mounts = [{"host": str(tmp_path / "state"), "path": "/nodus/state", "readonly": False}]
    made = Reporting(attempt, {"checkpoint": {"paths": ["/nodus/state"]}, "mounts": mounts})
    made.start()
    yield made
    made.close()


def inside(desk: Desk, attempt: AttemptDir) -> Desk:
    """A program's surroundings in a run of ours."""
    given = {"NODUS_ATTEMPT": "job-1", "NODUS_EVENTS_SOCKET": str(attempt.run / "events.sock")}
    return Desk(desk.bin, desk.home, "", "", given)


def test_reports_of_the_published_helpers_are_taken(desk: Desk, attempt: AttemptDir, reporting: Reporting) -> None:
    inside(desk, attempt).python(REPORTS)
    told: dict[str, Any] = {
        "stage": "Warm",
        "units": {"completed": 4, "total": 10},
        "metrics": {"loss": "0.4", "step": "1"},
        "tasks": {"started": 1, "completed": 1, "passed": 1},
    }
    eventually(lambda: read_reported(attempt.path).progress == told)


def test_lines_that_they_print_without_a_socket_are_taken(
    desk: Desk, attempt: AttemptDir, reporting: Reporting
) -> None:
    user = inside(desk, attempt)
    user.variables["NODUS_EVENTS_SOCKET"] = "/nonexistent"
    reporting.output(user.python(REPORTS).encode())
    assert read_reported(attempt.path).progress["units"] == {"completed": 4, "total": 10}


def test_they_answer_a_request_for_a_checkpoint(desk: Desk, attempt: AttemptDir, reporting: Reporting) -> None:
    said: list[str] = []
    program = threading.Thread(target=lambda: said.append(inside(desk, attempt).python(SAVES)))
    program.start()
    ask = eventually(reporting.ask)
    assert ask is not None
    eventually(lambda: ask.settled)
    program.join()
    assert (ask.state, said) == ("Ready", ["answered False\n"])
    assert read_reported(attempt.path).checkpoint["seq"] == 1
