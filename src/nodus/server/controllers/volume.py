"""Volumes: the import of what a Volume comes from, once, into its first revision.

::

    Pending --fetch, check--> Pending --blobs, revision--> Ready
       |  ^ (transient failures: again, with growing pauses)
       +--+--> Failed

A Volume without a source is Ready from the start. The fetch runs in a process of its own that passes ask about; what it
brought becomes blobs and a revision in one transaction, so that a crash leaves either no revision or a whole one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from nodus.core.clock import parse_rfc3339, rfc3339
from nodus.core.errors import NodusError
from nodus.core.kinds import VOLUME
from nodus.server import revisions
from nodus.server.controllers import givingup
from nodus.server.controllers.runtime import NOTHING, Action, ActionResult, BaseController, EventNote, Outcome, Trouble
from nodus.server.store import blobs, objects, volumes
from nodus.server.store.partials import Partials
from nodus.server.store.volumes import FileEntry, Revision
from nodus.server.training import lookups
from nodus.server.training.models import Imported, ImportState, ModelService, hub_token
from nodus.server.training.references import HubModel, is_commit

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.services import Services
    from nodus.server.store.objects import Object
    from nodus.server.volumes import VolumeFiles

POLL_INTERVAL_S = 0.5
HOLDER_INTERVAL_S = 5.0
MAX_TRIES = 5
FIRST_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Context:
    """What a decision about a Volume needs."""

    obj: Object
    revision: Revision | None = None
    """Its newest committed revision."""
    held: bool = False
    """Whether the Job that its status names as the writer still is."""
    result: ActionResult | None = None


class VolumeController(BaseController):
    """Imports Volumes.

    Args:
        services: for the store, and for secrets with the hub's token.
        models: fetches.
        files: turns what was fetched into blobs.
    """

    kind = VOLUME
    rests_in = frozenset({"Ready", "Failed"})

    def __init__(self, services: Services, models: ModelService, files: VolumeFiles) -> None:
        self._services = services
        self._models = models
        self._files = files

    def eligible(self, obj: Object) -> bool:
        """Tell whether the Volume still waits for its import, or a Job writes to it."""
        return obj.status.get("phase") not in ("Ready", "Failed") or bool(obj.status.get("holder"))

    def load(self, conn: Connection, obj: Object) -> Context:
        """Read the newest revision, and whether the writer is still there."""
        return Context(obj, volumes.latest(conn, obj.uid), revisions.holder(conn, obj) is not None)

    def decide(self, ctx: Context, now: datetime) -> Outcome:
        """Take the next step; see the diagram of the module."""
        obj, result = ctx.obj, ctx.result
        if obj.deleted_at is not None:
            return NOTHING
        if obj.status.get("phase") in ("Ready", "Failed"):
            return _held(ctx)
        if ctx.revision is not None or not obj.spec.get("source"):
            return _ready(ctx, now)
        noted = obj.status.get("import") or {}
        tries = int(noted.get("tries") or 0)
        if result is None:
            pause_s = (parse_rfc3339(noted["retryTime"]) - now).total_seconds() if noted.get("retryTime") else 0.0
            if pause_s > 0:
                return Outcome(requeue_after_s=pause_s)
            return Outcome(action=Action("import", f"{obj.uid}/import/{tries}"))
        if result.error is not None:
            return _failed(obj, result, tries + 1, now)
        progress = {key: value for key, value in result.value.items() if value is not None}
        status = {key: value for key, value in obj.status.items() if key not in ("reason", "fix")}
        status |= {"phase": "Pending", "message": _words(progress), "import": {"tries": tries, **progress}}
        # No action now: the next pass asks again, and finds the result of that.
        return Outcome(status=status, requeue_after_s=POLL_INTERVAL_S)

    async def act(self, ctx: Context, action: Action) -> ActionResult:
        """Start the import or look how far it is; commit what is whole."""
        obj = ctx.obj
        source: Mapping[str, Any] = obj.spec["source"]
        pinned = await self._pinned(obj, source)
        if isinstance(pinned, ActionResult):
            return ActionResult(action.key, action.name, pinned.value, pinned.error)
        state = self._models.state(obj.uid)
        if state.failure is not None:
            self._models.retry(obj.uid)
            failure = state.failure
            value = {"reason": failure.reason, "fix": failure.fix, "transient": failure.transient}
            return ActionResult(action.key, action.name, value, failure.message)
        if state.done is None:
            self._models.begin(obj.uid, pinned, await self._credentials(obj), revisions.limit_bytes(obj))
            return ActionResult(action.key, action.name, _progress(state, pinned))
        try:
            await self._commit(obj, state.done)
        except NodusError as error:
            if error.retryable:
                raise
            value = {"reason": error.reason, "fix": error.fix or "", "transient": False}
            return ActionResult(action.key, action.name, value, error.message)
        return ActionResult(action.key, action.name, _progress(state, pinned))

    def give_up(self, obj: Object, ctx: Context | None, trouble: Trouble, now: datetime) -> Outcome:
        """Fail the import; a Volume that is Ready has its files, and stays."""
        if obj.status.get("phase") in self.rests_in:
            return NOTHING
        return givingup.ended(self.kind, obj, trouble, now)

    async def abandon(self, obj: Object) -> None:
        """Stop the import, and give its disk space back; a later look begins it anew."""
        await self._models.forget(obj.uid)

    async def gone(self, uid: str) -> None:
        """Stop the import of a Volume that was deleted, and delete its files."""
        await self._models.forget(uid)
        await asyncio.to_thread(self._files.forget, uid)
        await asyncio.to_thread(Partials(self._services.store.blobs).forget, uid)

    async def _pinned(self, obj: Object, source: Mapping[str, Any]) -> Mapping[str, Any] | ActionResult:
        """The source with a full commit: a Volume that names a branch or nothing gets the newest one, for good."""
        if not source.get("huggingface"):
            return source
        hub = {**source["huggingface"]}
        if hub["repo"].startswith("datasets/"):
            hub |= {"repo": hub["repo"].removeprefix("datasets/"), "type": "dataset"}
        if is_commit(str(hub.get("revision") or "").lower()):
            return {**source, "huggingface": {**hub, "revision": hub["revision"].lower()}}
        known = (obj.status.get("import") or {}).get("revision")
        if known:
            return {**source, "huggingface": {**hub, "revision": known}}
        try:
            commit = await self._models.newest_commit(
                HubModel(hub["repo"]),
                hub_token(await self._credentials(obj)),
                kind=hub.get("type", "model"),
                revision=hub.get("revision"),
            )
        except NodusError as error:
            value = {"reason": error.reason, "fix": error.fix or "", "transient": error.retryable}
            return ActionResult("", "", value, error.message)
        return {**source, "huggingface": {**hub, "revision": commit}}

    async def _credentials(self, obj: Object) -> dict[str, str]:
        """The values of the Secret that the source names; none where it names none."""
        parts = [part for part in obj.spec["source"].values() if isinstance(part, Mapping) and part.get("secret")]
        if not parts:
            return {}
        store, services = self._services.store, self._services
        return await store.read(lookups.secret_values, services, str(obj.project), parts[0]["secret"])

    async def _commit(self, obj: Object, imported: Imported) -> None:
        for file in imported.files:
            await asyncio.to_thread(self._files.take, imported.directory / file["path"], file["sha256"])
        await self._services.store.write(_commit, obj.uid, imported)
        await self._models.forget(obj.uid)


def _commit(conn: Connection, uid: str, imported: Imported) -> None:
    """Index the blobs and commit the first revision, unless it is there already; note where it comes from."""
    obj = objects.find_by_uid(conn, uid)
    if obj is None or volumes.latest(conn, uid) is not None:
        return
    tree = []
    for file in imported.files:
        blobs.index(conn, obj.project, file["sha256"], int(file["size"]))
        tree.append(FileEntry(file["path"], file["sha256"], int(file["size"]), int(file.get("mode") or 0o444)))
    noted = {**(obj.status.get("import") or {}), "provenance": dict(imported.provenance)}
    # Still Pending: the next pass makes it Ready, and says so in an event.
    revisions.commit(conn, uid, tree, phase="Pending", **{"import": noted})


def _held(ctx: Context) -> Outcome:
    """Nobody's writer any more: the status says so. That counts for nothing but the eye."""
    if ctx.held:
        return Outcome(requeue_after_s=HOLDER_INTERVAL_S)
    if not ctx.obj.status.get("holder"):
        return NOTHING
    return Outcome(status={key: value for key, value in ctx.obj.status.items() if key != "holder"})


def _ready(ctx: Context, now: datetime) -> Outcome:
    obj, revision = ctx.obj, ctx.revision
    status = {key: value for key, value in obj.status.items() if key not in ("reason", "message", "fix")}
    status |= {"phase": "Ready", "revision": revision.revision if revision else 0}
    if revision is None:
        return Outcome(status=status)
    done = {"files": revision.files, "bytes": revision.size_bytes, "totalBytes": revision.size_bytes}
    status |= {
        "digest": revision.snapshot,
        "used": str(revision.size_bytes),
        "storage": {"bytes": revision.size_bytes},
        "lastCommitTime": rfc3339(revision.created_at),
        "import": {**(obj.status.get("import") or {}), **done},
    }
    message = f"imported {revision.files} files, {revision.size_bytes / 1e6:.1f} MB"
    return Outcome(status=status, events=(EventNote("Normal", "Imported", message),))


def _failed(obj: Object, result: ActionResult, tries: int, now: datetime) -> Outcome:
    reason, message = str(result.value.get("reason") or "ImportFailed"), str(result.error)
    noted = {**(obj.status.get("import") or {}), "tries": tries}
    words = {"reason": reason, "message": message} | ({"fix": result.value["fix"]} if result.value.get("fix") else {})
    if result.value.get("transient") and tries < MAX_TRIES:
        pause_s = FIRST_PAUSE_S * 2 ** (tries - 1)
        noted["retryTime"] = rfc3339(now + timedelta(seconds=pause_s))
        status = {**obj.status, **words, "phase": "Pending", "import": noted}
        note = EventNote("Warning", reason, f"{message}; trying again in {pause_s:g} s")
        return Outcome(status=status, events=(note,), requeue_after_s=pause_s)
    status = {**obj.status, **words, "phase": "Failed", "import": {**noted, "failedTime": rfc3339(now)}}
    return Outcome(status=status, events=(EventNote("Warning", reason, message),))


def _progress(state: ImportState, source: Mapping[str, Any]) -> dict[str, Any]:
    revision = (source.get("huggingface") or {}).get("revision")
    return {"bytes": state.bytes_done, "totalBytes": state.bytes_total, "files": state.files, "revision": revision}


def _words(progress: Mapping[str, Any]) -> str:
    total = progress.get("totalBytes")
    if not total:
        return "importing"
    return f"importing: {progress.get('bytes', 0) / 1e6:.1f} of {total / 1e6:.1f} MB"
