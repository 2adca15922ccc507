"""Items per second of a registered function, beside the same function called in process, in the same run.

``in process``   the function in a loop, as a trainer calls it: no isolation, no limits, nothing stored
``sandboxed``    kind ``python`` over the pool of sandboxes, 256 items at once
``isolated``     the same with ``isolate``: a process an item
``/score``       through HTTP, durable, in requests of 256 distinct items

Two functions: a trivial one, and one of 1 ms (what a parser or a small model of the answer takes).

    python -m benchmarks.python_grader [--seconds 4] [--rounds 3] [--out results.json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from benchmarks.http_score import process
from reward_server.graders.base import Digest, LiveGrader, Spec, View, canonical_json
from reward_server.graders.catalog import CATALOG
from reward_server.outcome import Outcome, Scored
from reward_server.settings import SandboxSettings
from sandboxes.pool import PoolSettings, SandboxPool

BATCH = 256
SOURCES = {
    "trivial": "def grade(completion, reference):\n    return float(completion.strip() == reference)\n",
    "1 ms": """
import time
def grade(completion, reference):
    until = time.perf_counter() + 0.001
    while time.perf_counter() < until:
        pass
    return float(completion.strip() == reference)
""",
}


class _Context:
    def __init__(self, sandbox: SandboxPool) -> None:
        self.deadline = time.monotonic() + 600
        self.sandbox = sandbox

    async def part(self, name: str, view: View) -> Outcome:
        raise NotImplementedError


def in_process(source: str, seconds: float) -> float:
    """Items per second."""
    space: dict[str, Any] = {}
    exec(source, space)  # noqa: S102 (our own text, from above)
    function, done = space["grade"], 0
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        for n in range(BATCH):
            assert function(f"{n} ", str(n)) == 1.0
        done += BATCH
    return done / (time.monotonic() - began)


async def sandboxed(source: str, seconds: float, slots: int, isolate: bool) -> float:
    pool = SandboxPool(PoolSettings(slots=slots))
    await pool.start()
    if pool.problem:
        raise SystemExit(pool.problem)
    config = canonical_json({"source": source, "isolate": isolate})
    grader = CATALOG.build(Spec("python", config, Digest("sha256:benchmark")))
    assert isinstance(grader, LiveGrader)
    context, done = _Context(pool), 0
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        found = await asyncio.gather(
            *(
                grader.grade_live(View(completion=f"{n} ", reference=str(n)), context)
                for n in range(BATCH)
            )
        )
        assert all(isinstance(o, Scored) and o.reward == 1.0 for o in found)
        done += BATCH
    took = time.monotonic() - began
    await pool.stop()
    return done / took


def through_http(port: int, source: str, seconds: float) -> float:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as http:
        name = f"g{time.monotonic_ns()}"
        made = http.post(
            "/graders", json={"name": name, "kind": "python", "config": {"source": source}}
        )
        assert made.status_code == 201, made.text
        done = 0
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            items = [
                {"completion": f"{done + n}", "reference": f"{done + n}"} for n in range(BATCH)
            ]
            answer = http.post("/score", json={"grader": name, "items": items})
            assert [s["reward"] for s in answer.json()["scores"]] == [1.0] * BATCH, answer.text[
                :500
            ]
            done += BATCH
        return done / (time.monotonic() - began)


def measure(seconds: float, rounds: int, slots: int) -> dict[str, Any]:
    result: dict[str, Any] = {"slots": slots}
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "reward_server", "serve", "--port", "0"]
        with process(*command, REWARD_DATA_DIR=folder, REWARD_SANDBOX__SLOTS=str(slots)) as (
            port,
            _,
        ):
            for label, source in SOURCES.items():
                sides: dict[str, Callable[[], float]] = {
                    "in process": lambda s=source: in_process(s, seconds),  # type: ignore[misc]
                    "sandboxed": lambda s=source: asyncio.run(sandboxed(s, seconds, slots, False)),  # type: ignore[misc]
                    "isolated": lambda s=source: asyncio.run(sandboxed(s, seconds, slots, True)),  # type: ignore[misc]
                    "/score": lambda s=source: through_http(port, s, seconds),  # type: ignore[misc]
                }
                found: dict[str, list[float]] = {name: [] for name in sides}
                for _ in range(rounds):
                    for name, one in sides.items():
                        found[name].append(one())
                        print(f"{label:8} {name:12} {found[name][-1]:10.0f} items/s", flush=True)
                medians = {name: statistics.median(rates) for name, rates in found.items()}
                result[label] = medians | {
                    f"{name}/in process": medians[name] / medians["in process"]
                    for name in ("sandboxed", "isolated", "/score")
                }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=SandboxSettings().slots)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = measure(options.seconds, options.rounds, options.slots)
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
