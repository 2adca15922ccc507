"""The graders that a fresh server has, with golden cases of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reward_server.schema import Case, Expectation


@dataclass(frozen=True, slots=True)
class BuiltIn:
    name: str
    kind: str
    description: str
    config: Mapping[str, Any] = field(default_factory=dict)
    cases: tuple[Case, ...] = ()


def _case(completion: str, reward: float, reference: Any = None) -> Case:
    return Case(completion=completion, reference=reference, expect=Expectation(reward=reward))


BUILT_INS = (
    BuiltIn(
        name="exact",
        kind="exact",
        description="The whole completion equals the reference, surrounding white space apart.",
        cases=(
            _case("Paris", 1.0, "Paris"),
            _case(" Paris\n", 1.0, "Paris"),
            _case("paris", 0.0, "Paris"),
            _case("Paris or London", 0.0, "Paris"),
            _case("", 0.0, "Paris"),
        ),
    ),
    BuiltIn(
        name="format_think",
        kind="format",
        description="<think>…</think> then <answer>…</answer>, each once, and nothing else.",
        config={"template": "think_answer"},
        cases=(
            _case("<think>2+2</think>\n<answer>4</answer>", 1.0),
            _case("<answer>4</answer>", 0.0),
            _case("<think>2+2</think><think>x</think><answer>4</answer>", 0.0),
            _case("<think></think><answer>4</answer>", 0.0),
        ),
    ),
)
