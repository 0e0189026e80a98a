"""Lists of objects: selectors, and pages that neither repeat nor miss an object while others are written.

Pages are cut by (project, name), not by offset. All pages of a list carry the resourceVersion of the first, so that a
watch from it also shows what changed on earlier pages.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, func, select, tuple_

from nodus.core.errors import BadRequest, Expired
from nodus.core.kinds import Kind
from nodus.core.selectors import Requirement, matches_fields, matches_labels, parse_selector
from nodus.server.store import changes
from nodus.server.store.codec import clean, dumps, loads
from nodus.server.store.context import org_of, rv_now
from nodus.server.store.object import Object, from_row
from nodus.server.store.portions import read_in_portions
from nodus.server.store.rows import INDEXED_LENGTH, indexed
from nodus.server.store.schema import object_fields, object_labels, objects

Selector = str | Mapping[str, str] | tuple[Requirement, ...] | None
"""A selector as text, as wanted values by key, or parsed."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list."""

    items: list[Object]
    resource_version: int
    """What to start a watch from."""
    continue_: str | None = None
    """Token of the next page; None on the last."""
    snapshot: int = 0
    """The resourceVersion at which this page was read; that of the first page or later."""


def requirements(selector: Selector) -> tuple[Requirement, ...]:
    """Return a selector's terms.

    Raises:
        BadRequest: the text is no selector.
    """
    if not selector:
        return ()
    if isinstance(selector, str):
        return parse_selector(selector)
    if isinstance(selector, Mapping):
        return tuple(Requirement(key, "=", (value,)) for key, value in selector.items())
    return selector


def list_(
    conn: Connection,
    kind: Kind,
    project: str | None,
    *,
    labels: Selector = None,
    fields: Selector = None,
    limit: int | None = None,
    continue_: str | None = None,
    most_bytes: int | None = None,
    visible: Callable[[Object], bool] | None = None,
) -> Page:
    """Return objects of a kind in the order of project and name.

    Args:
        conn: a transaction.
        kind: what to list.
        project: None lists all projects.
        labels: label selector.
        fields: field selector over dotted paths of the wire form; declared ones are found through an index.
        limit: most items of the page; None gives all.
        continue_: the token of the page before.
        most_bytes: end the page once its objects are so large together; it has one in any case.
        visible: which objects the caller may see; None means all.

    Raises:
        BadRequest: a selector or the token can't be read.
        Expired: the token is older than the retained changes; start over.
    """
    wanted_labels, wanted_fields = requirements(labels), requirements(fields)
    snapshot = rv_now(conn)
    rv, after = snapshot, None
    if continue_:
        rv, after = _decode(continue_)
        if rv < changes.horizon(conn):
            raise Expired("the list's continue token is too old", fix="List again without it.")
    query, left_labels, left_fields = _query(org_of(conn), kind, project, wanted_labels, wanted_fields)
    items: list[Object] = []
    size = 0
    for obj, stored in _scan(conn, query, after, one_project=project is not None and kind.namespaced):
        if not _matches(obj, left_labels, left_fields) or (visible is not None and not visible(obj)):
            continue
        if items and (len(items) == limit or (most_bytes is not None and size >= most_bytes)):
            last = items[-1]
            return Page(items, rv, _encode(rv, last.project or "", last.name), snapshot)
        items.append(obj)
        size += stored
    return Page(items, rv, None, snapshot)


def count(conn: Connection, kind: Kind, project: str | None) -> int:
    """Return how many objects of a kind there are."""
    query = select(func.count()).select_from(objects).where(objects.c.org == org_of(conn), objects.c.kind == kind.name)
    if project is not None:
        query = query.where(objects.c.project == project)
    return int(conn.execute(query).scalar_one())


_Terms = tuple[Requirement, ...]


def _query(
    org: str, kind: Kind, project: str | None, labels: _Terms, fields: _Terms
) -> tuple[Select[Any], _Terms, _Terms]:
    """Return the statement, and the terms of labels and fields that are left to compare after reading."""
    query = select(objects).where(objects.c.org == org, objects.c.kind == kind.name)
    if project is not None and kind.namespaced:
        query = query.where(objects.c.project == project)
    left_labels: list[Requirement] = []
    left_fields: list[Requirement] = []
    for term in labels:
        condition = _indexed(object_labels, "key", org, term)
        if condition is None:
            left_labels.append(term)
        else:
            query = query.where(condition)
    for term in fields:
        condition = _of_field(kind, org, term)
        if condition is not None:
            query = query.where(condition)
        if condition is None or any(indexed(value) != value or len(value) >= INDEXED_LENGTH for value in term.values):
            left_fields.append(term)
    return query.order_by(objects.c.project, objects.c.name), tuple(left_labels), tuple(left_fields)


def _of_field(kind: Kind, org: str, term: Requirement) -> ColumnElement[bool] | None:
    if term.key in ("metadata.name", "metadata.namespace"):
        column = objects.c.name if term.key == "metadata.name" else objects.c.project
        return column.in_(term.values) if term.operator in ("=", "in") else None
    return _indexed(object_fields, "path", org, term) if term.key in kind.selectable_fields else None


def _indexed(table: Any, key_column: str, org: str, term: Requirement) -> ColumnElement[bool] | None:
    """Return the SQL of a term that an index answers; the others are left to the comparison after reading."""
    here = and_(table.c.uid == objects.c.uid, table.c.org == org, table.c[key_column] == term.key)
    if term.operator in ("=", "in"):
        return exists().where(here, table.c.value.in_([indexed(value) for value in term.values]))
    if term.operator == "exists":
        return exists().where(here)
    return None


def _scan(
    conn: Connection, query: Select[Any], after: tuple[str, str] | None, *, one_project: bool
) -> Iterator[tuple[Object, int]]:
    """Yield the objects of a query with their sizes in bytes."""

    def read(last: Any, count: int) -> Sequence[Any]:
        begin = after if last is None else (last.project, last.name)
        return conn.execute((query if begin is None else query.where(_beyond(begin, one_project))).limit(count)).all()

    for row in read_in_portions(read, _size):
        yield from_row(row), _size(row)


def _size(row: Any) -> int:
    return len(row.spec) + len(row.status) + len(row.annotations)


def _beyond(after: tuple[str, str], one_project: bool) -> ColumnElement[bool]:
    """What comes after an object, said so that the index is entered there."""
    if one_project:
        return objects.c.name > after[1]
    return tuple_(objects.c.project, objects.c.name) > tuple_(*after)


def _matches(obj: Object, labels: tuple[Requirement, ...], fields: tuple[Requirement, ...]) -> bool:
    return matches_labels(labels, obj.labels) and (not fields or matches_fields(fields, obj.to_wire()))


def _encode(rv: int, project: str, name: str) -> str:
    return base64.urlsafe_b64encode(dumps([rv, project, name]).encode()).decode()


def _decode(token: str) -> tuple[int, tuple[str, str]]:
    try:
        rv, project, name = loads(base64.urlsafe_b64decode(token.encode()).decode())
        if not isinstance(rv, int) or any(not isinstance(text, str) or clean(text) != text for text in (project, name)):
            raise ValueError("not what _encode wrote")
        return rv, (project, name)
    except (ValueError, TypeError, binascii.Error, RecursionError) as error:
        raise BadRequest(f"{token!r} is no continue token of this server", fix="List again without it.") from error
