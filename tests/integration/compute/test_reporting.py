"""What a command reports and is asked for through its sockets, with real supervisors and real sandboxes."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from nodus.server.compute.base import CheckpointPlan
from nodus.testing.eventually import eventually

from .conftest import Members

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(60)]

TELL = """
import json, socket
_s = socket.socket(socket.AF_UNIX); _s.connect("/run/nodus/events.sock")
def tell(**event): _s.sendall(json.dumps(event).encode() + b"\\n")
"""


def progress(members: Members, key: str = "attempt-1") -> dict[str, Any]:
    return dict(members.backend.reported(key).progress)


def test_what_a_command_reports_is_known_while_it_runs_and_after_its_supervisor_was_killed(members: Members) -> None:
    script = TELL + (
        'tell(id="1", type="phase", name="Warming"); tell(id="2", type="progress", completed=3, total=10)\n'
        'tell(id="3", type="metrics", step=7, loss=0.25); tell(id="2", type="progress", completed=1)\n'
        'tell(type="nonsense"); _s.sendall(b"no json\\n"); import time; time.sleep(60)'
    )
    members.start("python3", "-c", script)
    told = {
        "stage": "Warming",
        "units": {"completed": 3, "total": 10},
        "metrics": {"loss": "0.25", "step": "7"},
        "ignored": {"malformed": 2},
    }
    eventually(lambda: progress(members) == told)
    os.kill(members.supervisor(), signal.SIGKILL)
    members.ended()
    assert progress(members) == told
    history = (members.backend.directory("attempt-1").path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["type"] for line in history] == ["phase", "progress", "metrics"]


def test_output_lines_are_events_where_there_is_no_socket(members: Members) -> None:
    state = members.script("""
        echo 'nodus.event {"type":"progress","completed":1}'
        printf 'nodus.event {"type":"prog'; sleep 0.1; printf 'ress","completed":2,"total":4}\\n'
        echo 'not nodus.event {"type":"progress","completed":9}'
    """)
    assert (state.exit_code, progress(members)) == (0, {"units": {"completed": 2, "total": 4}})
    assert members.output().count("nodus.event") == 3
