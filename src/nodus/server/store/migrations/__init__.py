"""Bringing a database to the current schema, from code, when the store is opened.

A fresh database is made from :mod:`nodus.server.store.schema` in one go and marked with the newest revision; an older
one runs the revisions it lacks. Both end the same, which a test checks. Revisions are append-only.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from nodus.server.store.errors import StoreTooNew
from nodus.server.store.schema import metadata

HEAD = "0009"
"""The newest revision; read from here so that an up-to-date start needn't import Alembic."""

_LOCK = text("SELECT pg_advisory_xact_lock(:key)")
_LOCK_KEY = 0x6E6F64757300


def migrate(conn: Connection) -> None:
    """Bring the database to :data:`HEAD` within the caller's transaction.

    Raises:
        StoreTooNew: its revision isn't one this version of Nodus knows.
    """
    if conn.dialect.name == "postgresql":
        # Two servers that start together must not both create the tables.
        conn.execute(_LOCK, {"key": _LOCK_KEY})
    revision = current_revision(conn)
    if revision == HEAD:
        return
    if revision is None:
        create_fresh(conn)
    else:
        upgrade(conn)


def current_revision(conn: Connection) -> str | None:
    """Return the database's revision, or None when it is empty."""
    if not inspect(conn).has_table("alembic_version"):
        return None
    return conn.execute(text("SELECT version_num FROM alembic_version")).scalar()


def create_fresh(conn: Connection) -> None:
    """Create every table and mark the database with :data:`HEAD`."""
    metadata.create_all(conn, checkfirst=False)
    # Alembic's own table, in its own form.
    conn.execute(
        text(
            "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
            "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
        )
    )
    conn.execute(text("INSERT INTO alembic_version (version_num) VALUES (:head)"), {"head": HEAD})


def upgrade(conn: Connection, target: str = "head") -> None:
    """Run the revisions that the database lacks.

    Raises:
        StoreTooNew: its revision isn't one this version of Nodus knows.
    """
    from alembic import command  # late: an up-to-date start doesn't need it
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = conn
    try:
        command.upgrade(config, target)
    except CommandError as error:
        message = f"the database has revision {current_revision(conn)!r}, which this version of Nodus doesn't know"
        raise StoreTooNew(message, fix="Run the version of Nodus that made it, or a newer one.") from error
