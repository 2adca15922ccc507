"""``POST /score``: the contract, through the public interface."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from reward_server.schema import ScoreResponse
from reward_server.settings import Settings
from tests import hostile
from tests.conftest import serving

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """One service for the whole module; tests use names of their own."""
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("data"), workers=2, max_completion_chars=1_000_000
    )
    with serving(settings, catalog=hostile.PATH) as started:
        register(started, "number", "exact", compare="number", extract={"regex": "A: *(.*)"})
        register(started, "hostile", "hostile")
        register(
            started,
            "costly",
            "composite",
            parts=[{"name": "right", "grader": "number"}],
            length_cost={"per_1000_tokens": 0.1},
        )
        yield started


def register(client: TestClient, name: str, kind: str, **config: Any) -> dict[str, Any]:
    body = {"name": name, "kind": kind, "config": config}
    response = client.post("/graders", json=body)
    assert response.status_code in (200, 201), response.text
    answer: dict[str, Any] = response.json()
    return answer


def score(client: TestClient, *items: dict[str, Any], **request: Any) -> Any:
    body = {"grader": "number", "items": list(items)} | request
    return client.post("/score", json=body)


def right(**fields: Any) -> dict[str, Any]:
    return {"completion": "so\nA: 26", "reference": "26"} | fields


def test_a_reply_has_every_field_of_the_contract(client: TestClient) -> None:
    response = score(client, right(id="q1/0"), right(completion="A: 27"))
    assert response.status_code == 200
    reply = ScoreResponse.model_validate(response.json())
    first, second = reply.scores
    assert (first.index, first.id, first.status, first.reward) == (0, "q1/0", "scored", 1.0)
    assert (second.index, second.id, second.reward) == (1, None, 0.0)
    assert first.components == {"correct": 1.0}
    assert first.grader.name == "number"
    assert first.grader.version == 1
    assert first.grader.digest.startswith("sha256:")
    assert first.environment.startswith("sha256:")
    assert first.raw["extracted"] == "26"
    assert first.failure is None
    assert reply.summary.model_dump() == {"scored": 2, "unscored": 0, "mean_reward": 0.5}


def test_an_item_can_name_its_own_grader(client: TestClient) -> None:
    reply = score(client, right(), {"completion": "x", "reference": "x", "grader": "exact@1"})
    assert [s["grader"]["name"] for s in reply.json()["scores"]] == ["number", "exact"]


def test_items_fail_alone(client: TestClient) -> None:
    items = [right(), right(reference="many"), right(finish_reason="tool_error"), right()]
    scores = score(client, *items).json()["scores"]
    assert [s["reward"] for s in scores] == [1.0, None, None, 1.0]
    assert scores[1]["failure"]["kind"] == "invalid_reference"
    assert scores[1]["failure"]["retryable"] is False
    assert scores[2]["failure"]["kind"] == "environment_error"


def test_a_failed_rollout_does_not_speak_for_an_equal_item(client: TestClient) -> None:
    item = right(completion="twin A: 26")
    scores = score(client, item, item | {"finish_reason": "tool_error"}).json()["scores"]
    assert [s["reward"] for s in scores] == [1.0, None]
    (again,) = score(client, item).json()["scores"]
    assert (again["reward"], again["cached"]) == (1.0, True)


def test_an_equal_item_is_answered_from_its_grading(client: TestClient) -> None:
    item = right(completion="equal A: 26")
    first, second = score(client, item, item).json()["scores"]
    assert (first["cached"], second["cached"]) == (False, True)
    (again,) = score(client, item | {"id": "other", "prompt": "unread"}).json()["scores"]
    assert again["cached"] is True
    assert again["score_id"] != first["score_id"]
    (never,) = score(client, item, reuse="never").json()["scores"]
    assert never["cached"] is False
    for one in (second, again, never):
        for field in ("reward", "components", "raw", "grader"):
            assert one[field] == first[field]


def test_an_earlier_grading_is_found_after_a_restart_and_stored_once(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, workers=1)
    parts = [{"name": "p", "grader": "exact"}]
    replies = []
    for _ in range(2):
        with serving(settings) as client:
            register(client, "whole", "composite", parts=parts)
            items = [
                {"completion": "a", "reference": "a"},
                {"completion": "b", "reference": "a"},
                {"completion": "c", "reference": "?", "grader": "whole"},
            ]
            replies.append(score(client, *items, grader="exact").json()["scores"])
            lines = client.get("/scores", headers={"accept": "application/x-ndjson"}).text
    first, second = replies
    assert [s["cached"] for s in first] == [False] * 3
    assert [s["cached"] for s in second] == [True] * 3
    for before, after in zip(first, second, strict=True):
        assert {k: before[k] for k in ("reward", "raw", "elapsed_ms")} == {
            k: after[k] for k in ("reward", "raw", "elapsed_ms")
        }
    stored = [json.loads(line) for line in lines.split("\n") if line]
    assert len(stored) == 6
    assert len({s["grading_id"] for s in stored}) == 3
    assert [s["cached"] for s in stored] == [False] * 3 + [True] * 3


def test_limits_and_losses_are_not_reused(client: TestClient) -> None:
    item = {"completion": "reuse recurse", "grader": "hostile"}
    for _ in range(2):
        (one,) = score(client, item).json()["scores"]
        assert one["reward"] == 0.0
        assert one["raw"]["outcome"] == "memory_limit"
        assert one["cached"] is False


def test_only_the_assistants_words_are_graded(client: TestClient) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": [{"type": "text", "text": "calling"}], "tool_calls": []},
        {"role": "tool", "content": "A: 26"},
        {"role": "assistant", "content": "I do not know"},
    ]
    (one,) = score(client, right(completion=messages)).json()["scores"]
    assert one["reward"] == 0.0
    messages[2]["content"] = "A: 26"
    (one,) = score(client, right(completion=messages)).json()["scores"]
    assert one["reward"] == 1.0


def test_a_length_cost_without_tokens_is_refused_with_the_item(client: TestClient) -> None:
    ok, missing = right(grader="costly", tokens=3000), right(grader="costly")
    response = score(client, ok, missing)
    assert response.status_code == 422
    assert response.json()["errors"] == [
        {"item": 1, "field": "items.1.tokens", "detail": "grader costly@1 needs tokens"}
    ]
    (one,) = score(client, ok).json()["scores"]
    assert one["reward"] == pytest.approx(0.7)
    assert one["components"] == {"right": 1.0, "task": 1.0, "length_cost": pytest.approx(-0.3)}


def test_an_unscored_part_leaves_the_whole_unscored(client: TestClient) -> None:
    (one,) = score(client, right(grader="costly", tokens=1, reference="?")).json()["scores"]
    assert one["status"] == "unscored"
    assert one["failure"]["kind"] == "invalid_reference"
    assert "right" in one["failure"]["detail"]


def test_a_stream_gives_each_score_a_line_and_the_summary_last(client: TestClient) -> None:
    items = [right(completion=f"{n} A: 26") for n in range(20)]
    response = client.post(
        "/score",
        json={"grader": "number", "items": items},
        headers={"accept": "application/x-ndjson"},
    )
    assert response.headers["content-type"] == "application/x-ndjson"
    *lines, last = [json.loads(line) for line in response.text.splitlines()]
    assert sorted(line["index"] for line in lines) == list(range(20))
    assert last == {"summary": {"scored": 20, "unscored": 0, "mean_reward": 1.0}}


def test_a_stream_does_not_wait_for_the_slowest(client: TestClient) -> None:
    body = {
        "grader": "hostile",
        "items": [{"completion": "stream sleep"}, *({"completion": f"{n} ok"} for n in range(3))],
    }
    response = client.post("/score", json=body, headers={"accept": "application/x-ndjson"})
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert lines[-2]["index"] == 0
    assert lines[-2]["raw"]["outcome"] == "wall_limit"


def test_a_refused_stream_is_a_problem_with_its_own_status(client: TestClient) -> None:
    response = client.post(
        "/score",
        json={"grader": "nobody", "items": [right()]},
        headers={"accept": "application/x-ndjson"},
    )
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"


def test_an_idempotent_resend_has_the_same_scores(client: TestClient) -> None:
    items = [right(completion="idem A: 26"), right(completion="idem A: 1")]
    first = score(client, *items, idempotency_key="k1").json()
    again = score(client, *items, idempotency_key="k1").json()
    assert again == first
    other = score(client, items[0], idempotency_key="k1")
    assert other.status_code == 422
    assert other.json()["errors"][0]["field"] == "idempotency_key"


def test_key_order_and_spacing_do_not_make_another_body(client: TestClient) -> None:
    one = (
        '{"grader":"number","idempotency_key":"k2","items":[{"completion":"A: 1","reference":"1"}]}'
    )
    two = '{"items": [{"reference": "1", "completion": "A: 1"}], "idempotency_key": "k2", "grader": "number"}'  # fmt: skip
    replies = [client.post("/score", content=c, headers=JSON).json() for c in (one, two)]
    assert replies[0] == replies[1]


def test_a_resend_grades_only_what_was_unscored(client: TestClient) -> None:
    items = [right(completion="part A: 26"), right(completion="part", reference="?")]
    first = score(client, *items, idempotency_key="k3").json()["scores"]
    again = score(client, *items, idempotency_key="k3").json()["scores"]
    assert again[0] == first[0]
    assert again[1]["status"] == "unscored"
    assert again[1]["score_id"] != first[1]["score_id"]


def test_a_resend_in_flight_joins_the_request_that_runs(client: TestClient) -> None:
    items = [{"completion": f"join {n} slow"} for n in range(10)]
    body = {"grader": "hostile", "items": items, "idempotency_key": "k4"}
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: client.post("/score", json=body).json(), range(4)))
    assert all(r == replies[0] for r in replies)
    stored = client.get("/scores", params={"grader": "hostile", "limit": 1000, "items": True})
    mine = [s for s in stored.json()["scores"] if s["item"]["completion"].startswith("join ")]
    assert len(mine) == 10


def test_equal_items_in_flight_share_one_grading(client: TestClient) -> None:
    def send(n: int) -> Any:
        return client.post(
            "/score", json={"grader": "hostile", "items": [{"completion": "shared slow"}]}
        ).json()["scores"][0]

    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(send, range(8)))
    assert sum(not r["cached"] for r in replies) == 1
    stored = client.get("/scores", params={"grader": "hostile", "limit": 1000, "items": True})
    mine = [s for s in stored.json()["scores"] if s["item"]["completion"] == "shared slow"]
    assert len({s["grading_id"] for s in mine}) == 1
    assert len(mine) == 8


def test_a_run_pins_a_bare_name_at_its_first_use(client: TestClient) -> None:
    register(client, "pinned", "exact", compare="number")
    item = {"completion": "5.0", "reference": "5"}
    body = {"grader": "pinned", "items": [item]}
    assert client.post("/score", json=body | {"run": "old"}).json()["scores"][0]["reward"] == 1.0
    register(client, "pinned", "exact", compare="string")
    for run, version, reward in (("old", 1, 1.0), ("new", 2, 0.0), (None, 2, 0.0)):
        (one,) = client.post("/score", json=body | {"run": run}).json()["scores"]
        assert (one["grader"]["version"], one["reward"]) == (version, reward)
    (pinned,) = client.post(
        "/score", json={"grader": "pinned@1", "run": "new", "items": [item]}
    ).json()["scores"]
    assert pinned["grader"]["version"] == 1
    run = client.get("/runs/old").json()
    assert run["graders"]["pinned"]["version"] == 1


def test_a_deadline_that_no_item_could_start_within_is_refused(client: TestClient) -> None:
    response = score(client, right(), deadline_s=0.5)
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "deadline_s"


def test_an_item_that_cannot_start_in_time_is_unscored_and_retryable(client: TestClient) -> None:
    items = [{"completion": f"{n} late sleep"} for n in range(6)]
    scores = score(client, *items, grader="hostile", deadline_s=0.5).json()["scores"]
    late = [s for s in scores if s["status"] == "unscored"]
    assert late
    assert late[0]["failure"] == {
        "kind": "deadline_exceeded",
        "detail": "too little time was left to start grading",
        "retryable": True,
    }


def test_a_refused_request_makes_no_run(client: TestClient) -> None:
    assert score(client, {"completion": "x"}, run="ghost").status_code == 422
    assert client.get("/runs/ghost").status_code == 404


def test_a_batch_over_the_queue_is_refused_and_a_full_queue_says_when_to_retry(
    tmp_path: Path,
) -> None:
    settings = Settings(data_dir=tmp_path, workers=1, max_queued_items=4)
    with serving(settings, catalog=hostile.PATH) as client:
        register(client, "hostile", "hostile")
        items = [{"completion": f"{n} ok", "grader": "hostile"} for n in range(5)]
        assert client.post("/score", json={"items": items}).status_code == 413
        slow = {"items": [{"completion": f"{n} sleep", "grader": "hostile"} for n in range(3)]}
        thread = threading.Thread(target=lambda: client.post("/score", json=slow))
        thread.start()
        while "reward_queued_items 3.0" not in client.get("/metrics").text:
            assert thread.is_alive()
        response = client.post("/score", json={"items": items[:2]})
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        thread.join()
        assert client.post("/score", json={"items": items[:4]}).status_code == 200


NESTED = "[" * 100_000 + "]" * 100_000
MALFORMED: list[tuple[bytes, dict[str, str], int, str | None]] = [
    (b"", JSON, 400, None),
    (b"{", JSON, 400, None),
    (b"\xff\xfe", JSON, 400, None),
    (b'{"items":[{"completion":"\xff"}]}', JSON, 400, None),
    (b"[]", JSON, 422, "body"),
    (b"null", JSON, 422, "body"),
    (b"{}", JSON, 422, "items"),
    (b'{"items":[]}', JSON, 422, "items"),
    (b'{"items":[{}]}', JSON, 422, "items.0.completion"),
    (b'{"grader":"number","items":[{"completion":3}]}', JSON, 422, "items.0.completion"),
    (b'{"items":[{"completion":"x"}]}', JSON, 422, "items.0.grader"),
    (b'{"grader":"number","items":[{"completion":"x"}]}', JSON, 422, "items.0.reference"),
    (b'{"grader":"number","items":[{"completion":"x","reference":[]}]}', JSON, 422, "items.0.reference"),
    (b'{"grader":"number","items":[{"completion":[]}]}', JSON, 422, "items.0.completion"),
    (b'{"grader":"number","itms":[]}', JSON, 422, None),
    (b'{"grader":"number","items":[{"completion":"x","refrence":1}]}', JSON, 422, "items.0.refrence"),
    (b'{"grader":"a b","items":[{"completion":"x"}]}', JSON, 422, "grader"),
    (b'{"grader":"nobody","items":[{"completion":"x"}]}', JSON, 404, "grader"),
    (b'{"grader":"number@9","items":[{"completion":"x"}]}', JSON, 404, "grader"),
    (b'{"grader":"number","run":"a\\u0000b","items":[{"completion":"x","reference":1}]}', JSON, 422, "run"),
    (b'{"grader":"number","items":[{"completion":"x","reference":1,"metadata":{"a":NaN}}]}', JSON, 422, "items.0.metadata"),
    (b'{"grader":"exact","items":[{"completion":"x","reference":NaN}]}', JSON, 422, "items.0.reference"),
    (b'{"grader":"exact","items":[{"completion":"x","reference":1e999}]}', JSON, 422, "items.0.reference"),
    (b'{"deadline_s":Infinity,"grader":"exact","items":[{"completion":"x","reference":"x"}]}', JSON, 422, "deadline_s"),
    (b'{"grader":"number","items":[{"completion":"x","reference":1,"tokens":1e99}]}', JSON, 422, "items.0.tokens"),
    (b'{"grader":"number","items":[{"completion":"x","reference":1,"tokens":"3"}]}', JSON, 422, "items.0.tokens"),
    (b'{"grader":"number","items":[{"completion":"x","reference":1,"group_size":8}]}', JSON, 422, "items.0.group_size"),
    (b'{"items":' + NESTED.encode() + b"}", JSON, 400, None),
    (b'{"grader":"exact","items":[{"completion":"x","reference":' + NESTED.encode() + b"}]}", JSON, 400, None),
    (b'{"grader":"exact","items":[{"completion":"\\ud800","reference":' + NESTED.encode() + b"}]}", JSON, 400, None),
    (b'{"grader":"number","items":[{"completion":"' + b"x" * 10_000_000 + b'","reference":1}]}', JSON, 422, "items.0.completion"),
    (b"{}", {"content-type": "text/plain"}, 415, None),
    (b"{}", {}, 415, None),
    (b"{}", {"content-type": "application/json; charset=latin-1"}, 415, None),
    (b"{}", JSON | {"content-encoding": "br"}, 415, None),
    (b"{}", JSON | {"content-encoding": "gzip"}, 400, None),
    (gzip.compress(b"{}")[:-4], JSON | {"content-encoding": "gzip"}, 400, None),
    (gzip.compress(b" " * 200_000_000), JSON | {"content-encoding": "gzip"}, 413, None),
    (b" " * (65 << 20), JSON, 413, None),
    (b"{}", JSON | {"accept": "image/png"}, 406, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "headers", "status", "field"), MALFORMED, ids=range(len(MALFORMED))
)
def test_every_malformed_body_is_a_4xx_that_names_what_is_wrong(
    client: TestClient, body: bytes, headers: dict[str, str], status: int, field: str | None
) -> None:
    response = client.post("/score", content=body, headers=headers)
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == status
    assert problem["detail"]
    if field is not None:
        assert problem["errors"][0]["field"] == field
        if field.startswith("items."):
            assert problem["errors"][0]["item"] == 0
    assert len(response.content) < 10_000


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ('"A: 26\\ud800"', 0.0),
        ('"\\udfff A: 26"', 1.0),
        ('"\\u0000 A: 26"', 1.0),
        ('"\\ud83d\\ude00 A: 26"', 1.0),
        ('"\\ud83d\\ude00 \\ud83d A: 26"', 1.0),
    ],
)
def test_broken_text_in_one_completion_does_not_refuse_the_batch(
    client: TestClient, completion: str, reward: float
) -> None:
    body = (
        '{"grader":"number","items":[{"completion":' + completion + ',"reference":"26"},'
        '{"completion":"A: 26","reference":"26"}]}'
    )
    response = client.post("/score", content=body, headers=JSON)
    assert response.status_code == 200
    assert [s["reward"] for s in response.json()["scores"]] == [reward, 1.0]
    stored = client.get(f"/scores/{response.json()['scores'][0]['score_id']}").json()
    assert "26" in stored["item"]["completion"]


def test_a_compressed_body_is_read(client: TestClient) -> None:
    body = gzip.compress(json.dumps({"grader": "number", "items": [right()]}).encode())
    response = client.post("/score", content=body, headers=JSON | {"content-encoding": "gzip"})
    assert response.json()["summary"]["scored"] == 1


def test_numbers_of_any_size_are_kept(client: TestClient) -> None:
    reference = 10**400 // 3
    item = {"completion": f"A: {reference}", "reference": reference, "metadata": {"n": reference}}
    response = client.post(
        "/score", json={"grader": "exact", "items": [item | {"completion": str(reference)}]}
    )
    assert response.json()["scores"][0]["reward"] == 1.0


def test_many_errors_are_all_named(client: TestClient) -> None:
    response = score(client, right(), {"completion": "a"}, right(), {"completion": "b"})
    assert [e["item"] for e in response.json()["errors"]] == [1, 3]
