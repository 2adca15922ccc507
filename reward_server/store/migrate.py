"""Brings a database to this release's schema, with Alembic."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from reward_server.store.database import Database

_LOCK_NUMBER = 7203411


class UnknownRevision(Exception):
    """The database was written by a newer release."""


def upgrade(database: Database) -> tuple[str | None, str]:
    """Migrates to the newest revision; returns (revision before, revision after).

    Servers that start together do it one after the other. Raises UnknownRevision.
    """
    _refuse_other_encodings(database)
    config = _config()
    head = ScriptDirectory.from_config(config).get_current_head()
    assert head is not None
    with _one_at_a_time(database), database.engine.connect() as connection:
        before = MigrationContext.configure(connection).get_current_revision()
        connection.rollback()
        if before == head:
            return before, head
        if before is not None and before not in _known(config):
            raise UnknownRevision(
                f"the database is at revision {before}, which this release does not know: "
                "it was written by a newer one; install that release"
            )
        with connection.execution_options(write=True).begin():
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    return before, head


def _refuse_other_encodings(database: Database) -> None:
    if not database.is_sqlite:
        with database.read() as connection:
            encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
        if encoding not in ("UTF8", b"UTF8"):
            raise ValueError(
                f"the database's encoding is {encoding!r}: make it with ENCODING 'UTF8'"
            )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def _known(config: Config) -> set[str]:
    return {s.revision for s in ScriptDirectory.from_config(config).walk_revisions()}


@contextmanager
def _one_at_a_time(database: Database) -> Iterator[None]:
    if database.is_sqlite:
        path = Path(str(database.engine.url.database) + ".migrate-lock")
        with path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        return
    with database.engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:n)"), {"n": _LOCK_NUMBER})
        try:
            yield
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:n)"), {"n": _LOCK_NUMBER})
            connection.commit()
