"""The one vocabulary of results: how a graded item can end.

A completion ends *scored* (a verdict, also when the model ran out of its budget) or *unscored*
(our side failed; there is no reward, and never a 0 in its place). A request that is itself wrong is
*rejected* before anything is graded; that is an HTTP matter and lives in ``reward_server.problems``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class FailureKind(StrEnum):
    """Why an item is unscored. Always our side, never the completion's fault."""

    DEADLINE_EXCEEDED = "deadline_exceeded"
    """The request's time ran out before the item could start."""
    OVERLOADED = "overloaded"
    """Admitted, then shed."""
    WORKER_LOST = "worker_lost"
    """The process that graded it died for no reason that can be attributed to the item."""
    SANDBOX_UNAVAILABLE = "sandbox_unavailable"
    TOOLCHAIN_UNAVAILABLE = "toolchain_unavailable"
    JUDGE_UNAVAILABLE = "judge_unavailable"
    JUDGE_UNPARSEABLE = "judge_unparseable"
    ENVIRONMENT_ERROR = "environment_error"
    """The rollout's own environment failed (``finish_reason: tool_error``)."""
    INVALID_REFERENCE = "invalid_reference"
    """The reference has the right shape but no usable meaning, so no completion could be right."""
    GRADER_ERROR = "grader_error"
    """A defect in the grader."""


RETRYABLE = frozenset(
    {
        FailureKind.DEADLINE_EXCEEDED,
        FailureKind.OVERLOADED,
        FailureKind.WORKER_LOST,
        FailureKind.SANDBOX_UNAVAILABLE,
        FailureKind.JUDGE_UNAVAILABLE,
        FailureKind.JUDGE_UNPARSEABLE,
    }
)


class Basis(StrEnum):
    """What a reward rests on. Only a verdict is reused for an equal item."""

    VERDICT = "verdict"
    """Decided by the grader's rules: the same on every run."""
    UNDECIDED = "undecided"
    """The rules could not decide within their deterministic limits."""
    LIMIT = "limit"
    """The item spent its CPU, memory or wall budget, or crashed its worker."""


@dataclass(frozen=True, slots=True)
class StepReward:
    """A reward for ``completion[start:end]`` (character offsets)."""

    start: int
    end: int
    reward: float


@dataclass(frozen=True, slots=True)
class Scored:
    """A verdict. ``reward`` is finite; ``raw`` is JSON-able and says how it came about."""

    reward: float
    components: Mapping[str, float] = field(default_factory=dict)
    step_rewards: tuple[StepReward, ...] | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)
    basis: Basis = Basis.VERDICT


@dataclass(frozen=True, slots=True)
class Unscored:
    """No reward, and why. ``retryable``: the same item may be scored when sent again."""

    kind: FailureKind
    detail: str
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def retryable(self) -> bool:
        return self.kind in RETRYABLE


Outcome = Scored | Unscored


class CannotScore(Exception):
    """Raised by a grader that has no verdict for reasons of ours; becomes :class:`Unscored`."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


def spent(limit: str, detail: str) -> Scored:
    """The verdict on an item that used up a limit of its own: 0, and the limit in ``raw``."""
    return Scored(0.0, raw={"outcome": limit, "detail": detail}, basis=Basis.LIMIT)
