"""The one path of a completion: resolve → reuse → dispatch → record.

``score`` grades a request and returns once its scores are durable; ``stream`` gives each as it is ready;
``run_cases`` grades golden cases without storing anything. Re-scoring, shadows and composites use the
same desk.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import structlog

from reward_server.engine.base import Engine
from reward_server.outcome import FailureKind, Scored, Unscored
from reward_server.problems import Conflict, FieldError, Invalid, NotFound, Refused, Unavailable
from reward_server.registry.lifecycle import result_of_case
from reward_server.registry.registry import Registry
from reward_server.registry.versions import Draft, Version
from reward_server.schema import Case, CaseResult, Item, ScoreRequest
from reward_server.scoring.admission import Admission
from reward_server.scoring.checks import field_not_finite, problem_for, problem_with
from reward_server.scoring.desk import Ask, Desk, Graded, earlier_grading
from reward_server.scoring.idempotency import IdempotentRequests, Remembered, body_hash, other_body
from reward_server.scoring.metrics import Metrics
from reward_server.scoring.record import Reply, Unit, gradings_of, portions, reply, submission
from reward_server.scoring.views import names_of, payload, view_of
from reward_server.settings import Settings
from reward_server.store import runs
from reward_server.store.codec import to_json
from reward_server.store.database import Database, StoreUnavailable
from reward_server.store.hot import GradingRow, HotStore, KeyTaken, Submission
from reward_server.store.ids import IdMaker, now_ms
from sandboxes.pool import SandboxPool

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_MAX_KNOWN_RUNS = 4096
_CASE_TRIES = 3


@dataclass(frozen=True, slots=True)
class Environment:
    """What was observed where this server grades."""

    id: int
    hash: str


@dataclass(slots=True)
class _Batch:
    """The units of a request, and a signal for each that is settled."""

    units: list[Unit]
    deadline: float
    run_id: int | None = None
    unpinned: Mapping[str, int] = field(default_factory=dict)
    """Bare names that the run has not pinned yet -> the version that was taken for each."""
    settled: int = 0
    changed: asyncio.Event | None = None

    def on_settled(self, ask: Ask) -> None:
        self.settled += 1
        if self.changed is not None:
            self.changed.set()


class Service:
    def __init__(
        self,
        settings: Settings,
        database: Database,
        registry: Registry,
        engine: Engine,
        environment: Environment,
        node: int,
        sandbox: SandboxPool,
    ) -> None:
        self.sandbox = sandbox
        self.settings = settings
        self.database = database
        self.registry = registry
        self.engine = engine
        self.environment = environment
        self.metrics = Metrics()
        self.admission = Admission(
            settings.max_queued_items, settings.max_queued_mb << 20, lambda: engine.items_per_s
        )
        self._ids = IdMaker(node)
        self._hot = HotStore(
            settings.resolved_database_url,
            synchronous=settings.sqlite_synchronous,
            timeout_s=settings.store_timeout_s,
        )
        self._desk = Desk(
            engine,
            registry.catalog,
            self._hot,
            self._ids,
            environment.id,
            settings.reuse_cache_items,
            sandbox,
        )
        self._idempotent = IdempotentRequests(database)
        self._runs: OrderedDict[str, runs.Run] = OrderedDict()
        self._subjects: WeakKeyDictionary[Version, Graded] = WeakKeyDictionary()

    async def start(self) -> None:
        await self._hot.start()
        await self.engine.start()

    async def close(self) -> None:
        """Ends after everything that was accepted is stored; requests must have ended before."""
        await self.engine.close()
        await self.sandbox.stop()
        await self._hot.close()

    def forget_recent(self) -> None:
        """Drops gradings kept in memory: retention may have deleted their rows."""
        self._desk.forget()

    # ── scoring ──────────────────────────────────────────────────────────────────────────────────

    async def score(self, request: ScoreRequest, size: int = 0) -> list[Reply]:
        """Grades and stores every item; replies in request order.

        ``size`` is the request's bytes, for admission. Raises Refused (nothing was graded), or
        Unavailable where the store is in trouble (nothing was stored).
        """
        if request.idempotency_key is None:
            return await self._score(request, size, Remembered({}))
        return await self._idempotent.once(
            request.idempotency_key,
            body_hash(request),
            lambda remembered: self._score(request, size, remembered),
        )

    async def _score(self, request: ScoreRequest, size: int, remembered: Remembered) -> list[Reply]:
        batch = await self._batch(request, remembered.replies)
        with self.admission.admitted(len(batch.units), size):
            batch = await self._pinned(batch, request, remembered.replies)
            await self._grade(batch, request)
            fresh = await self._record(batch.units, request, batch.run_id, remembered.replies)
        return [*sorted([*fresh, *remembered.replies.values()], key=lambda r: r["index"])]

    async def stream(self, request: ScoreRequest, size: int = 0) -> AsyncIterator[list[Reply]]:
        """Like ``score``, but gives replies as they become durable, in the order they do."""
        if request.idempotency_key is not None:
            yield await self.score(request, size)
            return
        batch = await self._batch(request, {})
        ready: asyncio.Queue[list[Reply] | None] = asyncio.Queue()
        place = self.admission.admitted(len(batch.units), size)
        place.__enter__()
        task = asyncio.ensure_future(self._stream_into(ready, batch, request))

        def over(_: asyncio.Task[None]) -> None:  # called even for a task that never began
            place.__exit__(None, None, None)
            ready.put_nowait(None)

        task.add_done_callback(over)
        try:
            while (replies := await ready.get()) is not None:
                yield replies
            await task
        finally:
            task.cancel()  # the reader has left, or nothing is left to do

    async def _stream_into(
        self,
        ready: asyncio.Queue[list[Reply] | None],
        batch: _Batch,
        request: ScoreRequest,
    ) -> None:
        """Scores at its own pace: a reader that is slow, or stops, holds no place in the queue."""
        waiting: list[Unit] = []
        put: asyncio.Future[None] | None = None
        try:
            batch = await self._pinned(batch, request, {})
            batch.changed = asyncio.Event()
            waiting = list(batch.units)
            put = asyncio.ensure_future(self._put(batch))
            changed = batch.changed
            put.add_done_callback(lambda _: changed.set())
            while waiting:
                await changed.wait()
                changed.clear()
                if put.done():
                    put.result()  # raises what went wrong
                done = [u for u in waiting if u.ask.grading is not None]
                waiting = [u for u in waiting if u.ask.grading is None]
                if done:
                    ready.put_nowait(await self._record(done, request, batch.run_id, {}))
        finally:
            if put is not None:
                put.cancel()  # or it would start what nobody waits for
            self._desk.withdraw([u.ask for u in waiting])

    async def run_cases(self, draft: Draft, cases: list[Case]) -> list[CaseResult]:
        """Grades golden cases with a draft; stores nothing."""
        grader = self.registry.catalog.build(draft.spec)
        version = Version(
            id=0, name="", number=0, spec_id=0, spec=draft.spec, description=None, cases=[],
            note=None, origin="", created_ms=0, ingredients={}, release="", grader=grader,
            part_specs=dict.fromkeys(_all_digests(draft), 0),
        )  # fmt: skip
        items = [
            Item(**{k: getattr(c, k) for k in c.model_fields_set if k != "expect"}) for c in cases
        ]
        self._refuse_bad_items(items, [version] * len(items), "cases")
        for _ in range(_CASE_TRIES):
            batch = _Batch([], time.monotonic() + self.settings.default_deadline_s)
            for index, item in enumerate(items):
                unit = self._unit(index, item, version, batch, reuse=False, where="cases")
                batch.units.append(unit)
            await self._grade(batch, None)
            failed = [o for u in batch.units if (o := _our_failure(u)) is not None]
            if not failed:
                break
        else:
            raise Unavailable(f"golden cases could not be graded: {failed[0].detail}")
        results = []
        for unit, case in zip(batch.units, cases, strict=True):
            grading = unit.ask.grading
            assert grading is not None
            outcome = grading.outcome
            scored = isinstance(outcome, Scored)
            result = CaseResult(
                index=unit.index,
                passed=False,
                status="scored" if scored else "unscored",
                reward=outcome.reward if isinstance(outcome, Scored) else None,
                detail=outcome.detail if isinstance(outcome, Unscored) else None,
            )
            results.append(result_of_case(case, result))
        return results

    # ── the steps ────────────────────────────────────────────────────────────────────────────────

    async def _batch(self, request: ScoreRequest, have: Mapping[int, Reply]) -> _Batch:
        """Resolves and checks every item before any is graded. Raises Refused."""
        if len(request.items) > self.settings.max_items:
            raise Invalid.field(
                "items", f"{len(request.items)} items; the limit is {self.settings.max_items}"
            )
        run = None if request.run is None else await self._known_run(request.run)
        versions, unpinned = await self._resolve(request, run)
        self._refuse_bad_items(request.items, versions, "items")
        asked_s = request.deadline_s or self.settings.default_deadline_s
        self._refuse_short_deadline(asked_s, versions)
        deadline = time.monotonic() + min(asked_s, self.settings.max_deadline_s)
        batch = _Batch([], deadline, run.id if run else None, unpinned)
        reuse = request.reuse == "auto"
        for index, (item, version) in enumerate(zip(request.items, versions, strict=True)):
            if index not in have:
                batch.units.append(self._unit(index, item, version, batch, reuse=reuse))
        return batch

    def _unit(
        self,
        index: int,
        item: Item,
        version: Version,
        batch: _Batch,
        *,
        reuse: bool,
        where: str = "items",
    ) -> Unit:
        subject = self._subject(version)
        try:
            stored = payload(item)
            view = view_of(item, subject.names)
            ask = self._desk.ask(subject, view, batch.deadline, reuse, batch.on_settled)
        except (ValueError, RecursionError) as error:
            field = field_not_finite(item)
            raise Invalid.field(f"{where}.{index}.{field}", f"not JSON: {error}", index) from None
        return Unit(index, item, version, stored, ask)

    def _subject(self, version: Version) -> Graded:
        known = self._subjects.get(version)
        if known is None:
            assert version.grader is not None
            names = names_of(version.grader.reads)
            known = Graded(
                version.spec,
                version.spec_id,
                version.grader,
                names,
                version.part_specs,
                self._desk.repeats(version.spec, version.grader),
            )
            self._subjects[version] = known
        return known

    def _refuse_bad_items(self, items: list[Item], versions: list[Version], where: str) -> None:
        errors: list[FieldError] = []
        for index, (item, version) in enumerate(zip(items, versions, strict=True)):
            problem = problem_with(item, index, where, self.settings.max_completion_chars)
            problem = problem or problem_for(version, item, index, where)
            if problem is not None:
                errors.append(problem)
        if errors:
            raise Invalid.of(errors)

    async def _resolve(
        self, request: ScoreRequest, run: runs.Run | None
    ) -> tuple[list[Version], dict[str, int]]:
        """The version of each item: pinned, pinned by the run, or active; and of each active one
        that was taken for a bare name, its id."""
        default = request.grader
        refs: dict[str, int] = {}
        for index, item in enumerate(request.items):
            named = item.grader or default
            if named is None:
                problem = "name a grader here or in the request's own 'grader'"
                raise Invalid.field(f"items.{index}.grader", problem, index)
            refs.setdefault(named, index)
        found: dict[str, Version] = {}
        for ref, index in refs.items():
            try:
                pinned = None if run is None else run.pins.get(ref)
                if pinned is None:
                    found[ref] = self.registry.resolve(ref)
                else:
                    version = self.registry.by_id(pinned)
                    if version is None:  # another server minted it a moment ago
                        await asyncio.to_thread(self.registry.load)
                        version = self.registry.by_id(pinned)
                    if version is None:
                        raise NotFound(f"the run's version of {ref!r} is not in the database")
                    found[ref] = self.registry.runnable(version)
            except (NotFound, Conflict) as error:
                field = "grader" if request.items[index].grader is None else f"items.{index}.grader"
                error.errors = (FieldError(field, error.detail, index),)
                raise
        pins = run.pins if run else {}
        unpinned = {r: v.id for r, v in found.items() if "@" not in r and r not in pins}
        return [found[i.grader or default or ""] for i in request.items], unpinned

    async def _known_run(self, name: str) -> runs.Run | None:
        if (known := self._runs.get(name)) is None:
            known = await self._in_store(runs.get, self.database, name)
            if known is not None:
                self.remember_run(known)
        return known

    async def _pinned(
        self, batch: _Batch, request: ScoreRequest, have: Mapping[int, Reply]
    ) -> _Batch:
        """The batch, with its run made and its names pinned: only now, when nothing can refuse it."""
        if request.run is None or (batch.run_id is not None and not batch.unpinned):
            return batch
        run = await self._in_store(runs.pin, self.database, request.run, batch.unpinned)
        self.remember_run(run)
        if all(run.pins[name] == taken for name, taken in batch.unpinned.items()):
            batch.run_id = run.id
            return batch
        return await self._batch(request, have)  # another request pinned another version first

    async def _in_store(self, do: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        try:
            return await asyncio.to_thread(do, *arguments, **options)
        except StoreUnavailable as error:
            raise self._store_trouble(error) from error

    def remember_run(self, run: runs.Run) -> None:
        self._runs[run.name] = run
        if len(self._runs) > _MAX_KNOWN_RUNS:
            self._runs.popitem(last=False)

    def _refuse_short_deadline(self, asked_s: float, versions: list[Version]) -> None:
        longest = max({v.spec.digest: v for v in versions}.values(), key=self._budget_s)
        asked_s = min(asked_s, self.settings.max_deadline_s)
        if asked_s <= (budget_s := self._budget_s(longest)):
            raise Invalid.field(
                "deadline_s",
                f"an item starts only while the time left covers its budget, and {longest.label} has "
                f"{budget_s:g} s: ask for more",
            )

    def _budget_s(self, version: Version) -> float:
        return self.registry.catalog.budget_s(version.spec)

    async def _grade(self, batch: _Batch, request: ScoreRequest | None) -> None:
        """Settles every unit; if this is cancelled, withdraws what is not settled."""
        batch.changed = asyncio.Event()
        try:
            await self._put(batch)
            while batch.settled < len(batch.units):
                await batch.changed.wait()
                batch.changed.clear()
        except BaseException:
            self._desk.withdraw([u.ask for u in batch.units])
            raise

    async def _put(self, batch: _Batch) -> None:
        asks = []
        for unit in batch.units:
            if unit.item.finish_reason == "tool_error":
                problem = "the rollout's environment failed (finish_reason tool_error)"
                self._desk.unscored(unit.ask, Unscored(FailureKind.ENVIRONMENT_ERROR, problem))
            else:
                asks.append(unit.ask)
        await self._desk.put(asks)

    async def _record(
        self,
        units: list[Unit],
        request: ScoreRequest,
        run_id: int | None,
        have: Mapping[int, Reply],
    ) -> list[Reply]:
        """Stores the units' scores; returns their replies once they are durable."""
        parts = [submission(some, request, run_id, self._ids) for some in portions(units)]
        if request.idempotency_key is not None and parts:
            parts[-1].idempotency = self._idempotency_row(request, units, have)
        earlier: dict[int, GradingRow] = {}
        for part in parts:
            earlier |= await self._store(part)
        self._desk.stored(gradings_of(units), earlier)
        for unit in units if earlier else ():
            made = unit.ask.grading
            if made is not None and (row := earlier.get(made.id)) is not None:
                unit.ask.grading, unit.ask.cached = earlier_grading(made.key, row), True
        self.metrics.scored(units)
        return [reply(unit, self.environment.hash) for unit in units]

    async def _store(self, rows: Submission) -> dict[int, GradingRow]:
        try:
            return await self._hot.store(rows)
        except StoreUnavailable as error:
            raise self._store_trouble(error) from error
        except KeyTaken:  # by another server on the same database
            raise other_body() from None

    def _idempotency_row(
        self, request: ScoreRequest, units: list[Unit], have: Mapping[int, Reply]
    ) -> tuple[str, bytes, bytes, int]:
        ids = {u.index: u.score_id for u in units} | {
            i: int(r["score_id"]) for i, r in have.items()
        }
        ordered = [ids[i] for i in range(len(request.items))]
        assert request.idempotency_key is not None
        return (request.idempotency_key, body_hash(request), to_json(ordered), now_ms())

    def _store_trouble(self, error: StoreUnavailable) -> Refused:
        self.metrics.store_failed()
        log.error("the store is unavailable", error=str(error))
        return Unavailable(f"the store is unavailable ({error}); send it again", 2)


def _our_failure(unit: Unit) -> Unscored | None:
    """A failure that says nothing about the item, so nothing about the grader either."""
    outcome = unit.ask.grading.outcome if unit.ask.grading else None
    return outcome if isinstance(outcome, Unscored) and outcome.retryable else None


def _all_digests(draft: Draft) -> set[str]:
    found: set[str] = set()
    todo = list(draft.spec.parts.values())
    while todo:
        part = todo.pop()
        found.add(part.digest)
        todo.extend(part.parts.values())
    return found
