"""What the property tests do to the store: small transactions over few names, so that they get in each other's way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from sqlalchemy import Connection

from nodus.core.errors import NodusError, NotFound
from nodus.core.kinds import KINDS
from nodus.server.store import Object, Store, objects
from nodus.server.store.context import lock_objects

JOB, ATTEMPT = KINDS["Job"], KINDS["Attempt"]
NAMES = ("a", "b", "c", "d")
PHASES = ("Queued", "Running", "Failed")
APPS = ("web", "db", None)
HOLD = "test/hold"


class Broken(RuntimeError):
    """Raised by operations that fail on purpose."""


@dataclass(frozen=True)
class Operation:
    """One transaction."""

    verb: str
    name: str
    value: int

    def __call__(self, conn: Connection, project: str) -> Object | None:
        """Do it.

        Raises:
            NodusError: the objects are not as it needs them.
            Broken: it fails on purpose.
        """
        return _VERBS[self.verb](conn, project, self.name, self.value)


def _labels(value: int) -> dict[str, str]:
    app = APPS[value // 2 % 3]
    return {} if app is None else {"app": app}


def _create(conn: Connection, project: str, name: str, value: int) -> Object:
    return objects.create(
        conn, JOB, project, name, {"value": value}, labels=_labels(value),
        status={"phase": PHASES[value % 3]}, finalizers=[HOLD] if value % 5 == 4 else (),
    )  # fmt: skip


def _adopt(conn: Connection, project: str, name: str, value: int) -> Object:
    owner = objects.get(conn, JOB, project, name)
    child = f"{name}-{value}"
    return objects.create(conn, ATTEMPT, project, child, {"value": value}, owner=owner, labels=_labels(value))


def _spec(conn: Connection, project: str, name: str, value: int) -> Object:
    return objects.update(conn, objects.get(conn, JOB, project, name), spec={"value": value})


def _label(conn: Connection, project: str, name: str, value: int) -> Object:
    return objects.update(conn, objects.get(conn, JOB, project, name), labels=_labels(value))


def _status(conn: Connection, project: str, name: str, value: int) -> Object:
    uid = objects.get(conn, JOB, project, name).uid
    return objects.update_status(conn, uid, {"phase": PHASES[value % 3], "step": value})


def _release(conn: Connection, project: str, name: str, value: int) -> Object:
    return objects.update(conn, objects.get(conn, JOB, project, name), finalizers=[])


def _delete(conn: Connection, project: str, name: str, value: int) -> None:
    propagation = ("Background", "Foreground", "Orphan")[value % 3]
    objects.delete(conn, objects.get(conn, JOB, project, name), propagation)  # type: ignore[arg-type]


def _look(conn: Connection, project: str, name: str, value: int) -> None:
    lock_objects(conn)
    assert objects.exists(conn, JOB, project, name) == (objects.find(conn, JOB, project, name) is not None)


def _break_early(conn: Connection, project: str, name: str, value: int) -> None:
    objects.find(conn, JOB, project, name)
    raise Broken("before it wrote")


def _break_late(conn: Connection, project: str, name: str, value: int) -> None:
    if objects.find(conn, JOB, project, name) is None:
        _create(conn, project, name, value)
    else:
        _delete(conn, project, name, value)
    _look(conn, project, name, value)
    raise Broken("after it wrote")


_VERBS = {
    "create": _create,
    "adopt": _adopt,
    "spec": _spec,
    "label": _label,
    "status": _status,
    "release": _release,
    "delete": _delete,
    "look": _look,
    "break early": _break_early,
    "break late": _break_late,
}

# Creating comes up more often than the rest: most need something to be there.
operations = st.builds(
    Operation,
    verb=st.sampled_from(["create", "create", "create", *_VERBS]),
    name=st.sampled_from(NAMES),
    value=st.integers(0, 20),
)


async def attempt(store: Store, operation: Operation, project: str) -> None:
    """Run an operation, which may be refused for what is there."""
    try:
        await store.write(operation, project)
    except (NodusError, Broken):
        return


def attempt_sync(store: Store, operation: Operation, project: str) -> None:
    """The same in a thread."""
    try:
        store.write_sync(operation, project)
    except (NodusError, Broken):
        return


def names_there(conn: Connection, project: str) -> dict[str, Any]:
    """Uids of the Jobs that are there, by name."""
    return {obj.name: obj.uid for obj in objects.list_(conn, JOB, project).items}


__all__ = ["ATTEMPT", "JOB", "Broken", "NotFound", "Operation", "attempt", "attempt_sync", "names_there", "operations"]
