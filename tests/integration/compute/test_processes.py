"""Processes and files inside a member that hosts them: a real supervisor, a real sandbox, hostile commands."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodus.core.errors import (
    Conflict,
    FileTooLarge,
    Forbidden,
    Invalid,
    NodusError,
    NotFound,
    SandboxNotRunning,
    SHA256Mismatch,
    TooManyRequests,
)
from nodus.core.errors import StdinBackpressure as Backpressure
from nodus.server.compute.local import processhost, sandboxfiles
from nodus.server.compute.local.processclient import LocalProcesses
from nodus.server.compute.processes import OutputPiece, ProcessSpec, ProcessState
from nodus.testing.eventually import eventually
from tests.integration.compute.conftest import Members, processes_with

pytestmark = pytest.mark.sandbox
MIB = 1 << 20


class Box:
    """A running member with processes, and what a test does in it."""

    def __init__(self, members: Members, key: str = "attempt-1") -> None:
        self.members = members
        self.key = key
        self.workspace = members.backend.workspace_directory("sandbox-1")
        self.count = 0

    @property
    def processes(self) -> LocalProcesses:
        return self.members.backend.processes

    def start(self, *command: str, key: str | None = None, **more: Any) -> None:
        key = key or self.key
        given = {"processes": True, "workspace_dir": str(self.workspace), "grace_s": 2.0, **more}
        self.members.start(*command, key=key, **given)
        self.members.running(key)

    async def exec(self, *command: str, **more: Any) -> str:
        self.count += 1
        key = f"process-{self.count}"
        await self.processes.exec(self.key, ProcessSpec(key, command, **more))
        return key

    async def sh(self, script: str, **more: Any) -> tuple[ProcessState, list[OutputPiece]]:
        return await self.end(await self.exec("sh", "-c", script, **more))

    async def end(self, key: str) -> tuple[ProcessState, list[OutputPiece]]:
        """Read a process to its end."""
        pieces: list[OutputPiece] = []
        after = 0
        async with asyncio.timeout(30):
            while True:
                ended = await self.processes.wait(self.key, key, after, 10)
                while found := await self.processes.read(self.key, key, after):
                    pieces += found
                    after = found[-1].end
                if ended:
                    return await self.processes.state(self.key, key), pieces

    async def put(self, path: str, data: bytes, **more: Any) -> tuple[int, str]:
        async def content() -> AsyncIterator[bytes]:
            yield data

        return await self.processes.put_file(self.key, path, content(), **{"limit_bytes": 64 * MIB, **more})

    async def get(self, path: str) -> bytes:
        file = await self.processes.open_file(self.key, path)
        try:
            return b"".join([block async for block in file.blocks()])
        finally:
            await file.close()

    async def names(self, path: str) -> list[tuple[str, str]]:
        file = await self.processes.open_file(self.key, path)
        try:
            assert file.is_directory
            return [(entry.name, entry.type) async for entry in file.entries()]
        finally:
            await file.close()


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """One that all tests share which leave it running."""
    members = Members(tmp_path_factory.mktemp("box") / "data")
    made = Box(members, "attempt-shared")
    made.start()
    yield made
    members.close()


@pytest.fixture
def own(members: Members) -> Box:
    """One of the test's own."""
    made = Box(members)
    made.start()
    return made


def text(pieces: list[OutputPiece], stream: str | None = None) -> str:
    return b"".join(piece.data for piece in pieces if stream in (None, piece.stream)).decode()


# Commands ---------------------------------------------------------------------------------------------------------


async def test_command_runs_as_the_sandbox_and_tells_its_streams_and_exit_code(box: Box) -> None:
    state, pieces = await box.sh("id -u; pwd; echo oops >&2; echo again; exit 3", env={"A": "b"})
    assert (state.phase, state.exit_code, state.reason) == ("Exited", 3, None)
    assert text(pieces, "stdout") == "10001\n/workspace\nagain\n"
    assert text(pieces, "stderr") == "oops\n"
    assert [piece.offset for piece in pieces] == sorted(piece.offset for piece in pieces)
    assert (await box.sh('echo "$A" "$HOME"', env={"A": "b"}))[1][0].data == b"b /tmp\n"


async def test_command_that_is_not_there_ends_like_a_shells(box: Box) -> None:
    state, pieces = await box.end(await box.exec("no-such-program"))
    assert (state.exit_code, text(pieces)) == (127, "nodus: no-such-program: command not found\n")
    state, pieces = await box.end(await box.exec("/etc/passwd"))
    assert (state.exit_code, text(pieces)) == (126, "nodus: /etc/passwd: Permission denied\n")
    state, pieces = await box.end(await box.exec("pwd", cwd="/no/such/place"))
    assert (state.exit_code, text(pieces)) == (127, "nodus: /no/such/place: No such file or directory\n")


async def test_input_is_at_its_end_unless_asked_for(box: Box) -> None:
    assert (await box.sh("cat; read line || echo none"))[1][0].data == b"none\n"
    key = await box.exec("cat", stdin=True)
    await box.processes.write(box.key, key, b"hello ", seq=1)
    await box.processes.write(box.key, key, b"hello ", seq=1)  # repeated by a sender that missed the answer
    with pytest.raises(Conflict):
        await box.processes.write(box.key, key, b"later", seq=3)
    await box.processes.write(box.key, key, b"world", seq=2, ends=True)
    assert text((await box.end(key))[1]) == "hello world"
    with pytest.raises(SandboxNotRunning):
        await box.processes.write(box.key, key, b"more")


async def test_input_that_nobody_reads_is_held_within_bounds(box: Box) -> None:
    key = await box.exec("sleep", "60", stdin=True)
    with pytest.raises(Backpressure):
        for _ in range(16):
            await box.processes.write(box.key, key, b"x" * (256 * 1024))
    await box.processes.signal(box.key, key, signal.SIGKILL)
    assert (await box.end(key))[0].exit_code == 137


async def test_a_timeout_is_a_reason_of_its_own(box: Box) -> None:
    state, _ = await box.sh("trap '' TERM; sleep 60", timeout_s=0.3)
    assert (state.reason, state.exit_code) == ("DeadlineExceeded", 137)


async def test_a_stop_asks_first_and_insists(box: Box) -> None:
    key = await box.exec("sh", "-c", "trap 'echo bye; exit 0' TERM; echo ready; while true; do sleep 0.05; done")
    await box.processes.wait(box.key, key, 0, 10)
    await box.processes.stop(box.key, key, "Cancelled", 20)
    state, pieces = await box.end(key)
    assert state.reason == "Cancelled"
    assert text(pieces).endswith("bye\n")
    key = await box.exec("sh", "-c", "trap '' TERM; echo ready; while true; do sleep 0.05; done")
    await box.processes.wait(box.key, key, 0, 10)
    await box.processes.stop(box.key, key, "Cancelled", 0.1)
    assert (await box.end(key))[0].exit_code == 137


async def test_what_a_command_leaves_in_the_background_holds_nobody_up(box: Box) -> None:
    state, pieces = await box.sh("(sleep 60; echo late) & echo done")
    assert (state.exit_code, text(pieces)) == (0, "done\n")
    assert "sleep 60" in text((await box.sh("ps ax -o args"))[1])


async def test_a_key_starts_once(box: Box) -> None:
    spec = ProcessSpec("once", ["sh", "-c", "echo x >> /workspace/count"])
    for _ in range(2):
        await box.processes.exec(box.key, spec)
        await box.end("once")
    assert await box.get("/workspace/count") == b"x\n"


async def test_too_many_processes_are_refused(own: Box) -> None:
    with pytest.raises(TooManyRequests, match="64 processes"):
        for _ in range(processhost.MAX_RUNNING + 1):
            await own.exec("sleep", "60")


async def test_a_huge_command_is_refused(box: Box) -> None:
    with pytest.raises(Invalid, match="180 KiB"):
        await box.exec("echo", "x" * 200_000)


# Terminals --------------------------------------------------------------------------------------------------------


async def test_terminal_has_its_size_and_its_keys(box: Box) -> None:
    key = await box.exec("sh", "-i", tty=True, stdin=True, size=(33, 120), env={"PS1": "", "ENV": ""})

    async def until(words: str) -> None:
        after, seen = 0, b""
        async with asyncio.timeout(20):
            while words.encode() not in seen:
                await box.processes.wait(box.key, key, after, 5)
                pieces = await box.processes.read(box.key, key, after)
                seen += b"".join(piece.data for piece in pieces)
                after = pieces[-1].end if pieces else after

    await box.processes.write(box.key, key, b"stty size; tty\n")
    await until("33 120\r\n/dev/pts/0")
    await box.processes.resize(box.key, key, 40, 100)
    await box.processes.write(box.key, key, b"stty size\n")
    await until("40 100")
    await box.processes.write(box.key, key, b"sleep 60 && echo slept; echo next-$((1+1))\n")
    await asyncio.sleep(0.2)  # the shell must have started the command that the key is meant for
    await box.processes.write(box.key, key, b"\x03")
    await box.processes.write(box.key, key, b"echo after-$((2+3))\n")
    await until("after-5")
    await box.processes.write(box.key, key, b"", ends=True)
    assert (await box.end(key))[0].phase == "Exited"


# Hostile output ---------------------------------------------------------------------------------------------------


async def test_flood_that_nobody_reads_is_bounded_and_does_not_block(box: Box) -> None:
    key = await box.exec("sh", "-c", "head -c 30000000 /dev/zero; echo end")
    assert await asyncio.to_thread(eventually, lambda: box.processes.read_state(box.key, key).ended, timeout_s=30)
    kept = sum(path.stat().st_size for path in (box.members.backend.directory(box.key).processes / key).rglob("*.log"))
    assert kept <= 17 * MIB
    _, pieces = await box.end(key)
    assert sum(piece.dropped for piece in pieces) > 10 * MIB
    assert pieces[-1].data.endswith(b"end\n")


async def test_reader_that_follows_loses_nothing(box: Box) -> None:
    key = await box.exec("head", "-c", "30000000", "/dev/zero")
    _, pieces = await box.end(key)
    assert not any(piece.dropped for piece in pieces)
    assert sum(len(piece.data) for piece in pieces) == 30_000_000


async def test_streams_that_alternate_for_ever_fill_no_disk(box: Box) -> None:
    script = "i=0; while [ $i -lt 3000 ]; do echo a; echo b >&2; i=$((i+1)); done"
    state, pieces = await box.sh(script)
    assert state.exit_code == 0
    assert text(pieces, "stdout") == "a\n" * 3000
    assert text(pieces, "stderr") == "b\n" * 3000


async def test_process_one_cannot_be_looked_into_or_ended(box: Box) -> None:
    state, pieces = await box.sh(
        "cat /proc/1/environ; ls /proc/1/fd; kill -9 1; python3 -c \"open('/proc/1/mem','rb')\"; kill -9 -1"
    )
    assert state.phase == "Exited"
    assert text(pieces).count("ermission denied") >= 3
    assert text((await box.sh("echo alive"))[1]) == "alive\n"


async def test_processes_of_one_sandbox_see_nothing_of_the_host(box: Box) -> None:
    script = (
        "ls /run/nodus /workspace; cat /etc/shadow; ls /root; touch /usr/x /etc/x; "
        "python3 -c \"import socket; socket.create_connection(('127.0.0.1', 22), 1)\""
    )
    _, pieces = await box.sh(script)
    said = text(pieces)
    assert "api.sock" in said
    assert "exec.sock" not in said
    assert said.count("No such file") >= 1
    assert "Read-only file system" in said
    assert "ConnectionRefused" in said


# Ends -------------------------------------------------------------------------------------------------------------


async def test_output_and_processes_outlive_the_server(own: Box) -> None:
    key = await own.exec("sh", "-c", "echo before; read line; echo $line", stdin=True)
    await own.processes.wait(own.key, key, 0, 10)
    own.members.backend._zygote.close()
    own.members.backend = own.members.open()
    await own.processes.write(own.key, key, b"after\n")
    state, pieces = await own.end(key)
    assert (state.exit_code, text(pieces)) == (0, "before\nafter\n")


async def test_a_stop_ends_all_and_keeps_output_and_workspace(own: Box) -> None:
    key = await own.exec("sh", "-c", "echo kept > /workspace/file; echo said; sleep 600")
    await own.processes.wait(own.key, key, 0, 10)
    own.members.backend.stop_sync(own.key, "Stopped")
    assert own.members.ended(own.key).reason == "Stopped"
    state, pieces = await own.end(key)
    assert (state.phase, text(pieces)) == ("Exited", "said\n")
    with pytest.raises(SandboxNotRunning):
        await own.exec("true")
    with pytest.raises(SandboxNotRunning):
        await own.get("/workspace/file")
    own.start(key="attempt-2")
    file = await own.processes.open_file("attempt-2", "/workspace/file")
    assert b"".join([block async for block in file.blocks()]) == b"kept\n"
    await file.close()


async def test_supervisor_killed_takes_the_processes_along(own: Box) -> None:
    await own.put("/workspace/file", b"kept")
    key = await own.exec("sleep", "31415")
    assert await asyncio.to_thread(eventually, lambda: processes_with("31415"))
    os.kill(own.members.supervisor(), signal.SIGKILL)
    assert await asyncio.to_thread(eventually, lambda: not processes_with("31415"))
    assert own.members.backend.read_state(own.key).phase == "Lost"
    assert (await own.processes.state(own.key, key)).phase == "Lost"
    assert (own.workspace / "file").read_bytes() == b"kept"


async def test_own_command_ends_the_sandbox_with_its_code(members: Members) -> None:
    Box(members).start("sh", "-c", "echo hello; sleep 0.2; exit 4")
    assert members.ended().exit_code == 4
    assert members.output() == "hello\n"


async def test_deleting_goes_through_the_deepest_tree(own: Box) -> None:
    await own.sh("python3 -c \"import os\nfor i in range(1100): os.mkdir('d'); os.chdir('d')\"")
    await own.members.backend.release(own.key)
    await own.members.backend.release_workspace("sandbox-1")
    assert not own.workspace.exists()


# Files ------------------------------------------------------------------------------------------------------------


async def test_files_are_written_whole_with_their_directories_and_read_back(box: Box) -> None:
    data = os.urandom(3 * MIB)
    digest = hashlib.sha256(data).hexdigest()
    assert await box.put("/workspace/a/b/c.bin", data, mode=0o755) == (len(data), digest)
    assert await box.get("/workspace/a/b/c.bin") == data
    assert text((await box.sh("stat -c '%a %u' a/b/c.bin"))[1]) == "755 10001\n"
    assert await box.names("/workspace/a") == [("b", "directory")]
    assert await box.names("/workspace/a/b") == [("c.bin", "file")]
    await box.put("/workspace/a/b/c.bin", b"")
    assert text((await box.sh("stat -c '%a %s' a/b/c.bin"))[1]) == "755 0\n"
    await box.put("/workspace/empty/", b"")
    assert await box.names("/workspace/empty") == []


async def test_expected_digest_is_of_the_bytes_or_of_the_file_as_it_is(box: Box) -> None:
    one, two = b"one", b"two"
    await box.put("/workspace/f", one, expected_sha256=hashlib.sha256(one).hexdigest())
    await box.put("/workspace/f", two, expected_sha256=hashlib.sha256(one).hexdigest())
    with pytest.raises(SHA256Mismatch):
        await box.put("/workspace/f", b"three", expected_sha256=hashlib.sha256(one).hexdigest())
    assert await box.get("/workspace/f") == two


async def test_an_upload_that_breaks_off_changes_nothing(own: Box) -> None:
    await own.put("/workspace/f", b"as it was")

    async def breaks() -> AsyncIterator[bytes]:
        yield b"half"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await own.processes.put_file(own.key, "/workspace/f", breaks(), limit_bytes=MIB)
    with pytest.raises(FileTooLarge):
        await own.put("/workspace/f", b"x" * (2 * MIB), limit_bytes=MIB)
    assert await own.get("/workspace/f") == b"as it was"
    assert await asyncio.to_thread(eventually, lambda: os.listdir(own.workspace) == ["f"])


async def test_links_lead_nowhere_but_into_the_sandbox(box: Box) -> None:
    await box.sh("ln -s /etc/passwd p; ln -s / root; ln -s ../../../../../../etc/shadow s; ln -s loop loop")
    assert (await box.get("/workspace/p")).startswith(b"root:x:0:0:root:/:/usr/sbin/nologin\nnodus:")
    assert ("proc", "directory") in await box.names("/workspace/root")
    for path, error in (("/workspace/s", NotFound), ("/workspace/loop", Invalid), ("/etc/x", Invalid)):
        with pytest.raises(error):
            await box.get(path) if path != "/etc/x" else await box.put(path, b"")
    with pytest.raises(Invalid):
        await box.put("/workspace/p", b"root::0:0::/:/bin/sh\n")
    assert not Path("/etc/passwd").read_bytes().startswith(b"root::")


async def test_reading_can_be_bounded_to_directories_wherever_links_lead(box: Box) -> None:
    await box.sh("echo mine > bounded; ln -s /etc etc; mkdir -p real")
    other = await box.exec("sh", "-c", "ln -s /proc/$$/environ leak; exec sleep 60")
    assert await asyncio.to_thread(eventually, lambda: (box.workspace / "leak").is_symlink())
    for path in ("/workspace/bounded", "/proc/self/root/workspace/bounded", "/workspace/real/../bounded"):
        file = await box.processes.open_file(box.key, path, within=("/workspace", "/tmp"))
        assert b"".join([block async for block in file.blocks()]) == b"mine\n"
        await file.close()
    assert b"PATH=" in await box.get("/workspace/leak")
    for path in ("/workspace/leak", "/proc/1/status", "/workspace/etc/passwd", "/workspace/etc", "/run", "/"):
        with pytest.raises(Forbidden):
            await box.processes.open_file(box.key, path, within=("/workspace", "/tmp"))
    await box.processes.stop(box.key, other, "Cancelled", 0.1)


async def test_a_server_that_dies_lets_go_of_the_result_before_the_data_ends() -> None:
    """The kernel closes its descriptors from the lowest on; the process inside must not take half a file for whole."""
    ends: list[int] = []

    async def ask(member: str, request: dict[str, Any], inner: tuple[int, ...]) -> None:
        pipes = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in range(256) if os.path.exists(f"/proc/self/fd/{fd}")}
        ends.extend(next(ours for ours in pipes if ours != fd and pipes[ours] == pipes[fd]) for fd in inner)
        raise SandboxNotRunning("enough")

    async def content() -> AsyncIterator[bytes]:
        yield b"x"

    with pytest.raises(SandboxNotRunning):
        await sandboxfiles.put(ask, "member", {"path": "/x"}, content())
    data, result = ends
    assert result < data


async def test_a_link_that_changes_under_way_never_leads_to_the_host(box: Box) -> None:
    racer = await box.exec(
        "sh",
        "-c",
        "mkdir -p real; echo mine > real/hosts; while :; do ln -sfn /etc swap; ln -sfn /workspace/real swap; done",
    )
    allowed = {b"mine\n", b"127.0.0.1 localhost\n::1 localhost\n"}
    for _ in range(60):
        with contextlib.suppress(NotFound):
            assert await box.get("/workspace/swap/hosts") in allowed
    await box.processes.signal(box.key, racer, signal.SIGKILL)


async def test_what_is_no_file_is_refused_without_waiting(own: Box) -> None:
    await own.sh("mkfifo pipe; mkdir full; touch full/x")
    for path in ("/workspace/pipe", "/dev/zero", "/proc/1/mem"):
        with pytest.raises(NodusError):
            await asyncio.wait_for(own.get(path), 10)
    with pytest.raises(Invalid):
        await own.put("/workspace/full", b"x")
    with pytest.raises(Invalid, match="isn't empty"):
        await own.processes.delete_file(own.key, "/workspace/full")
    await own.processes.delete_file(own.key, "/workspace/full", recursive=True)
    await own.processes.delete_file(own.key, "/workspace/pipe")
    with pytest.raises(NotFound):
        await own.processes.delete_file(own.key, "/workspace/pipe")
    assert await own.names("/workspace") == []


async def test_files_of_proc_are_read_though_they_have_no_size(box: Box) -> None:
    assert b"Threads:" in await box.get("/proc/self/status")


async def test_many_files_at_once(box: Box) -> None:
    await asyncio.gather(*(box.put(f"/workspace/many/{number}", b"x" * 1000) for number in range(20)))
    assert len(await box.names("/workspace/many")) == 20


# Activity ---------------------------------------------------------------------------------------------------------


async def test_activity_says_whether_anything_runs(own: Box) -> None:
    key = await own.exec("sleep", "60")
    assert await asyncio.to_thread(eventually, lambda: _busy(own) is True)
    await own.processes.signal(own.key, key, signal.SIGKILL)
    assert await asyncio.to_thread(eventually, lambda: _busy(own) is False)


def _busy(box: Box) -> bool | None:
    seen = box.processes.read_activity(box.key)
    return None if seen is None else seen.busy


FREEZE = """
import glob, os, signal, time
def helpers():
    for path in glob.glob("/proc/[0-9]*/stat"):
        pid, _, rest = open(path).read().partition(" (")
        if rest.rpartition(")")[2].split()[1] == "1" and int(pid) != os.getpid():
            yield int(pid)
while not (found := [pid for pid in helpers()]):
    time.sleep(0.01)
for pid in found:
    os.kill(pid, signal.SIGSTOP)
print(len(found))
"""


async def test_a_process_for_files_that_is_frozen_from_inside_keeps_nothing_busy(own: Box) -> None:
    begun = asyncio.Event()

    async def content() -> AsyncIterator[bytes]:
        yield b"x"
        begun.set()
        await asyncio.sleep(60)  # content that does not end

    putting = asyncio.create_task(own.processes.put_file(own.key, "/workspace/f", content(), limit_bytes=MIB))
    await asyncio.wait_for(begun.wait(), 20)
    state, pieces = await own.end(await own.exec("python3", "-c", FREEZE))
    assert (state.exit_code, text(pieces)) == (0, "1\n")
    assert await asyncio.to_thread(eventually, lambda: _busy(own) is False)
    putting.cancel()
    with contextlib.suppress(asyncio.CancelledError, NodusError):
        await putting
    assert "f" not in os.listdir(own.workspace)
