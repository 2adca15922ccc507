"""Same key and same body: the same scores.

In flight, a resend joins the request that is running. Afterwards its scores come from the store; items
that were unscored are graded again, the scored ones never. The same key with another body is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from sqlalchemy import select

from reward_server.graders.base import canonical_json
from reward_server.problems import Invalid
from reward_server.schema import ScoreRequest
from reward_server.scoring.record import Reply, reply_from_stored
from reward_server.store.database import Database
from reward_server.store.models import idempotency
from reward_server.store.scores import by_ids


@dataclass(slots=True, eq=False)
class _Running:
    body_hash: bytes
    task: asyncio.Task[list[Reply]]
    waiters: int = 0


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is stored under a key: the replies that stand, by index."""

    replies: Mapping[int, Reply]


class IdempotentRequests:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._running: dict[str, _Running] = {}

    async def once(
        self,
        key: str,
        body_hash: bytes,
        score: Callable[[Remembered], Awaitable[list[Reply]]],
    ) -> list[Reply]:
        """Runs ``score`` with what is remembered under the key, or joins the run that does.

        Raises Invalid where the key belongs to another body.
        """
        while True:
            running = self._join(key, body_hash, score)
            running.waiters += 1
            try:
                return await asyncio.shield(running.task)
            except asyncio.CancelledError:
                own = asyncio.current_task()
                if own is not None and own.cancelling():
                    raise
                # The one joined was cancelled by its last client's leaving: begin anew.
            finally:
                running.waiters -= 1
                if running.waiters == 0 and not running.task.done():
                    running.task.cancel()  # every client that waited for it has left

    def _join(
        self,
        key: str,
        body_hash: bytes,
        score: Callable[[Remembered], Awaitable[list[Reply]]],
    ) -> _Running:
        running = self._running.get(key)
        if running is None:
            task = asyncio.ensure_future(self._run(key, body_hash, score))
            running = self._running[key] = _Running(body_hash, task)
            task.add_done_callback(lambda done: self._ended(key, done))
        elif running.body_hash != body_hash:
            raise other_body()
        return running

    def _ended(self, key: str, task: asyncio.Task[list[Reply]]) -> None:
        running = self._running.get(key)
        if running is not None and running.task is task:
            del self._running[key]

    async def _run(
        self, key: str, body_hash: bytes, score: Callable[[Remembered], Awaitable[list[Reply]]]
    ) -> list[Reply]:
        return await score(await asyncio.to_thread(self._recall, key, body_hash))

    def _recall(self, key: str, body_hash: bytes) -> Remembered:
        with self._database.read() as connection:
            row = connection.execute(
                select(idempotency.c.body_hash, idempotency.c.score_ids).where(
                    idempotency.c.key == key
                )
            ).first()
        if row is None:
            return Remembered({})
        if bytes(row.body_hash) != body_hash:
            raise other_body()
        ids: list[int] = json.loads(row.score_ids)
        stored = by_ids(self._database, ids)
        return Remembered(
            {
                index: reply_from_stored(stored[score_id], index)
                for index, score_id in enumerate(ids)
                if score_id in stored and stored[score_id].status == "scored"
            }
        )


def body_hash(request: ScoreRequest) -> bytes:
    """Identity of a request's content, whatever its spelling in JSON."""
    content = request.model_dump(mode="json", exclude={"idempotency_key"})
    return hashlib.sha256(canonical_json(content)).digest()


def other_body() -> Invalid:
    """The refusal of a key that belongs to another body."""
    return Invalid.field(
        "idempotency_key", "this key was used with another body: use a new key for new content"
    )
