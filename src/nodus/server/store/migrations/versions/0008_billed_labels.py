"""Labels of objects that are gone and were charged for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "billed_labels",
        sa.Column("object", sa.String(length=36), nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_billed_labels_org")),
        sa.PrimaryKeyConstraint("object", name=op.f("pk_billed_labels")),
    )
