"""Kind ``answer`` on public data: real model outputs, the MATH test set, reported bugs of other graders."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from starlette.testclient import TestClient

from reward_server.graders.base import Digest, PureGrader, Spec, View, canonical_json
from reward_server.graders.catalog import CATALOG
from reward_server.outcome import CannotScore
from reward_server.registry.builtins import BUILT_INS
from tests.conftest import DATA

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the public data sets are not here")


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().split("\n") if line]


def built_in(name: str) -> PureGrader:
    config = next(dict(b.config) for b in BUILT_INS if b.name == name)
    built = CATALOG.build(Spec("answer", canonical_json(config), Digest("sha256:test")))
    assert isinstance(built, PureGrader)
    return built


def right(grader: PureGrader, completion: str, reference: str) -> bool:
    return grader.grade(View(completion=completion, reference=reference)).reward == 1.0


def test_gsm8k_outputs_agree_with_their_labels() -> None:
    grader, data = built_in("gsm8k"), rows("gsm8k_solutions.jsonl")
    wrong = [r for r in data if right(grader, r["completion"], r["reference"]) != r["is_correct"]]
    assert len(data) == 3957
    assert len(wrong) <= 3


def test_gsm8k_references_may_be_whole_solutions() -> None:
    grader = built_in("gsm8k")
    assert all(right(grader, r["answer"], r["answer"]) for r in rows("gsm8k_test.jsonl"))


def test_math_solutions_are_accepted_for_their_own_reference() -> None:
    grader, data = built_in("math"), rows("math_test.jsonl")
    wrong = [r["id"] for r in data if not right(grader, r["completion"], r["reference"])]
    assert len(wrong) <= 12, wrong


@pytest.mark.parametrize("shift", [1, 7, 1250])
def test_math_solutions_are_not_accepted_for_another_reference(shift: int) -> None:
    grader, data = built_in("math"), rows("math_test.jsonl")
    accepted = []
    for own, other in zip(data, data[shift:] + data[:shift], strict=True):
        if right(grader, other["completion"], own["reference"]):
            accepted.append((own["reference"], other["reference"]))
    # Equal references of different items; written differently, they are listed here.
    known = {frozenset(pair) for pair in _SAME_VALUE}
    assert [p for p in accepted if p[0] != p[1] and frozenset(p) not in known] == []


_TIMES_TO_ASK = 3
"""A pair that is undecided within its CPU allowance is unscored, and asked again: a busy machine makes it so."""
_SAME_VALUE = [("4", r"\$4")]


def test_math_model_outputs_agree_with_their_labels() -> None:
    grader, data = built_in("math"), rows("math_model_outputs.jsonl")
    wrong = [r for r in data if right(grader, r["completion"], r["reference"]) != r["is_correct"]]
    assert len(wrong) <= 2


def test_reported_pairs_are_judged_right() -> None:
    grader = built_in("math")
    wrong = []
    for row in rows("math_pairs.jsonl"):
        accepted = None
        for _ in range(_TIMES_TO_ASK):
            with suppress(CannotScore):
                accepted = right(grader, rf"\boxed{{{row['answer']}}}", row["reference"])
                break
        if accepted != row["equal"]:
            wrong.append((row["reference"][:80], row["answer"][:80]))
    assert wrong == []


POLICY = {
    "box vs Answer:": False,
    "two answer tags": False,
    "unevaluated restatement": True,  # by value; refused where the prompt shows that it restates
    "factor question: echo expanded/factored form": True,
    "pm0": False,
    "decimal approx": False,
    "percent dropped": True,
}


def test_cheating_completions_are_refused_and_honest_ones_accepted() -> None:
    grader = built_in("math")
    for row in rows("math_completions.jsonl"):
        expected = POLICY[row["kind"]] if row["accept"] is None else row["accept"]
        assert right(grader, row["completion"], row["reference"]) is expected, row["kind"]


@pytest.mark.parametrize(("name", "file"), [("gsm8k", "gsm8k_solutions"), ("math", "math_test")])
def test_through_the_server_the_verdicts_are_the_same(
    client: TestClient, name: str, file: str
) -> None:
    data = rows(f"{file}.jsonl")[:768]
    grader = built_in(name)
    for start in range(0, len(data), 256):
        items = [
            {"completion": r["completion"], "reference": r["reference"]}
            for r in data[start : start + 256]
        ]
        scores = client.post("/score", json={"grader": name, "items": items}).json()["scores"]
        for score, item in zip(scores, items, strict=True):
            assert score["status"] == "scored"
            assert (score["reward"] == 1.0) is right(grader, item["completion"], item["reference"])
            assert score["grader"]["name"] == name
            assert set(score["raw"]) >= {"outcome", "layer", "extracted", "rule", "span"}
