"""A member runs for as long as it is funded, with everything it started, and not a moment longer."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from nodus.server.compute.base import MemberState
from nodus.server.compute.local.attemptdir import AttemptDir, write_json
from nodus.testing.eventually import eventually
from tests.integration.compute.conftest import Members

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(60)]

# A tree of writers, one of them in a session of its own and one that starts further processes all the time.
BUSY = """
setsid sh -c 'while :; do echo a >> /nodus/outputs/a; sleep 0.01; done' &
while :; do (echo b >> /nodus/outputs/b); sleep 0.01; done &
trap 'echo term > /nodus/outputs/term; exit 3' TERM
while :; do echo c >> /nodus/outputs/c; sleep 0.01; done
"""

# Its first thread ends alone: the process looks like one that has ended.
THREADS = """
import ctypes, threading, time
def write():
    while True:
        with open("/nodus/outputs/t", "a") as file:
            file.write("t")
        time.sleep(0.01)
threading.Thread(target=write).start()
ctypes.CDLL(None).syscall(ctypes.c_long(60), ctypes.c_long(0))
"""


def fund(members: Members, seconds: float, key: str = "attempt-1") -> None:
    asyncio.run(members.backend.fund(key, seconds=seconds, rate=1, item="compute/local-cpu"))


def sizes(attempt: AttemptDir) -> list[int]:
    return [path.stat().st_size for path in sorted(Path(attempt.outputs).iterdir())]


def paused(members: Members) -> MemberState | None:
    state = members.backend.read_state("attempt-1")
    return state if "pausedAt" in state.times else None


def test_everything_stops_where_the_money_ends_and_goes_on_with_more(members: Members) -> None:
    fund(members, 0.5)
    attempt = members.start("sh", "-c", BUSY)
    state = eventually(lambda: paused(members))
    assert state is not None and state.funded_s == 0.5
    before = eventually(lambda: found if (found := sizes(attempt)) == _later(attempt) else None)
    assert len(before) == 3
    fund(members, 1.5)
    eventually(lambda: all(now > then for now, then in zip(sizes(attempt), before, strict=True)))
    eventually(lambda: paused(members) is None)
    eventually(lambda: paused(members))
    members.backend.stop_sync("attempt-1", "Cancelled", 0.5)
    ended = members.ended()
    assert 1.5 <= ended.times["ran"] < 3.0
    assert ended.times["ran"] + ended.times["paused"] == pytest.approx(
        ended.times["finished"] - ended.times["started"], abs=0.2
    )


def test_what_is_paused_hears_that_it_is_to_end(members: Members) -> None:
    fund(members, 0.2)
    attempt = members.start("sh", "-c", BUSY)
    eventually(lambda: paused(members))
    members.backend.stop_sync("attempt-1", "MaxCostReached")
    ended = members.ended()
    assert (ended.phase, ended.reason) == ("Exited", "MaxCostReached")
    assert (Path(attempt.outputs) / "term").exists()


def test_the_time_that_a_member_ran_is_read_from_a_clock_that_nobody_sets(members: Members) -> None:
    fund(members, 0.5)
    attempt = members.start("sh", "-c", BUSY)
    first = eventually(lambda: members.backend.read_state("attempt-1").times.get("ran"))
    assert first is not None
    # As if the machine's clock had been set back an hour since its start.
    status = attempt.read_status()
    assert status is not None
    status["times"] |= {name: moment + 3600 for name, moment in status["times"].items() if name != "paused"}
    write_json(attempt.status, status)
    assert first < members.backend.read_state("attempt-1").times["ran"] < first + 30
    state = eventually(lambda: paused(members))
    assert state is not None and state.times["ran"] == pytest.approx(0.5, abs=0.3)
    members.backend.stop_sync("attempt-1", "Deleted", 0)
    members.ended()


def test_threads_that_outlived_the_first_stop_too(members: Members) -> None:
    fund(members, 0.5)
    attempt = members.start("python3", "-c", THREADS)
    eventually(lambda: paused(members))
    before = eventually(lambda: found if (found := sizes(attempt)) == _later(attempt) and found else None)
    assert len(before) == 1
    members.backend.stop_sync("attempt-1", "Deleted", 0)
    members.ended()


def test_a_member_without_funding_is_never_paused_and_a_paused_one_can_be_killed(members: Members) -> None:
    state = members.run("sh", "-c", "sleep 0.3")
    assert (state.exit_code, state.funded_s) == (0, None)
    assert state.times["ran"] >= 0.3
    fund(members, 0.1, key="attempt-2")
    members.start("sh", "-c", BUSY, key="attempt-2")
    eventually(lambda: "pausedAt" in members.backend.read_state("attempt-2").times)
    members.backend.stop_sync("attempt-2", "Deleted", 0)
    members.ended("attempt-2")


def _later(attempt: AttemptDir) -> list[int]:
    """Sizes after several turns of the writers' loops."""
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        pass
    return sizes(attempt)
