"""Memory over many scores: the resident size of each of the server's processes as the count grows.

python -m benchmarks.soak [--scores 1000000]
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path

import httpx
import uvloop

from benchmarks.http_score import GRADER, load, process

_RSS = re.compile(r"VmRSS:\s+(\d+) kB")


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            found += tree(int(child))
    return found


def resident_mb(pid: int) -> int:
    found = _RSS.search(Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) // 1024 if found else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scores", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        serve = process("-m", "reward_server", "serve", "--port", "0", REWARD_DATA_DIR=folder)
        with serve as (port, pid):
            url = f"http://127.0.0.1:{port}/graders"
            httpx.post(url, json=GRADER, timeout=30).raise_for_status()
            done = 0.0
            while done < options.scores:
                result = uvloop.run(load(port, "/score", 256, 4, 10))
                done += result.items_per_s * 10
                sizes = [resident_mb(p) for p in tree(pid)]
                database = (Path(folder) / "reward.db").stat().st_size >> 20
                print(
                    f"{done:10.0f} scores  {result.items_per_s:8.0f}/s  RSS (MB) server {sizes[0]:4d}"
                    f"  others {sizes[1:]}  database {database} MB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
