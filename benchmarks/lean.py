"""Proofs checked per second, beside a bare loop of ``lean`` in the same run, as many at once as there are cores.

``bare``    ``lean -o … Submission.lean``: no sandbox, no audit, nothing compared
``ours``    kind ``lean`` up to ``axioms_audited``: sandboxed, statement compared, axioms audited; challenges are kept

Each proof is another text, so nothing is reused but the challenge. The toolchain and the toy prelude are the tests'.

    python -m benchmarks.lean [--seconds 10] [--rounds 3] [--out results.json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from reward_server.graders.base import Digest, LiveGrader, Spec, View, canonical_json
from reward_server.graders.catalog import CATALOG
from reward_server.outcome import Scored
from sandboxes.pool import PoolSettings, SandboxPool
from tests.lean.toolchain import mounts, prefix
from tests.sandboxes.live import live_context

_CORES = os.cpu_count() or 1
_HEADER = "prelude\nimport Ax\n"
_CONFIG = {"project": "mini", "prelude": True, "min_level": "axioms_audited"}
_REFERENCE = {
    "statement": "theorem target (a b : Prop) (h : And a b) : And b a",
    "imports": ["Ax"],
}


def proof(number: int) -> str:
    return (
        f"theorem helper{number} : True := True.intro\n"
        "theorem target (a b : Prop) (h : And a b) : And b a := And.intro h.right h.left\n"
    )


def bare(seconds: float) -> dict[str, float]:
    lean = prefix() / "bin" / "lean"
    environment = {"LEAN_PATH": str(prefix() / "prelude")}
    until = time.monotonic() + seconds

    def loop(number: int) -> int:
        done = 0
        with tempfile.TemporaryDirectory() as folder:
            while time.monotonic() < until:
                file = Path(folder, "Submission.lean")
                file.write_text(_HEADER + proof(done * _CORES + number))
                subprocess.run(
                    [lean, "--json", "-o", "Submission.olean", "Submission.lean"],
                    cwd=folder, env=environment, check=True, capture_output=True,
                )  # fmt: skip
                done += 1
        return done

    before, began = _children_cpu(), time.monotonic()
    with ThreadPoolExecutor(_CORES) as threads:
        done = sum(threads.map(loop, range(_CORES)))
    return {
        "per_s": done / (time.monotonic() - began),
        "cpu_ms": (_children_cpu() - before) * 1000 / done,
    }


async def ours(seconds: float) -> dict[str, float]:
    pool = SandboxPool(PoolSettings(slots=_CORES, mounts=mounts()))
    await pool.start()
    if pool.problem:
        raise SystemExit(pool.problem)
    grader = CATALOG.build(Spec("lean", canonical_json(_CONFIG), Digest("sha256:benchmark")))
    assert isinstance(grader, LiveGrader)
    took: list[float] = []

    async def one(number: int) -> None:
        began = time.monotonic()
        outcome = await grader.grade_live(
            View(completion=proof(number), reference=_REFERENCE), live_context(pool, 60)
        )
        assert isinstance(outcome, Scored), outcome
        assert outcome.reward == 1.0, outcome
        took.append(time.monotonic() - began)

    await one(10**9)
    took.clear()
    started, until = time.monotonic(), time.monotonic() + seconds

    async def client(number: int) -> None:
        at = number
        while time.monotonic() < until:
            await one(at)
            at += _CORES

    before = time.process_time()
    tree = _tree_cpu()
    await asyncio.gather(*(client(n) for n in range(_CORES)))
    spent = time.process_time() - before + _tree_cpu() - tree
    wall = time.monotonic() - started
    await pool.stop()
    ordered = sorted(took)
    return {
        "per_s": len(took) / wall,
        "cpu_ms": spent * 1000 / len(took),
        "p50_ms": statistics.median(ordered) * 1000,
        "p99_ms": ordered[int(len(ordered) * 0.99)] * 1000,
    }


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tree_cpu() -> float:
    """Seconds of all processes below this one, with those they have reaped."""
    tick = os.sysconf("SC_CLK_TCK")
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(fields[1])
        spent[int(folder.name)] = sum(map(int, fields[11:15]))
    total = 0
    for pid, ticks in spent.items():
        above = parents[pid]
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        total += ticks if above else 0
    return total / tick


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rounds: list[dict[str, Any]] = []
    for number in range(args.rounds):
        found = {"bare": bare(args.seconds), "ours": asyncio.run(ours(args.seconds))}
        rounds.append(found)
        added = found["ours"]["cpu_ms"] - found["bare"]["cpu_ms"]
        print(
            f"round {number}: bare {found['bare']['per_s']:.1f}/s {found['bare']['cpu_ms']:.0f} ms CPU; "
            f"ours {found['ours']['per_s']:.1f}/s {found['ours']['cpu_ms']:.0f} ms CPU, "
            f"p50 {found['ours']['p50_ms']:.0f} ms, p99 {found['ours']['p99_ms']:.0f} ms; "
            f"ratio {found['ours']['per_s'] / found['bare']['per_s']:.2f}, added {added:.0f} ms CPU"
        )
    if args.out:
        args.out.write_text(json.dumps(rounds, indent=1))


if __name__ == "__main__":
    main()
