"""From settled asks to rows of the store and scores of the reply."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from reward_server.outcome import Scored
from reward_server.registry.versions import Version
from reward_server.schema import Item, ScoreRequest, StoredScore
from reward_server.scoring.desk import Ask, Grading
from reward_server.store.codec import steps_json
from reward_server.store.hot import Submission
from reward_server.store.ids import IdMaker, now_ms

_PORTION_BYTES = 128 << 20

Reply = dict[str, Any]
"""A score as it goes out: the JSON of :class:`reward_server.schema.Score`."""


@dataclass(slots=True, eq=False)
class Unit:
    """One submitted item on its way through: what was sent, by which version, and its ask."""

    index: int
    item: Item
    version: Version
    payload: bytes
    ask: Ask
    score_id: int = 0


def submission(
    units: list[Unit], request: ScoreRequest, run_id: int | None, ids: IdMaker
) -> Submission:
    """The rows of these units; gives each its score id."""
    now = now_ms()
    result = Submission()
    used: list[Grading] = []
    for unit in units:
        grading = unit.ask.grading
        assert grading is not None
        used.append(grading)
        unit.score_id = ids.next()
        item = unit.item
        result.scores.append(
            (
                unit.score_id,
                grading.id,
                unit.version.id,
                run_id,
                request.step,
                item.id,
                item.group,
                item.group_size,
                item.policy_version,
                item.finish_reason,
                item.tokens,
                int(unit.ask.cached),
                now,
            )
        )
        result.items.append((unit.score_id, unit.payload))
    every = {g.id: g for g in _with_parts(used)}  # parts may be shared
    result.gradings = [_row(g) for g in every.values() if not g.durable]
    result.unchecked = [
        g.id for g in every.values() if g.unchecked and g.reusable and not g.durable
    ]
    result.all_gradings = lambda: [_row(g) for g in every.values()]
    return result


def portions(units: list[Unit]) -> Iterator[list[Unit]]:
    """Units in portions of a bounded size: what one message to the store may hold."""
    if len(units) == 1:
        yield units
        return
    portion: list[Unit] = []
    size = 0
    for unit in units:
        size += len(unit.payload) + sum(len(g.as_columns()[-1]) for g in gradings_of([unit]))
        portion.append(unit)
        if size > _PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def gradings_of(units: list[Unit]) -> Iterable[Grading]:
    """Every grading that the units rest on, parts of composites too."""
    return _with_parts(u.ask.grading for u in units if u.ask.grading is not None)


def reply(unit: Unit, environment: str) -> Reply:
    grading = unit.ask.grading
    assert grading is not None
    outcome = grading.outcome
    version = unit.version
    common = {
        "index": unit.index,
        "id": unit.item.id,
        "score_id": str(unit.score_id),
    }
    graded_by = {
        "grader": {
            "name": version.name,
            "version": version.number,
            "digest": version.spec.digest,
        },
        "environment": environment,
    }
    timing = {"cached": unit.ask.cached, "elapsed_ms": round(grading.elapsed_ms, 3)}
    if isinstance(outcome, Scored):
        return {
            **common,
            "status": "scored",
            "reward": outcome.reward,
            "components": outcome.components,
            "step_rewards": steps_json(outcome.step_rewards),
            **graded_by,
            "raw": outcome.raw,
            "failure": None,
            **timing,
        }
    return {
        **common,
        "status": "unscored",
        "reward": None,
        "components": {},
        "step_rewards": None,
        **graded_by,
        "raw": outcome.raw,
        "failure": {
            "kind": outcome.kind.value,
            "detail": outcome.detail,
            "retryable": outcome.retryable,
        },
        **timing,
    }


def reply_from_stored(stored: StoredScore, index: int) -> Reply:
    """The reply that a stored score was answered with, for an idempotent resend."""
    names = ("id", "score_id", "status", "reward", "components", "step_rewards", "grader",
             "environment", "raw", "failure", "cached", "elapsed_ms")  # fmt: skip
    full = stored.model_dump(mode="json", include=set(names))
    return {"index": index} | {name: full[name] for name in names}


def summary(replies: Iterable[Reply]) -> dict[str, Any]:
    rewards, unscored = [], 0
    for one in replies:
        if one["reward"] is None:
            unscored += 1
        else:
            rewards.append(one["reward"])
    # Each reward is finite, but a sum of huge ones need not be.
    mean = math.fsum(r / len(rewards) for r in rewards) if rewards else None
    return {"scored": len(rewards), "unscored": unscored, "mean_reward": mean}


def _with_parts(gradings: Iterable[Grading]) -> Iterable[Grading]:
    for grading in gradings:
        yield grading
        yield from _with_parts(grading.parts)


def _row(grading: Grading) -> tuple[Any, ...]:
    key = grading.key
    return (
        grading.id,
        key.spec_id,
        key.environment_id,
        key.view_hash,
        int(grading.reusable),
        *grading.as_columns(),
        grading.elapsed_ms,
        grading.attempts,
        grading.created_ms,
    )
