"""Outcomes to rows and back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import orjson

from reward_server.outcome import Basis, FailureKind, Outcome, Scored, StepReward, Unscored


@dataclass(frozen=True, slots=True)
class StoredGrading:
    """A grading with its id. ``elapsed_ms`` is what grading took when it was done."""

    id: int
    outcome: Outcome
    elapsed_ms: float


def to_json(value: Any) -> bytes:
    """JSON bytes. Raises ValueError for NaN and infinities, which no row may hold."""
    return _encode(value).encode()


_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False
).encode


def _result_json(value: Any) -> bytes:
    """JSON of a grader's result. In ``raw`` NaN becomes null, as it does in the reply."""
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer of more than 64 bits
        return to_json(value)


def outcome_columns(outcome: Outcome) -> tuple[Any, ...]:
    """reward, basis, failure, detail, result."""
    if isinstance(outcome, Unscored):
        result = _result_json({"raw": outcome.raw})
        detail = outcome.detail.encode("utf-8", "replace")
        return None, None, outcome.kind.value, detail, result
    result = _result_json(
        {
            "components": dict(outcome.components),
            "step_rewards": steps_json(outcome.step_rewards),
            "raw": outcome.raw,
        }
    )
    return outcome.reward, outcome.basis.value, None, None, result


def grading_of(row: Any) -> StoredGrading:
    """A grading from a row with the columns of ``gradings``."""
    outcome = outcome_of(row.reward, row.basis, row.failure, row.detail, row.result)
    return StoredGrading(row.id, outcome, row.elapsed_ms)


def outcome_of(
    reward: float | None,
    basis: str | None,
    failure: str | None,
    detail: bytes | None,
    result: bytes,
) -> Outcome:
    """The outcome of the columns that :func:`outcome_columns` gives."""
    parsed = json.loads(result)
    if failure is not None:
        return Unscored(FailureKind(failure), bytes(detail or b"").decode(), parsed["raw"])
    assert reward is not None
    assert basis is not None
    steps = parsed["step_rewards"]
    return Scored(
        reward,
        parsed["components"],
        None if steps is None else tuple(StepReward(**s) for s in steps),
        parsed["raw"],
        Basis(basis),
    )


def steps_json(steps: tuple[StepReward, ...] | None) -> list[dict[str, Any]] | None:
    if steps is None:
        return None
    return [{"start": s.start, "end": s.end, "reward": s.reward} for s in steps]
