"""Changing and deleting objects: patches, replacement, deletion."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast, get_args

from starlette.responses import Response

from nodus.core.errors import BadRequest, Conflict, RequestEntityTooLarge, UnsupportedMediaType
from nodus.core.kinds import Kind
from nodus.core.patches import json_patch, merge_patch
from nodus.server.api import auditing
from nodus.server.api.admitting import admit_draft, is_dry_run, preview_of, resolve_draft
from nodus.server.api.auth import CREATED_BY
from nodus.server.api.call import Call, checked_name
from nodus.server.api.envelope import read_envelope
from nodus.server.api.http import (
    JSON_BODY_LIMIT_BYTES,
    json_bytes,
    json_response,
    parse_json,
    read_body,
    read_object,
)
from nodus.server.api.present import dry_run_etag, present
from nodus.server.api.reading import find
from nodus.server.kinds import admission_of
from nodus.server.kinds.actions import check_actions
from nodus.server.kinds.base import Draft, check_immutable, same_spec
from nodus.server.store import objects
from nodus.server.store.cascade import Propagation
from nodus.server.store.context import lock_objects

if TYPE_CHECKING:
    from sqlalchemy import Connection


MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
_UPDATE_TRIES = 5
SERVER_METADATA_BYTES = 16 * 1024
"""What the server's own fields may add to an object that fitted one request."""


async def patch(call: Call, kind: Kind) -> Response:
    """Apply a merge patch or a JSON patch."""
    media = call.request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media not in (MERGE_PATCH, JSON_PATCH):
        raise UnsupportedMediaType(
            f"a patch can't have the content type {media or 'none'!r}", fix=f"Use {MERGE_PATCH} or {JSON_PATCH}."
        )
    document = parse_json(await read_body(call.request))
    if media == MERGE_PATCH and not isinstance(document, dict):
        raise BadRequest("a merge patch is a JSON object")
    if media == MERGE_PATCH:
        return await _update(call, kind, "patch", lambda wire: merge_patch(wire, document))
    return await _update(call, kind, "patch", lambda wire: json_patch(wire, document))


async def replace(call: Call, kind: Kind) -> Response:
    """Replace an object with the one in the body; a ``resourceVersion`` in it must be the stored one's."""
    body = await read_object(call.request)
    return await _update(call, kind, "update", lambda wire: body)


async def _update(call: Call, kind: Kind, verb: str, change: Callable[[Any], Any]) -> Response:
    name = checked_name(kind, call.params["name"])
    call.principal.require(verb, kind, call.project, name)
    dry_run = is_dry_run(call)
    for tries_left in reversed(range(_UPDATE_TRIES)):
        draft = await call.services.store.read(_draft_update, call, kind, name, change)
        draft.dry_run = dry_run
        await resolve_draft(call.services, draft)
        if dry_run:
            wire, etag = await call.services.store.read(_dry_update, call, draft)
            return json_response(wire, 200, {"ETag": etag})
        try:
            wire = await call.services.store.write(_apply_update, call, draft, change)
            return json_response(merge_patch(wire, {"status": draft.reply_status}) if draft.reply_status else wire)
        except _SpecMoved:
            if not tries_left:
                raise
    raise AssertionError("unreachable")


class _SpecMoved(Conflict):
    """The spec changed while look-ups ran; what they found may be about another one."""


def _draft_update(conn: Connection, call: Call, kind: Kind, name: str, change: Callable[[Any], Any]) -> Draft:
    old = find(conn, call, kind, name)
    admission_of(kind).authorize(conn, call.principal, old)
    after = change(old.to_wire())
    if not isinstance(after, dict):
        raise BadRequest("the patched object is not an object any more")
    _check_size(kind, after)
    metadata = after.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if version not in (None, "", str(old.resource_version)):
        raise Conflict(
            f'{kind.plural} "{name}" was changed: it is at version {old.resource_version}, not {str(version)[:40]}',
            fix="Get it again and repeat the change.",
        )
    draft = read_envelope(kind, call.project, after, call.principal.user, old)
    draft.name, draft.actor = old.name, call.principal
    draft.spec_sent = copy.deepcopy(draft.spec)
    if CREATED_BY in old.labels:
        draft.labels[CREATED_BY] = old.labels[CREATED_BY]
    return draft


def _check_size(kind: Kind, after: dict[str, Any]) -> None:
    """Keep many small patches from making what could not be created in one request."""
    size = len(json_bytes({key: after.get(key) for key in ("metadata", "spec")}))
    if size > JSON_BODY_LIMIT_BYTES + SERVER_METADATA_BYTES:
        raise RequestEntityTooLarge(
            f"the {kind.name} would have {size} bytes; {JSON_BODY_LIMIT_BYTES} fit",
            fix="Keep large content in a blob or a Volume and refer to it.",
            details={"limitBytes": JSON_BODY_LIMIT_BYTES},
        )


def _check_update(conn: Connection, call: Call, draft: Draft) -> bool:
    """Run admission on a change; tell whether the spec changes."""
    assert draft.old is not None
    check_actions(draft.kind, draft.old.annotations, draft.annotations)
    spec_changes = not same_spec(draft.kind, draft.old.spec, draft.spec)
    if spec_changes or draft.causes or draft.owner_references != draft.old.owner_references:
        if spec_changes and not draft.causes:
            check_immutable(draft.kind, draft.old.spec, draft.spec)
        admit_draft(conn, call.services, draft)
    return spec_changes


def _dry_update(conn: Connection, call: Call, draft: Draft) -> tuple[dict[str, Any], str]:
    assert draft.old is not None
    _check_update(conn, call, draft)
    preview = preview_of(conn, call.services, draft)
    wire = merge_patch(draft.old.to_wire(), {"status": preview})
    wire["metadata"] |= {
        name: value
        for name, value in (
            ("labels", draft.labels),
            ("annotations", draft.annotations),
            ("ownerReferences", draft.owner_references),
            ("finalizers", draft.finalizers),
        )
        if value or name in wire["metadata"]
    }
    wire["spec"] = draft.spec
    return admission_of(draft.kind).render(wire), dry_run_etag(draft, preview)


def _apply_update(conn: Connection, call: Call, looked_up: Draft, change: Callable[[Any], Any]) -> dict[str, Any]:
    """Repeat the change on the object as it is now, so that changes made at the same time are all kept."""
    lock_objects(conn)
    draft = _draft_update(conn, call, looked_up.kind, str(looked_up.name), change)
    if draft.spec != looked_up.spec_sent:
        raise _SpecMoved(f'{draft.kind.plural} "{draft.name}" is being changed by others', fix="Try again.")
    draft.resolved, draft.causes = looked_up.resolved, looked_up.causes
    draft.spec, draft.model = copy.deepcopy(looked_up.spec), looked_up.model
    draft.reply_status = looked_up.reply_status
    old = draft.old
    assert old is not None
    admission = admission_of(draft.kind)
    spec_changes = _check_update(conn, call, draft)
    spec = admission.storable(draft.spec)
    obj = objects.update(
        conn, old, spec=spec if spec_changes or spec != old.spec else None, labels=draft.labels,
        annotations=draft.annotations, finalizers=draft.finalizers, owner_references=draft.owner_references,
    )  # fmt: skip
    if spec_changes:
        admission.stored(conn, call.services, draft, obj)
        obj = objects.current(conn, obj)
    auditing.note(conn, call, "patch" if call.method == "PATCH" else "update", draft.kind, obj, old)
    return present(conn, draft.kind, obj)


async def delete(call: Call, kind: Kind) -> Response:
    """Delete an object; what it owns goes too unless orphaned."""
    name = checked_name(kind, call.params["name"])
    call.principal.require("delete", kind, call.project, name)
    options = _options(call, await read_object(call.request, optional=True))
    run = call.services.store.read if options.dry_run else call.services.store.write
    uid = await run(_delete, call, kind, name, options)
    details = {"name": name, "group": "nodus.dev", "kind": kind.plural, "uid": uid}
    return json_response(
        {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
    )


@dataclass(frozen=True, slots=True)
class _Options:
    """How to delete."""

    propagation: Propagation
    preconditions: dict[str, str]
    dry_run: bool


# What clients of this kind of API may send besides, without a meaning here.
_NO_EFFECT = ("apiVersion", "kind", "gracePeriodSeconds", "orphanDependents")
_PRECONDITIONS = ("uid", "resourceVersion")


def _options(call: Call, body: dict[str, Any]) -> _Options:
    """Read DeleteOptions from the body and the query.

    Raises:
        BadRequest: they hold something else.
    """
    if body.get("kind") not in (None, "DeleteOptions"):
        raise BadRequest(f"the body is a {str(body['kind'])[:60]!r} and DeleteOptions are expected")
    for key in body:
        if key not in (*_NO_EFFECT, "propagationPolicy", "preconditions", "dryRun"):
            raise BadRequest(f"DeleteOptions have no field {key[:100]!r}", fix="Leave it out.")
    propagation = body.get("propagationPolicy") or call.query("propagationPolicy") or "Background"
    if propagation not in get_args(Propagation):
        raise BadRequest(
            f"propagationPolicy {str(propagation)[:60]!r} is not known", fix="Use Background, Foreground or Orphan."
        )
    preconditions = body.get("preconditions") or {}
    if not isinstance(preconditions, dict) or any(
        key not in _PRECONDITIONS or not isinstance(value, str | None) for key, value in preconditions.items()
    ):
        raise BadRequest("preconditions are an object with uid, resourceVersion or both")
    dry_run = body.get("dryRun") or []
    if dry_run not in ([], ["All"]):
        raise BadRequest(f"dryRun {str(dry_run)[:60]} is not known", fix='Use ["All"].')
    wanted = {key: value for key, value in preconditions.items() if value is not None}
    return _Options(cast(Propagation, propagation), wanted, is_dry_run(call) or bool(dry_run))


def _delete(conn: Connection, call: Call, kind: Kind, name: str, options: _Options) -> str:
    if not options.dry_run:
        lock_objects(conn)  # so that what the checks below see is what is deleted
    obj = find(conn, call, kind, name)
    for key, value in (("uid", obj.uid), ("resourceVersion", str(obj.resource_version))):
        if options.preconditions.get(key, value) != value:
            raise Conflict(
                f'{kind.plural} "{name}" is not the object that was meant: its {key} is {value}',
                fix="Get it again, and delete it if it is still the one.",
            )
    admission_of(kind).authorize(conn, call.principal, obj)
    admission_of(kind).deleting(conn, call.services, obj)
    if not options.dry_run:
        objects.delete(conn, obj, options.propagation)
        auditing.note(conn, call, "delete", kind, obj)
    call.audited = True
    return obj.uid
