"""What a transaction knows besides its connection: the org it acts for, the clock, and whether it changed objects.

It travels in ``Connection.info``, so that every function of the store stays a plain function of a connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from sqlalchemy import Connection, Table, text
from sqlalchemy.dialects import postgresql, sqlite

from nodus.core.clock import Clock
from nodus.server.store.codec import to_us
from nodus.server.store.prepared import Prepared

if TYPE_CHECKING:
    from nodus.server.store.appended import Appended

_INFO_KEY = "nodus"

# One lock for every writer of objects: numbers are given out in the order in which transactions become visible, so that
# who resumes a watch from a number misses none below it.
_OBJECTS_LOCK = 0x6E6F647573


@dataclass(slots=True)
class Shared:
    """What all connections of one store have in common."""

    clock: Clock
    dialect: str
    org: str = ""


@dataclass(slots=True)
class Context:
    """One connection's state."""

    shared: Shared
    changed: bool = False
    """A change row was written since the last commit."""
    locked: bool = False
    """The object lock is held in the current transaction or savepoint."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Counters as this transaction has moved them; they are written once, before its commit."""
    stored: dict[str, int] = field(default_factory=dict)
    """The same counters as the database has them."""
    later: list[tuple[Appended, Mapping[str, Any]]] = field(default_factory=list)
    """Rows to write before the commit."""
    there: set[tuple[str, str, str]] = field(default_factory=set)
    """Kind, project and name of objects that this transaction found and nobody can have deleted since."""

    def begin(self) -> None:
        """Forget the transaction before."""
        self.changed = self.locked = False
        self.numbers.clear()
        self.later.clear()
        self.there.clear()

    def mark(self) -> Mark:
        """Note where one of several functions begins."""
        return Mark(self.changed, self.numbers.copy(), len(self.later))

    def undo(self, mark: Mark) -> None:
        """Forget what a function did that failed."""
        self.changed, self.numbers = mark.changed, mark.numbers
        del self.later[mark.later :]
        self.there.clear()


class Mark(NamedTuple):
    """See :meth:`Context.mark`."""

    changed: bool
    numbers: dict[str, int]
    later: int


def attach(info: dict[str, object], shared: Shared) -> None:
    """Give a new database connection its context; called by the pool."""
    info[_INFO_KEY] = Context(shared)


def context(conn: Connection) -> Context:
    """Return the connection's context."""
    found = conn.__dict__.get(_INFO_KEY)
    if found is None:  # the way through the pool's record takes four times as long, and statements are short
        found = conn.__dict__[_INFO_KEY] = conn.info[_INFO_KEY]
    return cast(Context, found)


def org_of(conn: Connection) -> str:
    """Return the uid of the org that the transaction acts for."""
    return context(conn).shared.org


def now_us(conn: Connection) -> int:
    """Return the server's time in microseconds since the epoch."""
    return to_us(context(conn).shared.clock.now())


def db_now_us(conn: Connection) -> str:
    """Return the SQL for the database's own time in microseconds; leases of several machines agree on that one."""
    if context(conn).shared.dialect == "sqlite":
        return "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"


_LOCK = text("SELECT pg_advisory_xact_lock(:key)")
_SET = Prepared(text("UPDATE sequences SET value = :value WHERE name = :name"))
_READ = Prepared(text("SELECT value FROM sequences WHERE name = :name"))


def lock_objects(conn: Connection) -> None:
    """Hold off every other writer of objects until this transaction ends. SQLite has one writer anyway.

    Whatever locks rows together with objects (leases, counters, idempotency keys) comes here first: with one order of
    locks, transactions wait for each other but don't deadlock.
    """
    ctx = context(conn)
    if ctx.locked:
        return
    if ctx.shared.dialect != "sqlite":
        conn.execute(_LOCK, {"key": _OBJECTS_LOCK})
    ctx.locked = True


def next_rv(conn: Connection) -> int:
    """Return the next resourceVersion; the caller writes the change row under it in the same transaction."""
    lock_objects(conn)
    context(conn).changed = True
    return next_number(conn, "rv")


def next_number(conn: Connection, name: str, count: int = 1) -> int:
    """Take ``count`` numbers of the counter ``name`` and return the last; a rolled-back transaction gives them back.

    The caller holds the object lock: nobody else takes numbers until this transaction ends, so that all of a group of
    commits are counted in memory.
    """
    ctx = context(conn)
    assert ctx.locked, "a counter is read under the object lock"
    value = ctx.numbers.get(name)
    if value is None:
        value = ctx.stored[name] = int(_READ.scalar(conn, {"name": name}))
    ctx.numbers[name] = value + count
    return value + count


def give_back_rv(conn: Connection) -> None:
    """Give back the number taken last, under which nothing was written after all."""
    context(conn).numbers["rv"] -= 1


def write_numbers(conn: Connection) -> None:
    """Write the counters that moved; called before a commit."""
    ctx = context(conn)
    for name, value in ctx.numbers.items():
        if ctx.stored[name] != value:
            _SET.run(conn, {"name": name, "value": value})
    ctx.numbers.clear()


def rv_now(conn: Connection) -> int:
    """Return the newest resourceVersion that this transaction sees."""
    value = context(conn).numbers.get("rv")
    return value if value is not None else int(_READ.scalar(conn, {"name": "rv"}))


def insert_into(conn: Connection, table: Table) -> Any:
    """Return the database's own INSERT, which has ``on_conflict_do_nothing`` and ``on_conflict_do_update``."""
    return sqlite.insert(table) if conn.dialect.name == "sqlite" else postgresql.insert(table)
