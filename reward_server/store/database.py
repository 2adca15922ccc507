"""The connection to the database: SQLite by default, PostgreSQL by URL.

SQLite runs in WAL mode, so readers never wait for the writer. ``synchronous`` is FULL: each commit is on
the disk before a score is answered, so an answered score survives a power cut as well as ``kill -9``.
Group commit makes that cheap (one fsync for all the requests that wait). ``normal`` would survive the
death of the process only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Table, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

T = TypeVar("T")

_MAX_PARAMETERS = 30_000  # SQLite's and PostgreSQL's limits are 32,766 and 65,535


class StoreUnavailable(Exception):
    """The database cannot be reached, is locked, full or read-only. Nothing was stored."""


class Database:
    """Transactions on one database. Thread-safe."""

    def __init__(self, url: str, *, synchronous: str = "full", timeout_s: float = 10.0) -> None:
        """Raises ValueError for a URL that cannot be used."""
        self.engine = _make_engine(url, synchronous, timeout_s)
        self.is_sqlite = self.engine.dialect.name == "sqlite"

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A read-write transaction. Raises StoreUnavailable."""
        with self._transaction(write=True) as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A read-only snapshot. Raises StoreUnavailable."""
        with self._transaction(write=False) as connection:
            yield connection

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Connection]:
        try:
            with self.engine.connect() as connection:
                connection = connection.execution_options(write=write)
                if not write and not self.is_sqlite:
                    # A snapshot, as SQLite's reads are: by default each statement has its own.
                    connection = connection.execution_options(isolation_level="REPEATABLE READ")
                with connection.begin():
                    yield connection
        except DBAPIError as error:
            if unavailable(error):
                raise StoreUnavailable(reason(error)) from error
            raise

    def close(self) -> None:
        self.engine.dispose()


def one_at_a_time(connection: Connection) -> None:
    """Makes this transaction wait for others that called this, on any server. Few writes need it:
    those that read what is there, decide, and write several tables (they could deadlock)."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK_NUMBER})")


_LOCK_NUMBER = 7203412


def unavailable(error: DBAPIError) -> bool:
    """Whether an error is the database's state (locked, full, gone) and not our statement."""
    if error.connection_invalidated:
        return True
    kind = type(error.orig).__mro__
    return any(k.__name__ in ("OperationalError", "InterfaceError") for k in kind)


def reason(error: DBAPIError) -> str:
    text = str(error.orig).strip().splitlines()
    return text[0][:300] if text else type(error.orig).__name__


def _make_engine(url: str, synchronous: str, timeout_s: float) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.drivername in ("postgresql", "postgres"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() == "sqlite":
            return _sqlite(parsed, synchronous, timeout_s)
        if parsed.get_backend_name() != "postgresql":
            raise ValueError(f"{parsed.drivername}: use a sqlite:/// or postgresql:// URL")
        return create_engine(
            parsed,
            pool_pre_ping=True,
            pool_size=8,
            max_overflow=8,
            connect_args={"connect_timeout": max(2, round(timeout_s)), "prepare_threshold": None},
        )
    except (ArgumentError, NoSuchModuleError) as error:
        raise ValueError(f"database URL: {error}") from None
    except ModuleNotFoundError as error:
        raise ValueError(
            f"the driver {error.name} is missing: pip install 'reward-server[postgres]'"
        ) from None


def _sqlite(url: Any, synchronous: str, timeout_s: float) -> Engine:
    if url.database in (None, "", ":memory:"):
        raise ValueError("an in-memory SQLite database cannot be durable: give a file")
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=8,
        max_overflow=8,
        connect_args={"timeout": timeout_s, "isolation_level": None, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def _pragmas(dbapi_connection: Any, _record: Any) -> None:
        cursor = dbapi_connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute(f"PRAGMA synchronous = {'FULL' if synchronous == 'full' else 'NORMAL'}")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA cache_size = -65536")
        cursor.execute("PRAGMA wal_autocheckpoint = 16384")
        cursor.execute("PRAGMA journal_size_limit = 67108864")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that reads first and writes later could not wait for the lock; so writers
        # take it at once.
        write = connection.get_execution_options().get("write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def bulk_insert(
    connection: Connection,
    table: Table,
    rows: Sequence[tuple[Any, ...]],
    *,
    or_ignore: bool = False,
) -> None:
    """Inserts rows (every column, in the table's order) with few, large statements.

    ``or_ignore``: a row whose primary key is there already is left as it is.

    One statement for many rows, because the driver gives up the interpreter lock at each statement
    and a busy event loop is slow to hand it back.
    """
    width = len(table.columns)
    most = 1 << (_MAX_PARAMETERS // width).bit_length() - 1
    start = 0
    while start < len(rows):
        # Sizes are powers of two, so that few distinct statements exist.
        count = min(most, 1 << (len(rows) - start).bit_length() - 1)
        sql = _insert_sql(table, count, connection.dialect.paramstyle, or_ignore)
        flat = tuple(value for row in rows[start : start + count] for value in row)
        connection.exec_driver_sql(sql, flat)
        start += count


@cache
def _insert_sql(table: Table, rows: int, paramstyle: str, or_ignore: bool) -> str:
    mark = "?" if paramstyle == "qmark" else "%s"
    names = ", ".join(c.name for c in table.columns)
    row = "(" + ", ".join([mark] * len(table.columns)) + ")"
    sql = f"INSERT INTO {table.name} ({names}) VALUES {', '.join([row] * rows)}"
    key = ", ".join(c.name for c in table.primary_key.columns)
    return f"{sql} ON CONFLICT ({key}) DO NOTHING" if or_ignore else sql


def retrying(write: Callable[[], T], *, tries: int = 5) -> T:
    """Runs a transaction again where another host won a race on a unique key (IntegrityError)."""
    for attempt in range(tries):
        try:
            return write()
        except IntegrityError:
            if attempt == tries - 1:
                raise
            time.sleep(0.01 * 2**attempt)
    raise AssertionError("unreachable")
