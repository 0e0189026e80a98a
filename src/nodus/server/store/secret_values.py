"""Values of Secrets: one sealed text per version, which nobody reads back without the server's key file."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from nodus.core.errors import NotFound
from nodus.server.store.context import now_us, org_of
from nodus.server.store.schema import secret_values

_VERSIONS = (
    select(secret_values.c.version, secret_values.c.created_us)
    .where(secret_values.c.secret == bindparam("uid"))
    .order_by(secret_values.c.version)
)


def put(conn: Connection, uid: str, version: int, sealed: str) -> None:
    """Store a version of a secret's values, sealed; versions never change."""
    row = {"secret": uid, "version": version, "org": org_of(conn), "sealed": sealed, "created_us": now_us(conn)}
    conn.execute(insert(secret_values), row)


def versions(conn: Connection, uid: str) -> list[tuple[int, int]]:
    """Every version of a secret with its time in microseconds since the epoch, oldest first."""
    return [(row.version, row.created_us) for row in conn.execute(_VERSIONS, {"uid": uid})]


def get(conn: Connection, uid: str, version: int | None = None) -> tuple[int, str]:
    """Return a version of a secret's values, by default the newest, and its sealed text.

    Raises:
        NotFound: there is no such version.
    """
    wanted = select(secret_values.c.version, secret_values.c.sealed).where(secret_values.c.secret == uid)
    if version is not None:
        wanted = wanted.where(secret_values.c.version == version)
    row = conn.execute(wanted.order_by(secret_values.c.version.desc()).limit(1)).first()
    if row is None:
        raise NotFound(f"the secret has no version {version}" if version else "the secret has no values")
    return row.version, row.sealed


def sealed_otherwise(conn: Connection, prefix: str, limit: int) -> list[tuple[str, int, str]]:
    """Return some values whose sealed text begins otherwise: secret, version, text."""
    columns = (secret_values.c.secret, secret_values.c.version, secret_values.c.sealed)
    query = select(*columns).where(secret_values.c.sealed.notlike(f"{prefix}%")).limit(limit)
    return [(row.secret, row.version, row.sealed) for row in conn.execute(query)]


def replace(conn: Connection, uid: str, version: int, sealed: str) -> None:
    """Seal a version anew, with another key; the values stay what they were."""
    here = (secret_values.c.secret == uid, secret_values.c.version == version)
    conn.execute(update(secret_values).where(*here).values(sealed=sealed))


def prune(conn: Connection, uid: str, keep: int) -> None:
    """Delete all but the newest ``keep`` versions."""
    old = [version for version, _ in versions(conn, uid)][:-keep]
    if old:
        conn.execute(delete(secret_values).where(secret_values.c.secret == uid, secret_values.c.version.in_(old)))
