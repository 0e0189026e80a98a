"""One client for objects of every kind: get, list, watch, create, apply, patch, replace, delete, wait_for.

Objects are what the wire carries: JSON objects. Every method is a coroutine; the handles in this package and the
command line make blocking calls of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from nodus.client.apply import prepare, three_way_patch
from nodus.client.http import Api, ConnectionFailed, new_key
from nodus.client.kinds import KindInfo, find_kind, resolve_kind
from nodus.client.transport import pause
from nodus.core.errors import Expired, NodusError, NodusTimeout, NotFound, from_status

JsonObject = dict[str, Any]
JsonObjects = list[JsonObject]
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
PAGE = 500


class Applied(NamedTuple):
    """What `Resources.apply` did."""

    object: JsonObject
    outcome: str
    """``created``, ``configured`` or ``unchanged``."""


class Planned(NamedTuple):
    """A dry run's answer."""

    object: JsonObject
    etag: str | None
    """Send it as ``if_match`` to create exactly this plan."""


class Resources:
    """Objects of every kind on one server.

    Args:
        api: The server.
        project: Where objects are looked up when a call names no project.
    """

    def __init__(self, api: Api, project: str | None = None) -> None:
        self.api = api
        self.project = project or api.connection.project

    async def kind(self, kind: str | KindInfo) -> KindInfo:
        """Return a kind's record from any of its names."""
        return kind if isinstance(kind, KindInfo) else await resolve_kind(self.api, kind)

    async def path(
        self,
        kind: str | KindInfo,
        name: str | None = None,
        *,
        project: str | None = None,
        subresource: str | None = None,
    ) -> str:
        """Return the URL path of a collection, an object, or a subresource."""
        return (await self.kind(kind)).path(project or self.project, name, subresource)

    async def get(self, kind: str | KindInfo, name: str, *, project: str | None = None) -> JsonObject:
        """Return one object.

        Raises:
            NotFound: When there is none of that name.
        """
        result: JsonObject = await self.api.call("GET", await self.path(kind, name, project=project))
        return result

    async def list(
        self,
        kind: str | KindInfo,
        *,
        project: str | None = None,
        all_projects: bool = False,
        labels: str | None = None,
        fields: str | None = None,
    ) -> JsonObjects:
        """Return every matching object, following pages.

        Args:
            kind: Kind, plural or short name.
            project: Another project than the client's own.
            all_projects: List a project kind over all projects.
            labels: Label selector, ``a=b,c=d``.
            fields: Field selector, ``status.phase=Running``.
        """
        return (await self._list(kind, project, all_projects, labels, fields))[0]

    async def _list(
        self, kind: str | KindInfo, project: str | None, all_projects: bool, labels: str | None, fields: str | None
    ) -> tuple[JsonObjects, str]:
        info = await self.kind(kind)
        path = info.path(None if all_projects else project or self.project)
        query: dict[str, object] = {"limit": PAGE, "labelSelector": labels, "fieldSelector": fields}
        items: JsonObjects = []
        while True:
            page = await self.api.call("GET", path, query=query)
            for item in page.get("items") or []:
                # Kubernetes lists leave kind and apiVersion to the list; a lone object needs its own.
                items.append({"apiVersion": info.api_version, "kind": info.kind} | item)
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return items, str((page.get("metadata") or {}).get("resourceVersion") or "")
            query["continue"] = token

    async def watch(
        self,
        kind: str | KindInfo,
        *,
        name: str | None = None,
        project: str | None = None,
        all_projects: bool = False,
        labels: str | None = None,
        fields: str | None = None,
        resource_version: str | None = None,
    ) -> AsyncGenerator[tuple[str, JsonObject], None]:
        """Yield ``(type, object)`` for every change, for ever: ``ADDED``, ``MODIFIED`` or ``DELETED``.

        Without ``resource_version`` the present objects come first as ``ADDED``. A stream that ends or breaks is taken
        up where it was; when that is too long ago, the present objects come again as ``ADDED``.
        """
        info = await self.kind(kind)
        path = info.path(None if all_projects else project or self.project)
        if name is not None:
            fields = ",".join(part for part in (fields, f"metadata.name={name}") if part)
        seen = resource_version
        broken_since: float | None = None
        while True:
            query = {
                "watch": True,
                "allowWatchBookmarks": True,
                "resourceVersion": seen,
                "labelSelector": labels,
                "fieldSelector": fields,
            }
            try:
                async with aclosing(self.api.lines("GET", path, query=query)) as lines:
                    async for line in lines:
                        broken_since = None
                        change = json.loads(line)
                        item = change["object"]
                        if change["type"] == "ERROR":
                            raise from_status(item, int(item.get("code") or 500))
                        seen = str((item.get("metadata") or {}).get("resourceVersion") or seen or "") or None
                        if change["type"] != "BOOKMARK":
                            yield change["type"], item
            except Expired:
                seen = None
            except ConnectionFailed:
                now = time.monotonic()
                broken_since = broken_since or now
                if now - broken_since > self.api.retry.budget_s:
                    raise
            await pause(0.5)

    async def create(
        self,
        document: Mapping[str, Any],
        *,
        project: str | None = None,
        if_match: str | None = None,
        idempotency_key: str | None = None,
    ) -> JsonObject:
        """Create an object and return it as stored.

        Args:
            document: The object, with ``apiVersion``, ``kind``, ``metadata`` and ``spec``.
            project: Where it goes, unless its own metadata says.
            if_match: A dry run's ETag: create only what was planned.
            idempotency_key: The same key with the same document within 24 hours gives the same answer.

        Raises:
            AlreadyExists: When the name is taken by an object with another spec.
            Invalid: With every mistake in ``causes``.
            PreconditionFailed: When ``if_match`` no longer holds.
        """
        body, path = await self._addressed(document, project)
        headers = {"If-Match": if_match} if if_match else None
        result: JsonObject = await self.api.call(
            "POST", path, body=body, headers=headers, idempotency_key=idempotency_key or new_key("create")
        )
        return result

    async def plan(self, document: Mapping[str, Any], *, project: str | None = None) -> Planned:
        """Return the object as it would be created, with its estimate, and the ETag of that plan. Stores nothing."""
        body, path = await self._addressed(document, project)
        answer = await self.api.answer(
            "POST", path, query={"dryRun": "All"}, body=body, idempotency_key=new_key("plan")
        )
        return Planned(answer.content(), answer.headers.get("etag"))

    async def apply(self, document: Mapping[str, Any], *, project: str | None = None, dry_run: bool = False) -> Applied:
        """Create the object, or change it to what the document says; what only the server has set stays.

        Raises:
            FieldImmutable: When the document changes what can't change.
        """
        info = await self.kind(_kind_of(document))
        sent, last = prepare(document, (project or self.project) if info.namespaced else None)
        name, home = sent["metadata"]["name"], sent["metadata"].get("namespace")
        query = {"dryRun": "All" if dry_run else None}
        try:
            live = await self.get(info, name, project=home)
        except NotFound:
            created = await self.api.call(
                "POST", info.path(home), query=query, body=sent, idempotency_key=new_key("apply")
            )
            return Applied(created, "created")
        patch = three_way_patch(sent, last, live)
        if patch is None:
            return Applied(live, "unchanged")
        changed = await self.api.call(
            "PATCH", info.path(home, name), query=query, body=patch, headers={"Content-Type": MERGE_PATCH}
        )
        same = live["metadata"].get("resourceVersion") == changed["metadata"].get("resourceVersion") is not None
        return Applied(changed, "unchanged" if same and not dry_run else "configured")

    async def patch(
        self,
        kind: str | KindInfo,
        name: str,
        patch: Mapping[str, Any] | Sequence[Any] | bytes,
        *,
        project: str | None = None,
        dry_run: bool = False,
    ) -> JsonObject:
        """Change an object by a merge patch (an object) or a JSON patch (a list), and return it.

        Args:
            kind: Kind, plural or short name.
            name: The object.
            patch: Decoded, or as bytes to be sent as they are (a merge patch).
            project: Another project than the client's own.
            dry_run: Only say what would come of it.
        """
        content = JSON_PATCH if isinstance(patch, Sequence) and not isinstance(patch, bytes) else MERGE_PATCH
        result: JsonObject = await self.api.call(
            "PATCH",
            await self.path(kind, name, project=project),
            body=patch,
            query={"dryRun": "All" if dry_run else None},
            headers={"Content-Type": content},
        )
        return result

    async def replace(self, document: Mapping[str, Any], *, project: str | None = None) -> JsonObject:
        """Replace a whole object; its ``metadata.resourceVersion``, where given, must still hold."""
        body, path = await self._addressed(document, project)
        result: JsonObject = await self.api.call("PUT", f"{path}/{body['metadata']['name']}", body=body)
        return result

    async def delete(
        self,
        kind: str | KindInfo,
        name: str,
        *,
        project: str | None = None,
        propagation: str = "Background",
        missing_ok: bool = False,
    ) -> None:
        """Delete an object and, unless ``propagation`` is ``Orphan``, what it owns.

        Raises:
            NotFound: When there is none and ``missing_ok`` is false.
        """
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        try:
            await self.api.call("DELETE", await self.path(kind, name, project=project), body=options)
        except NotFound:
            if not missing_ok:
                raise

    async def wait_for(
        self,
        kind: str | KindInfo,
        name: str,
        holds: Callable[[JsonObject], bool],
        *,
        project: str | None = None,
        timeout_s: float | None = None,
        what: str = "the condition",
    ) -> JsonObject:
        """Return the object as soon as ``holds(object)`` is true.

        Raises:
            NotFound: When the object is not there, or is deleted meanwhile.
            NodusTimeout: When ``timeout_s`` seconds pass first.
        """
        current = await self.get(kind, name, project=project)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not holds(current):
            changed = await self._next_change(kind, name, project, current, deadline)
            if changed is None:
                raise NodusTimeout(f"{name}: {what} did not come within {timeout_s:g} s", fix="It goes on; wait again.")
            current = changed
        return current

    async def _next_change(
        self, kind: str | KindInfo, name: str, project: str | None, current: JsonObject, deadline: float | None
    ) -> JsonObject | None:
        """Return the object's next version by long polling its watch; None once the deadline has passed."""
        info = await self.kind(kind)
        query = {
            "watch": True,
            "allowWatchBookmarks": True,
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": current["metadata"].get("resourceVersion"),
        }
        path = info.path(project or self.project)
        left_s = 120.0 if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            return None
        try:
            silence_s = min(120.0, left_s)
            async with aclosing(self.api.lines("GET", path, query=query, timeout_s=silence_s)) as lines:
                async for line in lines:
                    change = json.loads(line)
                    if change["type"] == "DELETED":
                        raise NotFound(f"{info.singular} {name!r} was deleted meanwhile")
                    if change["type"] in ("ADDED", "MODIFIED"):
                        return dict(change["object"])
                    if deadline is not None and time.monotonic() >= deadline:
                        return None
        except ConnectionFailed:
            pass  # the stream broke or fell silent: the deadline or the next GET says which
        if deadline is not None and time.monotonic() >= deadline:
            return None
        await pause(0.2)
        return await self.get(info, name, project=project)

    async def _addressed(self, document: Mapping[str, Any], project: str | None) -> tuple[JsonObject, str]:
        info = await self.kind(_kind_of(document))
        metadata = dict(document.get("metadata") or {})
        if info.namespaced:
            metadata.setdefault("namespace", project or self.project)
        return dict(document) | {"metadata": metadata}, info.path(metadata.get("namespace"))


def _kind_of(document: Mapping[str, Any]) -> str | KindInfo:
    """Return what to look the document's kind up by; the version it names wins over the table's."""
    kind, version = document.get("kind"), str(document.get("apiVersion") or "")
    if not kind:
        raise NodusError("the document has no kind", fix="Add `apiVersion` and `kind`.")
    known = find_kind(str(kind))
    if known is None or not version or version == known.api_version:
        return known or str(kind)
    return KindInfo(known.kind, known.plural, version.rpartition("/")[2], known.namespaced, known.short_names)
