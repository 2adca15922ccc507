"""The writer: one thread that commits what all waiting requests have to store, together.

While one commit is on its way to the disk, the next ones gather; so at 64 clients one fsync serves
dozens of requests. Each submission is atomic and is acknowledged only after its commit.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError
from sqlalchemy.dialects import postgresql, sqlite

from reward_server.store import models
from reward_server.store.database import Database, StoreUnavailable, bulk_insert

log = structlog.get_logger(__name__)

MAX_ROWS = 8192
"""Score rows of one transaction."""


@dataclass(slots=True)
class Submission:
    """What one request has to store. Rows hold every column, in the table's order."""

    gradings: list[tuple[Any, ...]] = field(default_factory=list)
    scores: list[tuple[Any, ...]] = field(default_factory=list)
    items: list[tuple[Any, ...]] = field(default_factory=list)
    idempotency: tuple[Any, ...] | None = None
    all_gradings: Callable[[], list[tuple[Any, ...]]] = list
    """Rows of every grading that the scores point at, the reused ones too."""


class GroupCommit:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: queue.SimpleQueue[tuple[Submission, asyncio.Future[None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self.commits = 0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def store(self, submission: Submission) -> None:
        """Returns once it is durable. Raises StoreUnavailable, and then nothing was stored."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((submission, future))
        await future

    async def close(self) -> None:
        """Commits what was submitted, then ends the thread."""
        if self._thread.is_alive():
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        going_on = True
        while going_on:
            batch: list[tuple[Submission, asyncio.Future[None]]] = []
            rows = 0
            entry = self._queue.get()
            while entry is not None:
                batch.append(entry)
                rows += len(entry[0].scores) + 1
                if rows >= MAX_ROWS:
                    break
                try:
                    entry = self._queue.get_nowait()
                except queue.Empty:
                    break
            going_on = entry is not None
            if batch:
                self._commit(batch)

    def _commit(self, batch: list[tuple[Submission, asyncio.Future[None]]]) -> None:
        errors: list[Exception | None]
        try:
            self._write([submission for submission, _ in batch])
            errors = [None] * len(batch)
        except StoreUnavailable as error:
            errors = [error] * len(batch)
        except Exception as error:
            # One of them holds something the database refuses: find it, so that it fails alone.
            log.error("a commit was refused", error=str(error)[:500], submissions=len(batch))
            errors = [self._alone(submission) for submission, _ in batch]
        self._loop.call_soon_threadsafe(_settle, [f for _, f in batch], errors)

    def _alone(self, submission: Submission) -> Exception | None:
        try:
            try:
                self._write([submission])
            except IntegrityError:
                # A reused grading was forgotten (retention) after it had been looked up.
                submission.gradings = submission.all_gradings()
                self._write([submission])
        except StoreUnavailable as error:
            return error
        except Exception as error:
            log.error("a submission cannot be stored", error=str(error)[:500])
            return StoreUnavailable(f"the database refuses the rows: {type(error).__name__}")
        return None

    def _write(self, submissions: list[Submission]) -> None:
        with self._database.write() as connection:
            # Two requests may share a grading that neither has stored yet.
            rows = {r[0]: r for s in submissions for r in s.gradings}
            bulk_insert(connection, models.gradings, list(rows.values()), or_ignore=True)
            bulk_insert(connection, models.scores, [r for s in submissions for r in s.scores])
            bulk_insert(connection, models.score_items, [r for s in submissions for r in s.items])
            for submission in submissions:
                if submission.idempotency is not None:
                    _remember(connection, submission.idempotency)
        self.commits += 1


def _remember(connection: Connection, row: tuple[Any, ...]) -> None:
    values = dict(zip((c.name for c in models.idempotency.columns), row, strict=True))
    # Graded again because items were unscored: the newer scores are the request's scores.
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement = insert(models.idempotency).values(values)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["key"], set_={"score_ids": statement.excluded.score_ids}
        )
    )


def _settle(futures: list[asyncio.Future[None]], errors: list[Exception | None]) -> None:
    for future, error in zip(futures, errors, strict=True):
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
