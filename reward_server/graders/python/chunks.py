"""Items on their way through the sandbox, several in one process.

Starting a process costs more than most graders do. So items that wait are taken together, and the function runs
on one after the other; each result leaves the process at once. If the process ends before its last result, those
that it gave stand. The item it was at is at fault only if it was the first, with all limits to itself; otherwise
it is the first of the next process. So no item pays for another one, whatever that did.

What is *not* kept apart is the memory of a process: a function that runs completions can be made to give later
items of the same chunk what it likes. ``isolate`` makes chunks of one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import orjson

from reward_server.graders.base import Context
from reward_server.outcome import CannotScore, FailureKind
from sandboxes import languages, program as sandbox
from sandboxes.program import Execution, Limits, Run, Sandbox, Submission, Verdict

if TYPE_CHECKING:
    from reward_server.graders.python.kind import PythonConfig

_RUNNER = files(__package__).joinpath("runner.py").read_text("utf-8")
_PRELOAD = ("inspect", "json", "math", "traceback")
_MOST_ITEMS = 128
_MOST_BYTES = 8 << 20
_FIRST_ITEMS = 16
_CHUNK_S = 0.1
"""How much work a chunk shall be: little beside a limit, and much beside the start of a process."""
_ITEM_KB = 96
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Ending:
    """What became of one item."""

    word: str
    """``returned``, ``exception``, or the limit or crash that ended its process."""
    detail: str = ""
    returned: tuple[Any] | None = None


@dataclass(slots=True, eq=False)
class _Waiting:
    data: bytes
    deadline: float
    future: asyncio.Future[Ending]
    alone: bool = False
    """Whether it is to be run by itself: a process ended at it, or gave too much."""
    tries: int = 0
    """How often our side failed."""


@dataclass(slots=True)
class Chunks:
    config: PythonConfig
    _queue: deque[_Waiting] = field(default_factory=deque)
    _drivers: set[asyncio.Task[None]] = field(default_factory=set)
    _item_s: float = 0.0
    """What an item takes, lately; 0 where it is not known yet."""

    async def put(self, item: dict[str, Any], ctx: Context) -> Ending:
        """What became of an item. Raises CannotScore."""
        pool: Sandbox = ctx.sandbox
        try:
            active = await pool.active()
        except sandbox.SandboxUnavailable as error:
            raise CannotScore(FailureKind.SANDBOX_UNAVAILABLE, str(error)) from None
        if missing := sorted(set(self.config.required) - set(active)):
            text = f"this host lacks {missing}: run `reward-server doctor`, or leave them out of `required`"
            raise CannotScore(FailureKind.SANDBOX_UNAVAILABLE, text)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(json.dumps(item).encode(), ctx.deadline, loop.create_future())
        self._queue.append(waiting)
        if len(self._drivers) < pool.slots:
            driver = loop.create_task(self._drive(pool))
            self._drivers.add(driver)
            driver.add_done_callback(self._drivers.discard)
        return await waiting.future

    async def _drive(self, pool: Sandbox) -> None:
        """Runs chunks until nobody waits. It starts after those that were put in the same moment."""
        while chunk := self._next(pool.slots):
            try:
                await self._run(chunk, pool)
            except asyncio.CancelledError:
                for waiting in (*chunk, *self._queue):
                    _cannot(waiting, FailureKind.WORKER_LOST, "the server is stopping")
                raise
            except Exception as error:  # a defect of ours: nobody may wait for ever
                for waiting in chunk:
                    if not waiting.future.done():
                        waiting.future.set_exception(error)

    def _next(self, slots: int) -> list[_Waiting]:
        most = _FIRST_ITEMS if not self._item_s else int(_CHUNK_S / self._item_s)
        fair = -(-len(self._queue) // slots)
        most = 1 if self.config.isolate else max(1, min(_MOST_ITEMS, most, fair))
        chunk: list[_Waiting] = []
        size = 0
        while self._queue and len(chunk) < most:
            waiting = self._queue[0]
            if chunk and (waiting.alone or size + len(waiting.data) > _MOST_BYTES):
                break
            self._queue.popleft()
            if waiting.future.done():  # its request is gone
                continue
            if time.monotonic() + self.config.limits.cpu_s > waiting.deadline:
                _cannot(
                    waiting, FailureKind.DEADLINE_EXCEEDED, "too little time is left for its limits"
                )
                continue
            chunk.append(waiting)
            size += len(waiting.data)
            if waiting.alone:
                break
        return chunk

    async def _run(self, chunk: list[_Waiting], pool: Sandbox) -> None:
        limits = self.config.limits
        start_by = max(w.deadline for w in chunk) - limits.cpu_s
        try:
            report = await pool.run(self._submission(chunk), None, start_by)
        except sandbox.SandboxUnavailable as error:
            for waiting in chunk:
                _cannot(waiting, FailureKind.SANDBOX_UNAVAILABLE, str(error))
            return
        except sandbox.NoSlotInTime as error:
            for waiting in chunk:
                _cannot(waiting, FailureKind.DEADLINE_EXCEEDED, str(error))
            return
        except sandbox.SandboxLost as error:
            self._again(chunk, str(error))
            return
        (done,) = report.runs
        self._settle(chunk, done)

    def _submission(self, chunk: list[_Waiting]) -> Submission:
        config, limits = self.config, self.config.limits
        plan = {
            "entry_point": config.entry_point,
            "signature": config.signature,
            "reference_as": config.reference_as,
        }
        return Submission(
            "python",
            _RUNNER,
            (Run(stdin=b"[" + b",".join(w.data for w in chunk) + b"]", reports=True),),
            Limits(
                limits.cpu_s,
                limits.wall_s,
                limits.memory_mb,
                output_kb=_ITEM_KB * (len(chunk) + 1),
                disk_mb=limits.disk_mb,
            ),
            files={"grader.py": config.source.encode(), "plan": json.dumps(plan).encode()},
            preload=(*_PRELOAD, *languages.imports_of(config.source)),
            keep=True,
        )

    def _settle(self, chunk: list[_Waiting], done: Execution) -> None:
        loaded, lines = _told(done.result)
        if done.verdict is Verdict.SANDBOX_FAILED or done.starved:
            left = chunk[_give(chunk, lines) :]
            self._again(left, done.detail or "it found no free core within its wall limit")
            return
        if isinstance(loaded, str):
            for waiting in chunk:
                _cannot(
                    waiting, FailureKind.GRADER_ERROR, f"the source does not load: {loaded[-400:]}"
                )
            return
        given = _give(chunk, lines)
        left = chunk[given:]
        if given:
            took = max(done.cpu_s, 1e-5) / given
            self._item_s = took if not self._item_s else 0.7 * self._item_s + 0.3 * took
        if not left:
            return
        if loaded is None and done.result is not None:
            why = f"{_word(done)} while the source was loaded"
            for waiting in left:
                _cannot(waiting, FailureKind.GRADER_ERROR, why)
        elif given or (done.result is None and len(left) > 1):
            for waiting in left if done.result is None else left[:1]:
                waiting.alone = True
            self._queue.extendleft(reversed(left))
        else:
            stderr = done.stderr[-2000:].decode("utf-8", "replace")
            _finish(left[0], Ending(_word(done), stderr or done.detail))
            self._queue.extendleft(reversed(left[1:]))

    def _again(self, chunk: list[_Waiting], why: str) -> None:
        """Our side failed: each is tried again, by itself, before it is given up."""
        for waiting in reversed(chunk):
            waiting.tries += 1
            waiting.alone = True
            if waiting.tries < _TRIES:
                self._queue.appendleft(waiting)
            else:
                _cannot(waiting, FailureKind.SANDBOX_UNAVAILABLE, why)


def _told(result: bytes | None) -> tuple[str | bool | None, list[Any]]:
    """(whether the source loaded, or why not, or None; what came of each item)."""
    words = []
    for line in (result or b"").split(b"\n")[:-1]:
        try:
            words.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            break
    match words[:1]:
        case [{"loaded": True}]:
            return True, words[1:]
        case [{"unloadable": str(why)}]:
            return why, []
    return None, []


def _give(chunk: list[_Waiting], lines: list[Any]) -> int:
    """Ends those items that have a result; how many."""
    for number, (waiting, line) in enumerate(zip(chunk, lines, strict=False)):
        match line:
            case {"returned": value}:
                _finish(waiting, Ending("exception", returned=(value,)))
            case {"raised": str(trace)}:
                _finish(waiting, Ending("exception", trace))
            case _:
                return number
    return min(len(chunk), len(lines))


def _word(done: Execution) -> str:
    if done.verdict is Verdict.OK:
        return "exit"
    if done.result is None or done.killed_by == "output":
        return Verdict.OUTPUT_LIMIT.value
    return done.verdict.value


def _finish(waiting: _Waiting, ending: Ending) -> None:
    if not waiting.future.done():
        waiting.future.set_result(ending)


def _cannot(waiting: _Waiting, kind: FailureKind, detail: str) -> None:
    if not waiting.future.done():
        waiting.future.set_exception(CannotScore(kind, detail))
