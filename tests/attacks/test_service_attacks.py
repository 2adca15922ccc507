"""Requests made to hurt the service: refused, cheap, and gone without a trace."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from reward_server.engine.base import Finished, Work
from reward_server.host import running
from reward_server.outcome import FailureKind, Unscored
from reward_server.problems import Unavailable
from reward_server.registry import lifecycle
from reward_server.schema import Case, Expectation, ScoreRequest
from reward_server.scoring.desk import Ask
from reward_server.settings import Settings
from reward_server.store import migrate, servers
from reward_server.store.database import Database
from tests import hostile
from tests.conftest import serving
from tests.faults.server import LiveServer, live, register

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("data"), workers=1)
    with serving(settings, catalog=hostile.PATH) as started:
        yield started


@pytest.mark.parametrize(
    "body",
    [
        '{"grader":"exact","items":[' + "1," * 2_000_000 + "1]}",
        '{"grader":"exact","items":[{"completion":[' + "1," * 2_000_000 + "1]}]}",
        '{"grader":"exact","items":[{"completion":"x","prompt":[' + "{}," * 900_000 + "{}]}]}",
        '{"grader":"exact","items":[{"completion":"x",'
        + ",".join(f'"k{n}":0' for n in range(600_000))
        + "}]}",
        '{"items":' + '{"a":' * 150_000 + "1" + "}" * 150_000 + "}",
    ],
    ids=["items", "messages", "prompt", "keys", "nesting"],
)
def test_a_body_made_of_errors_gets_a_short_answer(client: TestClient, body: str) -> None:
    for path in ("/score", "/graders", "/runs"):
        response = client.post(path, content=body, headers=JSON)
        assert 400 <= response.status_code < 500
        assert len(response.content) < 20_000


def test_a_composite_bomb_is_refused(client: TestClient) -> None:
    def wide(grader: str) -> dict[str, Any]:
        parts = [{"name": f"p{n}", "grader": grader} for n in range(32)]
        return {"kind": "composite", "config": {"parts": parts}}

    assert client.post("/graders", json={"name": "l1"} | wide("exact")).status_code == 201
    response = client.post("/graders", json={"name": "l2"} | wide("l1"))
    assert response.status_code == 422
    assert "1024 graders" in response.json()["detail"]


@pytest.mark.parametrize(
    "change",
    [
        {"description": "a\0b"},
        {"description": "\x1b[31m"},
        {"name": "a\0b"},
        {"config": {"extract": {"regex": "a" * 3000}}},
        {"config": {"extract": {"regex": "((a{1000}){1000}){1000}"}}},
        {"kind": "format", "config": {"sections": ["Step", "Step 2"]}},
        {"kind": "format", "config": {"sections": [" Lead"]}},
        {"kind": "format", "config": {"sections": ["A\u2028B"]}},
        {
            "kind": "composite",
            "config": {
                "parts": [{"name": "a", "grader": "exact"}],
                "overlong": {"max_tokens": 10**400, "buffer_tokens": 1},
            },
        },
    ],
)
def test_hostile_registrations_are_refused(client: TestClient, change: dict[str, Any]) -> None:
    response = client.post("/graders", json={"name": "x", "kind": "exact"} | change)
    assert response.status_code == 422


def test_a_reference_that_would_eat_the_cpu_is_not_the_completions_fault(
    client: TestClient,
) -> None:
    piled = "a" + "\u0301\u0316" * 60_000
    items = [{"completion": "x", "reference": piled}, {"completion": piled, "reference": "x"}]
    first, second = client.post("/score", json={"grader": "exact", "items": items}).json()["scores"]
    assert first["failure"]["kind"] == "invalid_reference"
    assert second["reward"] == 0.0


def test_nothing_holds_a_request_alive_when_it_is_answered(settings: Settings) -> None:
    async def main() -> int:
        async with running(settings) as host:
            gc.collect()
            gc.disable()
            try:
                for n in range(3):
                    items = [{"completion": f"{n} {i}", "reference": "1"} for i in range(50)]
                    body = json.dumps({"grader": "exact", "items": items})
                    await host.service.score(ScoreRequest.model_validate_json(body))
                return sum(isinstance(o, Ask) for o in gc.get_objects())
            finally:
                gc.enable()

    assert asyncio.run(main()) == 0


def test_golden_cases_that_our_own_trouble_fails_are_no_verdict_on_the_grader(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with running(settings) as host:

            def lose(work: Work) -> None:
                lost = Unscored(FailureKind.WORKER_LOST, "lost")
                work.done(Finished(lost, 0.0, 1))

            monkeypatch.setattr(host.service.engine, "submit", lose)
            draft = host.registry.draft("exact", {"ignore_case": True})
            case = Case(completion="a", reference="a", expect=Expectation(status="unscored"))
            with pytest.raises(Unavailable):
                await host.service.run_cases(draft, [case])
            assert await lifecycle.follow_parts(host.registry, host.service.run_cases) == []

    asyncio.run(main())


def test_servers_that_run_together_have_different_nodes(database_url: str) -> None:
    database = Database(database_url)
    migrate.upgrade(database)

    def start(_: int) -> servers.Started:
        return servers.record_start(database, host="h", release="r", observed={}, digest="d")

    with ThreadPoolExecutor(8) as pool:
        started = list(pool.map(start, range(40)))
    assert len({s.node for s in started}) == 40
    for one in started:
        servers.still_here(database, one.server_id, ended=True)
    database.close()


@pytest.fixture
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("data")
    with live(folder, REWARD_MAX_QUEUED_ITEMS="2000") as server:
        register(server, "number", compare="number")
        yield server


def test_readers_that_do_not_read_hold_no_place(small: LiveServer) -> None:
    host, port = small.url.removeprefix("http://").split(":")
    items = [{"completion": f"{n} {'x' * 500}", "reference": "1"} for n in range(2000)]
    content = json.dumps({"grader": "number", "items": items}).encode()
    with socket.create_connection((host, int(port))) as lazy:
        lazy.sendall(
            b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Accept: application/x-ndjson\r\nContent-Length: %d\r\n\r\n" % len(content) + content
        )
        one = {"grader": "number", "items": [{"completion": "1", "reference": "1"}]}
        for _ in range(200):
            if httpx.post(small.url + "/score", json=one).status_code == 200:
                break
            threading.Event().wait(0.1)
        else:
            pytest.fail("a reader that does not read blocks everybody")


def test_a_resend_after_its_first_sender_left_is_answered(small: LiveServer) -> None:
    register(small, "slow", compare="number", extract={"regex": r"1(.*b)?"})
    host, port = small.url.removeprefix("http://").split(":")
    for n in range(8):
        items = [{"completion": f"{n}" + "1a" * 9000, "reference": "1"}]
        body = {"grader": "slow", "idempotency_key": f"k{n}", "items": items}
        content = json.dumps(body).encode()
        with socket.create_connection((host, int(port))) as leaving:
            leaving.sendall(
                b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % len(content) + content
            )
            threading.Event().wait(0.26 + 0.002 * n)
        response = httpx.post(small.url + "/score", content=content, headers=JSON, timeout=60)
        assert response.status_code == 200
