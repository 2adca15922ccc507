"""A real server under load, and what goes wrong in real life."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import need
from tests.faults.server import LiveServer, body, live, register

JSON = {"content-type": "application/json"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with live(tmp_path / "data") as started:
        register(started, "number", compare="number", extract={"regex": "A: *(.*)"})
        yield started


def post(server: LiveServer, content: bytes, **headers: str) -> httpx.Response:
    return httpx.post(server.url + "/score", content=content, headers=JSON | headers, timeout=60)


def stored(server: LiveServer, **params: Any) -> list[dict[str, Any]]:
    response = httpx.get(
        server.url + "/scores",
        params=params,
        headers={"accept": "application/x-ndjson"},
        timeout=60,
    )
    return [json.loads(line) for line in response.text.splitlines()]


def test_nothing_answered_is_lost_by_kill_9_and_a_resend_grades_nothing_twice(
    tmp_path: Path,
) -> None:
    answered: dict[int, list[dict[str, Any]]] = {}
    with live(tmp_path / "data") as first:
        register(first, "number", compare="number", extract={"regex": "A: *(.*)"})

        def send(number: int) -> None:
            try:
                response = post(first, body(number, 20, idempotency_key=f"k{number}"))
            except httpx.HTTPError:
                return  # not answered
            if response.status_code == 200:
                answered[number] = response.json()["scores"]

        with ThreadPoolExecutor(8) as pool:
            sending = [pool.submit(send, n) for n in range(400)]
            while len(answered) < 60:
                threading.Event().wait(0.01)
            children = first.children()
            first.kill()
            for future in sending:
                future.result()
        assert 60 <= len(answered) < 400
        deadline = time.monotonic() + 20
        while any(Path(f"/proc/{pid}/cwd").exists() for pid in children):
            assert time.monotonic() < deadline, "processes outlive their server"
            threading.Event().wait(0.05)

    with live(tmp_path / "data") as second:
        rows = {s["score_id"]: s for s in stored(second)}
        for scores in answered.values():
            for one in scores:
                assert rows[one["score_id"]]["reward"] == one["reward"]
                assert rows[one["score_id"]]["grader"] == one["grader"]
        before = len(rows)
        for number, scores in list(answered.items())[:20]:
            again = post(second, body(number, 20, idempotency_key=f"k{number}")).json()["scores"]
            assert [s["score_id"] for s in again] == [s["score_id"] for s in scores]
        assert len(stored(second)) == before
        # What was stored and not heard is not stored again either.
        heard = {s["score_id"] for scores in answered.values() for s in scores}
        unheard = {int(s["id"].split("/")[0]) for i, s in rows.items() if i not in heard}
        for number in unheard:
            post(second, body(number, 20, idempotency_key=f"k{number}")).raise_for_status()
        assert len(stored(second)) == before


def test_a_terminated_server_finishes_what_it_accepted(server: LiveServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        sending = [pool.submit(post, server, body(n, 256)) for n in range(16)]
        while "reward_queued_items 0.0" in httpx.get(server.url + "/metrics").text:
            pass
        code = server.terminate()
        answers = []
        for future in sending:
            try:
                answers.append(future.result())
            except httpx.HTTPError:
                continue  # it had not been accepted
    assert code == 0
    assert answers
    assert all(a.status_code == 200 and len(a.json()["scores"]) == 256 for a in answers)


def test_workers_and_the_store_process_killed_at_random_under_load(server: LiveServer) -> None:
    wrong: list[Any] = []
    retried = 0
    stop = threading.Event()

    def murder() -> None:
        chance = random.Random(3)
        while not stop.wait(0.7):
            children = server.children()
            if children:
                try:
                    os.kill(chance.choice(children), signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def send(number: int) -> int:
        tries = 0
        while True:
            response = post(server, body(number, 64))
            if response.status_code == 503:
                tries += 1
                threading.Event().wait(0.1)
                continue
            if response.status_code != 200:
                wrong.append(response.text)
            for one in response.json()["scores"]:
                expected = 1.0 if one["index"] == 1 else 0.0
                if one["reward"] != expected and one["status"] == "scored":
                    wrong.append(one)
            return tries

    murderer = threading.Thread(target=murder)
    murderer.start()
    with ThreadPoolExecutor(4) as pool:
        retried = sum(pool.map(send, range(120)))
    stop.set()
    murderer.join()
    assert wrong == []
    assert retried < 4000
    deadline = time.monotonic() + 30
    while httpx.get(server.url + "/readyz").status_code != 200:
        assert time.monotonic() < deadline
    assert post(server, body(1000, 4)).json()["summary"]["scored"] == 4


def test_a_client_that_leaves_frees_its_place(server: LiveServer) -> None:
    # A thousand alternatives and a pattern with many matches: slow enough to leave in the middle.
    register(server, "slow", compare="number", extract={"regex": r"1(.*b)?"})
    text = "1a" * 12_000
    items = [{"completion": f"{n}{text}", "reference": "1"} for n in range(60)]
    content = json.dumps({"grader": "slow", "items": items}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as leaving:
        leaving.sendall(
            b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(content) + content
        )
        while "reward_queued_items 60.0" not in httpx.get(server.url + "/metrics").text:
            pass
        threading.Event().wait(0.5)
    deadline = time.monotonic() + 5
    while "reward_queued_items 0.0" not in httpx.get(server.url + "/metrics").text:
        assert time.monotonic() < deadline, "the place of a client that left is still taken"
    assert len(stored(server, grader="slow")) < 60


def test_a_locked_database_is_a_503_and_nothing_is_lost_after_it(tmp_path: Path) -> None:
    import sqlite3  # noqa: PLC0415

    with live(tmp_path / "data", REWARD_STORE_TIMEOUT_S="0.3") as server:
        register(server, "number", compare="number", extract={"regex": "A: *(.*)"})
        holder = sqlite3.connect(tmp_path / "data" / "reward.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        response = post(server, body(1, 4))
        assert response.status_code == 503
        assert "locked" in response.json()["detail"]
        assert int(response.headers["retry-after"]) >= 1
        assert httpx.get(server.url + "/healthz").status_code == 200
        assert httpx.get(server.url + "/scores").status_code == 200
        holder.execute("ROLLBACK")
        holder.close()
        assert post(server, body(1, 4)).status_code == 200
        assert len(stored(server)) == 4


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        need("the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_full_disk_is_a_503_and_ends_when_there_is_room(small_disk: Path) -> None:
    with live(small_disk / "data") as server:
        register(server, "number", compare="number", extract={"regex": "A: *(.*)"})
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as out, contextlib.suppress(OSError):
            while True:
                out.write(b"x" * 4096)
        answered = 0
        for number in range(100):
            response = post(server, body(number, 64))
            if response.status_code == 503:
                break
            assert response.status_code == 200
            answered += 64
        assert response.status_code == 503
        assert "full" in response.json()["detail"] or "disk" in response.json()["detail"]
        filler.unlink()
        assert post(server, body(999, 64)).status_code == 200
        assert len(stored(server)) == answered + 64


def test_two_servers_share_a_database(tmp_path: Path) -> None:
    with live(tmp_path / "data") as one, live(tmp_path / "data") as other:
        register(one, "number", compare="number", extract={"regex": "A: *(.*)"})
        deadline = time.monotonic() + 15
        while httpx.get(other.url + "/graders/number").status_code != 200:
            assert time.monotonic() < deadline
        with ThreadPoolExecutor(4) as pool:
            sending = [pool.submit(post, (one, other)[n % 2], body(n, 32)) for n in range(20)]
            assert all(f.result().status_code == 200 for f in sending)
        ids = [s["score_id"] for s in stored(one)]
        assert len(ids) == len(set(ids)) == 640


def test_a_socket_that_sends_half_a_request_harms_nobody(server: LiveServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    for start in (
        b"POST /score HTTP/1.1\r\n",
        b"\x00\xff\n\n",
        b"POST /score HTTP/1.1\r\nContent-Length: 99\r\n\r\n{",
    ):
        with socket.create_connection((host, int(port))) as half:
            half.sendall(start)
    assert post(server, body(1, 2)).status_code == 200


def test_the_log_names_no_completion(server: LiveServer) -> None:
    secret = "zzq" * 5
    items = [{"completion": f"{secret} A: 1", "reference": "1"}]
    post(server, json.dumps({"grader": "number", "items": items}).encode())
    post(server, json.dumps({"grader": "number", "items": [{"completion": secret}]}).encode())
    server.terminate()
    assert secret not in "".join(server.log)
