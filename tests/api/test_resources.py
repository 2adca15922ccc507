"""Graders, kinds, scores, runs, keys, health, metrics and the OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings as hypothesis_settings
from starlette.testclient import TestClient

from reward_server.app import create_app
from reward_server.settings import Settings
from reward_server.store.keys import KeyRing, Scope
from tests.conftest import serving

GSM: dict[str, Any] = {
    "name": "gsm",
    "kind": "exact",
    "config": {"compare": "number", "extract": {"regex": "A: *(.*)"}},
    "description": "The number after A:",
    "cases": [
        {"completion": "A: 3", "reference": "3", "expect": {"reward": 1}},
        {"completion": "3", "reference": "3", "expect": {"max_reward": 0}},
        {"completion": "A: 3", "reference": "?", "expect": {"status": "unscored"}},
    ],
}


def test_registering_says_what_was_made(client: TestClient) -> None:
    made = client.post("/graders", json=GSM)
    assert made.status_code == 201
    body = made.json()
    assert (body["name"], body["version"], body["active"]) == ("gsm", 1, True)
    assert [c["passed"] for c in body["cases"]] == [True] * 3
    again = client.post("/graders", json=GSM)
    assert again.status_code == 200
    assert again.json()["version"] == 1


def test_a_failing_golden_case_registers_nothing(client: TestClient) -> None:
    wrong = [*GSM["cases"], {"completion": "A: 4", "reference": "3", "expect": {"min_reward": 1}}]
    response = client.post("/graders", json=GSM | {"name": "bad", "cases": wrong})
    assert response.status_code == 422
    (error,) = response.json()["errors"]
    assert (error["item"], error["field"]) == (3, "cases.3")
    assert "at least 1" in error["detail"]
    assert client.get("/graders/bad").status_code == 404


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "a b"}, "name"),
        ({"name": ""}, "name"),
        ({"kind": "nothing"}, "kind"),
        ({"config": {"extract": {"regex": "("}}}, "config.extract"),
        ({"config": {"compare": "sorcery"}}, "config.compare"),
        ({"cases": [{"completion": "x", "expect": {}}]}, "cases.0.expect"),
        ({"cases": [{"completion": "x", "expect": {"reward": 1}}]}, "cases.0.reference"),
        ({"cases": [GSM["cases"][0]] * 300}, "cases"),
        ({"typo": 1}, "typo"),
    ],
)
def test_a_bad_registration_names_the_field(
    client: TestClient, change: dict[str, Any], field: str
) -> None:
    response = client.post("/graders", json=GSM | change)
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == field


def test_versions_are_listed_and_shown(client: TestClient) -> None:
    client.post("/graders", json=GSM)
    client.post(
        "/graders", json=GSM | {"config": {"compare": "json"}, "cases": [], "activate": False}
    )
    (summary,) = [g for g in client.get("/graders").json()["graders"] if g["name"] == "gsm"]
    assert (summary["active_version"], summary["versions"], summary["kind"]) == (1, 2, "exact")
    versions = client.get("/graders/gsm").json()["versions"]
    assert [(v["version"], v["active"]) for v in versions] == [(1, True), (2, False)]
    one = client.get("/graders/gsm/versions/1").json()
    assert one["config"] == GSM["config"]
    assert one["cases"] == GSM["cases"]
    assert one["ingredients"]["libraries"].keys() == {"google-re2"}
    assert one["runnable"] is True
    for missing in ("/graders/gsm/versions/3", "/graders/no", "/graders/gsm/versions/0"):
        assert client.get(missing).status_code == 404


def test_kinds_say_what_they_take(client: TestClient) -> None:
    kinds = {k["kind"]: k for k in client.get("/kinds").json()["kinds"]}
    assert kinds.keys() >= {"exact", "format", "composite"}
    assert kinds["exact"]["available"] is True
    assert "compare" in kinds["exact"]["config_schema"]["properties"]


def test_scores_are_listed_filtered_paged_and_exported(client: TestClient) -> None:
    client.post("/graders", json=GSM)
    items = [
        {"completion": f"A: {n}", "reference": "3", "group": f"q{n % 2}", "policy_version": n}
        for n in range(7)
    ]
    client.post("/score", json={"grader": "gsm", "run": "r", "step": 4, "items": items})
    page = client.get("/scores", params={"run": "r", "limit": 5}).json()
    assert len(page["scores"]) == 5
    rest = client.get("/scores", params={"run": "r", "cursor": page["next_cursor"]}).json()
    assert len(rest["scores"]) == 2
    assert rest["next_cursor"] is None
    assert len(client.get("/scores", params={"group": "q1"}).json()["scores"]) == 3
    (one,) = client.get("/scores", params={"policy_version": 3, "items": True}).json()["scores"]
    assert one["reward"] == 1.0
    assert one["item"] == {"completion": "A: 3", "reference": "3"}
    assert (one["run"], one["step"], one["group"]) == ("r", 4, "q1")
    lines = client.get("/scores", headers={"accept": "application/x-ndjson"}).text.splitlines()
    assert [json.loads(line)["policy_version"] for line in lines] == list(range(7))
    shown = client.get(f"/scores/{one['score_id']}").json()
    assert shown == one
    for missing in ("0", "abc", "9" * 19, "9" * 30, "-1"):
        assert client.get(f"/scores/{missing}").status_code == 404


@pytest.mark.parametrize(
    "params",
    [
        {"limit": 0},
        {"limit": 1001},
        {"cursor": "x"},
        {"since": "yesterday"},
        {"grader": "@@"},
        {"status": "good"},
        {"policy_version": -1},
        {"policy_version": 2**70},
        {"run": "a\0b"},
    ],
)
def test_bad_parameters_are_refused(client: TestClient, params: dict[str, Any]) -> None:
    response = client.get("/scores", params=params)
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"


def test_runs_are_declared_once(client: TestClient) -> None:
    run = {
        "name": "exp/7",
        "config": {"lr": 1e-6},
        "graders": ["exact"],
        "heldout_grader": "format_think",
    }
    assert client.post("/runs", json=run).status_code == 201
    assert client.post("/runs", json=run).status_code == 200
    assert client.post("/runs", json=run | {"config": {}}).status_code == 409
    assert client.post("/runs", json={"name": "x", "graders": ["nobody"]}).status_code == 404
    shown = client.get("/runs").json()["runs"][0]
    assert shown["graders"].keys() == {"exact", "format_think"}
    assert shown["config"] == {"lr": 1e-6}
    assert client.get("/runs/none").status_code == 404


def test_health_readiness_and_metrics(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").status_code == 200
    client.post(
        "/score", json={"grader": "exact", "items": [{"completion": "a", "reference": "a"}]}
    )
    text = client.get("/metrics").text
    assert 'reward_scores_total{basis="verdict"}' in text
    assert 'reward_request_seconds_count{status="2xx"} 1.0' in text
    assert "reward_workers 2.0" in text


def test_unknown_paths_and_methods_are_problems(client: TestClient) -> None:
    for response in (client.get("/nothing"), client.delete("/graders"), client.get("/score")):
        assert response.status_code in (404, 405)
        assert response.headers["content-type"] == "application/problem+json"


def test_a_foreign_host_name_is_refused_without_keys(client: TestClient) -> None:
    for path in ("/graders", "/scores", "/metrics"):
        assert client.get(path, headers={"host": "evil.example"}).status_code == 403
    body = {"grader": "exact", "items": [{"completion": "a", "reference": "a"}]}
    assert client.post("/score", json=body, headers={"host": "evil.example:80"}).status_code == 403
    assert client.post("/score", json=body, headers={"host": "localhost:8080"}).status_code == 200
    assert client.post("/score", json=body, headers={"host": "[::1]:8080"}).status_code == 200


@pytest.fixture
def keyed(settings: Settings) -> Iterator[tuple[TestClient, KeyRing]]:
    with serving(settings) as client:
        ring: KeyRing = client.app.state.host.keys  # type: ignore[attr-defined]
        yield client, ring


def test_once_there_is_a_key_every_request_needs_one(keyed: tuple[TestClient, KeyRing]) -> None:
    client, ring = keyed
    _, scorer = ring.create("scorer", [Scope.SCORE])
    _, reader = ring.create("reader", [Scope.READ])
    _, admin = ring.create("admin", [Scope.ADMIN])
    body = {"grader": "exact", "items": [{"completion": "a", "reference": "a"}]}

    def statuses(token: str | None) -> list[int]:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return [
            client.post("/score", json=body, headers=headers).status_code,
            client.get("/scores", headers=headers).status_code,
            client.post("/graders", json=GSM, headers=headers).status_code,
        ]

    assert statuses(None) == [401, 401, 401]
    assert statuses("rsk_wrong") == [401, 401, 401]
    assert statuses(scorer) == [200, 403, 403]
    assert statuses(reader) == [403, 200, 403]
    assert statuses(admin) == [200, 200, 201]
    assert client.get("/healthz").status_code == 200


def test_the_openapi_document_describes_the_bodies(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    body = document["paths"]["/score"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"] == {"$ref": "#/components/schemas/ScoreRequest"}
    assert "Item" in document["components"]["schemas"]
    assert client.get("/docs").status_code == 200


def test_no_request_made_from_the_openapi_document_is_a_5xx(settings: Settings) -> None:
    app = create_app(settings)
    with TestClient(app, base_url="http://127.0.0.1"):
        schema = schemathesis.openapi.from_asgi("/openapi.json", app)
        results: list[Any] = list(schema.get_all_operations())
        operations = [r.ok() for r in results]
        assert len(operations) >= 12
        for operation in operations:

            @hypothesis_settings(
                max_examples=25,
                deadline=None,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def check(case: Any) -> None:
                response = case.call(headers={"host": "127.0.0.1"})
                assert response.status_code < 500, response.text

            from hypothesis import given  # noqa: PLC0415

            given(case=operation.as_strategy())(check)()
