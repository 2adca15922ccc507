"""Memory that submissions may use together, and commands that boxes run from mounted folders."""

from __future__ import annotations

import asyncio

import pytest

from sandboxes.budget import MemoryBudget
from sandboxes.program import (
    Limits,
    Mount,
    NoSlotInTime,
    Run,
    SandboxUnavailable,
    Submission,
    Verdict,
)
from tests.sandboxes.live import live_pool
from tests.sandboxes.needs import needs_bubblewrap


def test_who_came_first_is_served_first_and_nothing_is_overdrawn() -> None:
    async def story() -> list[str]:
        budget, order = MemoryBudget(100), list[str]()
        gates = {name: asyncio.Event() for name in ("first", "large", "small")}

        async def one(name: str, wanted_mb: int) -> None:
            async with budget.holding(wanted_mb, None):
                assert budget.held_mb <= budget.total_mb
                order.append(name)
                await gates[name].wait()

        tasks = []
        for name, wanted_mb in (("first", 60), ("large", 80), ("small", 10)):
            tasks.append(asyncio.create_task(one(name, wanted_mb)))
            await asyncio.sleep(0)
        assert order == ["first"]  # the small one would fit, and does not overtake
        for gate in gates.values():
            gate.set()
        await asyncio.gather(*tasks)
        assert budget.held_mb == 0
        return order

    assert asyncio.run(story()) == ["first", "large", "small"]


def test_waiting_ends_in_time_and_gives_nothing_away() -> None:
    async def story() -> None:
        budget = MemoryBudget(100)
        now = asyncio.get_running_loop().time()
        async with budget.holding(100, None):
            with pytest.raises(NoSlotInTime):
                async with budget.holding(1, now):
                    pass
            gone = asyncio.create_task(budget.holding(50, None).__aenter__())
            await asyncio.sleep(0)
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
        assert budget.held_mb == 0
        async with budget.holding(100, now):
            pass

    asyncio.run(story())


def test_what_never_fits_is_refused_at_once() -> None:
    async def story() -> None:
        async with MemoryBudget(100).holding(101, None):
            pass

    with pytest.raises(SandboxUnavailable, match="REWARD_SANDBOX__MEMORY_MB"):
        asyncio.run(story())


@needs_bubblewrap
def test_a_command_runs_from_a_mount_and_is_held_to_its_limits() -> None:
    with live_pool(mounts=(Mount("shell", "/usr/bin"),)) as live:

        def run(script: str, **limits: float) -> tuple[Verdict, bytes]:
            submission = Submission(
                "command",
                "",
                (Run(argv=("-c", script)),),
                Limits(**{"cpu_s": 5.0, "wall_s": 10.0, "memory_mb": 200, **limits}),  # type: ignore[arg-type]
                command=("/tools/shell/python3",),
                env={"GREETING": "hello"},
            )
            done = live.wait(live.pool.run(submission)).runs[0]
            return done.verdict, done.stdout

        verdict, out = run("import os; print(os.environ['GREETING'], os.getuid() != 0)")
        assert (verdict, out) == (Verdict.OK, b"hello True\n")
        assert run("while True: pass", cpu_s=0.5)[0] is Verdict.TIME_LIMIT
        # Address space is not limited, as Lean reserves gigabytes of it; what is used is.
        assert run("import mmap; mmap.mmap(-1, 8 << 30); print(1)") == (Verdict.OK, b"1\n")
        hog = "x = []\nwhile True: x.append(bytearray(b'a' * (8 << 20)))"
        assert run(hog)[0] is Verdict.MEMORY_LIMIT
        blocked = run("open('/tools/shell/new', 'w')")
        assert blocked[0] is not Verdict.OK
