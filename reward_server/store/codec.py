"""Outcomes to rows and back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from reward_server.outcome import Basis, FailureKind, Outcome, Scored, StepReward, Unscored


@dataclass(frozen=True, slots=True)
class StoredGrading:
    """A grading with its id. ``elapsed_ms`` is what grading took when it was done."""

    id: int
    outcome: Outcome
    elapsed_ms: float


def to_json(value: Any) -> bytes:
    """JSON bytes. Raises ValueError for NaN and infinities, which no row may hold."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def outcome_columns(outcome: Outcome) -> tuple[Any, ...]:
    """reward, basis, failure, detail, result."""
    if isinstance(outcome, Unscored):
        result = to_json({"raw": outcome.raw})
        detail = outcome.detail.encode("utf-8", "replace")
        return None, None, outcome.kind.value, detail, result
    result = to_json(
        {
            "components": dict(outcome.components),
            "step_rewards": steps_json(outcome.step_rewards),
            "raw": outcome.raw,
        }
    )
    return outcome.reward, outcome.basis.value, None, None, result


def grading_of(row: Any) -> StoredGrading:
    """A grading from a row with the columns of ``gradings``."""
    result = json.loads(row.result)
    outcome: Outcome
    if row.failure is not None:
        outcome = Unscored(FailureKind(row.failure), bytes(row.detail).decode(), result["raw"])
    else:
        steps = result["step_rewards"]
        outcome = Scored(
            row.reward,
            result["components"],
            None if steps is None else tuple(StepReward(**s) for s in steps),
            result["raw"],
            Basis(row.basis),
        )
    return StoredGrading(row.id, outcome, row.elapsed_ms)


def steps_json(steps: tuple[StepReward, ...] | None) -> list[dict[str, Any]] | None:
    if steps is None:
        return None
    return [{"start": s.start, "end": s.end, "reward": s.reward} for s in steps]
