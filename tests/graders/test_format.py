"""Kind ``format``: shapes that pass, and ways of seeming to have them that do not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from reward_server.graders.base import Digest, PureGrader, Spec, View, canonical_json
from reward_server.graders.catalog import CATALOG
from reward_server.outcome import Scored

R1 = {"template": "think_answer"}
THINK = {"template": "think"}


def grade(completion: str, **config: Any) -> Scored:
    made = CATALOG.build(Spec("format", canonical_json(config), Digest("sha256:test")))
    assert isinstance(made, PureGrader)
    return made.grade(View(completion=completion))


@pytest.mark.parametrize(
    ("completion", "config", "reward"),
    [
        ("<think>a</think><answer>b</answer>", R1, 1),
        ("\n<think>a</think>\n\n<answer>b</answer>\n", R1, 1),
        ("<think>a</think> so <answer>b</answer>", R1, 0),
        ("x<think>a</think><answer>b</answer>", R1, 0),
        ("<think>a</think><answer>b</answer>x", R1, 0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", R1, 0),
        ("<think>a<answer>b</answer></think>", R1, 0),
        ("<think><think>a</think></think><answer>b</answer>", R1, 0),
        ("<think></think><answer>b</answer>", R1, 0),
        ("<think>a</think><answer> </answer>", R1, 0),
        ("<think>a<answer>b</answer>", R1, 0),
        ("</think><think>a<answer>b</answer>", R1, 0),
        ("<answer>b</answer><think>a</think>", R1, 0),
        ("<THINK>a</THINK><answer>b</answer>", R1, 0),
        ("", R1, 0),
        ("<think>a</think> b", THINK, 1),
        ("<think>a</think>", THINK, 0),
        ("a</think> b", THINK | {"think_prefilled": True}, 1),
        ("<think>a</think> b", THINK | {"think_prefilled": True}, 0),
        ("a</think><answer>b</answer>", R1 | {"think_prefilled": True}, 1),
    ],
)
def test_templates(completion: str, config: dict[str, Any], reward: float) -> None:
    assert grade(completion, **config).reward == reward


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("Plan: do it\nAnswer: 4", 1),
        ("Plan:\n- do it\n\nAnswer:\n4", 1),
        ("Answer: 4\nPlan: do it", 0),
        ("Plan: do it\nAnswer:", 0),
        ("Plan: Answer: 4", 0),
        ("Plan: a\nPlan: b\nAnswer: 4", 0),
        ("Plan: …\nAnswer: 4", 0),
    ],
)
def test_sections(completion: str, reward: float) -> None:
    assert grade(completion, sections=["Plan:", "Answer:"]).reward == reward


@pytest.mark.parametrize(
    ("completion", "code", "reward"),
    [
        ("The answer is four.", "en", 1),
        ("答案是四", "zh", 1),
        (r"所以答案是 $\frac{1}{2}$", "zh", 1),
        ("The answer 是四十二个苹果没有错", "zh", 0),
        ("```\nthe whole reasoning in English\n```\n好", "zh", 0),
        ("$all of it in English$ 好", "zh", 0),
        (r"\Hello\my\friend\this\is\all\English 好", "zh", 0),
        ("42", "en", 0),
        ("", "en", 0),
    ],
)
def test_language(completion: str, code: str, reward: float) -> None:
    assert grade(completion, language={"code": code}).reward == reward


def test_each_check_is_a_component() -> None:
    scored = grade("<think>a</think> b", template="think", language={"code": "zh"})
    assert scored.components == {"template": 1.0, "language": 0.0}
    assert scored.reward == 0.0


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"language": {"code": "en", "region": "think"}},
        {"think_prefilled": True},
        {"sections": [" "]},
        {"sections": ["a", "a"]},
        {"template": "other"},
    ],
)
def test_configs_that_ask_for_nothing_sensible_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        grade("x", **config)
