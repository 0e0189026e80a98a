"""What finished training runs took, for the estimates of later ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "measurements",
        sa.Column("trainingjob", sa.String(length=36), nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("runtime", sa.String(length=512), nullable=False),
        sa.Column("model", sa.String(length=512), nullable=False),
        sa.Column("accelerator", sa.String(length=64), nullable=False),
        sa.Column("step_us", sa.BigInteger(), nullable=True),
        sa.Column("step_work", sa.BigInteger(), nullable=False),
        sa.Column("task_us", sa.BigInteger(), nullable=True),
        sa.Column("task_work", sa.BigInteger(), nullable=False),
        sa.Column("startup_us", sa.BigInteger(), nullable=True),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_measurements_org")),
        sa.PrimaryKeyConstraint("trainingjob", name=op.f("pk_measurements")),
    )
    columns = ["org", "runtime", "model", "accelerator", "at_us"]
    op.create_index(op.f("ix_measurements_org_runtime_model_accelerator_at_us"), "measurements", columns)
