"""Creating objects, for good or as a dry run; repeated creates are answered with what is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from nodus.core.errors import AlreadyExists, BadRequest, PreconditionFailed
from nodus.core.ids import generated_name
from nodus.core.kinds import Kind
from nodus.core.patches import merge_patch
from nodus.server.api import auditing, idempotent
from nodus.server.api.admitting import admit_draft, is_dry_run, preview_of, resolve_draft
from nodus.server.api.auth import CREATED_BY
from nodus.server.api.call import Call
from nodus.server.api.envelope import read_envelope
from nodus.server.api.http import json_response, read_object
from nodus.server.api.present import dry_run_etag, present
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
    draft = read_envelope(kind, call.project, body, call.principal.user)
    draft.dry_run, draft.actor = dry_run, call.principal
    if not draft.name and not draft.generate_name and not any(c.field == "metadata.name" for c in draft.causes):
        draft.reject("metadata.name", "required and missing; set it or metadata.generateName", "FieldValueRequired")
    draft.labels[CREATED_BY] = call.principal.user
    await resolve_draft(call.services, draft)
    if dry_run:
        wire, etag = await call.services.store.read(_dry_create, call, draft)
        return json_response(wire, 201, {"ETag": etag})
    answer = await call.services.store.write(_create, call, draft, request)
    if isinstance(answer, Reply):
        return idempotent.replayed(answer)
    status, wire = answer
    return json_response(merge_patch(wire, {"status": draft.reply_status}) if draft.reply_status else wire, status)


def _dry_create(conn: Connection, call: Call, draft: Draft) -> tuple[dict[str, Any], str]:
    there = objects.find(conn, draft.kind, draft.project, draft.name) if draft.name else None
    if there is not None and not same_spec(draft.kind, there.spec, draft.spec):
        raise _already_exists(draft.kind, there, draft.spec)
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
        "annotations": draft.annotations, "finalizers": draft.finalizers,
    }  # fmt: skip
    return {key: value for key, value in found.items() if value}


def _create(
    conn: Connection, call: Call, draft: Draft, request: idempotent.Keyed | None
) -> tuple[int, dict[str, Any]] | Reply:
    draft.reply_status.clear()  # a retried transaction starts anew
    lock_objects(conn)  # so that what is found missing is still missing when it is created
    if request is not None and (reply := idempotent.begin(conn, call, request)) is not None:
        return reply
    admit_draft(conn, call.services, draft)
    _check_if_match(conn, call, draft)
    obj = _find_same(conn, call.services, draft)
    status = 200 if obj is not None else 201
    call.audited = True
    if obj is None:
        obj = _store_new(conn, call.services, draft)
        auditing.note(conn, call, "create", draft.kind, obj)
    wire = present(conn, draft.kind, obj)
    if request is not None:
        shown = merge_patch(wire, {"status": draft.reply_status}) if draft.reply_status else wire
        idempotent.complete(conn, call, request, status, shown, sealed=bool(draft.reply_status))
    return status, wire


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


def _find_same(conn: Connection, services: Services, draft: Draft) -> Object | None:
    """The stored object when this create repeats the one that made it."""
    if not draft.name:
        return None
    there = objects.find(conn, draft.kind, draft.project, draft.name)
    if there is None:
        return None
    if there.deleted_at is not None or not admission_of(draft.kind).repeats(conn, services, draft, there):
        raise _already_exists(draft.kind, there, draft.spec)
    return there


def _already_exists(kind: Kind, there: Object, spec: Mapping[str, Any]) -> AlreadyExists:
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


def _store_new(conn: Connection, services: Services, draft: Draft) -> Object:
    admission = admission_of(draft.kind)
    for _ in range(8):
        name = draft.name or generated_name(draft.generate_name or "")
        if draft.name or objects.find(conn, draft.kind, draft.project, name) is None:
            break
    obj = objects.create(
        conn, draft.kind, draft.project, name, admission.storable(draft.spec), labels=draft.labels,
        annotations=draft.annotations, status=draft.status, owner=draft.owner,
    )  # fmt: skip
    if draft.finalizers:
        obj = objects.update(conn, obj, finalizers=draft.finalizers)
    admission.stored(conn, services, draft, obj)
    return objects.get_by_uid(conn, obj.uid)
