"""Every table of the store, declared once for SQLite and PostgreSQL.

Conventions: JSON is text written by :mod:`nodus.server.store.codec` (PostgreSQL's JSONB would reorder keys and refuse
NUL, and what a user wrote is returned verbatim); moments are integer microseconds since the epoch, named ``*_us``;
every row carries its org; foreign keys go by uid, because names are reused. A change here needs a migration beside it
(``migrations/versions``), and a test compares the two.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _org(*, key: bool = False) -> Column[str]:
    """The org column; ``key`` puts it first in the primary key, where names repeat between orgs."""
    return Column("org", String(36), ForeignKey("orgs.uid"), nullable=False, primary_key=key)


orgs = Table(
    "orgs",
    metadata,
    Column("uid", String(36), primary_key=True),
    Column("name", String(63), nullable=False, unique=True),
    Column("created_us", BigInteger, nullable=False),
)

sequences = Table(
    "sequences",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
"""Counters: ``rv`` is the last resourceVersion given out, ``taskevents`` the last task-event number."""

objects = Table(
    "objects",
    metadata,
    Column("uid", String(36), primary_key=True),
    _org(),
    Column("kind", String(63), nullable=False),
    # Empty for org kinds, never NULL: a unique constraint lets NULLs repeat.
    Column("project", String(63), nullable=False),
    Column("name", String(253), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("rv", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("deleted_us", BigInteger),
    Column("labels", Text, nullable=False),
    Column("annotations", Text, nullable=False),
    Column("owners", Text, nullable=False),
    Column("finalizers", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("status", Text, nullable=False),
    UniqueConstraint("org", "kind", "project", "name"),
)

object_labels = Table(
    "object_labels",
    metadata,
    Column("uid", String(36), ForeignKey("objects.uid", ondelete="CASCADE"), primary_key=True),
    Column("key", String(317), primary_key=True),
    Column("value", String(63), nullable=False),
    _org(),
    Index(None, "org", "key", "value"),
)

object_fields = Table(
    "object_fields",
    metadata,
    Column("uid", String(36), ForeignKey("objects.uid", ondelete="CASCADE"), primary_key=True),
    Column("path", String(253), primary_key=True),
    # Longer values are cut: an index entry of PostgreSQL holds 2704 bytes.
    Column("value", String(256), nullable=False),
    _org(),
    Index(None, "org", "path", "value"),
)

object_owners = Table(
    "object_owners",
    metadata,
    Column("uid", String(36), ForeignKey("objects.uid", ondelete="CASCADE"), primary_key=True),
    # No foreign key: an orphan keeps the uid of an owner that is gone.
    Column("owner_uid", String(36), primary_key=True),
    _org(),
    Index(None, "owner_uid"),
)

changes = Table(
    "changes",
    metadata,
    Column("rv", BigInteger, primary_key=True, autoincrement=False),
    _org(),
    Column("kind", String(63), nullable=False),
    Column("project", String(63), nullable=False),
    Column("name", String(253), nullable=False),
    Column("uid", String(36), nullable=False),
    Column("type", String(8), nullable=False),
    Column("at_us", BigInteger, nullable=False),
    # What selectors look at before the change ({"labels": ..., "fields": ...}); NULL for ADDED.
    Column("before", Text),
    # The object after the change, or its last state for DELETED: columns of `objects` as one JSON object.
    Column("image", Text, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    Column("key", String(253), primary_key=True),
    _org(),
    Column("owner", String(253), nullable=False),
    # Only ever grows, also over releases: it fences off the writes of whoever held the lease before.
    Column("token", BigInteger, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
)

nodes = Table(
    "nodes",
    metadata,
    Column("id", String(63), primary_key=True),
    _org(),
    Column("address", String(253), nullable=False),
    Column("capacity", Text, nullable=False),
    Column("started_us", BigInteger, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
)

failures = Table(
    "failures",
    metadata,
    Column("object", String(36), ForeignKey("objects.uid", ondelete="CASCADE"), primary_key=True),
    _org(),
    Column("count", Integer, nullable=False),
    Column("since_us", BigInteger, nullable=False),
)
"""Passes of controllers that failed, one after the other; a row goes with the next one that doesn't."""

idempotency = Table(
    "idempotency",
    metadata,
    _org(key=True),
    Column("scope", String(253), nullable=False, primary_key=True),
    Column("key", String(255), nullable=False, primary_key=True),
    Column("request_hash", String(71), nullable=False),
    # NULL while the first request runs.
    Column("status", Integer),
    Column("headers", Text),
    Column("body", LargeBinary),
    Column("sealed", Boolean, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
    Index(None, "expires_us"),
)

task_events = Table(
    "task_events",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    _org(),
    Column("trainingjob", String(36), ForeignKey("objects.uid", ondelete="CASCADE"), nullable=False),
    Column("attempt", String(253), nullable=False),
    Column("id", String(253), nullable=False),
    Column("type", String(32), nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    UniqueConstraint("trainingjob", "attempt", "id"),
    Index(None, "trainingjob", "type", "seq"),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    _org(),
    Column("trainingjob", String(36), ForeignKey("objects.uid", ondelete="CASCADE"), nullable=False),
    Column("attempt", String(253), nullable=False),
    Column("phase", String(16), nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("task_id", String(253), nullable=False),
    Column("sample", Integer, nullable=False),
    Column("completion_sha256", String(64), nullable=False),
    Column("verdict", String(32), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("reward", Float(53)),
    Column("reason", Text),
    Column("evidence", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    UniqueConstraint("trainingjob", "attempt", "phase", "step", "task_id", "sample"),
    Index(None, "trainingjob", "phase", "seq"),
)

measurements = Table(
    "measurements",
    metadata,
    # No foreign key: what a run took is worth knowing when the run is deleted.
    Column("trainingjob", String(36), primary_key=True),
    _org(),
    Column("runtime", String(512), nullable=False),
    Column("model", String(512), nullable=False),
    Column("accelerator", String(64), nullable=False),
    Column("step_us", BigInteger),
    Column("step_work", BigInteger, nullable=False),
    Column("task_us", BigInteger),
    Column("task_work", BigInteger, nullable=False),
    Column("startup_us", BigInteger),
    Column("at_us", BigInteger, nullable=False),
    # Digest of the environment that it was graded by.
    Column("environment", String(80)),
    Column("grade_us", BigInteger),
    Index(None, "org", "runtime", "model", "accelerator", "at_us"),
    Index(None, "org", "environment", "at_us"),
)

manifests = Table(
    "manifests",
    metadata,
    _org(key=True),
    Column("environment", String(80), nullable=False, primary_key=True),
    Column("split", String(16), nullable=False, primary_key=True),
    Column("seed", BigInteger, nullable=False, primary_key=True, autoincrement=False),
    # zlib-compressed JSON: a split's tasks and answers compress well and are read whole.
    Column("body", LargeBinary, nullable=False),
    Column("created_us", BigInteger, nullable=False),
)

blobs = Table(
    "blobs",
    metadata,
    # Whose it is: the uid of a Project. The same bytes in two projects are one file and two rows.
    Column("project", String(36), ForeignKey("objects.uid", ondelete="CASCADE"), primary_key=True),
    _org(),
    Column("sha256", String(64), nullable=False, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("media_type", String(253), nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("used_us", BigInteger, nullable=False),
    Index(None, "org", "sha256"),
)

volume_revisions = Table(
    "volume_revisions",
    metadata,
    Column("volume", String(36), ForeignKey("objects.uid", ondelete="CASCADE"), primary_key=True),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    _org(),
    Column("snapshot", String(80), nullable=False),
    Column("files", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    # JSON list of {"path", "sha256", "size", "mode"}, zlib-compressed.
    Column("tree", LargeBinary, nullable=False),
    Column("created_us", BigInteger, nullable=False),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("uid", String(36), ForeignKey("objects.uid", ondelete="CASCADE"), primary_key=True),
    _org(),
    Column("digest", String(64), nullable=False, unique=True),
    Column("key_version", Integer, nullable=False),
    Column("expires_us", BigInteger),
    Column("used_us", BigInteger),
    # The Member or ServiceAccount; NULL only until the server adopts keys of before there were members.
    Column("owner", String(36), ForeignKey("objects.uid", ondelete="CASCADE")),
    Index(None, "owner"),
)

logins = Table(
    "logins",
    metadata,
    # HMAC of the code that redeems it; nothing that opens anything is stored.
    Column("digest", String(64), primary_key=True),
    _org(),
    # cli: a browser approved; device: a terminal polls; code: proves who approves.
    Column("kind", String(8), nullable=False),
    Column("state", String(8), nullable=False),
    # HMAC of the code a person types, for device.
    Column("user_digest", String(64), unique=True),
    # The PKCE challenge, for cli.
    Column("challenge", String(64)),
    Column("client", String(253), nullable=False),
    Column("member", String(36), ForeignKey("objects.uid", ondelete="CASCADE")),
    # What the key may do at most, as JSON: scopes, projects, and the APIKey that approved, if one did.
    Column("grant", Text),
    Column("created_us", BigInteger, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
    Index(None, "expires_us"),
)

audit = Table(
    "audit",
    metadata,
    # Given by the database: a counter of ours would cost every write another statement.
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    _org(),
    Column("at_us", BigInteger, nullable=False),
    Column("user", String(63), nullable=False),
    Column("credential", String(63), nullable=False),
    Column("verb", String(32), nullable=False),
    Column("kind", String(63), nullable=False),
    Column("project", String(63), nullable=False),
    Column("name", String(253), nullable=False),
    Column("uid", String(36), nullable=False),
    Column("subresource", String(253), nullable=False),
    # Paths that changed, as a JSON list; never values.
    Column("fields", Text, nullable=False),
    Column("request_id", String(128), nullable=False),
    Index(None, "org", "user", "seq"),
)
"""What was written, by whom, append-only; pruned by age and number."""

secret_values = Table(
    "secret_values",
    metadata,
    Column("secret", String(36), ForeignKey("objects.uid", ondelete="CASCADE"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    _org(),
    # Every key and value of the version as one text, encrypted with the server's key file.
    Column("sealed", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
)

versions = Table(
    "versions",
    metadata,
    Column("object", String(36), ForeignKey("objects.uid", ondelete="CASCADE"), primary_key=True),
    Column("version", String(80), primary_key=True),
    _org(),
    # The spec under this version, kept when the object moves on to the next one.
    Column("spec", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
)

limits = Table(
    "limits",
    metadata,
    # Small numbers: every hold names its limits.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    _org(),
    # Credits, Budget, Object or Group.
    Column("kind", String(8), nullable=False),
    # Uid of the org, the Budget or the object.
    Column("subject", String(36), nullable=False),
    # Such as 2026-11; empty for all time.
    Column("period", String(16), nullable=False),
    # As messages call it.
    Column("name", String(253), nullable=False),
    # NULL: it counts and stops nothing.
    Column("cap_nanos", BigInteger),
    Column("held_nanos", BigInteger, nullable=False),
    Column("spent_nanos", BigInteger, nullable=False),
    Column("covered_nanos", BigInteger, nullable=False),
    # Amounts to report when they are reached: nano-dollars, ascending, divided by spaces.
    Column("thresholds", Text, nullable=False),
    UniqueConstraint("org", "kind", "subject", "period"),
)
"""What counts money; see docs/contributing/MONEY.md for this and the three tables after it."""

limit_segments = Table(
    "limit_segments",
    metadata,
    Column("limit", BigInteger, ForeignKey("limits.id"), primary_key=True, autoincrement=False),
    # boot, running, restore or teardown.
    Column("segment", String(16), primary_key=True),
    _org(),
    Column("spent_nanos", BigInteger, nullable=False),
    Column("covered_nanos", BigInteger, nullable=False),
    # Microseconds that were paid for, and those that Nodus bore.
    Column("time_us", BigInteger, nullable=False),
    Column("covered_us", BigInteger, nullable=False),
)

_HELD = text("state = 'Held'")
holds = Table(
    "holds",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    _org(),
    Column("reference", String(253), nullable=False),
    Column("amount_nanos", BigInteger, nullable=False),
    Column("settled_nanos", BigInteger, nullable=False),
    Column("covered_nanos", BigInteger, nullable=False),
    # Held, Settled or Released.
    Column("state", String(8), nullable=False),
    Column("owner_kind", String(63), nullable=False),
    # No foreign key: a hold outlives its owner, and is found because it does.
    Column("owner", String(36), nullable=False),
    Column("owner_name", String(253), nullable=False),
    Column("project", String(63), nullable=False),
    # Uid of the object whose bill it is on.
    Column("object", String(36), nullable=False),
    Column("reason", String(253), nullable=False),
    Column("pricebook", String(80), nullable=False),
    # Numbers of the limits, divided by spaces.
    Column("limits", Text, nullable=False),
    Column("expires_us", BigInteger),
    Column("created_us", BigInteger, nullable=False),
    Column("ended_us", BigInteger),
    UniqueConstraint("org", "reference"),
    Index("ix_holds_owner", "org", "owner", sqlite_where=_HELD, postgresql_where=_HELD),
    Index("ix_holds_expires_us", "org", "expires_us", sqlite_where=_HELD, postgresql_where=_HELD),
)

_GRANT = text("type = 'Grant'")
transfers = Table(
    "transfers",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    _org(),
    Column("at_us", BigInteger, nullable=False),
    # Grant, Hold, Charge, Release or Cover.
    Column("type", String(8), nullable=False),
    # From which account to which: granted, credits, held, usage, covered.
    Column("debit", String(8), nullable=False),
    Column("credit", String(8), nullable=False),
    Column("amount_nanos", BigInteger, nullable=False),
    # NULL for grants, which have a reference of their own.
    Column("hold", BigInteger, ForeignKey("holds.id")),
    Column("reference", String(253)),
    Column("reason", String(253), nullable=False),
    # What was paid for, such as compute/local-cpu.
    Column("item", String(253), nullable=False),
    Column("segment", String(16), nullable=False),
    Column("quantity", BigInteger, nullable=False),
    Column("unit", String(16), nullable=False),
    Index(None, "hold"),
    Index("uq_transfers_org_reference", "org", "reference", unique=True, sqlite_where=_GRANT, postgresql_where=_GRANT),
)
"""The books: append-only, and nothing in them ever changes."""

billed_labels = Table(
    "billed_labels",
    metadata,
    # No foreign key: it is about objects that are gone.
    Column("object", String(36), primary_key=True),
    _org(),
    Column("labels", Text, nullable=False),
)
"""Labels that objects had when they were deleted, where the books have lines about them."""
