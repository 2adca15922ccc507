"""A pool on an event loop of its own, for tests that are not asynchronous themselves."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from reward_server.graders.base import Digest, LiveGrader, Spec, View, canonical_json
from reward_server.graders.catalog import CATALOG
from reward_server.outcome import CannotScore, Outcome, Unscored
from sandboxes.container import DockerSettings
from sandboxes.pool import PoolSettings, SandboxPool
from sandboxes.program import Mount
from tests.sandboxes.needs import IMAGE, uid_of_worker

T = TypeVar("T")


class Live:
    """Runs coroutines of a pool, and grades with it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: SandboxPool) -> None:
        self._loop = loop
        self.pool = pool

    def wait(self, work: Coroutine[Any, Any, T], timeout_s: float = 60) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def grade(
        self,
        completion: str,
        reference: Any,
        kind: str = "code",
        sandbox: Any = None,
        deadline_s: float = 60,
        prompt: str | list[dict[str, str]] | None = None,
        **config: Any,
    ) -> Outcome:
        grader = CATALOG.build(Spec(kind, canonical_json(config), Digest("sha256:test")))
        context = _Context(time.monotonic() + deadline_s, sandbox or self.pool)
        assert isinstance(grader, LiveGrader)
        assert grader.reference_problem(reference) is None, grader.reference_problem(reference)

        async def graded() -> Outcome:
            try:
                outcome = await grader.grade_live(
                    View(completion=completion, reference=reference, prompt=prompt), context
                )
            except CannotScore as error:
                return Unscored(error.kind, error.detail)
            return outcome

        return self.wait(graded())

    def reward(self, completion: str, reference: Any, **config: Any) -> float:
        outcome = self.grade(completion, reference, **config)
        assert not isinstance(outcome, Unscored), outcome
        return outcome.reward


def live_context(sandbox: Any, deadline_s: float) -> _Context:
    return _Context(time.monotonic() + deadline_s, sandbox)


class _Context:
    def __init__(self, deadline: float, sandbox: Any) -> None:
        self.deadline = deadline
        self.sandbox = sandbox

    async def part(self, name: str, view: View) -> Outcome:
        raise NotImplementedError


@contextmanager
def live_pool(
    slots: int = 1,
    cache: Path | None = None,
    packages: tuple[str, ...] = (),
    backend: str = "bubblewrap",
    docker: DockerSettings | None = None,
    mounts: tuple[Mount, ...] = (),
) -> Iterator[Live]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def made() -> SandboxPool:
        return SandboxPool(
            PoolSettings(
                slots=slots,
                # Another one for containers: some tests look for what is alive as the user of a box.
                first_uid=uid_of_worker()
                + (100 if docker is None and backend != "docker" else 400),
                cache=cache,
                packages=packages,
                mounts=mounts,
                docker=docker or (DockerSettings(IMAGE) if backend == "docker" else None),
            )
        )

    live = Live(loop, asyncio.run_coroutine_threadsafe(made(), loop).result(10))
    try:
        yield live
    finally:
        live.wait(live.pool.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
