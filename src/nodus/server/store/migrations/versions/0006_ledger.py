"""Money: limits, what segments cost under them, holds, and the books."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    _limits()
    _holds()
    _transfers()


def _limits() -> None:
    op.create_table(
        "limits",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("subject", sa.String(length=36), nullable=False),
        sa.Column("period", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=253), nullable=False),
        sa.Column("cap_nanos", sa.BigInteger(), nullable=True),
        sa.Column("held_nanos", sa.BigInteger(), nullable=False),
        sa.Column("spent_nanos", sa.BigInteger(), nullable=False),
        sa.Column("covered_nanos", sa.BigInteger(), nullable=False),
        sa.Column("thresholds", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_limits_org")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_limits")),
        sa.UniqueConstraint("org", "kind", "subject", "period", name=op.f("uq_limits_org_kind_subject_period")),
    )
    op.create_table(
        "limit_segments",
        sa.Column("limit", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("segment", sa.String(length=16), nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("spent_nanos", sa.BigInteger(), nullable=False),
        sa.Column("covered_nanos", sa.BigInteger(), nullable=False),
        sa.Column("time_us", sa.BigInteger(), nullable=False),
        sa.Column("covered_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["limit"], ["limits.id"], name=op.f("fk_limit_segments_limit")),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_limit_segments_org")),
        sa.PrimaryKeyConstraint("limit", "segment", name=op.f("pk_limit_segments")),
    )


def _holds() -> None:
    op.create_table(
        "holds",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("reference", sa.String(length=253), nullable=False),
        sa.Column("amount_nanos", sa.BigInteger(), nullable=False),
        sa.Column("settled_nanos", sa.BigInteger(), nullable=False),
        sa.Column("covered_nanos", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("owner_kind", sa.String(length=63), nullable=False),
        sa.Column("owner", sa.String(length=36), nullable=False),
        sa.Column("owner_name", sa.String(length=253), nullable=False),
        sa.Column("project", sa.String(length=63), nullable=False),
        sa.Column("object", sa.String(length=36), nullable=False),
        sa.Column("reason", sa.String(length=253), nullable=False),
        sa.Column("pricebook", sa.String(length=80), nullable=False),
        sa.Column("limits", sa.Text(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_holds_org")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_holds")),
        sa.UniqueConstraint("org", "reference", name=op.f("uq_holds_org_reference")),
    )
    op.create_index(
        "ix_holds_expires_us",
        "holds",
        ["org", "expires_us"],
        unique=False,
        sqlite_where=sa.text("state = 'Held'"),
        postgresql_where=sa.text("state = 'Held'"),
    )
    op.create_index(
        "ix_holds_owner",
        "holds",
        ["org", "owner"],
        unique=False,
        sqlite_where=sa.text("state = 'Held'"),
        postgresql_where=sa.text("state = 'Held'"),
    )


def _transfers() -> None:
    op.create_table(
        "transfers",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.String(length=8), nullable=False),
        sa.Column("debit", sa.String(length=8), nullable=False),
        sa.Column("credit", sa.String(length=8), nullable=False),
        sa.Column("amount_nanos", sa.BigInteger(), nullable=False),
        sa.Column("hold", sa.BigInteger(), nullable=True),
        sa.Column("reference", sa.String(length=253), nullable=True),
        sa.Column("reason", sa.String(length=253), nullable=False),
        sa.Column("item", sa.String(length=253), nullable=False),
        sa.Column("segment", sa.String(length=16), nullable=False),
        sa.Column("quantity", sa.BigInteger(), nullable=False),
        sa.Column("unit", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(["hold"], ["holds.id"], name=op.f("fk_transfers_hold")),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_transfers_org")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_transfers")),
    )
    op.create_index(op.f("ix_transfers_hold"), "transfers", ["hold"], unique=False)
    op.create_index(
        "uq_transfers_org_reference",
        "transfers",
        ["org", "reference"],
        unique=True,
        sqlite_where=sa.text("type = 'Grant'"),
        postgresql_where=sa.text("type = 'Grant'"),
    )
