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


FLOOD = """
import socket
_s = socket.socket(socket.AF_UNIX); _s.connect("/run/nodus/events.sock")
block = b"".join(b'{"type":"progress","completed":%d}\\n' % n for n in range(1000))
for n in range(1000): _s.sendall(block)
_s.sendall(b"x" * 3_000_000 + b"\\n" + b"[" * 60_000 + b"\\n")
_s.sendall(b'{"type":"progress","completed":7}\\n')
for n in range(300):
    other = socket.socket(socket.AF_UNIX); other.connect("/run/nodus/events.sock")
    try: other.sendall(b'{"type":"checkpoint.subscribe"}\\n{"type":"unit"')
    except OSError: pass
for n in range(1000): print("nodus.event " + '{"type":"unit","unitId":"u%d","ms":1}' % n)
print("done")
"""


def test_million_lines_fill_no_disk_hold_nobody_up_and_end_with_the_newest(members: Members) -> None:
    state = members.run("python3", "-c", FLOOD)
    assert (state.exit_code, "done" in members.output()) == (0, True)
    found = progress(members)
    assert found["units"] == {"completed": 7}
    assert found["ignored"]["oversized"] == 1
    assert found["ignored"]["dropped"] > 900_000
    directory = members.backend.directory("attempt-1").path
    assert (directory / "events.jsonl").stat().st_size < 1 << 20
    assert (directory / "progress.json").stat().st_size < 10_000


# Checkpoints --------------------------------------------------------------------------------------------------

KEPT = CheckpointPlan(("/nodus/state",), seq=4)
SUBSCRIBE = TELL + 'tell(type="checkpoint.subscribe")\n'
ANSWER = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: (print("terminated", flush=True), os._exit(5)))
print("ready", flush=True)
asked = json.loads(_s.makefile().readline())
print("asked", flush=True)
open("/nodus/state/weights", "w").write("12345")
"""
POST = """
import http.client, json, socket
def post(path, body=b""):
    c = http.client.HTTPConnection("localhost"); c.sock = socket.socket(socket.AF_UNIX)
    c.sock.connect("/run/nodus/api.sock"); c.request("POST", path, body); r = c.getresponse()
    found = json.loads(r.read()); print(r.status, found.get("reason"), found.get("seq"), found.get("path"), flush=True)
"""


def saves(members: Members, script: str, **more: object) -> None:
    state = members.data_dir / "state"
    given: dict[str, Any] = {"state_dir": str(state), "checkpoint": KEPT, **more}
    members.start("python3", "-c", script, **given)
    eventually(lambda: "ready" in members.output())
    # What was sent before the output was written is read by another thread.
    eventually(lambda: subscribed(members) or "ready, unsubscribed" in members.output())


def subscribed(members: Members) -> bool:
    """Whether the supervisor has read everything that was sent to it; events keep their order."""
    return bool(progress(members))


def test_stop_that_wants_a_checkpoint_waits_for_it(members: Members) -> None:
    answer = 'tell(type="checkpoint.ready", requestId=asked["requestId"]); time.sleep(60)'
    saves(members, SUBSCRIBE + 'tell(type="phase", name="x")\n' + ANSWER + answer)
    members.backend.stop_sync("attempt-1", "Suspended", None, 40)
    state = members.ended()
    assert (state.reason, members.output()) == ("Suspended", "ready\nasked\nterminated\n")
    found = members.backend.reported("attempt-1").checkpoint
    assert (found["seq"], found["size"], found["trigger"], found["count"]) == (5, 5, "Requested", 1)


@pytest.mark.parametrize(
    ("script", "wait_s", "reason", "code"),
    [
        (SUBSCRIBE + 'tell(type="phase", name="x")\n' + ANSWER + "time.sleep(60)", 0.5, "Suspended", 5),
        (SUBSCRIBE + 'tell(type="phase", name="x")\n' + ANSWER + "raise SystemExit(0)", 40, None, 0),
        (SUBSCRIBE + 'tell(type="phase", name="x")\n' + ANSWER + "_s.shutdown(2); time.sleep(60)", 40, "Suspended", 5),
        (TELL + "print('ready, unsubscribed', flush=True); import time; time.sleep(60)", 40, "Suspended", 143),
    ],
    ids=["no answer in time", "ended by itself", "hung up", "never subscribed"],
)
def test_stop_does_not_wait_for_what_does_not_come(
    members: Members, script: str, wait_s: float, reason: str | None, code: int
) -> None:
    saves(members, script)
    members.backend.stop_sync("attempt-1", "Suspended", None, wait_s)
    state = members.ended()
    assert (state.reason, state.exit_code) == (reason, code)
    assert members.backend.reported("attempt-1").checkpoint == {}


def test_cancellation_does_not_wait_for_the_checkpoint_of_a_suspension(members: Members) -> None:
    saves(members, SUBSCRIBE + 'tell(type="phase", name="x")\n' + ANSWER + "time.sleep(60)")
    members.backend.stop_sync("attempt-1", "Suspended", None, 1000)
    eventually(lambda: "asked" in members.output())
    members.backend.stop_sync("attempt-1", "Cancelled")
    assert members.ended().reason == "Cancelled"


def test_command_is_asked_at_its_interval(members: Members) -> None:
    plan = CheckpointPlan(("/nodus/state",), interval_s=0.2)
    loop = 'for n in range(2): tell(type="checkpoint.ready", requestId=json.loads(_f.readline())["requestId"])'
    script = SUBSCRIBE + '_f = _s.makefile(); tell(type="phase", name="x")\nprint("ready", flush=True)\n' + loop
    saves(members, script, checkpoint=plan)
    assert members.ended().exit_code == 0
    eventually(lambda: members.backend.reported("attempt-1").checkpoint.get("seq") == 2)


def test_program_saves_a_checkpoint_by_itself(members: Members) -> None:
    script = (
        POST
        + """
post("/_nodus/v1/checkpoints/prepare")
post("/_nodus/v1/checkpoints", b"{}")
post("/_nodus/v1/checkpoints")
post("/_nodus/v1/checkpoints", b'{"requestId": "nobody-asked"}')
post("/_nodus/v1/checkpoints", b'{"requestId": 7}')
post("/_nodus/v1/checkpoints", b"[")
for n in range(30): post("/_nodus/v1/checkpoints")
"""
    )
    members.run("python3", "-c", script, state_dir=str(members.data_dir / "state"), checkpoint=KEPT)
    lines = members.output().splitlines()
    assert lines[:6] == [
        "200 None 5 /nodus/state",
        "201 None 5 None",
        "201 None 6 None",
        "409 Conflict None None",
        "422 Invalid None None",
        "400 BadRequest None None",
    ]
    assert lines[-1].startswith("429 TooManyRequests")
    found = members.backend.reported("attempt-1").checkpoint
    assert (found["trigger"], found["count"]) == ("Program", found["seq"] - 4)


def test_run_that_keeps_nothing_has_no_checkpoints(members: Members) -> None:
    members.run("python3", "-c", POST + 'post("/_nodus/v1/checkpoints")')
    assert members.output() == "422 Unsupported None None\n"
