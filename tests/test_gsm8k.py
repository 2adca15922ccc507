"""The main job on real input: thousands of real model outputs, scored and stored with versions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.conftest import DATA

SOLUTIONS = DATA / "gsm8k_solutions.jsonl"
GRADER = {
    "name": "gsm8k_answer",
    "kind": "exact",
    "config": {"compare": "number", "extract": {"regex": r"A: *(.*)"}},
    "cases": [
        {"completion": "so 13*2 = 26\nA: 26", "reference": "26", "expect": {"reward": 1}},
        {"completion": "26", "reference": "26", "expect": {"reward": 0}},
    ],
}


@pytest.mark.skipif(not SOLUTIONS.exists(), reason="the public data set is not here")
def test_real_outputs_agree_with_their_labels_and_are_stored_with_their_version(
    client: TestClient,
) -> None:
    rows = [json.loads(line) for line in SOLUTIONS.read_text().split("\n") if line]
    registered = client.post("/graders", json=GRADER).json()
    items = [{k: r[k] for k in ("prompt", "completion", "reference")} for r in rows]

    def scored(run: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for start in range(0, len(items), 256):
            body = {"grader": "gsm8k_answer", "run": run, "items": items[start : start + 256]}
            found += client.post("/score", json=body).json()["scores"]
        return found

    first, again, other = scored("one"), scored("one"), scored("two")
    agree = sum((s["reward"] == 1.0) == r["is_correct"] for s, r in zip(first, rows, strict=True))
    assert agree / len(rows) >= 0.99
    for repeat in (again, other):
        assert [s["reward"] for s in repeat] == [s["reward"] for s in first]
        assert all(s["cached"] for s in repeat)

    for run, times in (("one", 2), ("two", 1)):
        lines = client.get(
            "/scores", params={"run": run}, headers={"accept": "application/x-ndjson"}
        ).text.split("\n")
        stored = [json.loads(line) for line in lines if line]
        assert len(stored) == times * len(rows)
        assert {s["grader"]["digest"] for s in stored} == {registered["digest"]}
        assert {s["grader"]["version"] for s in stored} == {1}
