"""The hot store's messages when their sender is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from reward_server.store.hot import HotStore, ReusedGradingGone, Submission


class Store(HotStore):
    """Answers are given by the test, not by a process."""

    def __init__(self) -> None:
        super().__init__("sqlite://", synchronous="FULL", timeout_s=1)
        self._loop = asyncio.get_running_loop()
        self._transport = self  # type: ignore[assignment]
        self.asked: list[Any] = []

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.asked.append(data)

    @property
    def waiting(self) -> list[asyncio.Future[Any]]:
        return list(self._waiting.values())


def test_a_store_refused_for_a_grading_that_is_gone_is_sent_again_though_its_sender_was_cancelled() -> (
    None
):
    async def run() -> tuple[int, bool]:
        store = Store()
        task = asyncio.ensure_future(store.store(Submission()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()  # what was sent is stored first
        store.waiting[0].set_exception(ReusedGradingGone())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not task.done()
        store.waiting[1].set_result([])
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(store.waiting), task.cancelled()

    assert asyncio.run(run()) == (2, True)


def test_a_look_up_ends_at_once_when_its_sender_is_cancelled() -> None:
    async def run() -> bool:
        store = Store()
        task = asyncio.ensure_future(store.find([]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return task.cancelled()

    assert asyncio.run(run())
