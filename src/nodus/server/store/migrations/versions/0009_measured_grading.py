"""What graders worked in finished training runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("measurements", sa.Column("environment", sa.String(length=80), nullable=True))
    op.add_column("measurements", sa.Column("grade_us", sa.BigInteger(), nullable=True))
    columns = ["org", "environment", "at_us"]
    op.create_index(op.f("ix_measurements_org_environment_at_us"), "measurements", columns)
