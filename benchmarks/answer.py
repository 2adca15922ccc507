"""The ``answer`` grader beside math-verify 0.9.0: speed and agreement with labels, in one session.

Both run in process, one thread, in a subprocess of their own Python that is fed the same rows in the
same order. Every eighth row warms a side up and is not timed; no timed row repeats another. The order
is that of the files, where solutions of one problem stand together as the rollouts of a group do
(math-verify keeps its last 20 parses); ``--shuffle`` takes that help away from both.
Rounds alternate between the sides, and a ratio is the median of each round's ratio, so that a slow
moment of the machine hits both. math-verify is called as its users call it, ``parse`` and ``verify``
with their defaults, timeouts included. It lives in a virtual environment of its own, made here when
missing (a download of about 20 MB from PyPI).

Then the same texts go through ``POST /score`` (256 items a request, 4 clients, every completion
distinct, every score durable), set beside math-verify's speed in process.

The sets are the public data in ``../shared/data``:

    gsm8k_solutions     model solutions of GSM8K with labels; they end "A: N"
    math_self           MATH references, each against its own worked solution: all right
    math_mismatched     the same, each against another item's solution: all wrong, but for equal texts
    math_model_outputs  model solutions of MATH problems with rule-graded labels (at least one is wrong)

    python -m benchmarks.answer [--rounds 3] [--passes 4] [--shuffle] [--out results.json]
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.http_score import process

_ROOT = Path(__file__).resolve().parent.parent
_DATA = _ROOT.parent / "shared" / "data"
_PEER_PACKAGES = (
    "math-verify==0.9.0",
    "latex2sympy2_extended==1.11.0",
    "antlr4-python3-runtime==4.13.2",
)
_WARM_UP = 8  # one row in so many warms up
_BATCH, _CLIENTS = 256, 4

# Each side defines verdict(completion, reference) -> (right? or None for unscored, how it was decided).
_OURS = """
import sys
from reward_server.graders.base import Digest, Spec, View, canonical_json
from reward_server.graders.catalog import CATALOG
from reward_server.outcome import CannotScore
from reward_server.registry.builtins import BUILT_INS
built_in = next(b for b in BUILT_INS if b.name == sys.argv[1])
spec = Spec(built_in.kind, canonical_json(dict(built_in.config)), Digest("sha256:benchmark"))
grader = CATALOG.build(spec)
def verdict(completion, reference):
    try:
        scored = grader.grade(View(completion=completion, reference=reference))
    except CannotScore as failure:
        return None, failure.kind
    return scored.reward == 1.0, scored.raw.get("layer")
"""
_PEER = """
from math_verify import parse, verify
def verdict(completion, reference):
    return verify(parse(f"${reference}$"), parse(completion)), None
"""
_LOOP = """
import json, sys, time
warm_up, timed = json.load(sys.stdin)
verdicts = [verdict(*row) for row in warm_up]
seconds = []
for completion, reference in timed:
    started = time.perf_counter()
    found = verdict(completion, reference)
    seconds.append(time.perf_counter() - started)
    verdicts.append(found)
json.dump({"verdicts": verdicts, "seconds": seconds}, sys.stdout)
"""


@dataclass(frozen=True, slots=True)
class Row:
    line: int
    """Of the completion, in its file; for the JSON of disagreements."""
    completion: str
    reference: str
    right: bool


@dataclass(frozen=True, slots=True)
class Rows:
    """A labelled set, and the built-in grader that is meant for it."""

    name: str
    grader: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Timing:
    items_per_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """With the labels, over all rows of a set, those of the warm-up included."""

    agreed: float
    wrongly_right: list[int]
    wrongly_wrong: list[int]
    unscored: list[int]


def _read(name: str) -> list[dict[str, Any]]:
    path = _DATA / f"{name}.jsonl"
    if not path.exists():
        sys.exit(f"{path} is missing: this benchmark needs the public data of shared/data")
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def load_sets(shuffle: bool) -> list[Rows]:
    def distinct(name: str, grader: str, found: list[Row]) -> Rows:
        rows = [*{(r.completion, r.reference): r for r in found}.values()]
        if shuffle:
            random.Random(0).shuffle(rows)
        # The warm-up comes first.
        return Rows(
            name, grader, (*rows[::_WARM_UP], *(r for n, r in enumerate(rows) if n % _WARM_UP))
        )

    def labelled(name: str) -> list[Row]:
        rows = enumerate(_read(name), 1)
        return [Row(n, r["completion"], r["reference"], r["is_correct"]) for n, r in rows]

    def solved(shift: int) -> list[Row]:
        """Each reference against the solution of the item so many rows on."""
        rows = _read("math_test")
        shifted = [(at + shift) % len(rows) for at in range(len(rows))]
        return [
            Row(
                at + 1,
                rows[at]["completion"],
                r["reference"],
                r["reference"] == rows[at]["reference"],
            )
            for r, at in zip(rows, shifted, strict=True)
        ]

    return [
        distinct("gsm8k_solutions", "gsm8k", labelled("gsm8k_solutions")),
        distinct("math_self", "math", solved(0)),
        distinct("math_mismatched", "math", solved(1250)),
        distinct("math_model_outputs", "math", labelled("math_model_outputs")),
    ]


def peer_python(folder: Path) -> str:
    """math-verify's own Python, made when missing."""
    python = folder / "bin" / "python"
    check = "from importlib.metadata import version as v; print(v('math-verify'), v('sympy'))"
    for attempt in range(2):
        if python.exists():
            found = subprocess.run([python, "-c", check], capture_output=True, text=True)
            version, _, sympy = found.stdout.strip().partition(" ")
            if f"math-verify=={version}" in _PEER_PACKAGES:
                print(f"math-verify {version} with sympy {sympy} in {folder}", flush=True)
                return str(python)
        if attempt == 0:
            print(f"making {folder} with {', '.join(_PEER_PACKAGES)}", flush=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            pip = [str(python), "-m", "pip", "install", "--quiet"]
            subprocess.run([*pip, *_PEER_PACKAGES], check=True)
    sys.exit(f"math-verify cannot be used in {folder}: delete it and try again")


def run_side(python: str, setup: str, rows: Rows) -> tuple[Timing, list[tuple[bool | None, Any]]]:
    """One side over one set, in a fresh process: timing, and a verdict for each row in order."""
    pairs = [(r.completion, r.reference) for r in rows.rows]
    split = len(range(0, len(pairs), _WARM_UP))
    ran = subprocess.run(
        [python, "-c", setup + _LOOP, rows.grader],
        input=json.dumps([pairs[:split], pairs[split:]]),
        capture_output=True,
        text=True,
        cwd=_ROOT,
        timeout=900,
    )
    if ran.returncode:
        sys.exit(f"{rows.name} failed under {python}:\n{ran.stderr[-2000:]}")
    answer = json.loads(ran.stdout)
    ordered = sorted(answer["seconds"])
    timing = Timing(
        round(len(ordered) / sum(ordered), 1),
        round(ordered[len(ordered) // 2] * 1e3, 3),
        round(ordered[int(len(ordered) * 0.99)] * 1e3, 3),
        round(ordered[-1] * 1e3, 3),
    )
    return timing, [(right, how) for right, how in answer["verdicts"]]


def _median(timings: list[Timing]) -> Timing:
    return sorted(timings, key=lambda t: t.items_per_s)[len(timings) // 2]


def agreement(rows: Rows, verdicts: list[bool | None]) -> Agreement:
    wrongly: dict[bool | None, list[int]] = {True: [], False: [], None: []}
    for row, right in zip(rows.rows, verdicts, strict=True):
        if right is not row.right:
            wrongly[right].append(row.line)
    misses = sum(map(len, wrongly.values()))
    agreed = round(1 - misses / len(rows.rows), 5)
    return Agreement(agreed, *(sorted(wrongly[k]) for k in (True, False, None)))


def compare(rows: Rows, python: str, rounds: int) -> dict[str, Any]:
    """One set on both sides; each goes first in every other round."""
    sides = {"ours": (sys.executable, _OURS), "math-verify": (python, _PEER)}
    timings: dict[str, list[Timing]] = {side: [] for side in sides}
    verdicts: dict[str, list[tuple[bool | None, Any]]] = {}
    for number in range(rounds):
        for side in list(sides)[:: -1 if number % 2 else 1]:
            timing, verdicts[side] = run_side(*sides[side], rows)
            timings[side].append(timing)
    pairs = zip(timings["ours"], timings["math-verify"], strict=True)
    ratio = statistics.median(o.items_per_s / p.items_per_s for o, p in pairs)
    result: dict[str, Any] = {"rows": len(rows.rows), "grader": rows.grader}
    print(f"{rows.name}: {len(rows.rows)} rows, grader {rows.grader}, ratio {ratio:.1f}")
    for side in sides:
        middle = _median(timings[side])
        agreed = agreement(rows, [right for right, _ in verdicts[side]])
        result[side] = asdict(middle) | {"rounds": [t.items_per_s for t in timings[side]]}
        result[side]["agreement"] = asdict(agreed)
        print(
            f"  {side:12} {middle.items_per_s:9.0f} items/s  p50 {middle.p50_ms:8.3f} ms"
            f"  p99 {middle.p99_ms:8.3f} ms  max {middle.max_ms:9.3f} ms"
            f"  agrees {agreed.agreed:8.3%} (wrongly right {len(agreed.wrongly_right)},"
            f" wrongly wrong {len(agreed.wrongly_wrong)}, unscored {len(agreed.unscored)})",
            flush=True,
        )
    result["ratio"] = round(ratio, 2)
    result["ours"]["layers"] = Counter(str(how) for _, how in verdicts["ours"])
    print(f"  decided by {dict(result['ours']['layers'].most_common())}", flush=True)
    return result


def import_ms(python: str, module: str) -> float:
    """A fresh process that imports a module, less one that does not; median of 5 after a first."""

    def started(code: str) -> float:
        begun = time.perf_counter()
        subprocess.run([python, "-c", code], cwd=_ROOT, check=True)
        return time.perf_counter() - begun

    spent = [started(f"import {module}") - started("pass") for _ in range(6)]
    return round(statistics.median(spent[1:]) * 1e3, 1)  # the first may have written bytecode


def _bodies(rows: Rows, passes: int) -> list[tuple[bytes, list[bool]]]:
    """Requests, with the labels of their items. A line before each completion makes it distinct."""
    letters = random.SystemRandom()
    items, labels = [], []
    for row in rows.rows * passes:
        stamp = "".join(letters.choices(string.ascii_lowercase, k=12))
        completion = f"Attempt {stamp}.\n{row.completion}"
        items.append({"completion": completion, "reference": row.reference})
        labels.append(row.right)
    parts = [slice(start, start + _BATCH) for start in range(0, len(items), _BATCH)]
    return [
        (json.dumps({"grader": rows.grader, "items": items[p]}).encode(), labels[p]) for p in parts
    ]


def through_http(port: int, rows: Rows, passes: int) -> dict[str, Any]:
    """A set through ``POST /score``; one pass before the clock warms the workers up."""

    def drive(bodies: list[tuple[bytes, list[bool]]]) -> tuple[float, list[bytes]]:
        waiting = iter([*enumerate(body for body, _ in bodies)])  # a list's: threads may share it
        answers = [b""] * len(bodies)

        def client() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
            for at, body in waiting:
                connection.request("POST", "/score", body, {"Content-Type": "application/json"})
                reply = connection.getresponse()
                answers[at] = reply.read()
                if reply.status != 200:
                    raise RuntimeError(f"status {reply.status}: {answers[at][:500]!r}")
            connection.close()

        begun = time.perf_counter()
        with ThreadPoolExecutor(_CLIENTS) as pool:
            for done in [pool.submit(client) for _ in range(_CLIENTS)]:
                done.result()
        return time.perf_counter() - begun, answers

    drive(_bodies(rows, 1))
    bodies = _bodies(rows, passes)
    elapsed, answers = drive(bodies)
    scores = [score for answer in answers for score in json.loads(answer)["scores"]]
    labels = [right for _, part in bodies for right in part]
    agreed = sum(
        score["status"] == "scored" and (score["reward"] == 1.0) is right
        for score, right in zip(scores, labels, strict=True)
    )
    return {
        "items": len(scores),
        "items_per_s": round(len(scores) / elapsed, 1),
        "unscored": sum(score["status"] != "scored" for score in scores),
        "reused": sum(score["cached"] for score in scores),
        "agreed": round(agreed / len(scores), 5),
    }


def measure(rounds: int, passes: int, shuffle: bool, peer_venv: Path) -> dict[str, Any]:
    sets = load_sets(shuffle)
    python = peer_python(peer_venv)
    summary: dict[str, Any] = {"cores": os.cpu_count(), "shuffled": shuffle}
    ours, peer = "reward_server.graders.answer.kind", "math_verify"
    summary["import_ms"] = {ours: import_ms(sys.executable, ours), peer: import_ms(python, peer)}
    print("import:", ", ".join(f"{name} {ms:.0f} ms" for name, ms in summary["import_ms"].items()))
    summary["in_process"] = {rows.name: compare(rows, python, rounds) for rows in sets}
    summary["http"] = {}
    with tempfile.TemporaryDirectory() as folder:
        serve = process("-m", "reward_server", "serve", "--port", "0", REWARD_DATA_DIR=folder)
        with serve as (port, _):
            for rows in sets[:2]:
                found = through_http(port, rows, passes)
                beside = summary["in_process"][rows.name][peer.replace("_", "-")]["items_per_s"]
                found["ratio_to_math_verify_in_process"] = round(found["items_per_s"] / beside, 2)
                summary["http"][rows.name] = found
                print(f"/score {rows.name}: {json.dumps(found)}", flush=True)
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=4, help="times a set goes through HTTP")
    parser.add_argument("--peer-venv", type=Path, default=_ROOT / ".bench" / "math-verify")
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    summary = measure(options.rounds, options.passes, options.shuffle, options.peer_venv)
    if options.out:
        options.out.write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()
