"""Programs per second in containers, beside ``docker exec`` into one that is kept, in the same run.

The load is submissions of small Python programs' cases on stdin, each checked; 10 and 100 cases a submission.
Side by side, each with as many at once as there are cores:

``ours``     the Docker backend: a fresh container a submission, its process 1 told over the attached streams
``exec``     ``docker exec -i … python3 -I -S -c …`` for every case, in one container that nobody ever replaces

Needs a daemon and the image of ``make sandbox-image``.

    python -m benchmarks.docker [--seconds 10] [--rounds 3] [--out results.json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reward_server.settings import SandboxSettings
from sandboxes.container import DockerSettings
from sandboxes.pool import PoolSettings, SandboxPool
from sandboxes.program import Run, Submission

_SOURCE = "import sys\nprint(sum(map(int, sys.stdin.read().split())))\n"
_CORES = os.cpu_count() or 1


async def ours(seconds: float, slots: int, cases: int) -> float:
    """Cases per second."""
    pool = SandboxPool(PoolSettings(slots=slots, docker=DockerSettings()))
    await pool.start()
    if pool.problem:
        raise SystemExit(pool.problem)
    runs = tuple(Run(f"1 2 {n}".encode()) for n in range(cases))
    submission = Submission("python", _SOURCE, runs)
    done = 0
    until = time.monotonic() + seconds

    async def client() -> None:
        nonlocal done
        while time.monotonic() < until:
            report = await pool.run(submission)
            assert [r.stdout for r in report.runs] == [b"%d\n" % (3 + n) for n in range(cases)]
            done += cases

    began = time.monotonic()
    await asyncio.gather(*(client() for _ in range(slots * 2)))
    took = time.monotonic() - began
    await pool.stop()
    return done / took


@contextmanager
def _kept() -> Iterator[str]:
    command = ["docker", "run", "--detach", "--rm", "--network", "none", "--cap-drop", "all", "--user", "61900",
               DockerSettings().image, "sleep", "1000000"]  # fmt: skip
    name = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    try:
        yield name
    finally:
        subprocess.run(["docker", "kill", name], capture_output=True, check=False)


def by_exec(seconds: float) -> float:
    """Cases per second."""
    with _kept() as container:
        until = time.monotonic() + seconds

        def client(_: int) -> int:
            done = 0
            while time.monotonic() < until:
                ran = subprocess.run(
                    ["docker", "exec", "-i", container, "python3", "-I", "-S", "-c", _SOURCE],
                    input=b"1 2 %d" % done, capture_output=True, check=True,
                )  # fmt: skip
                assert ran.stdout == b"%d\n" % (3 + done)
                done += 1
            return done

        began = time.monotonic()
        with ThreadPoolExecutor(_CORES) as executor:
            return sum(executor.map(client, range(_CORES))) / (time.monotonic() - began)


def measure(seconds: float, rounds: int, slots: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {"ours, 10 cases": [], "ours, 100 cases": [], "exec": []}
    for _ in range(rounds):
        for name, rates in found.items():
            if name == "exec":
                rate = by_exec(seconds)
            else:
                rate = asyncio.run(ours(seconds, slots, 100 if "100" in name else 10))
            rates.append(rate)
            print(f"{name:16} {rate:8.1f} cases/s", flush=True)
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    return {
        "cases_per_s": medians,
        "10 cases: ours/exec": medians["ours, 10 cases"] / medians["exec"],
        "100 cases: ours/exec": medians["ours, 100 cases"] / medians["exec"],
        "slots": slots,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=10.0)
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
