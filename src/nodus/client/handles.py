"""Handles: Python objects that stand for objects on the server."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from nodus.client.blocking import blocking, blocking_class
from nodus.client.client import Client, Views, default_client
from nodus.client.outcomes import TERMINAL, ended_otherwise, located
from nodus.client.record import Record
from nodus.client.resources import Applied, JsonObject
from nodus.client.views import View, as_view
from nodus.core.errors import NodusError


class Handle:
    """One object on the server. Attributes show what was last read; `refresh` reads again.

    Example::

        environment = nodus.Environment.from_name("nodus/arithmetic")
        environment.phase  # "Ready"
        environment.spec.version

    Args:
        obj: The object as the server sent it.
        client: Where it lives.
    """

    kind: ClassVar[str]

    def __init__(self, obj: JsonObject, client: Client) -> None:
        self.client = client
        self._set(obj)

    def _set(self, obj: JsonObject) -> None:
        self.raw: View = as_view(obj)

    @property
    def name(self) -> str:
        """The object's name."""
        return self.raw.name

    @property
    def project(self) -> str:
        """The project it lives in."""
        return self.raw.project or self.client.project

    @property
    def metadata(self) -> Record:
        """Name, uid, labels, annotations and times."""
        metadata: Record = self.raw.metadata
        return metadata

    @property
    def spec(self) -> Record:
        """What was asked for."""
        spec: Record = self.raw.spec
        return spec

    @property
    def status(self) -> Record:
        """What was last read of how it is doing."""
        status: Record = self.raw.status
        return status

    @property
    def phase(self) -> str | None:
        """Where it is in its life."""
        return self.raw.phase

    def __repr__(self) -> str:
        return f"<nodus.{type(self).__name__} {self.project}/{self.name} {self.phase or ''}>".replace(" >", ">")

    @blocking_class
    async def from_name(
        cls: type[Handle], name: str, *, project: str | None = None, client: Client | None = None
    ) -> Handle:
        """Return the handle of an object that exists.

        Args:
            name: Its name; a ``nodus/`` prefix means the catalog.
            project: Where to look, unless the name says.
            client: Another server than the configured one.

        Raises:
            NotFound: When there is none of that name.
        """
        client = client or default_client()
        name, project = located(name, project)
        return cls(await client.resources.get(cls.kind, name, project=project), client)

    @blocking
    async def refresh(self) -> None:
        """Read the object again.

        Raises:
            NotFound: When it was deleted.
        """
        self._set(await self.client.resources.get(self.kind, self.name, project=self.project))

    @blocking
    async def delete(self) -> None:
        """Delete the object and what it owns; deleting what is gone is no error."""
        await self.client.resources.delete(
            self.kind, self.name, project=self.project, propagation="Foreground", missing_ok=True
        )

    @blocking
    async def events(self) -> Views:
        """Return what happened to it, the latest last.

        Example::

            for event in job.events():
                print(event.last_time, event.reason, event.message)
        """
        found = await self.client.events.aio(self.kind, self.name, project=self.project)
        # The name may have been an earlier object's, whose events are kept as well.
        own = (None, self.raw["metadata"].get("uid"))
        return [event for event in found if (event.get("involvedObject") or {}).get("uid") in own]

    @blocking
    async def patch(self, patch: Mapping[str, Any] | Sequence[Any]) -> None:
        """Change the object.

        Example::

            run.patch({"spec": {"maxCostUSD": "40"}})

        Args:
            patch: A merge patch (an object, where None removes a key) or a JSON patch (a list of operations).

        Raises:
            FieldImmutable: When it changes what can't change.
            Invalid: With every mistake in ``causes``.
        """
        await self._patch(patch)

    async def _patch(self, patch: Mapping[str, Any] | Sequence[Any]) -> None:
        self._set(await self.client.resources.patch(self.kind, self.name, patch, project=self.project))

    async def _reach(self, phases: Collection[str], timeout_s: float | None, what: str) -> None:
        """Read the object once it has one of the phases; see `Resources.wait_for` for the errors."""

        def reached(obj: JsonObject) -> bool:
            return (obj.get("status") or {}).get("phase") in phases

        found = await self.client.resources.wait_for(
            self.kind, self.name, reached, project=self.project, timeout_s=timeout_s, what=what
        )
        self._set(found)

    async def _path(self, subresource: str) -> str:
        return await self.client.resources.path(self.kind, self.name, project=self.project, subresource=subresource)


class Run(Handle):
    """Something that runs to an end: Succeeded, Failed or Cancelled."""

    @property
    def done(self) -> bool:
        """Whether it had ended when it was last read."""
        return self.phase in TERMINAL

    @blocking
    async def wait(self, timeout: float | None = None) -> Record:  # noqa: ASYNC109 - the caller's bound, in seconds
        """Wait for the end and return the status.

        Args:
            timeout: Seconds to wait at most; no bound when None.

        Raises:
            JobFailed: When it ended in another way than Succeeded.
            NodusTimeout: When the time ran out; the run goes on.
        """
        await self._reach(TERMINAL, timeout, "its end")
        self.raise_if_failed()
        return self.status

    def raise_if_failed(self) -> None:
        """Raise JobFailed when the run has ended and did not succeed."""
        if self.done and self.phase != "Succeeded":
            raise ended_otherwise(self.raw)

    @blocking
    async def cancel(self) -> None:
        """Ask for the end; returns at once, `wait` waits."""
        await self._patch({"spec": {"state": "Cancelled"}})


def started(made: Applied) -> JsonObject:
    """Return a run that was asked for; warn where a run of that name and spec was there, as none is started then."""
    obj = made.object
    if made.outcome == "unchanged":
        phase = (obj.get("status") or {}).get("phase")
        what = f"{obj['kind']} {obj['metadata']['name']!r} is there already" + (f" ({phase})" if phase else "")
        warnings.warn(f"{what} and runs no second time; another name, or none, makes a new one", stacklevel=2)
    return obj


class Environment(Handle):
    """A versioned set of tasks with a grader.

    Example::

        environment = nodus.Environment.create("digits", {"version": "1.0.0", "package": {...}})
        environment.wait_ready()
        environment.reference  # "digits@1.0.0"
    """

    kind = "Environment"

    @blocking_class
    async def create(
        cls: type[Handle],
        name: str,
        spec: Mapping[str, Any],
        *,
        project: str | None = None,
        client: Client | None = None,
    ) -> Handle:
        """Create an Environment; `wait_ready` waits until it is built and checked.

        Args:
            name: Its name.
            spec: As in a manifest: version, package, category, modes, ...
            project: Another project than the client's own.
            client: Another server than the configured one.
        """
        client = client or default_client()
        document = {"apiVersion": "nodus.dev/v1", "kind": "Environment", "metadata": {"name": name}, "spec": dict(spec)}
        return cls(await client.resources.create(document, project=project), client)

    @property
    def reference(self) -> str:
        """``NAME@VERSION``, as a TrainingJob names it; catalog ones with ``nodus/`` in front."""
        prefix = "nodus/" if self.project == "nodus" else ""
        return f"{prefix}{self.name}@{self.spec.version}"

    @blocking
    async def wait_ready(self, timeout: float | None = 900.0) -> None:  # noqa: ASYNC109 - the caller's bound, in seconds
        """Wait until tasks and grader were built and checked.

        Raises:
            NodusError: When that failed; the message is the failing step's.
            NodusTimeout: When ``timeout`` seconds passed first.
        """
        await self._reach(("Ready", "Failed"), timeout, "Ready")
        if self.phase == "Failed":
            reason, message = self.status.get("reason"), self.status.get("message") or "no message"
            raise NodusError(
                f"environment {self.name} failed: {f'{reason}: ' if reason else ''}{message}",
                fix=f"See `nodus describe environment/{self.name}`.",
            )
