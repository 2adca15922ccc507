"""Memory that submissions may use together: those that come when it is spoken for wait for their turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from sandboxes.program import NoSlotInTime, SandboxUnavailable


@dataclass(slots=True)
class MemoryBudget:
    """First come, first served: a large submission is not overtaken for ever by small ones."""

    total_mb: int
    held_mb: int = 0
    _waiting: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)

    @asynccontextmanager
    async def holding(self, wanted_mb: int, start_by: float | None) -> AsyncIterator[None]:
        """``start_by``: of the loop's clock. Raises SandboxUnavailable, NoSlotInTime."""
        if wanted_mb > self.total_mb:
            raise SandboxUnavailable(
                f"a submission that may use {wanted_mb} MB, and all together may use {self.total_mb} MB "
                "(REWARD_SANDBOX__MEMORY_MB)"
            )
        if self._waiting or self.held_mb + wanted_mb > self.total_mb:
            await self._turn(wanted_mb, start_by)
        else:
            self.held_mb += wanted_mb
        try:
            yield
        finally:
            self.held_mb -= wanted_mb
            self._serve()

    async def _turn(self, wanted_mb: int, start_by: float | None) -> None:
        mine = (wanted_mb, asyncio.get_running_loop().create_future())
        self._waiting.append(mine)
        try:
            async with asyncio.timeout_at(start_by):
                await mine[1]
        except (TimeoutError, asyncio.CancelledError) as error:
            if mine in self._waiting:
                self._waiting.remove(mine)
            else:  # it was served in the same moment
                self.held_mb -= wanted_mb
            self._serve()
            if isinstance(error, TimeoutError):
                raise NoSlotInTime("the memory for sandboxes was in use") from None
            raise

    def _serve(self) -> None:
        while self._waiting and self.held_mb + self._waiting[0][0] <= self.total_mb:
            wanted_mb, future = self._waiting.popleft()
            self.held_mb += wanted_mb
            if not future.done():
                future.set_result(None)
