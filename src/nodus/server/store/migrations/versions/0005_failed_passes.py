"""Failed passes of controllers in a row, by object."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "failures",
        sa.Column("object", sa.String(length=36), nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("since_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["object"], ["objects.uid"], name=op.f("fk_failures_object"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_failures_org")),
        sa.PrimaryKeyConstraint("object", name=op.f("pk_failures")),
    )
