"""Cancels the work of a client that has left.

A quick answer must not pay for this, and a timer for each request would cost as much as a third of its
grading. So requests only enlist; one tick for all of them begins to listen on those that have been at
work for a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import TypeVar

import structlog
from starlette.requests import Request

T = TypeVar("T")

log = structlog.get_logger(__name__)

_TICK_S = 0.25


class ClientLeft(Exception):
    """Its work was cancelled, and nobody reads the answer."""


class _Watched:
    __slots__ = ("left", "listener", "over", "request", "since", "task")

    def __init__(self, request: Request, task: asyncio.Task[object], since: float) -> None:
        self.request = request
        self.task = task
        self.since = since
        self.over = False
        self.left = False
        self.listener: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        while True:
            if (await self.request.receive())["type"] == "http.disconnect":
                if not self.over:
                    self.left = True
                    self.task.cancel()
                return


class Leavers:
    """The requests at work, of one event loop."""

    def __init__(self) -> None:
        self._watched: deque[_Watched] = deque()
        self._ticking = False

    async def unless_left(self, request: Request, work: Awaitable[T]) -> T:
        """The work's result. Raises ClientLeft, the work cancelled, where the client goes away."""
        task = asyncio.current_task()
        assert task is not None
        loop = task.get_loop()
        watched = _Watched(request, task, loop.time())
        self._watched.append(watched)
        if not self._ticking:
            self._ticking = True
            loop.call_later(_TICK_S, self._tick, loop)
        try:
            return await work
        except asyncio.CancelledError:
            if watched.left:
                task.uncancel()
                log.debug("the client left before its scores were ready")
                raise ClientLeft from None
            raise
        finally:
            watched.over = True
            if watched.listener is not None:
                watched.listener.cancel()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        enlisted = loop.time() - _TICK_S
        waiting = self._watched
        while waiting and (waiting[0].over or waiting[0].since <= enlisted):
            watched = waiting.popleft()
            if not watched.over:
                watched.listener = loop.create_task(watched.listen())
        self._ticking = bool(waiting)
        if waiting:
            loop.call_later(_TICK_S, self._tick, loop)
