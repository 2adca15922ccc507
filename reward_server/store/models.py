"""The tables.

``specs`` are grader contents by digest; ``versions`` give them names and numbers; ``graders`` say which
version a bare name means. A ``grading`` is (spec, environment, view) → outcome; a ``score`` is one row for
each submitted item and points at a grading. JSON is stored as UTF-8 bytes with escapes, because a
completion may hold NUL, which PostgreSQL's text and jsonb refuse. Times are milliseconds since 1970.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_N_label)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_BigId = BigInteger().with_variant(Integer(), "sqlite")
"""64 bits. In SQLite only a column declared INTEGER is the row id itself, so no second index is kept."""

specs = Table(
    "specs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("digest", String(80), nullable=False, unique=True),
    Column("kind", String(64), nullable=False),
    Column("config", LargeBinary, nullable=False),
    Column("ingredients", LargeBinary, nullable=False),
    Column("parts", LargeBinary, nullable=False),
    Column("release", String(128), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
)

versions = Table(
    "versions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(64), nullable=False),
    Column("version", Integer, nullable=False),
    Column("spec_id", ForeignKey("specs.id"), nullable=False),
    Column("description", Text),
    Column("cases", LargeBinary, nullable=False),
    Column("note", Text),
    Column("repeatability", Text),
    Column("origin", String(16), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    UniqueConstraint("name", "version"),
    UniqueConstraint("name", "spec_id"),
)

graders = Table(
    "graders",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("active_version_id", ForeignKey("versions.id")),
)

environments = Table(
    "environments",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("hash", String(80), nullable=False, unique=True),
    Column("observed", LargeBinary, nullable=False),
)

servers = Table(
    "servers",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("started_ms", BigInteger, nullable=False),
    Column("host", Text, nullable=False),
    Column("release", String(128), nullable=False),
    Column("environment_id", ForeignKey("environments.id"), nullable=False),
    Column("node", SmallInteger, nullable=False),
    Column("seen_ms", BigInteger, nullable=False),
)
"""One row for each start of a server. While it runs it holds a node number, which makes its ids its
own, and says so in ``seen_ms``; 0 once it has ended."""

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("detail", LargeBinary, nullable=False),
)
"""What an operator should know later: minted, activated, drift."""

runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(256), nullable=False, unique=True),
    Column("config", LargeBinary, nullable=False),
    Column("train_grader", String(160)),
    Column("heldout_grader", String(160)),
    Column("declared", SmallInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
)

run_pins = Table(
    "run_pins",
    metadata,
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("version_id", ForeignKey("versions.id"), nullable=False),
)

gradings = Table(
    "gradings",
    metadata,
    Column("id", _BigId, primary_key=True, autoincrement=False),
    Column("spec_id", ForeignKey("specs.id"), nullable=False),
    Column("environment_id", ForeignKey("environments.id"), nullable=False),
    Column("view_hash", LargeBinary(32), nullable=False),
    Column("reusable", SmallInteger, nullable=False),
    Column("reward", Float(53)),
    Column("basis", String(16)),
    Column("failure", String(32)),
    Column("detail", LargeBinary),
    Column("result", LargeBinary, nullable=False),
    Column("elapsed_ms", Float(53), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    CheckConstraint("(reward IS NULL) = (failure IS NOT NULL)", name="scored_or_failed"),
    Index(
        "ix_gradings_reuse",
        "view_hash",
        "spec_id",
        sqlite_where=text("reusable = 1"),
        postgresql_where=text("reusable = 1"),
    ),
)

scores = Table(
    "scores",
    metadata,
    Column("id", _BigId, primary_key=True, autoincrement=False),
    Column("grading_id", ForeignKey("gradings.id"), nullable=False),
    Column("version_id", ForeignKey("versions.id"), nullable=False),
    Column("run_id", ForeignKey("runs.id")),
    Column("step", BigInteger),
    Column("item_id", String(256)),
    Column("group_name", String(256)),
    Column("group_size", Integer),
    Column("policy_version", BigInteger),
    Column("finish_reason", String(16)),
    Column("tokens", BigInteger),
    Column("cached", SmallInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Index("ix_scores_run", "run_id", "id"),
    Index("ix_scores_version", "version_id", "id"),
    Index("ix_scores_grading", "grading_id"),
)

score_items = Table(
    "score_items",
    metadata,
    Column("score_id", _BigId, primary_key=True, autoincrement=False),
    Column("payload", LargeBinary, nullable=False),
)
"""What was submitted, apart from ``scores`` so that listing scores does not read completions."""

idempotency = Table(
    "idempotency",
    metadata,
    Column("key", String(256), primary_key=True),
    Column("body_hash", LargeBinary(32), nullable=False),
    Column("score_ids", LargeBinary, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Index("ix_idempotency_created", "created_ms"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("name", Text, nullable=False),
    Column("secret_hash", LargeBinary(32), nullable=False),
    Column("scopes", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger),
    Column("revoked_ms", BigInteger),
)
