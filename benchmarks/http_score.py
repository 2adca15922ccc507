"""HTTP speed of ``POST /score`` beside a bare FastAPI route that echoes the same bodies.

Both run in the same session on the same machine, each in a server process of its own under uvicorn
(uvloop, httptools), driven by the same client. Every completion is distinct, so nothing is reused;
every score is durable (SQLite, WAL, synchronous=FULL) before it is answered.

The echo is ``async def echo(body: dict): return body``: FastAPI parses the JSON and writes it again.
``echo_typed`` returns ``dict[str, Any]``, which recent FastAPI serialises in Rust; it is printed too.

    python -m benchmarks.http_score [--seconds 5] [--rounds 3] [--out results.json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import uvloop

_ECHO = """
import sys
from typing import Any
import uvicorn
from fastapi import FastAPI
app = FastAPI()
@app.post("/echo")
async def echo(body: dict):
    return body
@app.post("/echo_typed")
async def echo_typed(body: dict[str, Any]) -> dict[str, Any]:
    return body
uvicorn.run(app, port=0, loop="uvloop", http="httptools", access_log=False)
"""
_URL = re.compile(r"http://127\.0\.0\.1:(\d+)")
_DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "gsm8k_solutions.jsonl"
GRADER = {
    "name": "bench",
    "kind": "exact",
    "config": {"compare": "number", "extract": {"regex": "A: *(.*)"}},
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One load on one path."""

    path: str
    batch: int
    clients: int
    items_per_s: float
    p50_ms: float
    p99_ms: float


class _Connection(asyncio.Protocol):
    """A keep-alive HTTP/1.1 connection that does as little as a client can."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.buffer = b""
        self.answer: asyncio.Future[bytes] | None = None

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[:end].lower()
        at = head.index(b"content-length:") + len(b"content-length:")
        size = end + 4 + int(head[at:].split(b"\r\n", 1)[0])
        if len(self.buffer) >= size and self.answer is not None:
            status, self.buffer = self.buffer[9:12], self.buffer[size:]
            self.answer.set_result(status)

    async def post(self, request: bytes) -> None:
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        status = await self.answer
        if status != b"200":
            raise RuntimeError(f"status {status.decode()}")


async def load(port: int, path: str, batch: int, clients: int, seconds: float) -> Measured:
    """Drives one path for a while, closed loop: each client sends as soon as it is answered."""
    requests = _requests(path, batch)
    latencies: list[float] = []
    loop = asyncio.get_running_loop()
    end = time.perf_counter() + seconds

    async def client() -> None:
        _, connection = await loop.create_connection(_Connection, "127.0.0.1", port)
        while time.perf_counter() < end:
            started = time.perf_counter()
            await connection.post(next(requests))
            latencies.append(time.perf_counter() - started)
        connection.transport.close()

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    elapsed = time.perf_counter() - started
    ordered = sorted(latencies)
    return Measured(
        path,
        batch,
        clients,
        round(len(ordered) * batch / elapsed, 1),
        round(ordered[len(ordered) // 2] * 1e3, 2),
        round(ordered[int(len(ordered) * 0.99)] * 1e3, 2),
    )


def _requests(path: str, batch: int) -> Iterator[bytes]:
    """Requests with completions that no other request has, cheap to make: a stamp replaces another."""
    marker = b"@@@@@@@@@@@@@@@@"
    run = os.urandom(4).hex()
    rows = _rows()
    templates = []
    for start in range(0, min(len(rows), 64 * batch), batch):
        items = [dict(r) for r in rows[start : start + batch]]
        if len(items) == batch:
            templates.append(json.dumps({"grader": "bench", "items": items}).encode())
    number = 0
    while True:
        body = templates[number % len(templates)]
        body = body.replace(marker, f"{run}{number:08x}".encode())
        number += 1
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        yield head.encode() + body


def _rows() -> list[dict[str, Any]]:
    """Real model outputs where the public data is at hand, else text of the same size."""
    stamp = "@@@@@@@@@@@@@@@@ "
    if _DATA.exists():
        rows = [json.loads(line) for line in _DATA.read_text().split("\n") if line]
    else:
        text = "She has 3 + 4 = <<3+4=7>>7 apples, then gives 2 away. " * 6
        rows = [
            {"prompt": "How many? " * 20, "completion": f"{text}\nA: {n}", "reference": "5"}
            for n in range(3957)
        ]
    return [
        {
            "prompt": r["prompt"],
            "completion": f"{stamp}{n} {r['completion']}",
            "reference": r["reference"],
        }
        for n, r in enumerate(rows)
    ]


@contextmanager
def process(*command: str, **environment: str) -> Iterator[tuple[int, int]]:
    """A server in a process of its own: (port, pid)."""
    started = subprocess.Popen(
        [sys.executable, *command],
        env=os.environ | environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert started.stderr is not None
    try:
        for line in started.stderr:
            if found := _URL.search(line):
                break
        else:
            raise RuntimeError("the server did not start")
        port = int(found[1])
        _wait(port)
        yield port, started.pid
    finally:
        started.terminate()
        started.wait(30)


def _wait(port: int) -> None:
    for _ in range(200):
        try:
            httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=2)
            return
        except httpx.HTTPError:
            time.sleep(0.05)
    raise RuntimeError("the server does not answer")


def _median(results: list[Measured]) -> Measured:
    return sorted(results, key=lambda r: r.items_per_s)[len(results) // 2]


def measure(seconds: float, rounds: int) -> dict[str, Any]:
    """Alternates between the two servers, so that a slow moment of the machine hits both."""
    loads = [(256, 4), (1, 64)]
    results: dict[tuple[str, int], list[Measured]] = {}
    with tempfile.TemporaryDirectory() as folder:
        serve = process("-m", "reward_server", "serve", "--port", "0", REWARD_DATA_DIR=folder)
        with serve as (ours, _), process("-c", _ECHO) as (echo, _):
            url = f"http://127.0.0.1:{ours}/graders"
            httpx.post(url, json=GRADER, timeout=30).raise_for_status()
            for _ in range(rounds):
                for batch, clients in loads:
                    for port, path in ((echo, "/echo"), (echo, "/echo_typed"), (ours, "/score")):
                        result = uvloop.run(load(port, path, batch, clients, seconds))
                        results.setdefault((path, batch), []).append(result)
                        print(
                            f"{path:12} batch {batch:4} clients {clients:3} "
                            f"{result.items_per_s:10.0f} items/s  p50 {result.p50_ms:8.2f} ms"
                            f"  p99 {result.p99_ms:8.2f} ms",
                            flush=True,
                        )
    summary: dict[str, Any] = {"cores": os.cpu_count(), "results": {}, "ratios": {}}
    for (path, batch), found in results.items():
        summary["results"][f"{path} batch {batch}"] = asdict(_median(found))
    for batch, _ in loads:
        for peer in ("/echo", "/echo_typed"):
            # The ratio of each round, then their median: both sides of one saw the same machine.
            pairs = zip(results["/score", batch], results[peer, batch], strict=True)
            ratio = statistics.median(s.items_per_s / e.items_per_s for s, e in pairs)
            summary["ratios"][f"score/{peer[1:]} batch {batch}"] = round(ratio, 3)
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    summary = measure(options.seconds, options.rounds)
    print(json.dumps(summary["ratios"], indent=2))
    if options.out:
        options.out.write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()
