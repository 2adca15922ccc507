"""The engine ``local``: grading in killable worker processes on this machine.

Theory of operation. Work waits in one queue on the event loop. Idle workers take it in chunks sized to
about ten milliseconds, so that a process hop costs microseconds an item and one slow item holds up few
others. The fleet (``fleet.py``) has the zygote (``zygote.py``) fork workers and report how they end; each
worker (``worker.py``) has
a socket for chunks and a shared page that says which item is in hand.

A worker's end is judged by what is known of it:

=================================  ===============================================================
how it ended                       the item in hand
=================================  ===============================================================
it answered "CPU budget spent"     0, ``cpu_limit``
we killed it for CPU               0, ``cpu_limit``: CPU time is the item's own, whatever our load
it ran out of memory or stack,     again, alone, in a fresh worker, since neighbours may have
a fault signal, or we killed it    contributed; the same again: 0 (``memory_limit``, ``crashed``,
for wall time                      ``wall_limit``)
anything else (an unexplained      graded again, at most ``MAX_LOST`` times, then unscored
SIGKILL, a stray exit)             ``worker_lost``
=================================  ===============================================================

The other items of its chunk are innocent and are graded again.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import time
from collections import deque
from typing import Any

import structlog

from reward_server.engine.base import Finished, Work
from reward_server.engine.fleet import Fleet, Hooks, Slot
from reward_server.engine.wire import pack_spec, unpack_outcome
from reward_server.frames import Garbled, frame, unpack
from reward_server.outcome import FailureKind, Outcome, Unscored, spent

log = structlog.get_logger(__name__)

MAX_LOST = 5
MAX_CHUNK = 256
MAX_CHUNK_BYTES = 8 << 20
_TARGET_CHUNK_S = 0.010
_LEAST_CHUNK_S = 0.001
_PATIENCE_S = 0.002
_KILL_AGAIN_S = 2.0
_LAST_WORD_S = 10.0
_UNKNOWN_ITEM_S = 0.0005
_WATCH_EVERY_S = 0.05
_SWEEP_EVERY_S = 0.25
_CPU_GRACE = (1.25, 0.1)
"""An item is killed from outside at ``budget × 1.25 + 0.1`` CPU seconds; inside, at the budget."""
_FAULTS = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
    | {signal.SIGSYS, signal.SIGTRAP, signal.SIGXCPU, signal.SIGXFSZ}
)


class LocalEngine:
    """Implements :class:`reward_server.engine.base.Engine`.

    ``catalog`` is ``module:attribute`` of the :class:`Catalog` that workers build graders from.
    """

    def __init__(
        self,
        *,
        workers: int,
        memory_mb: int = 1024,
        max_items: int = 200_000,
        catalog: str = "reward_server.graders.catalog:CATALOG",
        max_chunk: int = MAX_CHUNK,
    ) -> None:
        setup = {
            "path": sys.path,
            "catalog": catalog,
            "limits": {"memory_mb": memory_mb, "max_items": max_items},
        }
        self._workers = workers
        hooks = Hooks(self._schedule_pump, self._on_data, self._on_end)
        self._fleet = Fleet(workers, setup, hooks)
        self._max_chunk = max_chunk
        self._queue: deque[Work] = deque()
        self._suspects: deque[Work] = deque()
        self._chunks = 0
        self._cost_s: dict[str, float] = {}
        self._pump_scheduled = False
        self._patient = False
        self._closing = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._finished = 0
        self._rate = 0.0
        self._rate_at = 0.0

    # ── the interface ────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Starts the zygote and its workers. Raises RuntimeError with the reason where it cannot."""
        self._loop = asyncio.get_running_loop()
        self._rate_at = time.monotonic()
        await self._fleet.start()
        self._later("watch", _WATCH_EVERY_S, self._watch)
        self._later("sweep", _SWEEP_EVERY_S, self._sweep)

    def submit(self, work: Work) -> None:
        if self._closing:
            work.done(_unscored(work, FailureKind.OVERLOADED, "the server is shutting down"))
            return
        self._queue.append(work)
        self._schedule_pump()

    async def close(self) -> None:
        self._closing = True
        for timer in self._timers.values():
            timer.cancel()
        await self._fleet.close()
        left = [w for s in self._fleet.slots.values() for w in s.chunk or () if w is not None]
        for work in [*left, *self._suspects, *self._queue]:
            self._finish(work, _unscored(work, FailureKind.WORKER_LOST, "the server shut down"))
        self._queue.clear()
        self._suspects.clear()
        self._fleet.slots.clear()

    @property
    def ready(self) -> bool:
        return not self._closing and bool(self._fleet.pids)

    @property
    def items_per_s(self) -> float:
        return self._rate

    @property
    def workers_alive(self) -> int:
        return len(self.worker_pids)

    @property
    def queued(self) -> int:
        return len(self._queue) + len(self._suspects)

    @property
    def worker_pids(self) -> list[int]:
        return self._fleet.pids

    # ── handing out work ─────────────────────────────────────────────────────────────────────────

    def _schedule_pump(self) -> None:
        # Once per turn of the event loop, so that requests that arrive together share chunks.
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        idle = [s for s in self._fleet.slots.values() if s.idle and s.transport is not None]
        if self._suspects:
            fresh = [s for s in idle if s.served == 0]
            for slot in fresh:
                if work := self._next(self._suspects):
                    self._give(slot, [work])
            if self._suspects and not fresh and not self._fresh_worker_is_coming():
                for slot in idle[:1]:  # make room for a fresh one
                    slot.leaving = True
                    slot.hang_up()
            idle = [s for s in idle if s.idle]
        for slot in idle:
            if not self._queue or self._better_wait():
                return
            if chunk := self._take():
                self._give(slot, chunk)

    def _better_wait(self) -> bool:
        """Whether the little that is queued should wait for a worker that is about to be done.

        A chunk costs a wake-up of another process; at many small requests that is most of the cost.
        """
        first = self._queue[0]
        if len(self._queue) * self._cost_s.get(first.spec.digest, _UNKNOWN_ITEM_S) > _LEAST_CHUNK_S:
            return False
        now = time.monotonic()
        if not any(
            s.chunk is not None and now - s.given_at < _PATIENCE_S
            for s in self._fleet.slots.values()
        ):
            return False
        if not self._patient:
            self._patient = True
            self._later("patience", _PATIENCE_S, self._lose_patience)
        return True

    def _lose_patience(self) -> None:
        self._patient = False
        self._schedule_pump()

    def _fresh_worker_is_coming(self) -> bool:
        return any(s.leaving or not s.pid or s.hung_up for s in self._fleet.slots.values())

    def _take(self) -> list[Work]:
        share = math.ceil(len(self._queue) / self._workers)
        chunk: list[Work] = []
        cost_s, size = 0.0, 0
        while len(chunk) < self._max_chunk and (work := self._next(self._queue)):
            chunk.append(work)
            cost_s += self._cost_s.get(work.spec.digest, _UNKNOWN_ITEM_S)
            size += len(work.view)
            if cost_s >= _TARGET_CHUNK_S or size >= MAX_CHUNK_BYTES:
                break
            # Shared fairly, but not cut into pieces that cost more to send than to grade.
            if len(chunk) >= share and cost_s >= _LEAST_CHUNK_S:
                break
        return chunk

    def _next(self, queue: deque[Work]) -> Work | None:
        """The next work that is still wanted and can still start."""
        now = time.monotonic()
        while queue:
            work = queue.popleft()
            if work.cancelled:
                continue
            if work.start_by >= now:
                return work
            self._finish(work, _too_late(work))
        return None

    def _give(self, slot: Slot, chunk: list[Work]) -> None:
        assert slot.transport is not None
        self._chunks += 1
        slot.chunk_number = self._chunks
        slot.chunk = list(chunk)
        slot.served += len(chunk)
        slot.seen = (0, -1)
        slot.seen_at = slot.given_at = time.monotonic()
        specs: dict[str, int] = {}
        packed_specs: list[Any] = []
        items = []
        for work in chunk:
            work.attempts += 1
            index = specs.get(work.spec.digest)
            if index is None:
                index = specs[work.spec.digest] = len(packed_specs)
                packed_specs.append(pack_spec(work.spec))
            items.append((index, work.budget.cpu_s, work.start_by, work.view))
        slot.transport.write(frame([self._chunks, packed_specs, items]))

    # ── what comes back ──────────────────────────────────────────────────────────────────────────

    def _on_data(self, slot: Slot, data: bytes) -> None:
        try:
            for body in slot.frames.feed(data):
                self._on_answer(slot, unpack(body))
        except (Garbled, TypeError, ValueError, IndexError) as error:
            log.error("a worker sent what no worker sends", error=str(error)[:200])
            slot.leaving = True
            self._fleet.kill(slot, "garbled")
            slot.hang_up()

    def _on_answer(self, slot: Slot, answer: Any) -> None:
        number, results, final, leaving = answer
        if slot.chunk is None or number != slot.chunk_number:
            raise Garbled("an answer to no question")
        for index, packed, elapsed_us in results:
            work = slot.chunk[index]
            if work is None:
                raise Garbled("an item answered twice")
            outcome = None if packed is None else unpack_outcome(packed)
            if type(elapsed_us) is not int:
                raise Garbled("no time")
            slot.chunk[index] = None
            if outcome is None:
                self._suspect(work, "memory_limit", "grading ran out of memory or stack")
                continue
            self._note_cost(work, elapsed_us / 1e6)
            self._finish(work, Finished(outcome, elapsed_us / 1e3, work.attempts))
        slot.seen_at = time.monotonic()
        if final:
            self._requeue([w for w in slot.chunk if w is not None])
            slot.chunk = None
            slot.leaving = bool(leaving)
            self._schedule_pump()

    def _on_end(self, slot: Slot) -> None:
        if slot.chunk is not None and not self._closing:
            self._judge(slot, slot.chunk)

    def _judge(self, slot: Slot, chunk: list[Work | None]) -> None:
        assert slot.status is not None
        at = slot.page[1] if slot.page[0] == slot.chunk_number else -1
        guilty = chunk[at] if 0 <= at < len(chunk) else None
        innocent = [w for w in chunk if w is not None and w is not guilty]
        if guilty is None and innocent:
            # It died between items. Somebody must be charged with the loss, or a worker that dies at
            # once would be fed the same chunk for ever.
            innocent[0].lost += 1
        ended_by = os.WTERMSIG(slot.status) if os.WIFSIGNALED(slot.status) else None
        log.warning(
            "worker died",
            pid=slot.pid,
            killed_for=slot.killed_for,
            signal=ended_by,
            exit=None if ended_by else os.waitstatus_to_exitcode(slot.status),
            regraded=len(innocent),
        )
        if guilty is not None:
            self._sentence(guilty, slot.killed_for, ended_by)
        self._requeue(innocent)

    def _sentence(self, work: Work, killed_for: str | None, ended_by: int | None) -> None:
        if killed_for == "cpu_limit":
            limit = f"grading took more than {work.budget.cpu_s:g} s of CPU time"
            self._finish(work, Finished(spent("cpu_limit", limit), 0.0, work.attempts))
        elif killed_for == "wall_limit":
            self._suspect(work, "wall_limit", f"grading took more than {work.budget.wall_s:g} s")
        elif ended_by in _FAULTS and killed_for is None:
            name = signal.Signals(ended_by).name
            self._suspect(work, "crashed", f"the grading process died of {name}")
        else:
            work.lost += 1
            if work.lost >= MAX_LOST:
                detail = f"the grading process was lost {work.lost} times"
                self._finish(work, _unscored(work, FailureKind.WORKER_LOST, detail))
            else:
                self._requeue([work])

    def _suspect(self, work: Work, limit: str, detail: str) -> None:
        if work.suspect:
            self._finish(work, Finished(spent(limit, detail), 0.0, work.attempts))
        else:
            work.suspect = True
            self._requeue([work])

    def _requeue(self, works: list[Work]) -> None:
        """Puts works back in front, in order. Once started, only their own limits end them."""
        for work in reversed(works):
            if work.lost >= MAX_LOST:
                detail = f"the grading process was lost {work.lost} times"
                self._finish(work, _unscored(work, FailureKind.WORKER_LOST, detail))
            elif work.suspect:
                work.start_by = math.inf
                self._suspects.appendleft(work)
            else:
                self._queue.appendleft(work)
        self._schedule_pump()

    def _finish(self, work: Work, finished: Finished) -> None:
        self._finished += 1
        if not work.cancelled:
            work.done(finished)

    def _note_cost(self, work: Work, seconds: float) -> None:
        digest = work.spec.digest
        known = self._cost_s.get(digest)
        if known is None and len(self._cost_s) > 4096:
            self._cost_s.clear()
        self._cost_s[digest] = seconds if known is None else 0.9 * known + 0.1 * seconds

    # ── watching ─────────────────────────────────────────────────────────────────────────────────

    def _watch(self) -> None:
        now = time.monotonic()
        for slot in list(self._fleet.slots.values()):
            if slot.chunk is not None and slot.pid and now - slot.killed_at > _KILL_AGAIN_S:
                self._check(slot, slot.chunk, now)
        if (passed := now - self._rate_at) >= 1:
            self._rate = 0.5 * self._rate + 0.5 * self._finished / passed
            self._finished, self._rate_at = 0, now
        self._later("watch", _WATCH_EVERY_S, self._watch)

    def _check(self, slot: Slot, chunk: list[Work | None], now: float) -> None:
        at = (slot.page[0], slot.page[1])
        if at != slot.seen:
            slot.seen, slot.seen_at = at, now
        index = at[1] if at[0] == slot.chunk_number else -1
        work = chunk[index] if 0 <= index < len(chunk) else None
        unsettled = work or next((w for w in chunk if w is not None), None)
        if unsettled is None:  # its last word should be on the way
            if now - slot.seen_at > _LAST_WORD_S:
                self._fleet.kill(slot, "stalled")
            return
        budget = unsettled.budget
        if work is not None:
            factor, extra = _CPU_GRACE
            try:
                cpu_ns = time.clock_gettime_ns(_cpu_clock(slot.pid))
            except OSError:
                return  # it is gone; its exit is on the way
            # Read the index again: the pair must belong together.
            spent_s = (cpu_ns - slot.page[2]) / 1e9
            if slot.page[1] == index and spent_s > budget.cpu_s * factor + extra:
                self._fleet.kill(slot, "cpu_limit")
                return
        if now - slot.seen_at > budget.wall_s:
            self._fleet.kill(slot, "wall_limit" if work is not None else "stalled")

    def _sweep(self) -> None:
        """Ends queued works whose time to start has passed, though no worker was free for them."""
        now = time.monotonic()
        for queue in (self._queue, self._suspects):
            if any(w.start_by < now or w.cancelled for w in queue):
                kept = [w for w in queue if w.start_by >= now and not w.cancelled]
                late = [w for w in queue if w.start_by < now and not w.cancelled]
                queue.clear()
                queue.extend(kept)
                for work in late:
                    self._finish(work, _too_late(work))
        self._later("sweep", _SWEEP_EVERY_S, self._sweep)

    def _later(self, name: str, delay_s: float, call: Any) -> None:
        if not self._closing:
            self._timers[name] = self._loop.call_later(delay_s, call)


def _cpu_clock(pid: int) -> int:
    """The CPU-time clock of another process: what clock_getcpuclockid(3) computes on Linux."""
    return (~pid << 3) | 2


def _unscored(work: Work, kind: FailureKind, detail: str) -> Finished:
    outcome: Outcome = Unscored(kind, detail)
    return Finished(outcome, 0.0, work.attempts)


def _too_late(work: Work) -> Finished:
    detail = "too little time was left to start grading"
    return _unscored(work, FailureKind.DEADLINE_EXCEEDED, detail)
