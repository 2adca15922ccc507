"""A real server in a process of its own, to be killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

_URL = re.compile(r"http://127\.0\.0\.1:(\d+)")


class LiveServer:
    """``reward-server serve`` on a free port."""

    def __init__(self, data_dir: Path, **environment: str) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("REWARD_")}
        env |= {"REWARD_DATA_DIR": str(data_dir), "REWARD_LOG_FORMAT": "json"} | environment
        self.process = subprocess.Popen(
            [sys.executable, "-m", "reward_server", "serve", "--port", "0"],
            env=env,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self.log: list[str] = []
        self.url = self._wait_for_url()
        # The pipe is read to the end, or a talkative server would block on it.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._wait_until_ready()

    def _wait_for_url(self) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if found := _URL.search(line):
                return found[0]
        raise AssertionError("the server did not start:\n" + "".join(self.log))

    def _wait_until_ready(self) -> None:
        for _ in range(600):
            try:
                if httpx.get(self.url + "/readyz", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            if self.process.poll() is not None:
                break
            threading.Event().wait(0.05)
        raise AssertionError("the server is not ready:\n" + "".join(self.log))

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def kill(self) -> None:
        """kill -9; its workers and store process must end by themselves."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def children(self) -> list[int]:
        """Pids of all descendants."""
        found: list[int] = []
        todo = [self.process.pid]
        while todo:
            pid = todo.pop()
            tasks = Path(f"/proc/{pid}/task")
            for children in tasks.glob("*/children"):
                mine = [int(c) for c in children.read_text().split()]
                found += mine
                todo += mine
        return found


@contextmanager
def live(data_dir: Path, **environment: str) -> Iterator[LiveServer]:
    server = LiveServer(data_dir, **environment)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()


def register(server: LiveServer, name: str, **config: object) -> None:
    body = {"name": name, "kind": "exact", "config": config}
    httpx.post(server.url + "/graders", json=body, timeout=30).raise_for_status()


def body(number: int, count: int, **fields: object) -> bytes:
    items = [
        {"id": f"{number}/{n}", "completion": f"{number} {n} A: {n}", "reference": "1"}
        for n in range(count)
    ]
    return json.dumps({"grader": "number", "items": items} | fields).encode()
