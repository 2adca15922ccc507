"""The bound on what is accepted and not yet answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from reward_server.problems import TooLarge, Unavailable

_FIRST_GUESS_ITEMS_PER_S = 1000.0


class Admission:
    """Counts items and bytes in the house. A request is admitted whole or not at all."""

    def __init__(self, max_items: int, max_bytes: int, items_per_s: Callable[[], float]) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._items_per_s = items_per_s
        self.items = 0
        self.bytes = 0

    @contextmanager
    def admitted(self, items: int, size: int) -> Iterator[None]:
        """Raises Unavailable while there is no room, TooLarge where there never will be."""
        if items > self._max_items or size > self._max_bytes:
            raise TooLarge(
                f"{items} items of {size} bytes can never be admitted at once "
                f"(REWARD_MAX_QUEUED_ITEMS is {self._max_items}, REWARD_MAX_QUEUED_MB is "
                f"{self._max_bytes >> 20}): send smaller batches"
            )
        if self.items + items > self._max_items or self.bytes + size > self._max_bytes:
            rate = self._items_per_s() or _FIRST_GUESS_ITEMS_PER_S
            wait_s = min(30.0, max(1.0, self.items / rate))
            raise Unavailable(f"{self.items} items are waiting; nothing was admitted", wait_s)
        self.items += items
        self.bytes += size
        try:
            yield
        finally:
            self.items -= items
            self.bytes -= size
