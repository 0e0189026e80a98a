"""Sandboxes for the rest of the server: running ones, commands in them, their files. The API uses it, and agents do.

Nothing is kept here: what a Sandbox is doing is read from the store and the backend every time.

Example:
    >>> place = await sandboxes.running("default", "dev")
    >>> process = await sandboxes.exec(place, ProcessRequest(["echo", "hello"]), user="usr_1")
    >>> done = await sandboxes.finish(process, limit_bytes=1 << 20)
    >>> done.stdout.decode().strip(), done.exit_code
    ('hello', 0)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nodus.core.clock import rfc3339
from nodus.core.errors import NodusError, NotFound, SandboxFailed, SandboxNotRunning, SandboxStarting
from nodus.core.kinds import ATTEMPT, PROCESS, SANDBOX
from nodus.server.api.principal import CREATED_BY
from nodus.server.compute.processes import OpenFile, OutputPiece, Processes, ProcessState
from nodus.server.controllers.sandbox import START_ANNOTATION
from nodus.server.controllers.sandboxmember import SANDBOX_LABEL, process_spec
from nodus.server.controllers.sandboxprocesses import NON_ZERO, how_it_ended
from nodus.server.store import objects
from nodus.server.store.context import lock_objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.services import Services
    from nodus.server.store.objects import Object

START_PATIENCE_S = 20.0
"""How long a call waits for a Sandbox that is on its way, before it is told to come back."""
FILE_LIMIT_BYTES = 4 << 30
_LOOK_S = (0.02, 0.25)
_READ_BYTES = 1 << 20
_LATE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """A Sandbox that runs, and the attempt that it runs as."""

    sandbox: Object
    attempt: Object


@dataclass(frozen=True, slots=True)
class ProcessRequest:
    """A command to run, as it stands in a Process's spec."""

    command: Sequence[str]
    tty: bool = False
    stdin: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    timeout: str | None = None

    def to_spec(self) -> dict[str, Any]:
        """Return it as the user part of a Process's spec."""
        spec: dict[str, Any] = {"command": list(self.command), "tty": self.tty, "stdin": self.stdin}
        if self.env:
            spec["env"] = [{"name": name, "value": value} for name, value in self.env.items()]
        if self.working_dir is not None:
            spec["workingDir"] = self.working_dir
        if self.timeout is not None:
            spec["timeout"] = self.timeout
        return spec


@dataclass(frozen=True, slots=True)
class Finished:
    """A process that ended.

    Attributes:
        exit_code: 128 and the signal's number for one that a signal ended.
        reason: Why it failed; None where it succeeded.
        truncated: Whether more was written than is in ``stdout`` and ``stderr``.
    """

    exit_code: int
    reason: str | None
    stdout: bytes
    stderr: bytes
    truncated: bool


class SandboxService:
    """Commands and files in Sandboxes.

    Args:
        services: The server's parts; store, backend and clock are used.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    @property
    def processes(self) -> Processes:
        """The backend's processes."""
        found: Processes = self._services.backend.processes
        return found

    # Sandboxes ----------------------------------------------------------------------------------------------------

    async def running(self, project: str, name: str, *, patience_s: float = START_PATIENCE_S) -> Place:
        """Return a Sandbox that runs, waiting for one that is on its way; one that was idle for too long is started.

        Raises:
            NotFound: There is none of that name.
            SandboxNotRunning: Its user stopped it, or its own command ended, or its lifetime is over.
            SandboxFailed: It can't be started, or broke.
            SandboxStarting: It doesn't run yet after ``patience_s`` seconds.
        """
        loop = asyncio.get_running_loop()
        end, look_s, woken = loop.time() + patience_s, _LOOK_S[0], False
        while True:
            sandbox, attempt = await self._services.store.read(_find, project, name)
            if attempt is not None and (await self._services.backend.state(attempt.uid)).phase == "Running":
                return Place(sandbox, attempt)
            _check(sandbox)
            if not woken and _is_asleep(sandbox):
                await self._services.store.write(self._request_start, sandbox.uid)
                woken = True
            if loop.time() >= end:
                why = sandbox.status.get("message")
                raise SandboxStarting(
                    f"sandbox {name} is {sandbox.status.get('phase')}{f': {why}' if why else ''}", retry_after_s=2
                )
            await asyncio.sleep(look_s)
            look_s = min(look_s * 1.5, _LOOK_S[1])

    async def start(self, project: str, name: str) -> None:
        """Ask for a start; returns at once."""
        await self._services.store.write(self._set_state, project, name, "Running")

    async def stop(self, project: str, name: str) -> None:
        """Ask for a stop, which keeps ``/workspace``; returns at once."""
        await self._services.store.write(self._set_state, project, name, "Stopped")

    def _set_state(self, conn: Connection, project: str, name: str, state: str) -> None:
        sandbox = objects.get(conn, SANDBOX, project, name)
        if state == "Running":
            sandbox = self._request_start(conn, sandbox.uid)
        objects.update(conn, sandbox, spec={**sandbox.spec, "state": state})

    def _request_start(self, conn: Connection, uid: str) -> Object:
        sandbox = objects.get_by_uid(conn, uid)
        asked = rfc3339(self._services.clock.now())
        if asked == sandbox.annotations.get(START_ANNOTATION):
            asked += "+"  # within the same second as the last one
        return objects.update(conn, sandbox, annotations={**sandbox.annotations, START_ANNOTATION: asked})

    # Processes ----------------------------------------------------------------------------------------------------

    async def exec(
        self, place: Place, request: ProcessRequest, *, user: str, size: tuple[int, int] | None = None
    ) -> Object:
        """Record a Process and start it.

        Args:
            place: From :meth:`running`.
            request: What to run; it is not checked again.
            user: Who asks, for its created-by label.
            size: Rows and columns of its terminal.

        Raises:
            NodusError: It can't be started; nothing is recorded then.
        """
        process = await self._services.store.write(record, place, request.to_spec(), {CREATED_BY: user})
        await self.begin(place, process, size)
        return process

    async def begin(self, place: Place, process: Object, size: tuple[int, int] | None = None) -> None:
        """Start a Process that was recorded.

        Raises:
            NodusError: It can't be started; the record is gone then.
        """
        try:
            await self.processes.exec(place.attempt.uid, process_spec(place.sandbox.spec, process, size))
        except NodusError:
            await self._services.store.write(_forget, process.uid)
            raise

    async def state(self, process: Object) -> ProcessState:
        """Return how a Process stands now, sooner than its object says it, or what is recorded of one long gone."""
        state = await self.processes.state(process.spec["attempt"], process.uid)
        told = process.status
        if state.phase == "Absent" and PROCESS.is_terminal(told.get("phase")):
            reason = None if told.get("reason") == NON_ZERO else told.get("reason")
            return ProcessState("Exited", told.get("exitCode"), reason, told.get("message"))
        return state

    async def follow(
        self, process: Object, after: int = 0, *, wait_s: float | None = None, reader: str = ""
    ) -> AsyncIterator[OutputPiece]:
        """Yield a Process's output from an offset on, as it comes.

        Args:
            process: The Process.
            after: The offset.
            wait_s: How long to wait for more than is there; to its end when None.
            reader: Tells readers apart that follow the same process.
        """
        member, key = process.spec["attempt"], process.uid
        loop = asyncio.get_running_loop()
        end = None if wait_s is None else loop.time() + wait_s
        late_bytes = 0
        while True:
            left_s = 30.0 if end is None else min(30.0, end - loop.time())
            ended = await self.processes.wait(member, key, after, max(0.0, left_s), reader=reader)
            while found := await self.processes.read(member, key, after, limit_bytes=_READ_BYTES):
                for piece in found:
                    yield piece
                after = found[-1].end
                if end is not None and loop.time() >= end:
                    late_bytes += sum(len(piece.data) for piece in found)
                    if late_bytes > _LATE_BYTES:
                        return  # It writes faster than it can be read.
                # Say how far this reader has come, so that the process may go on.
                await self.processes.wait(member, key, after, 0.0, reader=reader)
            if ended or (end is not None and loop.time() >= end):
                return

    async def finish(self, process: Object, *, limit_bytes: int) -> Finished:
        """Wait for a Process's end and return its output, each stream up to a limit."""
        kept: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        truncated = False
        async for piece in self.follow(process, reader=f"finish-{process.uid}"):
            room = max(0, limit_bytes - len(kept[piece.stream]))
            kept[piece.stream] += piece.data[:room]
            truncated = truncated or len(piece.data) > room or bool(piece.dropped)
        state = await self.state(process)
        told = how_it_ended(process, state)
        code = state.exit_code if state.exit_code is not None else 137
        return Finished(code, told.get("reason"), bytes(kept["stdout"]), bytes(kept["stderr"]), truncated)

    # Files --------------------------------------------------------------------------------------------------------

    async def open_file(self, place: Place, path: str, *, within: Sequence[str] = ()) -> OpenFile:
        """Open a file or directory, where given only below certain directories; close what is returned."""
        return await self.processes.open_file(place.attempt.uid, path, within=within)

    async def put_file(
        self,
        place: Place,
        path: str,
        content: AsyncIterator[bytes],
        *,
        mode: int | None = None,
        expected_sha256: str | None = None,
    ) -> tuple[int, str]:
        """Write a file whole or not at all; return its size and sha256."""
        return await self.processes.put_file(
            place.attempt.uid,
            path,
            content,
            mode=mode,
            expected_sha256=expected_sha256,
            limit_bytes=FILE_LIMIT_BYTES,
        )

    async def delete_file(self, place: Place, path: str, *, recursive: bool = False) -> None:
        """Delete a file or directory."""
        await self.processes.delete_file(place.attempt.uid, path, recursive=recursive)


def record(conn: Connection, place: Place, spec: Mapping[str, Any], labels: Mapping[str, str]) -> Object:
    """Record a Process that is about to be started in a Sandbox, with the Sandbox's next number.

    Raises:
        NotFound: The Sandbox was deleted meanwhile.
    """
    lock_objects(conn)  # so that two at once get two numbers
    sandbox = objects.find_by_uid(conn, place.sandbox.uid)
    if sandbox is None or sandbox.deleted_at is not None:
        raise NotFound(f'sandboxes "{place.sandbox.name}" not found')
    number = int(sandbox.status.get("processCount") or 0) + 1
    objects.update_status(conn, sandbox.uid, {**sandbox.status, "processCount": number})
    return objects.create(
        conn,
        PROCESS,
        sandbox.project,
        process_name(sandbox.name, number),
        {**spec, "sandbox": sandbox.name, "attempt": place.attempt.uid, "number": number},
        labels={**labels, SANDBOX_LABEL: sandbox.name},
        owner=sandbox,
        status={"phase": "Pending"},
    )


def process_name(sandbox: str, number: int) -> str:
    """Return the name of a Sandbox's process by its number."""
    return f"sb-{sandbox}-{number}"


def _find(conn: Connection, project: str, name: str) -> tuple[Object, Object | None]:
    sandbox = objects.get(conn, SANDBOX, project, name)
    told = sandbox.status.get("attempt")
    attempt = objects.find(conn, ATTEMPT, project, told["name"]) if told else None
    usable = (
        attempt is not None
        and sandbox.deleted_at is None
        and attempt.spec.get("state") != "Stopped"
        and (sandbox.spec.get("state") or "Running") == "Running"
        and not ATTEMPT.is_terminal(attempt.status.get("phase"))
    )
    return sandbox, attempt if usable else None


def _check(sandbox: Object) -> None:
    """Raise where waiting for a Sandbox would lead nowhere."""
    status, name = sandbox.status, sandbox.name
    start = f"Start it: nodus start sb/{name}."
    if sandbox.deleted_at is not None:
        raise NotFound(f'sandboxes "{name}" not found')
    if (sandbox.spec.get("state") or "Running") == "Stopped":
        raise SandboxNotRunning(f"sandbox {name} is stopped", fix=start)
    if sandbox.annotations.get(START_ANNOTATION) != status.get("observedStart"):
        return  # A start is asked for.
    if status.get("phase") == "Failed":
        why = status.get("message") or status.get("reason") or "its status does not say why"
        raise SandboxFailed(f"sandbox {name} has failed: {why}", fix=status.get("fix") or start)
    stopped_by = status.get("stopReason")
    if status.get("phase") == "Stopped" and stopped_by not in ("Idle", "Stopped"):
        raise SandboxNotRunning(f"sandbox {name} is stopped ({stopped_by})", fix=start)


def _is_asleep(sandbox: Object) -> bool:
    """Whether it stopped, or is stopping, for want of work, and nobody has asked for a start since."""
    status = sandbox.status
    if sandbox.annotations.get(START_ANNOTATION) != status.get("observedStart"):
        return False
    stopping = status.get("phase") == "Stopping" and status.get("reason") == "Idle"
    return stopping or (status.get("phase") == "Stopped" and status.get("stopReason") == "Idle")


def _forget(conn: Connection, uid: str) -> None:
    process = objects.find_by_uid(conn, uid)
    if process is not None:
        objects.delete(conn, process, "Background")
