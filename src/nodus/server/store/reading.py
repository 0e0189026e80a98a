"""Reading a store's database beside its server, or without one: for commands that only look."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection, select
from sqlalchemy.exc import SQLAlchemyError

from nodus.core.clock import Clock
from nodus.server.store import dialects, migrations
from nodus.server.store.context import Shared
from nodus.server.store.errors import StoreTooNew, StoreUnreachable, translate
from nodus.server.store.schema import orgs


@contextlib.contextmanager
def reading(url: str, clock: Clock) -> Iterator[Connection]:
    """Open a database for one read transaction, all of it of one moment. Nothing is made, migrated or locked.

    Args:
        url: as :meth:`nodus.server.store.Store.open` takes it.
        clock: what the transaction takes for the server's time.

    Raises:
        StoreUnreachable: there is no database, or it isn't that of this version yet.
        StoreTooNew: a newer version of Nodus made it.
        StoreError: it can't be read.
    """
    parsed = dialects.parse_url(url)
    where = dialects.describe(parsed)
    if parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).is_file():
        raise StoreUnreachable(f"there is no database {where}", fix="Say where the server's data is with --data-dir.")
    shared = Shared(clock, parsed.get_backend_name())
    writer, reader = dialects.make_engines(parsed, shared, sync=True)
    writer.dispose()
    try:
        with reader.connect() as conn, conn.begin():
            _refuse_others(migrations.current_revision(conn), where)
            shared.org = conn.execute(select(orgs.c.uid).order_by(orgs.c.created_us).limit(1)).scalar_one()
            yield conn
    except SQLAlchemyError as error:
        raise translate(error, where) from error
    finally:
        reader.dispose()


def _refuse_others(revision: str | None, where: str) -> None:
    if revision is None or revision < migrations.HEAD:
        message = f"the database {where} is {'empty' if revision is None else 'of an older version of Nodus'}"
        raise StoreUnreachable(message, fix="Start the server once: nodus up.")
    if revision > migrations.HEAD:
        message = f"the database {where} has revision {revision!r}, which this version of Nodus doesn't know"
        raise StoreTooNew(message, fix="Run the version of Nodus that made it, or a newer one.")
