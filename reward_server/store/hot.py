"""The hot path to the database, seen from the event loop: look for gradings, store scores.

The work is done in a process of its own (``hot_process.py``), because database drivers give up and
retake the interpreter lock at every statement, and in the process of a busy event loop each retaking
waits its turn. Here are only the messages: rows out, acknowledgements in.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog

from reward_server.frames import FrameBuffer, Garbled, frame, unpack
from reward_server.store.codec import StoredGrading, grading_of
from reward_server.store.database import StoreUnavailable

log = structlog.get_logger(__name__)

FIND, STORE = 0, 1


class GradingKey(NamedTuple):
    """What identifies a grading: the version's content, the environment and the view."""

    spec_id: int
    environment_id: int
    view_hash: bytes


@dataclass(slots=True)
class Submission:
    """What one request has to store. Rows hold every column, in the table's order."""

    gradings: list[tuple[Any, ...]] = field(default_factory=list)
    scores: list[tuple[Any, ...]] = field(default_factory=list)
    items: list[tuple[Any, ...]] = field(default_factory=list)
    idempotency: tuple[Any, ...] | None = None
    unchecked: list[int] = field(default_factory=list)
    """Ids of gradings that were made without looking for an earlier one of the same view."""
    all_gradings: Callable[[], list[tuple[Any, ...]]] = list
    """Rows of every grading that the scores point at, the reused ones too."""


class ReusedGradingGone(Exception):
    """A grading that was to be reused has been deleted (retention) since it was looked up."""


class KeyTaken(Exception):
    """The idempotency key was stored with another body."""


class GradingRow(NamedTuple):
    """The columns of a reusable grading that a look-up gives back."""

    id: int
    spec_id: int
    environment_id: int
    view_hash: bytes
    reward: float | None
    basis: str | None
    failure: str | None
    detail: bytes | None
    result: bytes
    elapsed_ms: float


class HotStore(asyncio.Protocol):
    """One process for look-ups and commits; started again when it dies."""

    def __init__(self, url: str, *, synchronous: str, timeout_s: float) -> None:
        self._setup = [url, synchronous, timeout_s]  # not in argv: a URL may hold a password
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._frames = FrameBuffer()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._outbox: list[bytes] = []
        self._numbers = 0
        self._closing = False
        self._restarting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _PROGRAM, json.dumps(sys.path), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # ^C reaches the group; this ends when its socket closes
            )
        ours.sendall(frame(self._setup))
        ours.setblocking(False)
        self._frames = FrameBuffer()
        transport, _ = await self._loop.create_unix_connection(lambda: self, sock=ours)
        self._transport = transport

    async def find(self, keys: list[GradingKey]) -> dict[GradingKey, StoredGrading]:
        """The reusable gradings among the keys. A database in trouble finds nothing."""
        try:
            rows = await self._ask(FIND, keys)
        except StoreUnavailable as error:
            log.warning("reuse look-up failed; grading anew", error=str(error))
            return {}
        found = (GradingRow(*row) for row in rows)
        return {GradingKey(r.spec_id, r.environment_id, r.view_hash): grading_of(r) for r in found}

    async def store(self, submission: Submission) -> dict[int, GradingRow]:
        """Returns once it is durable. Raises StoreUnavailable, KeyTaken.

        A cancellation takes effect only then: what was sent is stored, and a resend must find it.

        Of the unchecked gradings that turned out to exist already, the earlier ones, by the ids that
        the scores were submitted with: the scores now point at those.
        """
        s = submission
        rest = [s.scores, s.items, s.idempotency, s.unchecked]
        first = self._ask(STORE, [s.gradings, *rest], kept=True)
        try:
            known = await first
        except ReusedGradingGone:
            known = await self._store_all(s, rest)
        except asyncio.CancelledError:
            # It comes here only once the answer is in; what was refused is stored before it goes on.
            if isinstance(first.exception(), ReusedGradingGone):
                with contextlib.suppress(StoreUnavailable, KeyTaken):
                    await self._store_all(s, rest)
            raise
        return {number: GradingRow(*row) for number, row in known or ()}

    async def _store_all(self, s: Submission, rest: list[Any]) -> Any:
        """The submission again, with the rows of the reused gradings that are gone."""
        try:
            return await self._ask(STORE, [s.all_gradings(), *rest], kept=True)
        except ReusedGradingGone:
            raise StoreUnavailable("the database refuses the rows") from None

    async def close(self) -> None:
        """Ends the process after it has done all that it was asked."""
        self._closing = True
        if self._restarting is not None:
            self._restarting.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(30):
                while (
                    self._waiting
                ):  # an answer can bring another message: what was refused is sent again
                    await asyncio.wait(list(self._waiting.values()))
                    await asyncio.sleep(0)
        if self._transport is not None:
            self._transport.close()
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def _ask(self, what: int, body: Any, *, kept: bool = False) -> asyncio.Future[Any]:
        future = _Kept(loop=self._loop) if kept else self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            future.set_exception(StoreUnavailable("the store process is starting again"))
            return future
        self._numbers += 1
        self._outbox.append(frame([self._numbers, what, body]))
        self._waiting[self._numbers] = future
        if len(self._outbox) == 1:
            # One write a turn of the loop: requests that arrive together share it, and the commit.
            self._loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        messages, self._outbox = self._outbox, []
        if self._transport is not None:
            self._transport.write(b"".join(messages))

    # ── asyncio.Protocol ─────────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        try:
            answers = [unpack(body) for body in self._frames.feed(data)]
        except Garbled as error:
            log.error("the store process sent garbage", error=str(error))
            assert self._transport is not None
            self._transport.abort()
            return
        for number, problem, result in answers:
            future = self._waiting.pop(number, None)
            if future is None or future.done():
                continue
            if problem is None:
                future.set_result(result)
                continue
            special = _SPECIAL.get(problem)
            future.set_exception(special() if special else StoreUnavailable(problem))
            future.exception()  # seen: a waiter that was cancelled will not look

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._outbox = []
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(StoreUnavailable("the store process died"))
                future.exception()  # seen, even where nobody waits any more
        if not self._closing:
            log.error("the store process died; starting another", pid=self.pid)
            self._restarting = self._loop.create_task(self._restart())

    async def _restart(self) -> None:
        assert self._process is not None
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        while not self._closing:
            try:
                await self.start()
                return
            except OSError as error:
                log.error("the store process does not start", error=str(error))
                await asyncio.sleep(1)


class _Kept(asyncio.Future[Any]):
    """A future that its waiter's cancellation does not end: the task wakes, cancelled, when it is done."""

    def cancel(self, msg: Any = None) -> bool:
        return False


REUSED_GRADING_GONE = "reused grading gone"
KEY_TAKEN = "idempotency key taken"
_SPECIAL: dict[str, type[Exception]] = {
    REUSED_GRADING_GONE: ReusedGradingGone,
    KEY_TAKEN: KeyTaken,
}
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from reward_server.store.hot_process import main
main(int(sys.argv[2]))
"""
