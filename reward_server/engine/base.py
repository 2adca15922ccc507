"""Where pure grading work runs: the interface that scoring uses and each engine implements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from reward_server.graders.base import Budget, Spec
from reward_server.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Finished:
    """How a unit of work ended. ``elapsed_ms`` is wall time of grading alone, queueing excluded."""

    outcome: Outcome
    elapsed_ms: float
    attempts: int


@dataclass(slots=True, eq=False)
class Work:
    """One view to be graded. ``done`` is called exactly once, on the event loop."""

    spec: Spec
    view: bytes
    budget: Budget
    start_by: float
    """``time.monotonic()`` at which it is too late to start; it is then unscored."""
    done: Callable[[Finished], None]
    cancelled: bool = False
    """Set by the owner: not started any more, and ``done`` is not called."""
    attempts: int = 0
    lost: int = 0
    """How often a worker died under it for no reason that can be attributed."""
    suspect: bool = False
    """It hit a limit that neighbours may have contributed to: next time alone, in a fresh worker."""


class Engine(Protocol):
    async def start(self) -> None: ...

    def submit(self, work: Work) -> None: ...

    async def close(self) -> None:
        """Stops at once; what is unfinished ends as ``worker_lost``."""
        ...

    @property
    def ready(self) -> bool: ...

    @property
    def workers_alive(self) -> int: ...

    @property
    def items_per_s(self) -> float:
        """Recent throughput, for Retry-After."""
        ...
