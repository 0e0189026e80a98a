"""What lines of the books are about: kind, name and labels of objects that may be gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from sqlalchemy import Connection, String, bindparam, exists, insert, select

from nodus.core.kinds import KINDS
from nodus.server.store.codec import dumps, loads
from nodus.server.store.context import org_of
from nodus.server.store.prepared import Prepared
from nodus.server.store.schema import billed_labels, limits, objects

if TYPE_CHECKING:
    from nodus.server.store.object import Object

_BILLED = frozenset(name for name, kind in KINDS.items() if "cost" in kind.status_model.model_fields)
_KIND_OF = {kind.singular: kind.name for kind in KINDS.values()}
_AT_ONCE = 500
_OBJECT = limits.c.kind == "Object"


@dataclass(frozen=True, slots=True)
class Billed:
    """An object that was charged for."""

    uid: str
    kind: str
    name: str
    labels: dict[str, str] = field(default_factory=dict)
    """As they are, or were when it was deleted."""


# Names of columns stand for the values: a SELECT of parameters has no other.
_REMEMBER = Prepared(
    insert(billed_labels).from_select(
        ["object", "org", "labels"],
        select(
            bindparam("object", type_=String), bindparam("org", type_=String), bindparam("labels", type_=String)
        ).where(
            exists().where(
                limits.c.org == bindparam("org_", type_=String), _OBJECT, limits.c.subject == bindparam("object_")
            )
        ),
    )
)


def remember(conn: Connection, obj: Object) -> None:
    """Keep the labels of an object that goes, if it was ever charged for."""
    if obj.kind in _BILLED and obj.labels:
        org = org_of(conn)
        values = {"object": obj.uid, "org": org, "labels": dumps(obj.labels), "org_": org, "object_": obj.uid}
        _REMEMBER.run(conn, values)


def find(conn: Connection, uids: Iterable[str]) -> dict[str, Billed]:
    """Return what is known of objects, by uid; those of which nothing is known are left out."""
    found: dict[str, Billed] = {}
    org = org_of(conn)
    for some in _portions(sorted(set(uids))):
        names = select(limits.c.subject, limits.c.name).where(limits.c.org == org, _OBJECT, limits.c.subject.in_(some))
        for row in conn.execute(names):
            singular, _, name = row.name.partition("/")
            found[row.subject] = Billed(row.subject, _KIND_OF.get(singular, singular), name)
        gone = select(billed_labels.c.object, billed_labels.c.labels)
        for left in conn.execute(gone.where(billed_labels.c.org == org, billed_labels.c.object.in_(some))):
            if left.object in found:
                found[left.object] = replace(found[left.object], labels=loads(left.labels))
        here = select(objects.c.uid, objects.c.kind, objects.c.name, objects.c.labels)
        for one in conn.execute(here.where(objects.c.org == org, objects.c.uid.in_(some))):
            found[one.uid] = Billed(one.uid, one.kind, one.name, loads(one.labels))
    return found


def named(conn: Connection, kinds: Sequence[str] | None, names: Sequence[str] | None) -> list[str]:
    """Return the uids of objects that were charged for, by kinds and names; None means any."""
    query = select(limits.c.subject, limits.c.name).where(limits.c.org == org_of(conn), _OBJECT)
    if kinds is not None and names is not None:
        wanted = sorted({f"{kind.lower()}/{name}" for kind in kinds for name in names})
        parts = (conn.execute(query.where(limits.c.name.in_(some))) for some in _portions(wanted))
        return [row.subject for part in parts for row in part]
    found = []
    for row in conn.execute(query):
        singular, _, name = row.name.partition("/")
        if (kinds is None or _KIND_OF.get(singular) in kinds) and (names is None or name in names):
            found.append(row.subject)
    return found


def _portions(uids: Sequence[str]) -> Iterator[list[str]]:
    each = iter(uids)
    while some := list(islice(each, _AT_ONCE)):
        yield some
