"""The command that a Torchrun runtime compiles to, in a real sandbox: how it ends, what it prints, what it leaves."""

from __future__ import annotations

import os
import signal

import pytest

from nodus.server.training.compile import RuntimePin, compile_job
from nodus.server.training.resources import Chosen
from nodus.testing.eventually import eventually
from tests.integration.compute.conftest import MIB, Members, processes_with
from tests.integration.compute.test_members import mark

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

MEMORY = 1024 * MIB
MESSAGE = '{"reason": "GraderFailed", "message": "no grader", "retryable": false}'


def command(*worker: str, processes: int = 0) -> list[str]:
    """What a Torchrun runtime with this command is started by, on a machine with so many GPUs."""
    spec = {"task": "GRPO", "image": "nodus/base", "launcher": "Torchrun", "command": list(worker)}
    compiled = compile_job(
        name="run",
        project="default",
        spec={},
        runtime=RuntimePin("acme/own", spec, "sha256:0"),
        environment=None,
        model=None,
        chosen=Chosen({}, processes, None),
    )
    return list(compiled.job["command"])


@pytest.mark.parametrize(
    ("ending", "code", "signal_number"),
    [("exit 0", 0, None), ("exit 2", 2, None), ("kill -9 $$", 137, 9), ("kill -11 $$", 139, 11)],
)
def test_ends_as_its_worker_ended_and_prints_nothing_of_its_own(
    members: Members, ending: str, code: int, signal_number: int | None
) -> None:
    script = f"echo to stdout; echo to stderr >&2; echo '{MESSAGE}' > /nodus/termination/message.json; {ending}"
    state = members.run(*command("sh", "-c", script), memory_bytes=MEMORY)
    assert members.output() == "to stdout\nto stderr\n"
    assert (state.exit_code, state.signal) == (code, signal_number)
    assert (state.reason, state.message, state.retryable) == ("GraderFailed", "no grader", False) or code == 0


def test_stop_reaches_the_worker_which_has_its_grace(members: Members) -> None:
    script = "trap 'echo saved > /nodus/outputs/saved; exit 0' TERM; echo > /nodus/outputs/ready; while :; do :; done"
    attempt = members.start(*command("sh", "-c", script), memory_bytes=MEMORY)
    eventually(lambda: (attempt.outputs / "ready").exists(), timeout_s=30)
    members.backend.stop_sync("attempt-1", "Cancelled")
    state = members.ended()
    assert (state.reason, state.exit_code) == ("Cancelled", 128 + signal.SIGTERM)
    assert (attempt.outputs / "saved").read_text() == "saved\n"
    assert members.output() == ""


def test_missing_command_says_so(members: Members) -> None:
    state = members.run(*command("no-such-program"), memory_bytes=MEMORY)
    assert (state.exit_code, members.output()) == (127, "no-such-program: No such file or directory\n")


@pytest.mark.parametrize("victim", ["launcher", "worker"])
def test_launcher_or_worker_killed_ends_the_member_and_leaves_no_process(members: Members, victim: str) -> None:
    sleep = mark()
    members.start(*command("sleep", sleep), memory_bytes=MEMORY)
    worker = eventually(lambda: [pid for pid in processes_with(sleep) if _arguments(pid)[0] == "sleep"], timeout_s=30)
    launcher = [pid for pid in processes_with(sleep) if _arguments(pid)[0] == "python"]
    assert (len(worker), len(launcher)) == (1, 1)
    os.kill((launcher if victim == "launcher" else worker)[0], signal.SIGKILL)
    state = members.ended()
    assert (state.exit_code, state.signal) == (128 + signal.SIGKILL, signal.SIGKILL)
    assert processes_with(sleep) == []


def test_several_workers_find_each_other_over_loopback(members: Members) -> None:
    script = (
        "import os, datetime, torch.distributed as d\n"
        "store = d.TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), is_master=False,\n"
        "                   timeout=datetime.timedelta(seconds=30))\n"
        "store.set(os.environ['RANK'], 'here')\n"
        "print(store.get(str(1 - int(os.environ['RANK']))).decode(), os.environ['WORLD_SIZE'])\n"
        "raise SystemExit(5 if os.environ['RANK'] == '1' else 0)"
    )
    state = members.run(*command("python", "-c", script, processes=2), memory_bytes=2 * MEMORY)
    assert members.output().splitlines() == ["here 2", "here 2", "nodus.trainer: the process of rank 1 failed first"]
    assert state.exit_code == 5


def _arguments(pid: int) -> list[str]:
    with open(f"/proc/{pid}/cmdline") as file:
        return file.read().split("\0")
