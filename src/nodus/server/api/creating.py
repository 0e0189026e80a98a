"""Creating objects, for good or as a dry run; repeated creates are answered with what is there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from nodus.core.errors import (
    AlreadyExists,
    BadRequest,
    Cause,
    Invalid,
    NodusError,
    PreconditionFailed,
    RequestEntityTooLarge,
)
from nodus.core.ids import generated_name
from nodus.core.kinds import Kind
from nodus.core.patches import merge_patch
from nodus.server.api import auditing, idempotent
from nodus.server.api.admitting import admit_draft, is_dry_run, preview_of, resolve_draft
from nodus.server.api.auth import CREATED_BY
from nodus.server.api.call import Call
from nodus.server.api.envelope import read_envelope
from nodus.server.api.http import json_response, json_type, read_object
from nodus.server.api.present import dry_run_etag, present, project_filter
from nodus.server.kinds import admission_of
from nodus.server.kinds.base import Draft, same_spec
from nodus.server.services import Services
from nodus.server.store import objects
from nodus.server.store.context import lock_objects
from nodus.server.store.idempotency import Reply

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object


async def create(call: Call, kind: Kind) -> Response:
    """Create an object. The same object again is answered with the stored one; another one of that name is refused."""
    call.principal.require("create", kind, call.project)
    if kind.namespaced and call.project is None:
        raise BadRequest(f"{kind.plural} live in projects", fix=f"POST to namespaces/PROJECT/{kind.plural}.")
    dry_run = is_dry_run(call)
    body = await read_object(call.request)
    request = None if dry_run else idempotent.key_of(call, body)
    if body.get("kind") == f"{kind.name}List":
        return await create_list(call, kind, body, request, dry_run=dry_run)
    draft = _draft(call, kind, body, dry_run=dry_run)
    await resolve_draft(call.services, draft)
    if dry_run:
        wire, etag = await call.services.store.read(_dry_create, call, draft)
        return json_response(wire, 201, {"ETag": etag})
    answer = await call.services.store.write(_create, call, draft, request)
    if isinstance(answer, Reply):
        return idempotent.replayed(answer)
    status, wire = answer
    return json_response(wire, status)


def _draft(call: Call, kind: Kind, body: Mapping[str, Any], *, dry_run: bool) -> Draft:
    draft = read_envelope(kind, call.project, body, call.principal.user)
    draft.dry_run, draft.actor = dry_run, call.principal
    if not draft.name and not draft.generate_name and not any(c.field == "metadata.name" for c in draft.causes):
        draft.reject("metadata.name", "required and missing; set it or metadata.generateName", "FieldValueRequired")
    draft.labels[CREATED_BY] = call.principal.user
    return draft


def _dry_create(conn: Connection, call: Call, draft: Draft) -> tuple[dict[str, Any], str]:
    there = objects.find(conn, draft.kind, draft.project, draft.name) if draft.name else None
    if there is not None and not (_seen(draft, there) and same_spec(draft.kind, there.spec, draft.spec)):
        raise _already_exists(draft, there)
    admit_draft(conn, call.services, draft)
    preview = preview_of(conn, call.services, draft)
    wire = {
        "apiVersion": draft.kind.api_version,
        "kind": draft.kind.name,
        "metadata": _metadata(draft),
        "spec": draft.spec,
        "status": merge_patch(draft.status, preview),
    }
    return admission_of(draft.kind).render(wire), dry_run_etag(draft, preview)


def _metadata(draft: Draft) -> dict[str, Any]:
    found = {
        "name": draft.name, "generateName": draft.generate_name, "namespace": draft.project, "labels": draft.labels,
        "annotations": draft.annotations, "ownerReferences": draft.owner_references, "finalizers": draft.finalizers,
    }  # fmt: skip
    return {key: value for key, value in found.items() if value}


def _create(
    conn: Connection, call: Call, draft: Draft, request: idempotent.Keyed | None
) -> tuple[int, dict[str, Any]] | Reply:
    lock_objects(conn)  # so that what is found missing is still missing when it is created
    if request is not None and (reply := idempotent.recall(conn, call, request)) is not None:
        return reply
    status, wire = _admit_and_store(conn, call, draft)
    if request is not None:
        idempotent.keep(conn, call, request, status, wire, sealed=bool(draft.reply_status))
    return status, wire


def _admit_and_store(conn: Connection, call: Call, draft: Draft) -> tuple[int, dict[str, Any]]:
    """Store what a draft asks for, or find it; the status and body to answer with."""
    draft.reply_status.clear()  # a retried transaction starts anew
    admit_draft(conn, call.services, draft)
    _check_if_match(conn, call, draft)
    call.audited = True
    obj, status = _store_new(conn, call.services, draft), 201
    if obj is not None:
        auditing.note(conn, call, "create", draft.kind, obj)
    else:
        obj, status = _find_same(conn, call.services, draft), 200
    wire = present(conn, draft.kind, obj)
    return status, merge_patch(wire, {"status": draft.reply_status}) if draft.reply_status else wire


def _check_if_match(conn: Connection, call: Call, draft: Draft) -> None:
    wanted = call.request.headers.get("if-match")
    if wanted is None or wanted.strip() == "*":
        return
    etag = dry_run_etag(draft, preview_of(conn, call.services, draft))
    if etag not in (part.strip() for part in wanted.split(",")):
        raise PreconditionFailed(
            "the plan changed since the dry run",
            fix="Dry-run again and look at the new estimate.",
            details={"etag": etag},
        )


def _find_same(conn: Connection, services: Services, draft: Draft) -> Object:
    """The stored object, when this create repeats the one that made it."""
    there = objects.get(conn, draft.kind, draft.project, str(draft.name))
    repeats = _seen(draft, there) and admission_of(draft.kind).repeats(conn, services, draft, there)
    if there.deleted_at is not None or not repeats:
        raise _already_exists(draft, there)
    return there


def _already_exists(draft: Draft, there: Object) -> AlreadyExists:
    kind, spec = draft.kind, draft.spec
    if not _seen(draft, there):
        return AlreadyExists(
            f'{kind.plural} "{there.name}" exists',
            fix="Use another name.",
            details={"name": there.name, "group": "nodus.dev", "kind": kind.plural},
        )
    keys = sorted(set(there.spec) | set(spec))
    shown = (
        admission_of(kind).render({"spec": dict(there.spec)})["spec"],
        admission_of(kind).render({"spec": dict(spec)})["spec"],
    )
    diff = {
        f"spec.{key}": {"old": shown[0].get(key), "new": shown[1].get(key)}
        for key in keys
        if shown[0].get(key) != shown[1].get(key)
    }
    deleting = " and is being deleted" if there.deleted_at is not None else " with another spec"
    return AlreadyExists(
        f'{kind.plural} "{there.name}" exists{deleting}',
        fix="Use another name, or change the stored one with `nodus apply`.",
        details={"name": there.name, "group": "nodus.dev", "kind": kind.plural, "diff": diff},
    )


def _seen(draft: Draft, there: Object) -> bool:
    """Whether whoever asks may know more of an object than that its name is taken."""
    return draft.actor is None or project_filter(draft.actor, draft.kind)(there)


def _store_new(conn: Connection, services: Services, draft: Draft) -> Object | None:
    """Store an object; None when its name is taken, which storing finds out for nothing."""
    admission = admission_of(draft.kind)
    for tries_left in reversed(range(8)):
        name = draft.name or generated_name(draft.generate_name or "")
        try:
            obj = objects.create(
                conn, draft.kind, draft.project, name, admission.storable(draft.spec), labels=draft.labels,
                annotations=draft.annotations, finalizers=draft.finalizers, status=draft.status, owner=draft.owner,
                owner_references=draft.owner_references,
            )  # fmt: skip
            break
        except AlreadyExists:
            if draft.name:
                return None
            if not tries_left:
                raise
    admission.stored(conn, services, draft, obj)
    return objects.current(conn, obj)


# Lists --------------------------------------------------------------------------------------------------------


async def create_list(
    call: Call, kind: Kind, body: Mapping[str, Any], request: idempotent.Keyed | None, *, dry_run: bool
) -> Response:
    """Create the items of a ``<Kind>List``, all or none, in their order; the answer has them in that order too."""
    drafts = _drafts(call, kind, body, dry_run=dry_run)
    gate = asyncio.Semaphore(_LOOKUPS_AT_ONCE)
    problems = await asyncio.gather(*(_resolve_item(call, number, draft, gate) for number, draft in enumerate(drafts)))
    _raise_together(kind, {number: found for number, found in enumerate(problems) if found})
    if dry_run:
        return json_response(await call.services.store.read(_dry_create_list, call, kind, drafts), 201)
    answer = await call.services.store.write(_create_list, call, kind, drafts, request)
    return idempotent.replayed(answer) if isinstance(answer, Reply) else json_response(answer, 201)


BATCH_LIMIT = 100
"""Most items of a list that is created."""
_LOOKUPS_AT_ONCE = 8


def _drafts(call: Call, kind: Kind, body: Mapping[str, Any], *, dry_run: bool) -> list[Draft]:
    if body.get("apiVersion", kind.api_version) != kind.api_version:
        raise BadRequest(f"the list is {str(body['apiVersion'])[:60]!r} and the path takes {kind.api_version}")
    if "if-match" in call.request.headers:
        raise BadRequest("If-Match goes with one object", fix="Send the objects one by one.")
    causes = [
        Cause(str(key)[:100], "FieldValueNotSupported", "unknown field") for key in list(body)[:10] if key not in _LIST
    ]
    items = body.get("items")
    if not isinstance(items, list):
        causes.append(Cause("items", "FieldValueInvalid", f"a list is expected, this is a {json_type(items)}"))
        items = []
    if len(items) > BATCH_LIMIT:
        raise RequestEntityTooLarge(
            f"the list has {len(items)} items and at most {BATCH_LIMIT} fit one request; nothing was created",
            fix=f"Send {BATCH_LIMIT} at a time.",
            details={"limit": BATCH_LIMIT},
        )
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            causes.append(
                Cause(f"items[{number}]", "FieldValueInvalid", f"an object is expected, not {json_type(item)}")
            )
    if causes:
        raise Invalid(f"the {kind.name}List is invalid; nothing was created", causes=causes)
    drafts: list[Draft] = []
    for number, item in enumerate(items):
        with _item(number):
            drafts.append(_draft(call, kind, item, dry_run=dry_run))
    return drafts


_LIST = ("apiVersion", "kind", "metadata", "items")


@contextlib.contextmanager
def _item(number: int) -> Iterator[None]:
    """A step of one item; what it refuses says which item it was. Mistakes of fields are gathered apart."""
    try:
        yield
    except Invalid:
        raise
    except NodusError as error:
        error.message = f"items[{number}]: {error.message}; nothing was created"
        raise


async def _resolve_item(call: Call, number: int, draft: Draft, gate: asyncio.Semaphore) -> list[Cause]:
    async with gate:
        try:
            with _item(number):
                await resolve_draft(call.services, draft)
        except Invalid as error:
            return list(error.causes)
    return list(draft.causes)


def _raise_together(kind: Kind, problems: Mapping[int, Sequence[Cause]]) -> None:
    causes = [
        Cause(f"items[{number}].{cause.field}", cause.reason, cause.message)
        for number, found in problems.items()
        for cause in found
    ]
    if causes:
        raise Invalid(
            f"{len(problems)} of the {kind.plural} are invalid; nothing was created: "
            + "; ".join(f"{cause.field}: {cause.message}" for cause in causes[:3]),
            fix="Correct the fields listed and send the list again.",
            causes=causes[:200],
        )


def _create_list(
    conn: Connection, call: Call, kind: Kind, drafts: list[Draft], request: idempotent.Keyed | None
) -> dict[str, Any] | Reply:
    lock_objects(conn)
    if request is not None and (reply := idempotent.recall(conn, call, request)) is not None:
        return reply
    answer = _each(kind, drafts, lambda draft: _admit_and_store(conn, call, draft)[1])
    if request is not None:
        sealed = any(draft.reply_status for draft in drafts)
        idempotent.keep(conn, call, request, 201, answer, sealed=sealed)
    return answer


def _dry_create_list(conn: Connection, call: Call, kind: Kind, drafts: list[Draft]) -> dict[str, Any]:
    return _each(kind, drafts, lambda draft: _dry_create(conn, call, draft)[0])


def _each(kind: Kind, drafts: list[Draft], make: Callable[[Draft], dict[str, Any]]) -> dict[str, Any]:
    """The list of what ``make`` returns for each draft; the mistakes of all of them are raised together."""
    items: list[dict[str, Any]] = []
    problems: dict[int, Sequence[Cause]] = {}
    for number, draft in enumerate(drafts):
        try:
            with _item(number):
                items.append(make(draft))
        except Invalid as error:
            problems[number] = error.causes or [Cause("", "FieldValueInvalid", error.message)]
    _raise_together(kind, problems)
    versions = [int(item["metadata"].get("resourceVersion", 0)) for item in items]
    metadata = {"resourceVersion": str(max(versions))} if any(versions) else {}
    return {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata, "items": items}
