"""A soak of the sandboxes: hostile and honest submissions for minutes, and nothing grows.

Counts processes, mounts, control groups, open files and memory of the keepers before and after; exits with 1
if any has grown.

    python -m benchmarks.sandbox_soak [--minutes 10]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path

from sandboxes import cgroups
from sandboxes.pool import PoolSettings, SandboxPool
from sandboxes.program import Limits, Run, Submission

_PROGRAMS = (
    "print(sum(map(int, input().split())))",
    "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass\nprint(1)",
    "x = [0] * 10**9",
    "while True: print('x' * 1000)",
    "while True: pass",
    "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "open('x', 'wb').write(bytes(10**8))",
    "raise ValueError",
    "import os\nos.kill(-1, 9)",
)
_LIMITS = Limits(cpu_s=0.3, wall_s=1.0, memory_mb=128, pids=16, output_kb=64, disk_mb=8)
_SLACK_MB = 24


def counts(pool: SandboxPool) -> dict[str, int]:
    """What must not grow."""
    keepers = pool.keepers
    found = {
        "processes": len(_descendants(keepers)),
        "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
    }
    found["fds"] = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in keepers)
    groups = cgroups.find()
    folders = [*groups.v1.values(), *([groups.v2] if groups.v2 else [])]
    found["groups"] = sum(len(list(f.glob(f"sandbox-{pid}-*"))) for f in folders for pid in keepers)
    found["memory_mb"] = sum(_resident_mb(pid) for pid in keepers)
    return found


def _descendants(pids: list[int]) -> list[int]:
    found = list(pids)
    for pid in found:
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            try:
                found += [int(p) for p in (thread / "children").read_text().split()]
            except OSError:
                continue
    return found


def _resident_mb(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


async def soak(seconds: float, slots: int) -> tuple[dict[str, int], dict[str, int], int]:
    """(before, after, submissions)."""
    pool = SandboxPool(PoolSettings(slots=slots))
    await pool.start()
    if pool.problem:
        raise SystemExit(pool.problem)
    chance = random.Random(7)
    done = 0

    async def client(until: float) -> None:
        nonlocal done
        while time.monotonic() < until:
            source = chance.choice(_PROGRAMS)
            await pool.run(Submission("python", source, (Run(b"1 2"),) * 2, _LIMITS))
            done += 1

    async def for_a_while(length: float) -> None:
        until = time.monotonic() + length
        await asyncio.gather(*(client(until) for _ in range(slots)))
        await pool.run(Submission("python", "print(1)", (Run(),)))
        await asyncio.sleep(1.0)  # until the last box is gone and the next one is there

    await for_a_while(min(10.0, seconds / 4))
    before = counts(pool)
    await for_a_while(seconds)
    after = counts(pool)
    await pool.stop()
    return before, after, done


def grown(before: dict[str, int], after: dict[str, int], slots: int) -> dict[str, tuple[int, int]]:
    slack = {
        "processes": 3 * slots,
        "fds": 3 * slots,
        "groups": 3 * slots,
        "memory_mb": _SLACK_MB,
        "mounts": 0,
    }
    return {n: (before[n], after[n]) for n in before if after[n] > before[n] + slack[n]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--slots", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    before, after, done = asyncio.run(soak(options.minutes * 60, options.slots))
    print(json.dumps({"submissions": done, "before": before, "after": after}))
    sys.exit(bool(grown(before, after, options.slots)))


if __name__ == "__main__":
    main()
