"""The desk: the one place where views become gradings.

Each ask is answered from the first of: the memory of recent gradings, an equal unit in flight, the
database, or the grader itself (pure graders on the engine, live ones on the event loop). Parts of a
composite come back to this same desk.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import structlog

from reward_server.engine.base import Engine, Finished, Work
from reward_server.graders.base import Context, LiveGrader, PureGrader, Spec, View, repeats
from reward_server.graders.catalog import Catalog
from reward_server.outcome import Basis, CannotScore, FailureKind, Outcome, Scored, Unscored
from reward_server.scoring.views import names_of, narrowed, view_bytes, view_hash
from reward_server.store.codec import outcome_columns, outcome_of
from reward_server.store.hot import GradingKey, GradingRow, HotStore
from reward_server.store.ids import IdMaker, now_ms
from sandboxes.program import Sandbox

log = structlog.get_logger(__name__)

_MAX_FRESH = 16_384
_MAX_BUILT = 1024


@dataclass(slots=True, eq=False)
class Grading:
    """A verdict (or none) on one view, as it is or will be stored."""

    id: int
    key: GradingKey
    outcome: Outcome
    elapsed_ms: float
    attempts: int
    created_ms: int
    reusable: bool
    durable: bool = False
    """Whether its row is committed. Whoever records a score of it stores it where it is not."""
    parts: tuple[Grading, ...] = ()
    unchecked: bool = False
    """Made without looking for an earlier one: the store looks when it is stored."""
    columns: tuple[Any, ...] = ()
    """Its outcome as the store has it, once that was computed."""

    def as_columns(self) -> tuple[Any, ...]:
        if not self.columns:
            self.columns = outcome_columns(self.outcome)
        return self.columns


_Memory = tuple[int, float, tuple[Any, ...]]
"""(id, elapsed_ms, columns) of a stored grading. Only atoms, which the garbage collector does not walk:
tens of thousands of nested results would make its full collections stall every request."""


@dataclass(frozen=True, slots=True)
class Graded:
    """A version's content as the desk needs it: spec, its row, and the grader built from it."""

    spec: Spec
    spec_id: int
    grader: PureGrader | LiveGrader
    names: tuple[str, ...]
    """Of the fields that it reads."""
    part_ids: Mapping[str, int] = field(default_factory=dict)
    """Digest -> spec id of every part."""
    repeats: bool = True
    """Whether its gradings may be reused."""


@dataclass(slots=True, eq=False)
class Ask:
    """One view that somebody wants graded by ``deadline`` (``time.monotonic()``)."""

    subject: Graded
    view: View
    data: bytes
    key: GradingKey
    deadline: float
    reuse: bool
    on_settled: Callable[[Ask], None]
    grading: Grading | None = None
    cached: bool = False
    job: _Job | None = None


@dataclass(slots=True, eq=False)
class _Job:
    """A unit being graded, and who waits for it."""

    waiters: list[Ask]
    shared: bool
    work: Work | None = None
    task: asyncio.Task[None] | None = None


class Desk:
    def __init__(
        self,
        engine: Engine,
        catalog: Catalog,
        store: HotStore,
        ids: IdMaker,
        environment_id: int,
        cache_items: int,
        sandbox: Sandbox,
    ) -> None:
        self._engine = engine
        self._catalog = catalog
        self._store = store
        self._ids = ids
        self._environment_id = environment_id
        self._recent: OrderedDict[GradingKey, _Memory] = OrderedDict()
        self._fresh: OrderedDict[GradingKey, Grading] = OrderedDict()
        """Graded and not yet stored, so not yet found by a look-up."""
        self._cache_items = cache_items
        self._sandbox = sandbox
        self._in_flight: dict[GradingKey, _Job] = {}
        self._built: dict[str, PureGrader | LiveGrader] = {}

    @property
    def sandbox(self) -> Sandbox:
        return self._sandbox

    def ask(
        self,
        subject: Graded,
        view: View,
        deadline: float,
        reuse: bool,
        on_settled: Callable[[Ask], None],
    ) -> Ask:
        """Prepares an ask. Raises ValueError for a view that is not JSON (NaN, infinities)."""
        data = view_bytes(view, subject.names)
        key = GradingKey(subject.spec_id, self._environment_id, view_hash(data))
        return Ask(subject, view, data, key, deadline, reuse and subject.repeats, on_settled)

    async def put(self, asks: list[Ask]) -> None:
        """Takes asks in; each is settled later, or within this call."""
        unknown = []
        for ask in asks:
            if not ask.reuse:
                self._start([ask], shared=False)
            elif not self._answer_from_memory(ask):
                if self._catalog[ask.subject.spec.kind].cheap:
                    self._start([ask], shared=True)
                else:
                    unknown.append(ask)
        if not unknown:
            return
        found = await self._store.find([a.key for a in unknown])
        for ask in unknown:
            if stored := found.get(ask.key):
                grading = Grading(
                    stored.id, ask.key, stored.outcome, stored.elapsed_ms, 1, 0, True, durable=True
                )
                _settle(ask, grading, cached=True)
            elif not self._answer_from_memory(ask):
                self._start([ask], shared=True)

    def withdraw(self, asks: list[Ask]) -> None:
        """Nobody waits for these any more; what has not started and nobody else wants is dropped."""
        for ask in asks:
            job = ask.job
            if job is None or ask.grading is not None:
                continue
            ask.job = None
            job.waiters.remove(ask)
            if not job.waiters:
                if job.shared and self._in_flight.get(ask.key) is job:
                    del self._in_flight[ask.key]
                if job.work is not None:
                    job.work.cancelled = True
                if job.task is not None:
                    job.task.cancel()

    def grader_of(self, spec: Spec) -> PureGrader | LiveGrader:
        """The grader of a part; built once."""
        if (built := self._built.get(spec.digest)) is None:
            if len(self._built) >= _MAX_BUILT:
                self._built.clear()
            built = self._built[spec.digest] = self._catalog.build(spec)
        return built

    def repeats(self, spec: Spec, grader: PureGrader | LiveGrader) -> bool:
        return repeats(self._catalog[spec.kind], grader)

    def unscored(self, ask: Ask, outcome: Unscored) -> None:
        """Settles an ask without grading it."""
        grading = self._grading(ask.key, outcome, 0.0, 0)
        _settle(ask, grading, cached=False)

    def forget(self) -> None:
        """Drops the memory of recent gradings, whose rows may be gone."""
        self._recent.clear()

    def stored(self, gradings: Iterable[Grading], earlier: Mapping[int, GradingRow]) -> None:
        """These gradings are committed, or exist already as an earlier one; from now on equal items
        are answered from memory."""
        for grading in gradings:
            memory: _Memory
            if row := earlier.get(grading.id):
                columns = (row.reward, row.basis, row.failure, row.detail, row.result)
                memory = (row.id, row.elapsed_ms, columns)
            else:
                grading.durable = True
                memory = (grading.id, grading.elapsed_ms, grading.as_columns())
            # By identity: an unscored grading of an equal view has the same key, and is not reused.
            if self._fresh.get(grading.key) is not grading:
                continue
            del self._fresh[grading.key]
            if self._cache_items:
                self._recent[grading.key] = memory
                if len(self._recent) > self._cache_items:
                    self._recent.popitem(last=False)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def _answer_from_memory(self, ask: Ask) -> bool:
        if recent := self._recent.get(ask.key):
            self._recent.move_to_end(ask.key)
            _settle(ask, _remembered(ask.key, *recent), cached=True)
            return True
        if fresh := self._fresh.get(ask.key):
            _settle(ask, fresh, cached=True)
            return True
        if job := self._in_flight.get(ask.key):
            ask.job, ask.cached = job, True
            job.waiters.append(ask)
            if job.work is not None:
                job.work.start_by = max(job.work.start_by, self._start_by(ask))
            return True
        return False

    def _start(self, asks: list[Ask], *, shared: bool) -> None:
        first = asks[0]
        job = _Job(asks, shared)
        for ask in asks:
            ask.job = job
        if shared:
            self._in_flight[first.key] = job
        kind = self._catalog[first.subject.spec.kind]
        if kind.pure:
            job.work = Work(
                first.subject.spec,
                first.data,
                kind.budget,
                max(self._start_by(a) for a in asks),
                lambda finished: self._finished(job, finished),
            )
            self._engine.submit(job.work)
        else:
            live = cast(LiveGrader, first.subject.grader)
            job.task = asyncio.get_running_loop().create_task(self._run_live(job, live, first))

    def _start_by(self, ask: Ask) -> float:
        """A unit starts only if the time left to the deadline covers its full budget."""
        return ask.deadline - self._catalog[ask.subject.spec.kind].budget.cpu_s

    async def _run_live(self, job: _Job, grader: LiveGrader, ask: Ask) -> None:
        context = _Context(self, ask)
        started = time.monotonic()
        try:
            outcome = await grader.grade_live(ask.view, context)
        except CannotScore as error:
            outcome = Unscored(error.kind, error.detail)
        except Exception as error:
            log.exception("a live grader failed", kind=ask.subject.spec.kind)
            outcome = Unscored(FailureKind.GRADER_ERROR, f"{type(error).__name__}: {error}"[:500])
        elapsed_ms = (time.monotonic() - started) * 1e3
        self._finished(job, Finished(outcome, elapsed_ms, 1), tuple(context.gradings))

    def _finished(self, job: _Job, finished: Finished, parts: tuple[Grading, ...] = ()) -> None:
        first = job.waiters[0]
        if job.shared and self._in_flight.get(first.key) is job:
            del self._in_flight[first.key]
        waiters = job.waiters
        if _too_late(finished.outcome):
            # It was started for somebody in a hurry; who has time left asks again.
            now = time.monotonic()
            patient = [a for a in waiters if self._start_by(a) > now]
            waiters = [a for a in waiters if a not in patient]
            if patient:
                patient[0].cached = False
                self._start(patient, shared=job.shared)
            if not waiters:
                job.waiters, job.work = [], None
                return
        grading = self._grading(first.key, finished.outcome, finished.elapsed_ms, finished.attempts)
        grading.parts = parts
        grading.unchecked = job.shared and self._catalog[first.subject.spec.kind].cheap
        grading.reusable = grading.reusable and first.subject.repeats
        if grading.reusable and job.shared:
            self._fresh[grading.key] = grading
            if len(self._fresh) > _MAX_FRESH:  # those whose request never stored them
                self._fresh.popitem(last=False)
        job.waiters, job.work = [], None
        for ask in waiters:
            _settle(ask, grading, cached=ask.cached)

    def _grading(
        self, key: GradingKey, outcome: Outcome, elapsed_ms: float, attempts: int
    ) -> Grading:
        reusable = isinstance(outcome, Scored) and outcome.basis is Basis.VERDICT
        return Grading(self._ids.next(), key, outcome, elapsed_ms, attempts, now_ms(), reusable)


def earlier_grading(key: GradingKey, row: GradingRow) -> Grading:
    """A grading that the store had already."""
    columns = (row.reward, row.basis, row.failure, row.detail, row.result)
    return _remembered(key, row.id, row.elapsed_ms, columns)


def _remembered(
    key: GradingKey, number: int, elapsed_ms: float, columns: tuple[Any, ...]
) -> Grading:
    grading = Grading(number, key, outcome_of(*columns), elapsed_ms, 1, 0, True, durable=True)
    grading.columns = columns
    return grading


class _Context(Context):
    """What a live grader may touch."""

    def __init__(self, desk: Desk, ask: Ask) -> None:
        self._desk = desk
        self._ask = ask
        self.gradings: list[Grading] = []

    @property
    def deadline(self) -> float:
        return self._ask.deadline

    @property
    def sandbox(self) -> Sandbox:
        return self._desk.sandbox

    async def part(self, name: str, view: View) -> Outcome:
        subject = self._ask.subject
        spec = subject.spec.parts[name]
        grader = self._desk.grader_of(spec)
        names = names_of(grader.reads)
        repeating = self._desk.repeats(spec, grader)
        part = Graded(
            spec, subject.part_ids[spec.digest], grader, names, subject.part_ids, repeating
        )
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_settled(ask: Ask) -> None:
            if not settled.done():
                settled.set_result(None)

        ask = self._desk.ask(
            part, narrowed(view, names), self._ask.deadline, self._ask.reuse, on_settled
        )
        try:
            await self._desk.put([ask])
            await settled
        except asyncio.CancelledError:
            self._desk.withdraw([ask])
            raise
        assert ask.grading is not None
        self.gradings.append(ask.grading)
        return ask.grading.outcome


def _settle(ask: Ask, grading: Grading, *, cached: bool) -> None:
    ask.grading = grading
    ask.cached = cached
    ask.job = None
    # Nothing may hold its request alive: a cycle would keep megabytes until a full collection.
    tell, ask.on_settled = ask.on_settled, _nobody
    tell(ask)


def _nobody(ask: Ask) -> None:
    """Hears of an ask that is settled already."""


def _too_late(outcome: Outcome) -> bool:
    return isinstance(outcome, Unscored) and outcome.kind is FailureKind.DEADLINE_EXCEEDED
