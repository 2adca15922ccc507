"""Completions that try to earn what they should not, kind by kind. None is rewarded."""

from __future__ import annotations

from typing import Any

import pytest

from reward_server.graders.base import Digest, PureGrader, Spec, View, canonical_json
from reward_server.graders.catalog import CATALOG
from reward_server.graders.composite import CompositeConfig, CompositeGrader
from reward_server.outcome import Basis, Scored

NUMBER = {"compare": "number", "extract": {"regex": r"A: *(.*)"}}
R1 = {"template": "think_answer"}

CHEATS: list[tuple[str, dict[str, Any], str, Any]] = [
    # kind, config, completion, reference
    ("exact", {}, "Paris\nLondon\nRome", "Paris"),
    ("exact", {}, "Paris Paris", "Paris"),
    ("exact", {}, "*", "Paris"),
    ("exact", {}, "\u202esiraP", "Paris"),
    ("exact", {}, "", "Paris"),
    ("exact", {"ignore_case": True}, "paris\u0000", "Paris"),
    ("exact", NUMBER, "A: 5 or 6", "5"),
    ("exact", NUMBER, "A: 5 6", "56"),
    ("exact", NUMBER, "A: 5,6", "56"),
    ("exact", NUMBER, "A: 5\nA: 6", "5"),
    ("exact", NUMBER, "A: 5=5", "5"),
    ("exact", NUMBER, "A: 1..9", "5"),
    ("exact", NUMBER, "A: x", "5"),
    ("exact", NUMBER, "A: 4.99999999999999999999", "5"),
    ("exact", NUMBER, "A: 5e0e0", "5"),
    ("exact", NUMBER, "A: 5/", "5"),
    ("exact", NUMBER, "A: 0/0", "0"),
    ("exact", {"compare": "json"}, '{"a": 1, "a": 2}', {"a": 1}),
    ("exact", {"compare": "json"}, '{"a": 1, "b": 2}', {"a": 1}),
    ("exact", {"compare": "json"}, "[1]", {"0": 1}),
    ("exact", {"compare": "json"}, "Infinity", 1),
    ("exact", {"compare": "json"}, "1 2", 1),
    ("format", R1, "<think>\u200b</think><answer>\u200b</answer>", None),
    ("format", R1, "<think>.</think><answer>.</answer>", None),
    ("format", R1, "<think>a</think><answer>b</answer>" * 2, None),
    ("format", R1, "<think>a</think>\u200b<answer>b</answer>", None),
    ("format", R1, "<think>a</think><answer>b<answer></answer>", None),
    ("format", R1, "<think >a</think><answer>b</answer>", None),
    ("format", {"sections": ["Answer:"]}, "Answer:\n---", None),
    ("format", {"sections": ["Answer:"]}, "The Answer: 4", None),
    ("format", {"language": {"code": "ja"}}, "这完全是中文没有假名", None),
    ("format", {"language": {"code": "ko"}}, "這完全是中文沒有韓文", None),
    ("format", {"language": {"code": "zh"}}, "```\nall of it in English\n```好", None),
    ("format", {"language": {"code": "en"}}, "1234 !?", None),
]

HONEST: list[tuple[dict[str, Any], str]] = [
    ({"language": {"code": "ja"}}, "コーヒーとケーキ"),
    ({"language": {"code": "ja"}}, "データベースサーバーを再起動する"),
    ({"language": {"code": "ko"}}, "답은 사십이입니다"),
    ({"language": {"code": "ar"}}, "الجـــواب هو أربعون"),
    ({"language": {"code": "en"}}, "Let 𝑥 be 5 µm"),
    ({"language": {"code": "en"}}, "word " * 200_000),
    (R1, "<think>2+2</think><answer>4</answer>"),
    (R1, "<think>算</think><answer>四</answer>"),
]


def grade(kind: str, config: dict[str, Any], completion: str, reference: Any) -> Scored:
    built = CATALOG.build(Spec(kind, canonical_json(config), Digest("sha256:test")))
    assert isinstance(built, PureGrader)
    return built.grade(View(completion=completion, reference=reference))


@pytest.mark.parametrize(("kind", "config", "completion", "reference"), CHEATS)
def test_no_cheat_is_rewarded(
    kind: str, config: dict[str, Any], completion: str, reference: Any
) -> None:
    assert grade(kind, config, completion, reference).reward == 0.0


@pytest.mark.parametrize(("config", "completion"), HONEST)
def test_what_only_looks_like_a_cheat_is_rewarded(config: dict[str, Any], completion: str) -> None:
    assert grade("format", config, completion, None).reward == 1.0


LIMIT = Scored(0.0, basis=Basis.LIMIT)


@pytest.mark.parametrize(
    ("config", "honest", "dodge"),
    [
        (
            {"parts": [{"name": "w", "grader": "x"}, {"name": "b", "grader": "x", "weight": -1.0}]},
            {"w": Scored(1.0), "b": Scored(1.0)},
            {"w": Scored(1.0), "b": LIMIT},
        ),
        (
            {
                "combine": "gate",
                "parts": [
                    {"name": "g", "grader": "x", "threshold": 0.0},
                    {"name": "w", "grader": "x"},
                ],
            },
            {"g": Scored(-1.0), "w": Scored(1.0)},
            {"g": LIMIT, "w": Scored(1.0)},
        ),
        (
            {
                "combine": "product",
                "parts": [{"name": "a", "grader": "x"}, {"name": "b", "grader": "x"}],
            },
            {"a": Scored(0.0), "b": Scored(1.0)},
            {"a": LIMIT, "b": Scored(1.0)},
        ),
        (
            {"parts": [{"name": "a", "grader": "x"}, {"name": "b", "grader": "x"}]},
            {"a": Scored(0.0), "b": Scored(0.0)},
            {"a": LIMIT, "b": Scored(1.0)},
        ),
    ],
)
def test_exhausting_a_part_never_pays(
    config: dict[str, Any], honest: dict[str, Scored], dodge: dict[str, Scored]
) -> None:
    grader = CompositeGrader(CompositeConfig.model_validate(config), {})
    wrong, dodged = grader.combine(honest, None), grader.combine(dodge, None)
    assert isinstance(wrong, Scored)
    assert isinstance(dodged, Scored)
    assert dodged.reward <= wrong.reward
    assert dodged.basis is Basis.LIMIT
