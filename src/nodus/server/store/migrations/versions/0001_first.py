"""The first schema.

Written out and not taken from the tables of today: a revision never changes.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _org()
    _objects()
    _coordination()
    _training()
    _files()


def _org() -> None:
    op.create_table(
        "orgs",
        sa.Column("uid", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_orgs")),
        sa.UniqueConstraint("name", name=op.f("uq_orgs_name")),
    )
    op.create_table(
        "sequences",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_sequences")),
    )


def _objects() -> None:
    op.create_table(
        "objects",
        sa.Column("uid", sa.String(length=36), nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=63), nullable=False),
        sa.Column("project", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=253), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("rv", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("deleted_us", sa.BigInteger(), nullable=True),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("annotations", sa.Text(), nullable=False),
        sa.Column("owners", sa.Text(), nullable=False),
        sa.Column("finalizers", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_objects_org")),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_objects")),
        sa.UniqueConstraint("org", "kind", "project", "name", name=op.f("uq_objects_org_kind_project_name")),
    )
    op.create_table(
        "object_labels",
        sa.Column("uid", sa.String(length=36), nullable=False),
        sa.Column("key", sa.String(length=317), nullable=False),
        sa.Column("value", sa.String(length=63), nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_object_labels_org")),
        sa.ForeignKeyConstraint(["uid"], ["objects.uid"], name=op.f("fk_object_labels_uid"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("uid", "key", name=op.f("pk_object_labels")),
    )
    op.create_index(op.f("ix_object_labels_org_key_value"), "object_labels", ["org", "key", "value"], unique=False)
    op.create_table(
        "object_fields",
        sa.Column("uid", sa.String(length=36), nullable=False),
        sa.Column("path", sa.String(length=253), nullable=False),
        sa.Column("value", sa.String(length=256), nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_object_fields_org")),
        sa.ForeignKeyConstraint(["uid"], ["objects.uid"], name=op.f("fk_object_fields_uid"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("uid", "path", name=op.f("pk_object_fields")),
    )
    op.create_index(op.f("ix_object_fields_org_path_value"), "object_fields", ["org", "path", "value"], unique=False)
    op.create_table(
        "object_owners",
        sa.Column("uid", sa.String(length=36), nullable=False),
        sa.Column("owner_uid", sa.String(length=36), nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_object_owners_org")),
        sa.ForeignKeyConstraint(["uid"], ["objects.uid"], name=op.f("fk_object_owners_uid"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("uid", "owner_uid", name=op.f("pk_object_owners")),
    )
    op.create_index(op.f("ix_object_owners_owner_uid"), "object_owners", ["owner_uid"], unique=False)
    op.create_table(
        "changes",
        sa.Column("rv", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=63), nullable=False),
        sa.Column("project", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=253), nullable=False),
        sa.Column("uid", sa.String(length=36), nullable=False),
        sa.Column("type", sa.String(length=8), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("image", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_changes_org")),
        sa.PrimaryKeyConstraint("rv", name=op.f("pk_changes")),
    )


def _coordination() -> None:
    op.create_table(
        "leases",
        sa.Column("key", sa.String(length=253), nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("owner", sa.String(length=253), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_leases_org")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_leases")),
    )
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(length=63), nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("address", sa.String(length=253), nullable=False),
        sa.Column("capacity", sa.Text(), nullable=False),
        sa.Column("started_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_nodes_org")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
    )
    op.create_table(
        "idempotency",
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("scope", sa.String(length=253), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("request_hash", sa.String(length=71), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("headers", sa.Text(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("sealed", sa.Boolean(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_idempotency_org")),
        sa.PrimaryKeyConstraint("org", "scope", "key", name=op.f("pk_idempotency")),
    )
    op.create_index(op.f("ix_idempotency_expires_us"), "idempotency", ["expires_us"], unique=False)
    op.create_table(
        "api_keys",
        sa.Column("uid", sa.String(length=36), nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("key_version", sa.Integer(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=True),
        sa.Column("used_us", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_api_keys_org")),
        sa.ForeignKeyConstraint(["uid"], ["objects.uid"], name=op.f("fk_api_keys_uid"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("digest", name=op.f("uq_api_keys_digest")),
    )
    op.create_table(
        "secret_values",
        sa.Column("secret", sa.String(length=36), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_secret_values_org")),
        sa.ForeignKeyConstraint(["secret"], ["objects.uid"], name=op.f("fk_secret_values_secret"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("secret", "version", name=op.f("pk_secret_values")),
    )
    op.create_table(
        "versions",
        sa.Column("object", sa.String(length=36), nullable=False),
        sa.Column("version", sa.String(length=80), nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["object"], ["objects.uid"], name=op.f("fk_versions_object"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_versions_org")),
        sa.PrimaryKeyConstraint("object", "version", name=op.f("pk_versions")),
    )


def _training() -> None:
    op.create_table(
        "task_events",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("trainingjob", sa.String(length=36), nullable=False),
        sa.Column("attempt", sa.String(length=253), nullable=False),
        sa.Column("id", sa.String(length=253), nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_task_events_org")),
        sa.ForeignKeyConstraint(
            ["trainingjob"], ["objects.uid"], name=op.f("fk_task_events_trainingjob"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_task_events")),
        sa.UniqueConstraint("trainingjob", "attempt", "id", name=op.f("uq_task_events_trainingjob_attempt_id")),
    )
    op.create_index(
        op.f("ix_task_events_trainingjob_type_seq"), "task_events", ["trainingjob", "type", "seq"], unique=False
    )
    op.create_table(
        "verdicts",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("trainingjob", sa.String(length=36), nullable=False),
        sa.Column("attempt", sa.String(length=253), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("task_id", sa.String(length=253), nullable=False),
        sa.Column("sample", sa.Integer(), nullable=False),
        sa.Column("completion_sha256", sa.String(length=64), nullable=False),
        sa.Column("verdict", sa.String(length=32), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("reward", sa.Float(precision=53), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_verdicts_org")),
        sa.ForeignKeyConstraint(
            ["trainingjob"], ["objects.uid"], name=op.f("fk_verdicts_trainingjob"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_verdicts")),
        sa.UniqueConstraint(
            "trainingjob",
            "attempt",
            "phase",
            "step",
            "task_id",
            "sample",
            name=op.f("uq_verdicts_trainingjob_attempt_phase_step_task_id_sample"),
        ),
    )
    op.create_index(
        op.f("ix_verdicts_trainingjob_phase_seq"), "verdicts", ["trainingjob", "phase", "seq"], unique=False
    )
    op.create_table(
        "manifests",
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("environment", sa.String(length=80), nullable=False),
        sa.Column("split", sa.String(length=16), nullable=False),
        sa.Column("seed", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_manifests_org")),
        sa.PrimaryKeyConstraint("org", "environment", "split", "seed", name=op.f("pk_manifests")),
    )


def _files() -> None:
    op.create_table(
        "blobs",
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("media_type", sa.String(length=253), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("used_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_blobs_org")),
        sa.PrimaryKeyConstraint("org", "sha256", name=op.f("pk_blobs")),
    )
    op.create_index(op.f("ix_blobs_used_us"), "blobs", ["used_us"], unique=False)
    op.create_table(
        "volume_revisions",
        sa.Column("volume", sa.String(length=36), nullable=False),
        sa.Column("revision", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("org", sa.String(length=36), nullable=False),
        sa.Column("snapshot", sa.String(length=80), nullable=False),
        sa.Column("files", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("tree", sa.LargeBinary(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["org"], ["orgs.uid"], name=op.f("fk_volume_revisions_org")),
        sa.ForeignKeyConstraint(
            ["volume"], ["objects.uid"], name=op.f("fk_volume_revisions_volume"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("volume", "revision", name=op.f("pk_volume_revisions")),
    )
