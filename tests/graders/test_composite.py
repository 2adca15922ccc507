"""Kind ``composite``: how verdicts on parts become one reward."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from reward_server.graders.composite import (
    CompositeConfig,
    CompositeGrader,
    Overlong,
    length_cost,
    overlong_penalty,
)
from reward_server.outcome import Basis, Scored, Unscored


def combine(
    config: dict[str, Any], rewards: dict[str, Scored], tokens: int | None = None
) -> Scored | Unscored:
    grader = CompositeGrader(CompositeConfig.model_validate(config), {})
    return grader.combine(rewards, tokens)


def parts(**options: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": n, "grader": "exact", **o} for n, o in options.items()]


@pytest.mark.parametrize(
    ("tokens", "task", "total"), [(1000, 1.0, 0.9), (3000, 1.0, 0.7), (0, 0.0, 0.0)]
)
def test_the_length_cost_is_lambda_times_thousands_of_tokens(
    tokens: int, task: float, total: float
) -> None:
    config = {"parts": parts(a={}), "length_cost": {"per_1000_tokens": 0.1}}
    scored = combine(config, {"a": Scored(task)}, tokens)
    assert isinstance(scored, Scored)
    assert scored.reward == pytest.approx(total)
    assert scored.components["length_cost"] == pytest.approx(length_cost(tokens, 0.1))
    assert scored.components["task"] == task


def test_expected_totals_of_a_short_and_a_long_answer() -> None:
    # Success 0.6 at 1,000 tokens against 0.95 at 3,000, λ = 0.1: 0.5 and 0.65.
    assert 0.6 + length_cost(1000, 0.1) == pytest.approx(0.5)
    assert 0.95 + length_cost(3000, 0.1) == pytest.approx(0.65)


@pytest.mark.parametrize(
    ("tokens", "penalty"),
    [(0, 0.0), (16384, 0.0), (18432, -0.5), (20480, -1.0), (99999, -1.0)],
)
def test_the_overlong_penalty_grows_over_the_buffer(tokens: int, penalty: float) -> None:
    overlong = Overlong(max_tokens=20480, buffer_tokens=4096)
    assert overlong_penalty(tokens, overlong) == penalty


def test_the_three_ways_to_combine() -> None:
    rewards = {"a": Scored(1.0), "b": Scored(0.5)}
    weighted = parts(a={"weight": 2.0}, b={"weight": -1.0})
    for combined, total in (
        (combine({"parts": weighted}, rewards), 1.5),
        (combine({"parts": parts(a={}, b={}), "combine": "product"}, rewards), 0.5),
        (combine({"parts": parts(a={}, b={}), "combine": "gate"}, rewards), 0.5),
        (combine({"parts": parts(b={}, a={}), "combine": "gate"}, rewards), 0.0),
        (combine({"parts": parts(b={"threshold": 0.5}, a={}), "combine": "gate"}, rewards), 1.0),
    ):
        assert isinstance(combined, Scored)
        assert combined.reward == total


def test_a_penalty_is_not_dodged_by_exhausting_the_part_that_finds_it() -> None:
    config = {"parts": parts(task={"name": "work"}, bad={"weight": -1.0})}
    found = combine(config, {"work": Scored(1.0), "bad": Scored(1.0)})
    dodged = combine(config, {"work": Scored(1.0), "bad": Scored(0.0, basis=Basis.LIMIT)})
    assert isinstance(found, Scored)
    assert isinstance(dodged, Scored)
    assert dodged.reward == found.reward
    assert dodged.basis is Basis.LIMIT


def test_a_reward_that_overflows_is_no_reward() -> None:
    config = {"parts": parts(a={}, b={}), "combine": "product"}
    assert isinstance(combine(config, {"a": Scored(1e300), "b": Scored(1e300)}), Unscored)


@pytest.mark.parametrize(
    "config",
    [
        {"parts": []},
        {"parts": parts(a={}) * 2},
        {"parts": parts(a={"name": "task"})},
        {"parts": parts(a={"weight": float("nan")})},
        {"parts": parts(a={}), "overlong": {"max_tokens": 1, "buffer_tokens": 2}},
        {"parts": parts(a={}), "length_cost": {"per_1000_tokens": 0}},
    ],
)
def test_bad_configs_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CompositeConfig.model_validate(config)
