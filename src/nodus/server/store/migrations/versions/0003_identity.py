"""Members, logins and the audit trail.

Keys of before there were members get the first Owner as theirs when the server starts.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    with op.batch_alter_table("api_keys") as batch:
        batch.add_column(sa.Column("owner", sa.String(length=36), nullable=True))
        batch.create_foreign_key(op.f("fk_api_keys_owner"), "objects", ["owner"], ["uid"], ondelete="CASCADE")
        batch.create_index(op.f("ix_api_keys_owner"), ["owner"], unique=False)
    op.create_table(
        "logins",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("user_digest", sa.String(length=64), nullable=True),
        sa.Column("challenge", sa.String(length=64), nullable=True),
        sa.Column("client", sa.String(length=253), nullable=False),
        sa.Column("member", sa.String(length=36), nullable=True),
        sa.Column("grant", sa.Text(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["member"], ["objects.uid"], name=op.f("fk_logins_member"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_logins_org")),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_logins")),
        sa.UniqueConstraint("user_digest", name=op.f("uq_logins_user_digest")),
    )
    op.create_index(op.f("ix_logins_expires_us"), "logins", ["expires_us"], unique=False)
    op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
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
    op.create_index(op.f("ix_audit_at_us"), "audit", ["at_us"], unique=False)
    op.create_index(op.f("ix_audit_org_project_seq"), "audit", ["org", "project", "seq"], unique=False)
