"""Running work on a local engine and collecting how it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from reward_server.engine.base import Finished, Work
from reward_server.engine.local import LocalEngine
from reward_server.graders.base import Budget, Digest, Spec, canonical_json
from tests import hostile


@asynccontextmanager
async def engine(**options: Any) -> AsyncIterator[LocalEngine]:
    wanted: dict[str, Any] = {"workers": 2, "catalog": hostile.PATH, "memory_mb": 512} | options
    made = LocalEngine(**wanted)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def spec(kind: str = "hostile", **config: Any) -> Spec:
    data = canonical_json(config)
    return Spec(kind, data, Digest(f"sha256:{kind}:{data.decode()}"))


def view(completion: str, reference: Any = None) -> bytes:
    fields: dict[str, Any] = {"completion": completion}
    if reference is not None:
        fields["reference"] = reference
    return canonical_json(fields)


async def grade(
    made: LocalEngine,
    views: list[bytes],
    of: Spec | None = None,
    *,
    budget: Budget = hostile.BUDGET,
    start_by: float | None = None,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
) -> list[Finished]:
    """How each view ended, in order."""
    ended: list[Finished | None] = [None] * len(views)
    left = len(views)
    done = asyncio.Event()

    def collect(index: int) -> Callable[[Finished], None]:
        def call(finished: Finished) -> None:
            nonlocal left
            assert ended[index] is None, "done was called twice"
            ended[index] = finished
            left -= 1
            if left == 0:
                done.set()

        return call

    latest = time.monotonic() + 60 if start_by is None else start_by
    for index, data in enumerate(views):
        made.submit(Work(of or spec(), data, budget, latest, collect(index)))
    if meanwhile is not None:
        await meanwhile()
    await asyncio.wait_for(done.wait(), 60)
    return [f for f in ended if f is not None]
