"""Sandboxes: isolated places to run commands in, from Python."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TypeVar

from nodus.client.blocking import blocking, blocking_class, blocking_iterator
from nodus.client.client import Client, default_client
from nodus.client.dollars import usd
from nodus.client.handles import Handle
from nodus.client.http import new_key
from nodus.client.process import Process
from nodus.client.resources import JsonObject
from nodus.client.sandboxfiles import SandboxFiles
from nodus.core.errors import SandboxFailed
from nodus.core.ids import generated_name

IMAGE = "nodus/agent-tools"
S = TypeVar("S", bound="Sandbox")
START_ANNOTATION = "nodus.dev/start-requested-at"


class Sandbox(Handle):
    """A place to run commands in, without a network, whose ``/workspace`` survives a stop.

    As a context manager it is deleted at the end of the block.

    Attributes:
        files: Its files.

    Example:
        >>> with nodus.Sandbox.create(cpu=1, memory="512Mi") as sandbox:
        ...     sandbox.files.write("/workspace/hello.py", "print('hello')")
        ...     process = sandbox.exec("python3", "hello.py")
        ...     print(process.stdout.read(), process.wait())
        hello
         0
    """

    kind = "Sandbox"

    def __init__(self, obj: JsonObject, client: Client) -> None:
        super().__init__(obj, client)
        self.files = SandboxFiles(
            client.api, f"/apis/nodus.dev/v1/namespaces/{self.project}/sandboxes/{self.name}/files"
        )

    @blocking_class
    async def create(
        cls: type[Handle],
        *command: str,
        name: str | None = None,
        image: str = IMAGE,
        cpu: float | str | None = None,
        memory: str | None = None,
        gpu: str | None = None,
        disk: str | None = None,
        idle_timeout: float | str | None = None,
        on_idle: str | None = None,
        max_lifetime: float | str | None = None,
        secrets: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        max_cost: float | str | None = None,
        labels: Mapping[str, str] | None = None,
        project: str | None = None,
        client: Client | None = None,
    ) -> Handle:
        """Create a Sandbox, or find the one of that name; returns without waiting for its start, which ``exec`` does.

        Args:
            command: Its own command, whose end is its end; none is needed.
            name: Its name; a random one when None.
            image: A managed image.
            cpu: Cores.
            memory: Such as ``512Mi``.
            gpu: Such as ``L4`` or ``H100:8``.
            disk: Such as ``10Gi``.
            idle_timeout: Stopped after so long without work: seconds, or a text such as ``10m``.
            on_idle: ``Stop``, which is the default, or ``Delete``.
            max_lifetime: Stopped so long after its start.
            secrets: Names of Secrets whose keys become environment variables.
            env: Environment variables of every process.
            workdir: Working directory of processes that name none.
            max_cost: Most it may cost, in dollars.
            labels: Its labels.
            project: Another project than the client's own.
            client: Another server than the configured one.

        Raises:
            AlreadyExists: When there is another one of that name.
            Invalid: With every mistake in ``causes``.
        """
        client = client or default_client()
        spec: JsonObject = {"image": image}
        resources = {"cpu": cpu, "memory": memory, "gpu": gpu, "disk": disk}
        lifecycle = {
            "idleTimeout": _duration(idle_timeout),
            "onIdle": on_idle.capitalize() if on_idle else None,
            "maxLifetime": _duration(max_lifetime),
        }
        given: JsonObject = {
            "command": list(command),
            "resources": {key: value for key, value in resources.items() if value is not None},
            "lifecycle": {key: value for key, value in lifecycle.items() if value is not None},
            "secrets": list(secrets),
            "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
            "workingDir": workdir,
            "maxCostUSD": usd(max_cost),
        }
        spec |= {key: value for key, value in given.items() if value}
        metadata = {"name": name or generated_name("sandbox-"), "labels": dict(labels or {})}
        document = {"apiVersion": "nodus.dev/v1", "kind": cls.kind, "metadata": metadata, "spec": spec}
        return cls(await client.resources.create(document, project=project), client)

    @blocking
    async def wait_running(self, timeout: float | None = 120.0) -> None:  # noqa: ASYNC109 - the caller's bound, in seconds
        """Wait until it runs; ``exec`` and ``files`` do that by themselves.

        Raises:
            SandboxFailed: When it can't be started.
            NodusTimeout: When ``timeout`` seconds passed first.
        """
        await self._reach(("Running", "Failed"), timeout, "its start")
        if self.phase == "Failed":
            raise SandboxFailed(str(self.status.get("message") or f"{self.name} failed"), fix=self.status.get("fix"))

    @blocking
    async def exec(
        self,
        *command: str,
        pty: bool = False,
        stdin: bool = False,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        timeout: float | str | None = None,  # noqa: ASYNC109 - of the process, not of this call
    ) -> Process:
        """Start a command. One that was stopped for idleness is started for it.

        Args:
            command: Program and arguments; a single text with spaces runs under ``/bin/sh -c``.
            pty: Give it a terminal.
            stdin: Let it have input: :meth:`Process.write`.
            env: Variables on top of the Sandbox's.
            workdir: Its working directory.
            timeout: Kill it after so long: seconds, or a text such as ``30s``.

        Raises:
            SandboxNotRunning: When its user stopped it.
            SandboxFailed: When it can't be started.
        """
        words = list(command)
        if len(words) == 1 and " " in words[0]:
            words = ["/bin/sh", "-c", words[0]]
        spec: JsonObject = {"command": words, "tty": pty, "stdin": stdin}
        if env:
            spec["env"] = [{"name": key, "value": value} for key, value in env.items()]
        if workdir is not None:
            spec["workingDir"] = workdir
        if timeout is not None:
            spec["timeout"] = _duration(timeout)
        document = {"apiVersion": "nodus.dev/v1", "kind": "Process", "spec": spec}
        made = await self.client.api.call(
            "POST", await self._path("processes"), body=document, idempotency_key=new_key("exec"), timeout_s=120.0
        )
        return Process(made, self.client)

    @blocking
    async def processes(self) -> list[Process]:
        """Return its processes, oldest first."""
        listed = await self.client.api.call("GET", await self._path("processes"))
        return [Process(item, self.client) for item in listed["items"]]

    @blocking
    async def stop(self) -> None:
        """Ask for a stop: its processes end, ``/workspace`` stays; returns at once."""
        await self._patch({"spec": {"state": "Stopped"}})

    @blocking
    async def start(self) -> None:
        """Ask for a start after a stop of any kind; returns at once."""
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        await self._patch({"spec": {"state": "Running"}, "metadata": {"annotations": {START_ANNOTATION: now}}})

    @blocking_iterator
    async def logs(self, follow: bool = False) -> AsyncGenerator[str, None]:
        """Yield the lines that its own command wrote; with ``follow``, until it is stopped."""
        query = {"follow": True if follow else None}
        path = await self._path("log")
        async with aclosing(
            self.client.api.lines("GET", path, query=query, timeout_s=None if follow else 60.0)
        ) as lines:
            async for line in lines:
                yield line.decode("utf-8", "replace")

    def __enter__(self: S) -> S:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.delete()

    async def __aenter__(self: S) -> S:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.delete.aio()


def _duration(given: Any) -> str | None:
    return given if given is None or isinstance(given, str) else f"{float(given):.3f}".rstrip("0").rstrip(".") + "s"
