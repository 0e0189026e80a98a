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
from nodus.client.http import JSON_PATCH, Api, new_key
from nodus.client.kinds import KindInfo, Kindly, find_kind, resolve_kind
from nodus.client.watching import Change, Collection, Watch, list_all
from nodus.core.batches import batches
from nodus.core.errors import Expired, NodusError, NodusTimeout, NotFound

JsonObject = dict[str, Any]
JsonObjects = list[JsonObject]
Selector = str | Mapping[str, str] | None
"""``a=b,c!=d``, or the values wanted by key."""
MERGE_PATCH = "application/merge-patch+json"
BATCH, BATCH_BYTES = 100, 900_000
"""A batch of created objects: so many, and so large in JSON, at most."""


def order_of_event(event: Mapping[str, Any]) -> tuple[str, int]:
    """Return the sort key that puts Events in the order in which they happened, within a second too."""
    version = str((event.get("metadata") or {}).get("resourceVersion") or "")
    return str(event.get("lastTime") or ""), int(version) if version.isdecimal() else 0


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

    async def kind(self, kind: Kindly) -> KindInfo:
        """Return a kind's record from any of its names, or from a class that stands for it."""
        if isinstance(kind, KindInfo):
            return kind
        return await resolve_kind(self.api, kind if isinstance(kind, str) else kind.kind)

    async def path(
        self,
        kind: Kindly,
        name: str | None = None,
        *,
        project: str | None = None,
        subresource: str | None = None,
    ) -> str:
        """Return the URL path of a collection, an object, or a subresource."""
        return (await self.kind(kind)).path(project or self.project, name, subresource)

    async def get(self, kind: Kindly, name: str, *, project: str | None = None) -> JsonObject:
        """Return one object.

        Raises:
            NotFound: When there is none of that name.
        """
        result: JsonObject = await self.api.call("GET", await self.path(kind, name, project=project))
        return result

    async def list(
        self,
        kind: Kindly,
        *,
        project: str | None = None,
        all_projects: bool = False,
        labels: Selector = None,
        fields: Selector = None,
        limit: int | None = None,
    ) -> JsonObjects:
        """Return every matching object, following pages.

        Args:
            kind: Kind, plural or short name.
            project: Another project than the client's own.
            all_projects: List a project kind over all projects.
            labels: Label selector, ``a=b,c=d``.
            fields: Field selector, ``status.phase=Running``.
            limit: At most so many.
        """
        collection = await self._collection(kind, project, all_projects, labels, fields)
        items: JsonObjects = (await list_all(self.api, collection, limit=limit))[0]
        return items

    async def watch(
        self,
        kind: Kindly,
        *,
        name: str | None = None,
        project: str | None = None,
        all_projects: bool = False,
        labels: Selector = None,
        fields: Selector = None,
        resource_version: str | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Change, None]:
        """Yield every change once, for ever or for ``timeout_s`` seconds; see `Watch`.

        Without ``resource_version`` the present objects come first as ``ADDED``.

        Raises:
            Expired: When the server no longer knows what changed since ``resource_version``.
        """
        collection = await self._collection(kind, project, all_projects, labels, fields, name)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        async with aclosing(
            Watch(self.api, collection, since=resource_version, deadline=deadline).changes()
        ) as changes:
            async for change in changes:
                yield change

    async def _collection(
        self,
        kind: Kindly,
        project: str | None,
        all_projects: bool = False,
        labels: Selector = None,
        fields: Selector = None,
        name: str | None = None,
    ) -> Collection:
        info = await self.kind(kind)
        named = None if name is None else f"metadata.name={name}"
        wanted = ",".join(part for part in (_selector(fields), named) if part) or None
        selectors = {"labelSelector": _selector(labels), "fieldSelector": wanted}
        return Collection(info, info.path(None if all_projects else project or self.project), selectors)

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
        made = await self.create_or_find(document, project=project, if_match=if_match, idempotency_key=idempotency_key)
        return made.object

    async def create_or_find(
        self,
        document: Mapping[str, Any],
        *,
        project: str | None = None,
        if_match: str | None = None,
        idempotency_key: str | None = None,
    ) -> Applied:
        """As `create`; the outcome is ``unchanged`` where the object was there already, with the same spec."""
        body, path = await self._addressed(document, project)
        headers = {"If-Match": if_match} if if_match else None
        answer = await self.api.answer(
            "POST", path, body=body, headers=headers, idempotency_key=idempotency_key or new_key("create")
        )
        return Applied(answer.content(), "unchanged" if answer.status == 200 else "created")

    async def create_many(self, documents: Sequence[Mapping[str, Any]], *, project: str | None = None) -> JsonObjects:
        """Create objects of one kind, in order, in batches of which each is made whole or not at all.

        Raises:
            NodusError: When the documents are of several kinds or for several projects.
            Invalid: When one of a batch is wrong; the batches before it are made.
        """
        found: JsonObjects = []
        for batch in batches(documents, lambda one: len(json.dumps(one)), most_bytes=BATCH_BYTES, most=BATCH):
            addressed = [await self._addressed(document, project) for document in batch]
            body, path = addressed[0]
            if any(other != path or item.get("kind") != body["kind"] for item, other in addressed):
                raise NodusError(
                    "the documents are of several kinds or for several projects", fix="Create each kind by itself."
                )
            made = await self.api.call(
                "POST",
                path,
                body={
                    "apiVersion": body["apiVersion"],
                    "kind": f"{body['kind']}List",
                    "items": [i for i, _ in addressed],
                },
                idempotency_key=new_key("create-many"),
            )
            found.extend({"apiVersion": body["apiVersion"], "kind": body["kind"]} | item for item in made["items"])
        return found

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
        kind: Kindly,
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
        kind: Kindly,
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
        kind: Kindly,
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
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        collection = await self._collection(kind, project, name=name)
        while True:
            current = await self.get(collection.info, name, project=project)
            if holds(current):
                return current
            since = str(current["metadata"].get("resourceVersion") or "") or None
            watch = Watch(self.api, collection, since=since, deadline=deadline)
            try:
                async with aclosing(watch.changes()) as changes:
                    async for change in changes:
                        if change.type == "DELETED":
                            raise NotFound(f"{collection.info.singular} {name!r} was deleted meanwhile")
                        if holds(change.object):
                            return dict(change.object)
            except Expired:
                continue  # it was away too long: what it missed is in the object
            raise NodusTimeout(f"{name}: {what} did not come within {timeout_s:g} s", fix="It goes on; wait again.")

    async def _addressed(self, document: Mapping[str, Any], project: str | None) -> tuple[JsonObject, str]:
        info = await self.kind(_kind_of(document))
        metadata = dict(document.get("metadata") or {})
        if info.namespaced:
            metadata.setdefault("namespace", project or self.project)
        return dict(document) | {"metadata": metadata}, info.path(metadata.get("namespace"))


def _selector(selector: Selector) -> str | None:
    if selector is None or isinstance(selector, str):
        return selector or None
    return ",".join(f"{key}={value}" for key, value in selector.items()) or None


def _kind_of(document: Mapping[str, Any]) -> str | KindInfo:
    """Return what to look the document's kind up by; the version it names wins over the table's."""
    kind, version = document.get("kind"), str(document.get("apiVersion") or "")
    if not kind:
        raise NodusError("the document has no kind", fix="Add `apiVersion` and `kind`.")
    known = find_kind(str(kind))
    if known is None or not version or version == known.api_version:
        return known or str(kind)
    return KindInfo(known.kind, known.plural, version.rpartition("/")[2], known.namespaced, known.short_names)
