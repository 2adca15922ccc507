"""Looks for gradings that can be reused: one thread, one query for all requests that wait."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import defaultdict
from dataclasses import dataclass

import structlog
from sqlalchemy import select

from reward_server.store.codec import StoredGrading, grading_of
from reward_server.store.database import Database, StoreUnavailable
from reward_server.store.models import gradings

log = structlog.get_logger(__name__)

_MAX_HASHES = 1000


@dataclass(frozen=True, slots=True)
class GradingKey:
    """What identifies a grading: the version's content, the environment and the view."""

    spec_id: int
    environment_id: int
    view_hash: bytes


Found = dict[GradingKey, StoredGrading]


class ReuseLookup:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: queue.SimpleQueue[tuple[list[GradingKey], asyncio.Future[Found]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="reuse-lookup", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def find(self, keys: list[GradingKey]) -> Found:
        """The reusable gradings among the keys. A database in trouble finds nothing."""
        future: asyncio.Future[Found] = self._loop.create_future()
        self._queue.put((keys, future))
        return await future

    async def close(self) -> None:
        if self._thread.is_alive():
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        going_on = True
        while going_on:
            batch: list[tuple[list[GradingKey], asyncio.Future[Found]]] = []
            entry = self._queue.get()
            while entry is not None:
                batch.append(entry)
                try:
                    entry = self._queue.get_nowait()
                except queue.Empty:
                    break
            going_on = entry is not None
            if not batch:
                continue
            found: Found = {}
            try:
                found = self._query({key for keys, _ in batch for key in keys})
            except StoreUnavailable as error:
                log.warning("reuse lookup failed; grading anew", error=str(error))
            except Exception:
                log.exception("reuse lookup failed; grading anew")
            self._loop.call_soon_threadsafe(_answer, [f for _, f in batch], found)

    def _query(self, keys: set[GradingKey]) -> Found:
        by_version: dict[tuple[int, int], list[bytes]] = defaultdict(list)
        for key in keys:
            by_version[key.spec_id, key.environment_id].append(key.view_hash)
        found: Found = {}
        with self._database.read() as connection:
            for (spec_id, environment_id), hashes in by_version.items():
                for start in range(0, len(hashes), _MAX_HASHES):
                    rows = connection.execute(
                        select(gradings).where(
                            gradings.c.view_hash.in_(hashes[start : start + _MAX_HASHES]),
                            gradings.c.spec_id == spec_id,
                            gradings.c.environment_id == environment_id,
                            gradings.c.reusable == 1,
                        )
                    )
                    for row in rows:
                        key = GradingKey(spec_id, environment_id, bytes(row.view_hash))
                        found[key] = grading_of(row)
        return found


def _answer(futures: list[asyncio.Future[Found]], found: Found) -> None:
    for future in futures:
        if not future.done():
            future.set_result(found)
