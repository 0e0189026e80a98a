"""The client of one server, and the one that calls use when they are given none."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from typing import Any

from nodus.client import runlog
from nodus.client.blocking import blocking, blocking_iterator
from nodus.client.config import Connection, resolve
from nodus.client.http import PATIENT, TIMEOUT_S, Api, RetryPolicy
from nodus.client.kinds import Kindly
from nodus.client.outcomes import TERMINAL, Applied, Plan, ended_otherwise, located
from nodus.client.record import Record, as_record
from nodus.client.resources import Resources, Selector, order_of_event
from nodus.client.views import View, as_view
from nodus.client.watching import Change

# Named here: inside the class, `list` is the method.
Views = list[View]


class Client:
    """A connection to a Nodus server, for objects of every kind.

    Everything left out comes from the environment (``NODUS_API_URL``, ``NODUS_API_KEY``, ``NODUS_PROJECT``,
    ``NODUS_ORG``, ``NODUS_CONTEXT``), else from the current context of ``~/.nodus/config``. Calls block; each has a
    twin to await: ``await client.get.aio("job", "hello")``. A kind is named by any of its names (``"Job"``, ``"jobs"``,
    ``"tj"``) or by its class (``nodus.Job``). Objects come as `View`. A client can be shared by threads.

    Example::

        with nodus.Client(project="default") as client:
            for job in client.list("jobs", labels={"team": "a"}):
                print(job.name, job.phase)
            client.wait_for("job", "hello", "Succeeded", timeout=600)

    Args:
        api_url: The server's origin, such as ``http://127.0.0.1:8080``.
        api_key: A key of it.
        project: Where objects are made and looked up.
        context: A context of the configuration file other than the current one.
        org: Takes the context of this organization.
        connection: Address, key and project already resolved; the arguments above are then ignored.
        retry: How long to go on trying when the server is away. Requests that may be repeated are, with the same
            Idempotency-Key, on connection errors and on errors whose class is ``retryable``; the server's
            ``Retry-After`` is kept to.
        timeout: Longest silence of the server within one answer, in seconds.

    Raises:
        ConfigError: When the configuration can't be read or the context does not exist.
    """

    def __init__(
        self,
        *,
        api_url: str | None = None,
        api_key: str | None = None,
        project: str | None = None,
        context: str | None = None,
        org: str | None = None,
        connection: Connection | None = None,
        retry: RetryPolicy = PATIENT,
        timeout: float = TIMEOUT_S,
    ) -> None:
        self.connection = connection or resolve(url=api_url, api_key=api_key, project=project, context=context, org=org)
        self.api = Api(self.connection, retry=retry, timeout_s=timeout)
        self.resources = Resources(self.api)
        self.project = self.connection.project

    # ------------------------------------------------------------------------------------------------- reading
    @blocking
    async def get(self, kind: Kindly, name: str, *, project: str | None = None) -> View:
        """Return one object.

        Example::

            client.get("environment", "nodus/arithmetic").spec.version

        Args:
            kind: Any name of the kind, or its class.
            name: The object's name; ``nodus/NAME`` is one of the catalog.
            project: Another project than the client's own.

        Raises:
            NotFound: When there is none of that name.
        """
        name, project = located(name, project)
        return as_view(await self.resources.get(kind, name, project=project))

    @blocking
    async def list(
        self,
        kind: Kindly,
        *,
        project: str | None = None,
        all_projects: bool = False,
        labels: Selector = None,
        fields: Selector = None,
        limit: int | None = None,
    ) -> Views:
        """Return every object that matches, following pages.

        Example::

            client.list(nodus.Job, labels="team in (a,b)", fields={"status.phase": "Running"})

        Args:
            kind: Any name of the kind, or its class.
            project: Another project than the client's own.
            all_projects: Look in all projects that the key sees.
            labels: Label selector, as text (``a=b,c!=d,e in (f,g),h``) or as the values wanted by key.
            fields: Field selector of dotted paths, likewise.
            limit: At most so many.
        """
        found = await self.resources.list(
            kind, project=project, all_projects=all_projects, labels=labels, fields=fields, limit=limit
        )
        return [as_view(item) for item in found]

    @blocking
    async def events(self, kind: Kindly | None = None, name: str | None = None, *, project: str | None = None) -> Views:
        """Return the events of an object, or of all of a project, the latest last.

        Example::

            for event in client.events("job", "hello"):
                print(event.last_time, event.reason, event.message)

        Args:
            kind: Any name of the object's kind, or its class; all kinds when None.
            name: The object; all of the kind when None.
            project: Another project than the client's own.
        """
        if name is not None:
            name, project = located(name, project)
        info = None if kind is None else await self.resources.kind(kind)
        wanted: dict[str, str] = {}
        if info is not None:
            wanted["involvedObject.kind"] = info.kind
        if name is not None:
            wanted["involvedObject.name"] = name
        if info is None or info.namespaced:
            wanted["involvedObject.namespace"] = project or self.project
        found = await self.resources.list("Event", fields=wanted)
        return [as_view(event) for event in sorted(found, key=order_of_event)]

    @blocking_iterator
    async def logs(
        self,
        kind: Kindly,
        name: str,
        *,
        follow: bool = False,
        tail: int | None = None,
        since: float | None = None,
        timestamps: bool = False,
        attempt: int | str | None = None,
        index: int | None = None,
        rank: int | None = None,
        process: int | str | None = None,
        project: str | None = None,
    ) -> AsyncGenerator[str, None]:
        """Yield the lines of a run's log, each with its newline.

        Example::

            for line in client.logs("job", "hello", follow=True):
                print(line, end="")

        Args:
            kind: Any name of the kind, or its class.
            name: The run.
            follow: Go on until the run ends, over further attempts; where no part of the log is asked for below, over
                restarts of the server too.
            tail: Begin with so many of the last lines.
            since: Only what is at most so many seconds old.
            timestamps: Begin every line with its time.
            attempt: An earlier attempt, by number or name; the newest when None.
            index: One completion index of a Job; all of them, each line with its index before it, when None.
            rank: One node of a gang.
            process: One process of a sandbox.
            project: Another project than the client's own.

        Raises:
            NotFound: When there is no such run, or no such part of it.
            ConnectionFailed: When the stream breaks off.
        """
        name, project = located(name, project)
        info = await self.resources.kind(kind)
        part = {
            "tailLines": tail,
            "sinceSeconds": None if since is None else max(1, round(since)),
            "timestamps": timestamps or None,
            "attempt": attempt,
            "index": index,
            "rank": rank,
            "process": process,
        }
        if follow and info.kind in ("Job", "TrainingJob") and all(value is None for value in part.values()):
            chunks = runlog.follow(self.resources, project or self.project, name, owner=info.kind)
        else:
            path = info.path(project or self.project, name, "log")
            chunks = runlog.read(self.resources, path, {**part, "follow": follow or None})
        async for line in runlog.lines(chunks):
            yield line

    # ------------------------------------------------------------------------------------------------ following
    @blocking_iterator
    async def watch(
        self,
        kind: Kindly,
        name: str | None = None,
        *,
        project: str | None = None,
        all_projects: bool = False,
        labels: Selector = None,
        fields: Selector = None,
        resource_version: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the caller's bound, in seconds
    ) -> AsyncGenerator[Change, None]:
        """Yield every change of the matching objects, each once and in order, beginning with those that are there.

        The stream is taken up where it was when it ends or breaks, also by a restart of the server. After an absence
        that is longer than the server keeps changes (a day at most), the objects are listed again and what differs is
        yielded; an object that was deleted in that time has its ``metadata`` only.

        Example::

            for change in client.watch("jobs", labels={"team": "a"}):
                print(change.type, change.object.name, change.object.phase)

        Args:
            kind: Any name of the kind, or its class.
            name: One object.
            project: Another project than the client's own.
            all_projects: Look in all projects that the key sees.
            labels: Label selector; an object that stops matching is ``DELETED``.
            fields: Field selector, likewise.
            resource_version: Begin after this version, such as ``view.metadata.resource_version``, instead of with the
                objects that are there.
            timeout: End after so many seconds; never when None.

        Raises:
            Expired: When the server no longer knows what changed since ``resource_version``.
        """
        if name is not None:
            name, project = located(name, project)
        changes = self.resources.watch(
            kind, name=name, project=project, all_projects=all_projects, labels=labels, fields=fields,
            resource_version=resource_version, timeout_s=timeout,
        )  # fmt: skip
        try:
            async for change in changes:
                yield Change(change.type, as_view(change.object))
        finally:
            await changes.aclose()

    @blocking
    async def wait_for(
        self,
        kind: Kindly,
        name: str,
        until: str | Collection[str] | Callable[[View], bool],
        *,
        project: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the caller's bound, in seconds
    ) -> View:
        """Wait until an object has a phase, or until a condition holds, and return the object.

        Example::

            client.wait_for("job", "hello", "Running", timeout=60)
            client.wait_for("volume", "data", lambda volume: volume.status.get("revision", 0) >= 3)

        Args:
            kind: Any name of the kind, or its class.
            name: The object.
            until: A phase, several of them, or a function of the object that says whether to stop.
            project: Another project than the client's own.
            timeout: Seconds to wait at most; no bound when None.

        Raises:
            NotFound: When the object is not there, or is deleted meanwhile.
            JobFailed: When the object ended in another phase than those waited for.
            NodusTimeout: When the time passed first.
        """
        name, project = located(name, project)
        phases = None if callable(until) else (until,) if isinstance(until, str) else tuple(until)

        def holds(obj: dict[str, Any]) -> bool:
            view = as_view(obj)
            if callable(until):
                return until(view)
            return view.phase in (phases or ()) or view.phase in TERMINAL

        what = "what was waited for" if phases is None else " or ".join(phases)
        found = as_view(await self.resources.wait_for(kind, name, holds, project=project, timeout_s=timeout, what=what))
        if phases is not None and found.phase not in phases:
            raise ended_otherwise(found, f"having been {what}")
        return found

    # ------------------------------------------------------------------------------------------------- changing
    @blocking
    async def create(
        self,
        document: Mapping[str, Any],
        *,
        project: str | None = None,
        if_match: str | None = None,
        idempotency_key: str | None = None,
    ) -> View:
        """Create an object and return it as stored.

        Example::

            client.create(
                {
                    "apiVersion": "nodus.dev/v1",
                    "kind": "Job",
                    "metadata": {"generateName": "hello-"},
                    "spec": {"command": ["echo", "hello"]},
                }
            )

        Args:
            document: The object as in a manifest.
            project: Where it goes, unless its own metadata says.
            if_match: The ETag of a `plan`: create what was planned, or nothing.
            idempotency_key: Repeating the call with the same key and document, within 24 hours, gives the same answer
                and creates nothing more. One is made for each call when None.

        Raises:
            AlreadyExists: When the name is taken by an object with another spec.
            Invalid: With every mistake in ``causes``.
            PreconditionFailed: When what was planned no longer holds.
        """
        return as_view(
            await self.resources.create(document, project=project, if_match=if_match, idempotency_key=idempotency_key)
        )

    @blocking
    async def create_many(self, documents: Sequence[Mapping[str, Any]], *, project: str | None = None) -> Views:
        """Create objects of one kind, in order, up to 100 in one request, and return them as stored.

        Each request makes all of its objects or none.

        Example::

            client.create_many([document | {"metadata": {"name": f"task-{number}"}} for number in range(500)])

        Args:
            documents: The objects as in manifests, all of one kind and for one project.
            project: Where they go, unless their own metadata says.

        Raises:
            Invalid: When one is wrong, which ``causes`` name; nothing of its request is made.
            AlreadyExists: When a name is taken by an object with another spec.
        """
        return [as_view(item) for item in await self.resources.create_many(documents, project=project)]

    @blocking
    async def plan(self, document: Mapping[str, Any], *, project: str | None = None) -> Plan:
        """Return what would come of creating an object, with its estimate; stores nothing.

        Example::

            plan = client.plan(document)
            if not plan.blocking:
                client.create(document, if_match=plan.etag)

        Args:
            document: The object as in a manifest.
            project: Where it would go, unless its own metadata says.

        Raises:
            Invalid: With every mistake in ``causes``.
        """
        planned = await self.resources.plan(document, project=project)
        return Plan(as_view(planned.object), planned.etag)

    @blocking
    async def apply(self, document: Mapping[str, Any], *, project: str | None = None, dry_run: bool = False) -> Applied:
        """Create the object, or change it to what the document says; what only the server has set stays.

        Example::

            applied = client.apply(yaml.safe_load(open("job.yaml")))
            print(applied.object.name, applied.outcome)

        Args:
            document: The object as in a manifest.
            project: Where it goes, unless its own metadata says.
            dry_run: Only say what would come of it.

        Raises:
            FieldImmutable: When the document changes what can't change; ``error.diff`` shows it.
            Invalid: With every mistake in ``causes``.
        """
        done = await self.resources.apply(document, project=project, dry_run=dry_run)
        return Applied(as_view(done.object), done.outcome)

    @blocking
    async def patch(
        self,
        kind: Kindly,
        name: str,
        patch: Mapping[str, Any] | Sequence[Any],
        *,
        project: str | None = None,
        dry_run: bool = False,
    ) -> View:
        """Change an object and return it.

        Example::

            client.patch("tj", "my-run", {"spec": {"maxCostUSD": "40"}})

        Args:
            kind: Any name of the kind, or its class.
            name: The object.
            patch: A merge patch (an object, where None removes a key) or a JSON patch (a list of operations).
            project: Another project than the client's own.
            dry_run: Only say what would come of it.

        Raises:
            FieldImmutable: When it changes what can't change.
            Invalid: With every mistake in ``causes``.
        """
        name, project = located(name, project)
        return as_view(await self.resources.patch(kind, name, patch, project=project, dry_run=dry_run))

    @blocking
    async def replace(self, document: Mapping[str, Any], *, project: str | None = None) -> View:
        """Put an object in the place of the one with its name, and return it.

        Example::

            job = client.get("job", "hello")
            job.metadata["labels"] = {"team": "a"}
            client.replace(job)

        Args:
            document: The whole object.
            project: Where it is, unless its own metadata says.

        Raises:
            Conflict: When it was changed since the version in the document's ``metadata.resourceVersion``.
            FieldImmutable: When it changes what can't change.
        """
        return as_view(await self.resources.replace(document, project=project))

    @blocking
    async def delete(
        self,
        kind: Kindly,
        name: str,
        *,
        project: str | None = None,
        propagation: str = "Background",
        missing_ok: bool = False,
    ) -> None:
        """Delete an object and, unless ``propagation`` is ``Orphan``, what it owns.

        Example::

            client.delete("job", "hello", missing_ok=True)

        Args:
            kind: Any name of the kind, or its class.
            name: The object.
            project: Another project than the client's own.
            propagation: ``Background``, ``Foreground`` or ``Orphan``.
            missing_ok: What is gone already is no error.

        Raises:
            NotFound: When there is none and ``missing_ok`` is false.
        """
        name, project = located(name, project)
        await self.resources.delete(kind, name, project=project, propagation=propagation, missing_ok=missing_ok)

    # ------------------------------------------------------------------------------------------------ the server
    @blocking
    async def whoami(self) -> Record:
        """Return who the key belongs to and what it may do.

        Example::

            client.whoami().scopes
        """
        return Record(as_record(await self.api.call("GET", "/auth/whoami")))

    @blocking
    async def server_info(self) -> Record:
        """Return what the server says of itself: its release, its default model, its device.

        Example::

            client.server_info().release
        """
        return Record(as_record(await self.api.call("GET", "/.well-known/nodus-configuration")))

    @blocking
    async def ready(self) -> str:
        """Return the server's readiness report.

        Example::

            client.ready()

        Raises:
            Unavailable: When it is up and not ready.
            ConnectionFailed: When it is not up.
        """
        return str(await self.api.call("GET", "/readyz"))

    def close(self) -> None:
        """Close idle connections; the client can still be used."""
        self.api.transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.api.transport.aclose()
        self.close()

    def __repr__(self) -> str:
        return f"<nodus.Client {self.connection.url} {self.project}>"


_shared: dict[Connection, Client] = {}


def default_client() -> Client:
    """Return the client for the present environment and configuration; the same one while they stay the same."""
    connection = resolve()
    if connection not in _shared:
        _shared[connection] = Client(connection=connection)
    return _shared[connection]
