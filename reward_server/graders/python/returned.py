"""What a registered function returned, as an outcome. It is plain data by now; nothing else is taken for granted."""

from __future__ import annotations

import math
from typing import Any

import orjson

from reward_server.outcome import Scored, StepReward

_MOST_COMPONENTS = 100
_MOST_STEPS = 10_000
_MOST_RAW = 64 << 10
_KEYS = frozenset({"reward", "components", "step_rewards", "raw"})


class BadReturn(ValueError):
    """What was returned is no reward."""


def scored(value: Any, length: int) -> Scored | None:
    """The outcome that ``value`` states for a completion of ``length`` characters; None where it declines.
    Raises BadReturn."""
    if value is None:
        return None
    if not isinstance(value, dict):
        return Scored(_number(value, "the reward"))
    if unknown := sorted(set(value) - _KEYS):
        raise BadReturn(f"returned unknown keys {unknown[:5]}: there are {sorted(_KEYS)}")
    if "reward" not in value:
        raise BadReturn("returned an object without 'reward'")
    if value["reward"] is None:
        return None
    components = value.get("components") or {}
    if not isinstance(components, dict) or len(components) > _MOST_COMPONENTS:
        raise BadReturn(f"components: an object of at most {_MOST_COMPONENTS} numbers")
    raw = value.get("raw") or {}
    if not isinstance(raw, dict):
        raw = {"returned": raw}
    if len(orjson.dumps(raw)) > _MOST_RAW:
        raise BadReturn(f"raw: more than {_MOST_RAW >> 10} kB")
    return Scored(
        _number(value["reward"], "the reward"),
        {name: _number(v, f"component {name!r}") for name, v in components.items()},
        _steps(value.get("step_rewards"), length),
        raw,
    )


def _number(value: Any, what: str) -> float:
    if not isinstance(value, bool | int | float):
        raise BadReturn(f"{what} is {value!r:.100}, not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadReturn(f"{what} is not finite")
    return number


def _steps(value: Any, length: int) -> tuple[StepReward, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > _MOST_STEPS:
        raise BadReturn(f"step_rewards: a list of at most {_MOST_STEPS}")
    found = []
    for number, step in enumerate(value):
        match step:
            case {"start": start, "end": end, "reward": reward} if len(step) == 3:
                pass
            case [start, end, reward]:
                pass
            case _:
                raise BadReturn(f"step_rewards[{number}]: an object of start, end and reward")
        if type(start) is not int or type(end) is not int or not 0 <= start <= end <= length:
            raise BadReturn(
                f"step_rewards[{number}]: start and end are offsets within the completion"
            )
        found.append(StepReward(start, end, _number(reward, f"step_rewards[{number}]")))
    return tuple(found)
