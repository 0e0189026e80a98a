"""What a program says of itself with ``nodus.progress`` and ``nodus.checkpoint``, in real Jobs on a real server."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodus.server.datadir import holder
from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up
from nodus.testing.eventually import eventually
from tests.acceptance.commands import Run, command_line

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(120)]

REPORTS = """
import nodus, time
def wait(name):
    while not (nodus.state_dir() / name).exists():
        time.sleep(0.02)
assert nodus.self()["name"] == "reports"
nodus.log.phase("Loading")
nodus.progress(1, 4)
nodus.log.metrics(step=1, loss=0.5)
wait("go")
nodus.log.phase("Training")
nodus.progress(3)
nodus.log.metrics(step=2, loss=0.25)
wait("end")
nodus.progress(4)
"""

SAVES = """
import nodus, pathlib, time
kept = nodus.state_dir() / "steps"
if nodus.restored():
    print("restored at", kept.read_text(), flush=True)
    raise SystemExit
nodus.checkpoint.subscribe()
print("saved", nodus.checkpoint.commit()["seq"], flush=True)
for step in range(10**9):
    if nodus.checkpoint.requested():
        request = nodus.checkpoint.pending_request()
        time.sleep(0.5)
        kept.write_text("the request")
        nodus.checkpoint.ack(request)
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    data_dir = tmp_path_factory.mktemp("reports") / "data"
    yield up(UpOptions(data_dir=data_dir, port=0, detach=True, issue_key=True))
    down(DownOptions(data_dir=data_dir))


@pytest.fixture
def nodus(server: Started, tmp_path: Path) -> Run:
    return command_line(server, tmp_path)


def status(nodus: Run, name: str) -> dict[str, Any]:
    found = json.loads(nodus("get", f"job/{name}", "-o", "json"))["status"]
    return found if isinstance(found, dict) else {}


def start(nodus: Run, name: str, program: str) -> str:
    """Start a Job of a Python program; return its uid."""
    nodus("run", "-d", "--no-source", "--name", name, "--", "python3", "-c", program)
    eventually(lambda: status(nodus, name).get("phase") == "Running", every_s=0.2)
    return nodus("get", f"job/{name}", "-o", "jsonpath={.metadata.uid}").strip()


def test_progress_shows_and_nothing_is_lost_while_the_server_is_killed(server: Started, nodus: Run) -> None:
    state = server.data_dir / "jobs" / start(nodus, "reports", REPORTS) / "state"
    first = {"stage": "Loading", "units": {"completed": 1, "total": 4}, "metrics": {"loss": "0.5", "step": "1"}}
    eventually(lambda: status(nodus, "reports").get("progress") == first, every_s=0.2)
    assert "stage: Loading" in nodus("get", "job/reports", "-o", "yaml")
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: holder(server.data_dir) is None)
    (state / "go").touch()
    kept = server.data_dir / "attempts"
    eventually(lambda: any("0.25" in path.read_text() for path in kept.glob("*/progress.json")))
    again = up(UpOptions(data_dir=server.data_dir, port=int(server.url.rpartition(":")[2]), detach=True))
    assert again.url == server.url
    second = {"stage": "Training", "units": {"completed": 3, "total": 4}, "metrics": {"loss": "0.25", "step": "2"}}
    eventually(lambda: status(nodus, "reports").get("progress") == second, every_s=0.2)
    (state / "end").touch()
    nodus("wait", "job/reports", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=30s")
    assert status(nodus, "reports")["progress"]["units"] == {"completed": 4, "total": 4}


def test_suspended_run_saves_a_checkpoint_first_and_finds_it_when_it_is_resumed(nodus: Run) -> None:
    start(nodus, "saves", SAVES)
    eventually(lambda: "saved 1" in nodus("logs", "job/saves"), every_s=0.2)
    nodus("suspend", "job/saves")
    eventually(lambda: status(nodus, "saves").get("phase") == "Suspended", every_s=0.2)
    found = status(nodus, "saves")["checkpoint"]
    size = len("the request")
    assert (found["seq"], found["size"], found["trigger"], found["attempt"]) == (2, size, "Requested", "saves-1")
    assert "2 at" in nodus("describe", "job/saves")
    nodus("resume", "job/saves")
    nodus("wait", "job/saves", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=30s")
    assert nodus("logs", "job/saves") == "restored at the request\n"
    assert status(nodus, "saves")["checkpoint"]["restoredFromSeq"] == 2


def test_cancelled_run_does_not_wait_for_the_checkpoint_that_its_suspension_asked_for(nodus: Run) -> None:
    program = SAVES.replace("nodus.checkpoint.requested()", "False")
    start(nodus, "stubborn", program)
    eventually(lambda: "saved 1" in nodus("logs", "job/stubborn"), every_s=0.2)
    nodus("suspend", "job/stubborn")
    eventually(lambda: status(nodus, "stubborn").get("reason") == "Suspending", every_s=0.2)
    nodus("cancel", "job/stubborn")
    nodus("wait", "job/stubborn", "--for=jsonpath={.status.phase}=Cancelled", "--timeout=30s")
