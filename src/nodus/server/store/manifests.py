"""Task manifests: the tasks of an Environment version for one split and seed, listed once and kept for good."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from nodus.server.store.codec import pack, unpack
from nodus.server.store.context import insert_into, now_us, org_of
from nodus.server.store.schema import manifests


def get(conn: Connection, environment_digest: str, split: str, seed: int) -> Any | None:
    """Return the manifest's JSON value, or None when it was never listed."""
    query = select(manifests.c.body).where(
        manifests.c.org == org_of(conn),
        manifests.c.environment == environment_digest,
        manifests.c.split == split,
        manifests.c.seed == seed,
    )
    body = conn.execute(query).scalar()
    return None if body is None else unpack(body)


def put(conn: Connection, environment_digest: str, split: str, seed: int, manifest: Any) -> Any:
    """Keep a manifest unless there is one already; return the one that is kept, which all runs then use."""
    conn.execute(
        insert_into(conn, manifests).on_conflict_do_nothing(),
        {
            "org": org_of(conn),
            "environment": environment_digest,
            "split": split,
            "seed": seed,
            "body": pack(manifest),
            "created_us": now_us(conn),
        },
    )
    return get(conn, environment_digest, split, seed)
