"""The hosts that run attempts: each keeps itself listed; one that doesn't is lost, and its attempts with it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, select, text

from nodus.server.store.codec import dumps, from_us, loads
from nodus.server.store.context import db_now_us, now_us, org_of
from nodus.server.store.schema import nodes


class Node(NamedTuple):
    """A host."""

    id: str
    address: str
    capacity: dict[str, Any]
    started_at: datetime
    alive: bool
    """Whether it was heard of in time, by the database's clock."""


def heartbeat(conn: Connection, node_id: str, address: str, capacity: Mapping[str, Any], ttl_s: float) -> None:
    """List a host, or keep it listed, for ``ttl_s`` from now."""
    conn.execute(
        text(
            "INSERT INTO nodes (id, org, address, capacity, started_us, expires_us) "
            f"VALUES (:id, :org, :address, :capacity, :started, {db_now_us(conn)} + :ttl) "
            "ON CONFLICT (id) DO UPDATE SET address = excluded.address, capacity = excluded.capacity, "
            "expires_us = excluded.expires_us"
        ),
        {
            "id": node_id,
            "org": org_of(conn),
            "address": address,
            "capacity": dumps(dict(capacity)),
            "started": now_us(conn),
            "ttl": int(ttl_s * 1e6),
        },
    )


def list_(conn: Connection) -> list[Node]:
    """Return all hosts that were ever listed, lost ones too."""
    now = conn.execute(text(f"SELECT {db_now_us(conn)}")).scalar_one()
    query = select(nodes).where(nodes.c.org == org_of(conn)).order_by(nodes.c.id)
    return [
        Node(row.id, row.address, loads(row.capacity), from_us(row.started_us), row.expires_us > now)
        for row in conn.execute(query)
    ]


def remove(conn: Connection, node_id: str) -> None:
    """Take a host off the list."""
    conn.execute(nodes.delete().where(nodes.c.id == node_id))
