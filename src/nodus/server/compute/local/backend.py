"""The local backend: members are processes of this machine, each with a supervisor that outlives the server.

Runs in the server. The truth about a member is its attempt directory (``attemptdir``); a restarted server reads the
directories and goes on. Blocking file work happens in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nodus.server.compute.base import (
    Capacity,
    Collected,
    LogPiece,
    MemberSpec,
    MemberState,
    OutputRule,
    Reported,
    Usage,
)
from nodus.server.compute.local import cgroups, logstore
from nodus.server.compute.local.attemptdir import (
    EVENTS_SOCKET,
    EXITED,
    AttemptDir,
    short_path,
    write_json,
)
from nodus.server.compute.local.capacity import Machine, Share, Shares
from nodus.server.compute.local.collect import PutFile, collect
from nodus.server.compute.local.fundedtime import Funding, ran_since, read_funding, write_funding
from nodus.server.compute.local.graders import LocalGraders
from nodus.server.compute.local.member import kill_left_over
from nodus.server.compute.local.prepare import BlobPath, prepare
from nodus.server.compute.local.processclient import LocalProcesses
from nodus.server.compute.local.reported import read_reported
from nodus.server.compute.local.usage import tree_usage
from nodus.server.compute.local.zygote import Zygote

log = logging.getLogger(__name__)

_SAID_LIMITS = {"reason": 100, "message": 8192, "fix": 1024}

FOLLOW_INTERVAL_S = 0.2
RELEASE_TIMEOUT_S = 10.0
REMOVE_TIMEOUT_S = 30.0


class LocalBackend:
    """Runs members on this machine.

    Args:
        data_dir: The server's data directory; attempts live in ``attempts/`` below it.
        blob_path: Finds a blob's file by digest.
        put_file: Stores a file as a blob.
        machine: What there is to give to members; default this machine.

    Attributes:
        graders: Starts graders; they end when it is closed, which :meth:`close` does not do.
        processes: Processes and files inside members that host them.

    Example:
        >>> backend = LocalBackend(data_dir, blob_path, put_file)
        >>> await backend.attach()
        >>> await backend.reserve(key, cpu=1, memory_bytes=1 << 30)
        >>> await backend.start(MemberSpec(key, ["echo", "hello"], "nodus/base", token))
    """

    name = "local"

    def __init__(
        self, data_dir: Path, blob_path: BlobPath, put_file: PutFile, *, machine: Machine | None = None
    ) -> None:
        self._data_dir = Path(os.path.abspath(data_dir))
        self._attempts = self._data_dir / "attempts"
        self._blob_path = blob_path
        self._put_file = put_file
        self._shares = Shares(machine or Machine.this_one())
        self._zygote = Zygote()
        self.graders = LocalGraders()
        self.processes = LocalProcesses(self.directory)

    def directory(self, key: str) -> AttemptDir:
        """Return the attempt directory of a member, whether it is there or not."""
        return AttemptDir(self._attempts / key)

    def state_directory(self, job_uid: str) -> Path:
        """Return the directory that holds a Job's state over all of its attempts."""
        return self._data_dir / "jobs" / job_uid / "state"

    def workspace_directory(self, sandbox_uid: str) -> Path:
        """Return the directory that holds a Sandbox's ``/workspace`` over all of its attempts."""
        return self._data_dir / "sandboxes" / sandbox_uid / "workspace"

    async def capacity(self) -> Capacity:
        """Return what this machine has for members and what is free."""
        return self._shares.capacity()

    async def reserve(self, key: str, cpu: float, memory_bytes: int, gpus: int = 0) -> str | None:
        """Set capacity aside; None when it is done, else what is missing."""
        return self._shares.take(key, cpu, memory_bytes, gpus)

    async def finish(self, key: str) -> None:
        """Give the capacity of a member that ended back, and make sure that nothing of a lost one is left."""
        await asyncio.to_thread(self.finish_sync, key)

    def finish_sync(self, key: str) -> None:
        """As :meth:`finish`, for threads and tests."""
        if self.read_state(key).phase == "Lost" and kill_left_over(key):
            cgroups.sweep()
        self._shares.give_back(key)

    async def start(self, spec: MemberSpec) -> MemberState:
        """Start a member unless its key was started before.

        Raises:
            StartRefused: When it can't run here.
            Unsupported: When its image can't.
        """
        return await asyncio.to_thread(self.start_sync, spec)

    def start_sync(self, spec: MemberSpec) -> MemberState:
        """As :meth:`start`, for threads and tests."""
        state = self.read_state(spec.key)
        if state.phase != "Absent":
            return state
        attempt = self.directory(spec.key)
        share = self._shares.of(spec.key) or Share(spec.cpu, spec.memory_bytes, ())
        prepare(attempt, spec, share, self._data_dir, self._blob_path)
        self._zygote.spawn(attempt.path)
        state = self.read_state(spec.key)
        return state if state.phase != "Absent" else MemberState(spec.key, "Starting")

    async def stop(self, key: str, reason: str, *, grace_s: float | None = None, checkpoint_s: float = 0.0) -> None:
        """Ask for the end of a member, after a checkpoint if its command takes part; one that hasn't begun never does.

        The first request counts, but for one that waits for a checkpoint: it gives way to one that does not.
        """
        await asyncio.to_thread(self.stop_sync, key, reason, grace_s, checkpoint_s)

    def stop_sync(self, key: str, reason: str, grace_s: float | None = None, checkpoint_s: float = 0.0) -> None:
        """As :meth:`stop`, for threads and tests."""
        attempt = self.directory(key)
        attempt.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        request: dict[str, Any] = {"reason": reason, "at": time.time()}
        if grace_s is not None:
            request["graceSeconds"] = grace_s
        if checkpoint_s > 0:
            request["checkpointSeconds"] = checkpoint_s
        before = attempt.read_stop()
        if before is None or (before.get("checkpointSeconds") and checkpoint_s <= 0):
            write_json(attempt.stop, request)
        self._poke(attempt)
        _never_begin(attempt, {"reason": reason, "message": "stopped before it started"})

    async def fund(self, key: str, *, seconds: float, rate: int, item: str) -> None:
        """Let a member run for ``seconds`` since its start, pauses left out, and then pause it.

        Args:
            key: The member's; it need not have been started.
            seconds: In all.
            rate: Nano-dollars an hour, for :meth:`funded_at`.
            item: What that is for.
        """
        await asyncio.to_thread(self._fund, key, Funding(seconds, rate, item))

    def _fund(self, key: str, funding: Funding) -> None:
        attempt = self.directory(key)
        attempt.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_funding(attempt.path, funding)
        self._poke(attempt)

    async def funded_at(self, key: str) -> tuple[int, str]:
        """Return what an hour of a member costs in nano-dollars, and for what; 0 where nothing is known of that."""
        found = await asyncio.to_thread(read_funding, self.directory(key).path)
        return (0, "") if found is None else (found.rate, found.item)

    async def refuse(self, key: str, message: str, fix: str | None = None) -> None:
        """Record that a member can't be started and never will be."""
        end = {"reason": "StartFailed", "message": message, "fix": fix, "retryable": False}
        await asyncio.to_thread(_never_begin, self.directory(key), end)

    async def usage(self, keys: Sequence[str]) -> dict[str, Usage]:
        """Return what members use now; those that do not run are left out."""
        return await asyncio.to_thread(self._usage, keys)

    def _usage(self, keys: Sequence[str]) -> dict[str, Usage]:
        pids: dict[str, int] = {}
        for attempt in map(self.directory, keys):
            pid = (attempt.read_status() or {}).get("pid")
            if pid is not None and attempt.alive():  # else the number may be another process's by now
                pids[attempt.key] = int(pid)
        trees = tree_usage(pids.values())
        return {key: trees[pid] for key, pid in pids.items() if pid in trees}

    async def state(self, key: str) -> MemberState:
        """Return where a member stands."""
        return await asyncio.to_thread(self.read_state, key)

    def read_state(self, key: str) -> MemberState:
        """As :meth:`state`, for threads and tests."""
        attempt = self.directory(key)
        status = attempt.read_status()
        if status is not None and status["phase"] == EXITED:
            return _to_state(key, status)
        # The order matters: a status read while the supervisor lived can't be called lost afterwards.
        alive = attempt.alive()
        status = attempt.read_status()
        if status is None:
            return MemberState(key, "Starting" if alive else "Absent")
        if status["phase"] != EXITED and not alive:
            return _to_state(key, status, lost=True)
        funding, ran_s = read_funding(attempt.path), ran_since(status)
        state = _to_state(key, status if ran_s is None else {**status, "times": {**status["times"], "ran": ran_s}})
        return state if funding is None else dataclasses.replace(state, funded_s=funding.seconds)

    def reported(self, key: str) -> Reported:
        """Return what a member's command has said of itself."""
        return read_reported(self.directory(key).path)

    async def attach(self) -> list[MemberState]:
        """Find all members there are and count the capacity of those that run."""
        return await asyncio.to_thread(self.attach_sync)

    def attach_sync(self) -> list[MemberState]:
        """As :meth:`attach`, for threads and tests."""
        self._attempts.mkdir(mode=0o700, parents=True, exist_ok=True)
        cgroups.sweep()
        states = []
        for entry in sorted(self._attempts.iterdir()):
            if not entry.is_dir():
                continue
            state = self.read_state(entry.name)
            states.append(state)
            if state.phase in ("Starting", "Running"):
                self._shares.restore(entry.name, _share_of(AttemptDir(entry)))
        return states

    async def warm(self) -> None:
        """Start the process that supervisors are forked from, so that the first member need not wait for it."""
        await asyncio.to_thread(self._zygote.warm)

    async def close(self) -> None:
        """Let go; members go on."""
        await asyncio.to_thread(self._zygote.close)

    async def events(self) -> AsyncIterator[str]:
        """Yield the key of each member whose status its supervisor changed, until cancelled."""
        self._attempts.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._attempts / EVENTS_SOCKET
        path.unlink(missing_ok=True)
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
            with short_path(path) as short:
                receiver.bind(short)
            receiver.setblocking(False)
            while True:
                yield (await loop.sock_recv(receiver, 256)).decode("ascii", "replace")

    async def read_log(self, key: str, offset: int = 0, *, follow: bool = False) -> AsyncIterator[LogPiece]:
        """Yield a member's output from ``offset``; with ``follow``, until it ended."""
        directory = self.directory(key).log
        while True:
            # Asked before reading: what was written until the end is read after it.
            over = not follow or (await self.state(key)).ended
            for piece in await asyncio.to_thread(_some, directory, offset):
                yield LogPiece(piece.offset, piece.data, piece.dropped)
                offset = piece.end
                over = False
            if over:
                return
            if follow:
                await asyncio.sleep(FOLLOW_INTERVAL_S)

    def log_directory(self, key: str) -> Path:
        """Return where a member's output is; see ``logstore`` for tails and times."""
        return self.directory(key).log

    async def collect(self, key: str, rules: Sequence[OutputRule]) -> list[Collected]:
        """Put a member's output files into the blob store.

        Raises:
            OutputsTooLarge: When there is more than is collected.
        """
        return await asyncio.to_thread(collect, self.directory(key), rules, self._put_file)

    async def release(self, key: str) -> None:
        """Stop a member at once and delete what it left here, but for blobs."""
        attempt = self.directory(key)
        if attempt.path.is_dir():
            await self.stop(key, "Deleted", grace_s=0)
            if await asyncio.to_thread(_wait_dead, attempt):
                await asyncio.to_thread(kill_left_over, key)
                await asyncio.to_thread(_remove, attempt.path)
        self._shares.give_back(key)

    async def release_state(self, job_uid: str) -> None:
        """Delete the state that a Job kept over its attempts."""
        await asyncio.to_thread(_remove, self.state_directory(job_uid).parent)

    async def workspaces(self) -> list[str]:
        """Return the uids of the Sandboxes that have files here."""
        return await asyncio.to_thread(_names, self._data_dir / "sandboxes")

    async def release_workspace(self, sandbox_uid: str) -> None:
        """Delete a Sandbox's files. Its last processes may still be writing: it is tried until they are gone."""
        await asyncio.to_thread(_remove, self.workspace_directory(sandbox_uid).parent)

    def _poke(self, attempt: AttemptDir) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.settimeout(1)
            with short_path(attempt.path / "control.sock") as short:
                caller.connect(short)


def _never_begin(attempt: AttemptDir, end: dict[str, Any]) -> None:
    """Write the end of a member that nothing has begun of, under the lock, so that a late supervisor sees it."""
    attempt.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if attempt.read_status() is not None or (lock := attempt.take_lock()) is None:
        return
    try:
        if attempt.read_status() is None:
            attempt.write_status({"phase": EXITED, "key": attempt.key, **end})
    finally:
        os.close(lock)


def _names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory)) if directory.is_dir() else []


def _remove(directory: Path) -> None:
    """Delete a directory that a sandbox filled, however deep it is nested, by a program that no depth stops."""
    end = time.monotonic() + REMOVE_TIMEOUT_S
    while True:
        subprocess.run(["rm", "-rf", "--one-file-system", "--", directory], stderr=subprocess.DEVNULL, check=False)
        if not directory.exists():
            return
        if time.monotonic() >= end:
            log.warning("%s could not be deleted", directory)
            return
        time.sleep(0.1)


def _wait_dead(attempt: AttemptDir) -> bool:
    """Wait until no supervisor holds the attempt; False when one still does after a while."""
    lock = attempt.take_lock(RELEASE_TIMEOUT_S)
    if lock is not None:
        os.close(lock)
    return lock is not None


def _some(directory: Path, offset: int, limit_bytes: int = 4 << 20) -> list[logstore.Piece]:
    found, total = [], 0
    for piece in logstore.read_pieces(directory, offset):
        found.append(piece)
        total += len(piece.data)
        if total >= limit_bytes:
            break
    return found


def _share_of(attempt: AttemptDir) -> Share:
    spec = attempt.read_spec() or {}
    cores = tuple(int(core) for core in spec.get("cores", ()))
    return Share(float(spec.get("cpu", 1)), int(spec.get("memoryBytes", 0)), cores, tuple(spec.get("gpus", ())))


def _to_state(key: str, status: dict[str, Any], *, lost: bool = False) -> MemberState:
    times = status.get("times") or {}
    isolation = status.get("isolation")
    if lost:
        message = "its supervisor ended without a word; the processes of the run are gone"
        return MemberState(key, "Lost", reason="AttemptLost", message=message, times=times, isolation=isolation)
    said = _said(status.get("termination") or {})
    reason, code = status.get("reason"), status.get("exitCode")
    # What the command says of its failure counts only when it failed by itself.
    own = said if code and reason is None else {}
    return MemberState(
        key,
        phase=status["phase"],
        exit_code=code,
        signal=status.get("signal"),
        reason=own.get("reason") or reason,
        message=own.get("message") or status.get("message"),
        fix=own.get("fix") or status.get("fix"),
        retryable=own.get("retryable", status.get("retryable")),
        times=times,
        peak_memory_bytes=status.get("peakMemoryBytes"),
        isolation=isolation,
    )


def _said(termination: Mapping[str, Any]) -> dict[str, Any]:
    """What a command says of its end, as far as it is what it should be: it may have written anything."""
    found: dict[str, Any] = {
        name: termination[name][:limit].encode(errors="replace").decode()
        for name, limit in _SAID_LIMITS.items()
        if isinstance(termination.get(name), str)
    }
    return found | ({"retryable": termination["retryable"]} if isinstance(termination.get("retryable"), bool) else {})
