"""Programs per second in sandboxes, beside no isolation and beside a box for every case, in the same run.

The load is submissions of ten small Python programs' cases on stdin, each checked. Side by side, each with as
many at once as there are cores:

``pool``         ours: one box a submission, its cases forked inside, the box thrown away
``subprocess``   ``subprocess.run([python, "-I", "-S", …])`` for every case: no isolation at all
``bwrap``        ``bwrap --unshare-all … python`` for every case
``/score``       ours through HTTP, durable, in requests of 16 submissions

    python -m benchmarks.code [--seconds 5] [--rounds 3] [--out results.json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from benchmarks.http_score import process
from reward_server.settings import SandboxSettings
from sandboxes import languages
from sandboxes.pool import PoolSettings, SandboxPool
from sandboxes.program import Run, Submission

CASES = 10
_SOURCE = "import sys\nprint(sum(map(int, sys.stdin.read().split())))\n"
_INPUTS = [f"1 2 {n}".encode() for n in range(CASES)]
_CORES = os.cpu_count() or 1


async def pool(seconds: float, slots: int) -> float:
    """Cases per second."""
    made = SandboxPool(PoolSettings(slots=slots))
    await made.start()
    if made.problem:
        raise SystemExit(made.problem)
    submission = Submission("python", _SOURCE, tuple(Run(i) for i in _INPUTS))
    done = 0
    until = time.monotonic() + seconds

    async def client() -> None:
        nonlocal done
        while time.monotonic() < until:
            report = await made.run(submission)
            assert [r.stdout for r in report.runs] == [b"%d\n" % (3 + n) for n in range(CASES)]
            done += CASES

    began = time.monotonic()
    await asyncio.gather(*(client() for _ in range(slots * 2)))
    took = time.monotonic() - began
    await made.stop()
    return done / took


async def latency(count: int) -> tuple[float, float]:
    """(p50, p99) in ms of a submission of one case, one at a time."""
    made = SandboxPool(PoolSettings(slots=1))
    await made.start()
    submission = Submission("python", _SOURCE, (Run(_INPUTS[0]),))
    times = []
    for _ in range(count):
        began = time.monotonic()
        await made.run(submission)
        times.append((time.monotonic() - began) * 1e3)
        await asyncio.sleep(0.03)  # as long as the next box takes to start: demand below capacity
    await made.stop()
    times.sort()
    return times[len(times) // 2], times[int(len(times) * 0.99)]


def threads(seconds: float, command: Callable[[], list[str]]) -> float:
    """Cases per second of one process for every case, started from as many threads as there are cores."""
    until = time.monotonic() + seconds

    def client(_: int) -> int:
        done = 0
        while time.monotonic() < until:
            for number, data in enumerate(_INPUTS):
                ran = subprocess.run(command(), input=data, capture_output=True, check=True)
                assert ran.stdout == b"%d\n" % (3 + number)
                done += 1
        return done

    began = time.monotonic()
    with ThreadPoolExecutor(_CORES) as executor:
        return sum(executor.map(client, range(_CORES))) / (time.monotonic() - began)


def bare() -> list[str]:
    return [languages.python() or sys.executable, "-I", "-S", "-c", _SOURCE]


def boxed() -> list[str]:
    argv = (
        ["setpriv", "--reuid", "61900", "--regid", "61900", "--clear-groups"]
        if os.geteuid() == 0
        else []
    )
    argv += [
        "bwrap",
        "--unshare-all",
        "--die-with-parent",
        "--clearenv",
        "--proc",
        "/proc",
        "--tmpfs",
        "/tmp",
    ]
    for path in languages.read_only_paths():
        argv += ["--ro-bind", path, path]
    for link in ("bin", "lib", "lib64"):
        if os.path.islink("/" + link):
            argv += ["--symlink", os.readlink("/" + link), "/" + link]
    return argv + bare()


def through_http(port: int, seconds: float) -> float:
    """Cases per second through ``POST /score``; every completion is distinct, so nothing is reused."""
    reference = {
        "cases": [{"stdin": i.decode(), "stdout": str(3 + n)} for n, i in enumerate(_INPUTS)]
    }
    until = time.monotonic() + seconds
    done = 0
    began = time.monotonic()

    def client(number: int) -> int:
        done = 0
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            while time.monotonic() < until:
                items: list[dict[str, Any]] = [
                    {
                        "completion": f"```python\n# {began} {number} {done} {n}\n{_SOURCE}```",
                        "reference": reference,
                    }
                    for n in range(16)
                ]
                answer = http.post("/score", json={"grader": "code", "items": items})
                assert [s["reward"] for s in answer.json()["scores"]] == [1.0] * 16, answer.text[
                    :500
                ]
                done += 16 * CASES
        return done

    with ThreadPoolExecutor(2) as executor:
        done = sum(executor.map(client, range(2)))
    return done / (time.monotonic() - began)


def measure(seconds: float, rounds: int, slots: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {"pool": [], "subprocess": [], "bwrap": [], "/score": []}
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "reward_server", "serve", "--port", "0"]
        with process(*command, REWARD_DATA_DIR=folder, REWARD_SANDBOX__SLOTS=str(slots)) as (
            port,
            _,
        ):
            for _ in range(rounds):
                sides: dict[str, Callable[[], float]] = {
                    "pool": lambda: asyncio.run(pool(seconds, slots)),
                    "subprocess": lambda: threads(seconds, bare),
                    "bwrap": lambda: threads(seconds, boxed),
                    "/score": lambda: through_http(port, seconds),
                }
                for name, one in sides.items():
                    rate = one()
                    found[name].append(rate)
                    print(f"{name:12} {rate:8.0f} cases/s", flush=True)
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    p50, p99 = asyncio.run(latency(200))
    print(f"one-case submission: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    return {
        "cases_per_s": medians,
        "pool/subprocess": medians["pool"] / medians["subprocess"],
        "pool/bwrap": medians["pool"] / medians["bwrap"],
        "score/pool": medians["/score"] / medians["pool"],
        "one_case_ms": {"p50": p50, "p99": p99},
        "slots": slots,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=SandboxSettings().slots)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = measure(options.seconds, options.rounds, options.slots)
    print(json.dumps({k: v for k, v in result.items() if "/" in k}, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
