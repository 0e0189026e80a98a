"""Owner references that users write: an object goes when its owner goes.

The server's own references, marked ``controller``, say which object runs another; they decide what an attempt may do,
so nobody else writes those. A user's reference names an object that is there, in the same project or the organization,
and never makes a ring: deletion walks along them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nodus.core.errors import Cause
from nodus.core.kinds import KINDS
from nodus.server.api.http import json_type
from nodus.server.api.present import project_filter
from nodus.server.kinds.base import Draft
from nodus.server.store import objects
from nodus.server.store.cascade import dependents

if TYPE_CHECKING:
    from sqlalchemy import Connection

MOST_OWNERS = 16
DEEPEST = 16
"""Generations of owners, one above the other."""
PATH = "metadata.ownerReferences"
_TEXTS = ("apiVersion", "kind", "name", "uid")
_FLAGS = ("controller", "blockOwnerDeletion")

Reference = dict[str, Any]


def read_references(value: Any, old: list[Reference], causes: list[Cause]) -> list[Reference]:
    """Decode ``metadata.ownerReferences``.

    Args:
        value: what was sent.
        old: the stored ones; those that the server wrote stay as they are.
        causes: mistakes are added here.
    """
    if value is None:
        value = []
    if not isinstance(value, list) or len(value) > MOST_OWNERS:
        causes.append(Cause(PATH, "FieldValueInvalid", f"a list of at most {MOST_OWNERS} is expected"))
        return old
    found: list[Reference] = []
    for number, item in enumerate(value):
        if item in old:
            found.append(item)
        elif (reference := _reference(item, f"{PATH}[{number}]", causes)) is not None:
            found.append(reference)
    servers = [item for item in old if item.get("controller")]
    if any(item not in found for item in servers):
        causes.append(Cause(PATH, "FieldValueForbidden", "the reference to what runs the object can't be removed"))
        return old
    return [item for number, item in enumerate(found) if item["uid"] not in {one["uid"] for one in found[:number]}]


def _reference(item: Any, path: str, causes: list[Cause]) -> Reference | None:
    if not isinstance(item, Mapping):
        causes.append(Cause(path, "FieldValueInvalid", f"an object is expected, this is a {json_type(item)}"))
        return None
    before = len(causes)
    for key in list(item)[:10]:
        if key not in (*_TEXTS, *_FLAGS):
            causes.append(Cause(f"{path}.{key}", "FieldValueNotSupported", "unknown field"))
    for key in _TEXTS:
        if not isinstance(item.get(key), str) or not item[key]:
            causes.append(Cause(f"{path}.{key}", "FieldValueRequired", "required and missing"))
    for key in _FLAGS:
        if not isinstance(item.get(key, False), bool):
            causes.append(Cause(f"{path}.{key}", "FieldValueInvalid", "true or false is expected"))
    if item.get("controller") is True:
        message = "only the server says what runs an object; leave it out"
        causes.append(Cause(f"{path}.controller", "FieldValueForbidden", message))
    return dict(item) if len(causes) == before else None


def check_references(conn: Connection, draft: Draft) -> None:
    """Note a mistake for each new owner that is not there, out of reach, or would make a ring."""
    known = draft.old.owner_references if draft.old is not None else []
    for number, reference in enumerate(draft.owner_references):
        if reference in known or reference.get("controller"):
            continue
        problem = _problem(conn, draft, reference)
        if problem is not None:
            draft.reject(f"{PATH}[{number}]", problem)


def _problem(conn: Connection, draft: Draft, reference: Reference) -> str | None:
    kind = KINDS.get(reference["kind"])
    owner = objects.find_by_uid(conn, reference["uid"])
    seen = owner is not None and (draft.actor is None or project_filter(draft.actor, KINDS[owner.kind])(owner))
    named = owner is not None and (owner.kind, owner.name) == (reference["kind"], reference["name"])
    if kind is None or owner is None or not seen or not named or kind.api_version != reference["apiVersion"]:
        return f"there is no {reference['kind'][:60]} {reference['name'][:63]!r} with that uid and apiVersion"
    if owner.project not in (None, draft.project):
        return f"{owner.kind} {owner.name!r} is in another project"
    if owner.deleted_at is not None:
        return f"{owner.kind} {owner.name!r} is being deleted"
    own_uid = draft.old.uid if draft.old is not None else ""
    above = _generations_above(conn, owner.uid, own_uid)
    if above is None:
        return f"{owner.kind} {owner.name!r} is below the object already; owners can't form a ring"
    if above + (_generations_below(conn, own_uid) if own_uid else 0) >= DEEPEST:
        return f"more than {DEEPEST} generations of owners"
    return None


def _generations_above(conn: Connection, uid: str, own_uid: str) -> int | None:
    """How many owners stand above one another from ``uid`` on; None where the object itself is among them."""
    level, count = {uid}, 0
    while level and count <= DEEPEST:
        if own_uid in level:
            return None
        count += 1
        above = [found for one in level if (found := objects.find_by_uid(conn, one)) is not None]
        level = {str(reference["uid"]) for obj in above for reference in obj.owner_references}
    return count


def _generations_below(conn: Connection, uid: str) -> int:
    level, count = {uid}, 0
    while level and count <= DEEPEST:
        count += 1
        level = {below.uid for one in level for below in dependents(conn, one)}
    return count
