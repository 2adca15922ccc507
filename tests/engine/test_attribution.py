"""Who is to blame when grading goes wrong: the completion (0), or us (unscored, or graded again)."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from reward_server.engine.base import Finished, Work
from reward_server.engine.local import MAX_LOST
from reward_server.outcome import Basis, FailureKind, Scored, Unscored
from tests import hostile
from tests.engine.support import engine, grade, spec, view

FINE = Scored(1.0, {"ok": 1.0}, raw={"outcome": "fine"})


def among_neighbours(bad: str) -> tuple[Finished, list[Finished]]:
    """How a bad completion ended in the middle of good ones, and how those did."""

    async def main() -> list[Finished]:
        async with engine(max_chunk=64) as made:
            views = [view(f"{n} ok") for n in range(40)]
            views[20] = view(bad)
            return await grade(made, views)

    ended = asyncio.run(main())
    return ended[20], ended[:20] + ended[21:]


@pytest.mark.parametrize(
    ("completion", "limit"),
    [
        ("hang", "cpu_limit"),
        ("swallow", "cpu_limit"),
        ("c_hang", "cpu_limit"),
        ("hog", "memory_limit"),
        ("recurse", "memory_limit"),
        ("segv", "crashed"),
        ("abort", "crashed"),
        ("sleep", "wall_limit"),
    ],
)
def test_what_a_completion_provokes_scores_zero_and_harms_no_neighbour(
    completion: str, limit: str
) -> None:
    bad, neighbours = among_neighbours(completion)
    assert isinstance(bad.outcome, Scored)
    assert bad.outcome.reward == 0.0
    assert bad.outcome.raw["outcome"] == limit
    assert bad.outcome.basis is Basis.LIMIT
    assert all(isinstance(n.outcome, Scored) and n.outcome.reward == 1.0 for n in neighbours)


@pytest.mark.parametrize("completion", ["killed", "exit"])
def test_a_death_that_cannot_be_attributed_is_never_a_reward(completion: str) -> None:
    bad, neighbours = among_neighbours(completion)
    assert isinstance(bad.outcome, Unscored)
    assert bad.outcome.kind is FailureKind.WORKER_LOST
    assert bad.outcome.retryable
    assert bad.attempts == MAX_LOST
    assert all(isinstance(n.outcome, Scored) and n.outcome.reward == 1.0 for n in neighbours)


def test_an_item_whose_worker_was_lost_once_is_graded_again(tmp_path: Path) -> None:
    async def main() -> list[Finished]:
        async with engine() as made:
            return await grade(made, [view("die_once")], spec(marker=str(tmp_path)))

    (ended,) = asyncio.run(main())
    assert isinstance(ended.outcome, Scored)
    assert ended.outcome.reward == 1.0
    assert ended.attempts == 2


@pytest.mark.parametrize("completion", ["raise", "bad"])
def test_a_defect_of_the_grader_is_unscored(completion: str) -> None:
    async def main() -> list[Finished]:
        async with engine() as made:
            return await grade(made, [view(completion), view("ok")])

    bad, good = asyncio.run(main())
    assert isinstance(bad.outcome, Unscored)
    assert bad.outcome.kind is FailureKind.GRADER_ERROR
    assert isinstance(good.outcome, Scored)


def test_a_raw_result_over_the_cap_is_dropped_and_the_reward_kept() -> None:
    async def main() -> list[Finished]:
        async with engine() as made:
            return await grade(made, [view("big_raw")])

    (ended,) = asyncio.run(main())
    assert isinstance(ended.outcome, Scored)
    assert ended.outcome.reward == 1.0
    assert "dropped" in ended.outcome.raw["note"]


def test_work_that_can_no_longer_start_in_time_is_unscored() -> None:
    async def main() -> list[Finished]:
        async with engine(workers=1) as made:
            return await grade(made, [view("ok")], start_by=0.0)

    (ended,) = asyncio.run(main())
    assert isinstance(ended.outcome, Unscored)
    assert ended.outcome.kind is FailureKind.DEADLINE_EXCEEDED


def test_queued_work_expires_though_every_worker_is_busy() -> None:
    async def main() -> Finished:
        async with engine(workers=1) as made:
            busy = asyncio.ensure_future(grade(made, [view("sleep")]))
            while made.queued:
                await asyncio.sleep(0)
            loop = asyncio.get_running_loop()
            (late,) = await grade(made, [view("ok")], start_by=loop.time() + 0.1)
            busy.cancel()
            return late

    assert isinstance(asyncio.run(main()).outcome, Unscored)


def test_cancelled_work_is_neither_graded_nor_reported() -> None:
    async def main() -> list[Finished]:
        heard: list[Finished] = []
        async with engine(workers=1) as made:
            busy = asyncio.ensure_future(grade(made, [view("hang")]))
            await asyncio.sleep(0)
            work = Work(spec(), view("ok"), hostile.BUDGET, 1e18, heard.append)
            made.submit(work)
            work.cancelled = True
            await busy
            await grade(made, [view("2 ok")])
        return heard

    assert asyncio.run(main()) == []


def test_workers_killed_at_random_lose_nothing() -> None:
    async def main() -> list[Finished]:
        async with engine(workers=2) as made:
            stop = False

            async def killer() -> None:
                chance = random.Random(5)
                while not stop:
                    if pids := made.worker_pids:
                        os.kill(chance.choice(pids), signal.SIGKILL)
                    await asyncio.sleep(0.4)

            task = asyncio.ensure_future(killer())
            ended = await grade(made, [view(f"{n} slow") for n in range(60)])
            stop = True
            await task
            return ended

    # So rarely that no item can be unlucky MAX_LOST times in a row, which would leave it unscored.
    assert [e.outcome for e in asyncio.run(main()) if e.outcome != FINE] == []


def test_a_lost_zygote_is_replaced_and_its_work_done_again() -> None:
    async def main() -> list[Finished]:
        async with engine(workers=2) as made:

            async def kill_zygote() -> None:
                assert made._fleet.zygote is not None
                await asyncio.sleep(0.05)
                made._fleet.zygote.kill()

            return await grade(made, [view(f"{n} slow") for n in range(30)], meanwhile=kill_zygote)

    ended = asyncio.run(main())
    assert all(isinstance(e.outcome, Scored) and e.outcome.reward == 1.0 for e in ended)


def test_closing_reports_what_was_left() -> None:
    async def main() -> list[Finished]:
        heard: list[Finished] = []
        async with engine(workers=1) as made:
            for completion in ("sleep", "ok"):
                made.submit(Work(spec(), view(completion), hostile.BUDGET, 1e18, heard.append))
            await asyncio.sleep(0)
        return heard

    ended = asyncio.run(main())
    assert len(ended) == 2
    assert all(isinstance(e.outcome, Unscored) for e in ended)


def test_a_worker_has_no_secrets_in_its_environment_and_few_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REWARD_DATABASE_URL", "postgresql://secret@nowhere/x")

    async def main() -> tuple[bytes, list[str]]:
        async with engine(workers=1) as made:
            await grade(made, [view("ok")])
            (pid,) = made.worker_pids
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            return environment, os.listdir(f"/proc/{pid}/fd")

    environment, files = asyncio.run(main())
    assert b"secret" not in environment
    assert b"HOME" not in environment
    assert len(files) <= 5  # three of /dev/null, its socket, its progress page's mapping


def test_a_thousand_limits_leave_no_process_or_file_behind() -> None:
    async def main() -> tuple[int, int]:
        async with engine(workers=2) as made:
            await grade(made, [view("ok")])
            before = len(os.listdir("/proc/self/fd"))
            await grade(made, [view(f"{n} recurse") for n in range(60)])
            await grade(made, [view("2 ok")])
            while len(made.worker_pids) != 2:
                await asyncio.sleep(0.01)
            return before, len(os.listdir("/proc/self/fd"))

    before, after = asyncio.run(main())
    assert after <= before + 4
