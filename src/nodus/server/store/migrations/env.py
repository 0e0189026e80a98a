"""Alembic's entry point: runs the revisions on the connection that the store hands over."""

from __future__ import annotations

from alembic import context

from nodus.server.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite alters tables by copying them.
    render_as_batch=True,
    transactional_ddl=False,
)
context.run_migrations()
