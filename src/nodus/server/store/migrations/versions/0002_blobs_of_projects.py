"""Blobs belong to projects.

A row of before says only that the org has the blob. It goes to every project whose objects name its digest: in their
spec or status, in a version that is kept, or in the tree of a Volume's revision. A blob that nothing names is
forgotten; whoever wants it uploads it again.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_DIGEST = re.compile(r"[0-9a-f]{64}")
_PROJECTS = sa.text("SELECT org, name, uid FROM objects WHERE kind = 'Project'")
_BLOBS = sa.text("SELECT org, sha256, size_bytes, media_type, created_us, used_us FROM blobs")
_OBJECTS = sa.text("SELECT org, project, spec, status FROM objects WHERE project <> ''")
_VERSIONS = sa.text("SELECT o.org, o.project, v.spec FROM versions v JOIN objects o ON o.uid = v.object")
_TREES = sa.text("SELECT o.org, o.project, r.tree FROM volume_revisions r JOIN objects o ON o.uid = r.volume")


def upgrade() -> None:
    conn = op.get_bind()
    projects = {(row.org, row.name): row.uid for row in conn.execute(_PROJECTS)}
    known = {(row.org, row.sha256): row._asdict() for row in conn.execute(_BLOBS)}
    named = {
        (projects[org, project], org, digest)
        for org, project, text in _texts(conn)
        if (org, project) in projects
        for digest in _DIGEST.findall(text)
        if (org, digest) in known
    }
    op.drop_table("blobs")
    table = op.create_table(
        "blobs",
        sa.Column("project", sa.String(length=36), nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("media_type", sa.String(length=253), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("used_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_blobs_org")),
        sa.ForeignKeyConstraint(["project"], ["objects.uid"], name=op.f("fk_blobs_project"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("project", "sha256", name=op.f("pk_blobs")),
    )
    op.create_index(op.f("ix_blobs_org_sha256"), "blobs", ["org", "sha256"], unique=False)
    rows = [{**known[org, digest], "project": project} for project, org, digest in sorted(named)]
    if rows:
        op.bulk_insert(table, rows)


def _texts(conn: Any) -> Iterator[tuple[str, str, str]]:
    """Every text of an object in a project that may name a blob, with org and project."""
    for row in conn.execute(_OBJECTS):
        yield row.org, row.project, row.spec
        yield row.org, row.project, row.status
    for row in conn.execute(_VERSIONS):
        yield row.org, row.project, row.spec
    for row in conn.execute(_TREES):
        yield row.org, row.project, zlib.decompress(row.tree).decode()
