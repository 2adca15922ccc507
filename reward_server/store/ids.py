"""Ids of gradings and scores: 63-bit integers that grow with time and need no database to be made.

Bits: 41 of milliseconds since 2024, 10 of node, 12 of sequence. A running server holds its node number
(``servers.node``), so two servers on one database do not collide. Growing keys are
what makes inserts appends; a page of scores can be continued from the last id seen.
"""

from __future__ import annotations

import time

EPOCH_MS = 1_704_067_200_000
NODES = 1024
_NODE_BITS, _SEQUENCE_BITS = 10, 12
_SHIFT = _NODE_BITS + _SEQUENCE_BITS
MAX_ID = 2**63 - 1


class IdMaker:
    """Not thread-safe: each belongs to one event loop or one thread."""

    def __init__(self, node: int) -> None:
        self._node = (node % (1 << _NODE_BITS)) << _SEQUENCE_BITS
        self._ms = 0
        self._sequence = 0

    def next(self) -> int:
        now = now_ms() - EPOCH_MS
        if now > self._ms:
            self._ms, self._sequence = now, 0
        else:  # the same millisecond, a burst, or a clock that went back
            self._sequence += 1
            if self._sequence >> _SEQUENCE_BITS:
                self._ms, self._sequence = self._ms + 1, 0
        return (self._ms << _SHIFT) | self._node | self._sequence


def first_id_at(ms: int) -> int:
    """The least id that can have been made at that time (ms since 1970), within [0, MAX_ID]."""
    return min(max(0, (ms - EPOCH_MS) << _SHIFT), MAX_ID)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
