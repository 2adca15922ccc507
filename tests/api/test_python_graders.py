"""Registering functions and scoring with them, over HTTP and by the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.cli.test_cli import Cli
from tests.sandboxes.needs import needs_bubblewrap

pytestmark = needs_bubblewrap

LENGTH = """
def grade(completion, reference):
    if completion == "boom":
        raise RuntimeError("no")
    return {"reward": float(len(completion) == reference), "components": {"length": len(completion)}}
"""


def registration(source: str, cases: list[dict[str, Any]], **config: Any) -> dict[str, Any]:
    return {
        "name": "mine",
        "kind": "python",
        "config": {"source": source, **config},
        "cases": cases,
    }


CASES: list[dict[str, Any]] = [
    {"completion": "abc", "reference": 3, "expect": {"reward": 1}},
    {"completion": "boom", "reference": 4, "expect": {"reward": 0}},
]


def score(client: TestClient, *completions: str, **more: Any) -> list[dict[str, Any]]:
    items = [{"completion": c, "reference": 3} for c in completions]
    answer = client.post("/score", json={"grader": "mine", "items": items, **more})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["scores"]
    return found


def test_a_function_is_registered_scores_and_says_how_well_it_repeats(client: TestClient) -> None:
    made = client.post("/graders", json=registration(LENGTH, CASES))
    assert made.status_code == 201, made.text
    same = {"runs": 3, "cases": 2, "differing": 0, "largest_difference": 0.0}
    assert made.json()["repeatability"] == same
    shown = client.get("/graders/mine/versions/1").json()
    assert shown["repeatability"] == same
    good, bad, boom = score(client, "abc", "ab", "boom")
    assert (good["reward"], bad["reward"], boom["reward"]) == (1.0, 0.0, 0.0)
    assert good["components"] == {"length": 3.0}
    assert "RuntimeError: no" in boom["raw"]["traceback"]
    assert (good["grader"]["name"], good["grader"]["version"]) == ("mine", 1)


def test_golden_cases_decide(client: TestClient) -> None:
    wrong = [{"completion": "abc", "reference": 3, "expect": {"reward": 0}}]
    refused = client.post("/graders", json=registration(LENGTH, wrong))
    assert refused.status_code == 422
    assert client.get("/graders/mine").status_code == 404
    broken = client.post("/graders", json=registration("def grade(:", []))
    assert broken.status_code == 422
    assert "line 1" in broken.text


COUNTING = """
import os
def grade(completion):
    return 1.0 + int.from_bytes(os.urandom(4), "little") / 2**32
"""


def test_rewards_that_differ_are_measured_and_not_reused(client: TestClient) -> None:
    cases = [{"completion": "x", "expect": {"min_reward": 0.5}}]
    made = client.post("/graders", json=registration(COUNTING, cases)).json()
    assert made["repeatability"]["differing"] == 1
    assert 0 < made["repeatability"]["largest_difference"] < 1
    first, second = (score(client, "x")[0]["reward"] for _ in range(2))
    assert first != second
    said = client.post("/graders", json=registration(COUNTING, cases, deterministic=True))
    assert said.status_code == 422
    assert "deterministic" in said.text
    whole = {"combine": "weighted_sum", "parts": [{"name": "a", "grader": "mine", "weight": 1}]}
    parts = {"name": "whole", "kind": "composite", "config": whole}
    assert client.post("/graders", json=parts).status_code == 201
    one, other = (score(client, "x", grader="whole")[0]["reward"] for _ in range(2))
    assert one != other


def test_a_deterministic_one_is_reused(client: TestClient) -> None:
    made = client.post("/graders", json=registration(LENGTH, CASES, deterministic=True))
    assert made.status_code == 201, made.text
    assert [score(client, "abc")[0]["cached"] for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("signature", "source", "column"),
    [
        ("trl", "def reward(completions, solution, **kwargs):\n"
                "    return [float(c == s) for c, s in zip(completions, solution)]\n", "solution"),
        ("verl", "def reward(data_source, solution_str, ground_truth, extra_info=None):\n"
                 "    return float(solution_str == ground_truth)\n", None),
        ("openrlhf", "def reward(queries, prompts, labels, **kwargs):\n"
                     "    return {'rewards': [float(q.endswith(l)) for q, l in zip(queries, labels)]}\n", None),
    ],
)  # fmt: skip
def test_a_trainers_reward_function_is_imported(
    tmp_path: Path, signature: str, source: str, column: str | None
) -> None:
    cli = Cli(tmp_path)
    (tmp_path / "my_rewards.py").write_text(source)
    cases = cli.file(
        "cases.jsonl",
        {"completion": "4", "reference": "4", "expect": {"reward": 1}},
        {"completion": "5", "reference": "4", "expect": {"reward": 0}},
    )
    said = cli("graders", "import", "my_rewards:reward", "--signature", signature, "--cases", cases)
    assert "reward@1 active" in said
    assert "0 of 2 cases differ" in said
    shown = cli("graders", "show", "reward")
    assert f'"signature": "{signature}"' in shown
    assert column is None or f'"reference_as": "{column}"' in shown
    saved = cli("graders", "import", "my_rewards.py:reward", "--signature", signature,
                "--name", "other", "--save", "other.json")  # fmt: skip
    assert "other.json" in saved
    assert "other@1 active" in cli("graders", "register", "other.json")
    assert "no module" in cli("graders", "import", "no_such:reward", expect=2)
    assert "does not define" in cli("graders", "import", "my_rewards:absent", expect=2)
