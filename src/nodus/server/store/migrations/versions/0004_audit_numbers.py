"""Rows of the audit trail are numbered by the database, and found by who wrote."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    conn = op.get_bind()
    rows = [row._asdict() for row in conn.execute(sa.text("SELECT * FROM audit ORDER BY seq"))]
    op.drop_table("audit")
    table = op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("user", sa.String(length=63), nullable=False),
        sa.Column("credential", sa.String(length=63), nullable=False),
        sa.Column("verb", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=63), nullable=False),
        sa.Column("project", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=253), nullable=False),
        sa.Column("uid", sa.String(length=36), nullable=False),
        sa.Column("subresource", sa.String(length=253), nullable=False),
        sa.Column("fields", sa.Text(), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_audit_org")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_org_user_seq"), "audit", ["org", "user", "seq"], unique=False)
    conn.execute(sa.text("DELETE FROM sequences WHERE name = 'audit'"))
    if rows:
        op.bulk_insert(table, rows)
        if conn.dialect.name == "postgresql":
            newest = rows[-1]["seq"]
            conn.execute(sa.text("SELECT setval(pg_get_serial_sequence('audit', 'seq'), :newest)"), {"newest": newest})
