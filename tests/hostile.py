"""A catalog with a kind whose completions misbehave in the grading process itself.

The completion says what to do, optionally after words that make it distinct: ``hang``, ``7 hog``, …
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from reward_server.graders import exact, format
from reward_server.graders.answer import kind as answer
from reward_server.graders.base import Budget, Field, Kind, Spec, View
from reward_server.graders.catalog import Catalog
from reward_server.graders.code import kind as code
from reward_server.graders.lean import kind as lean
from reward_server.outcome import Scored

BUDGET = Budget(cpu_s=0.2, wall_s=1.5)


class HostileConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    marker: str | None = None
    """A folder: with it, ``die_once`` dies only the first time."""


class HostileGrader:
    reads = frozenset({Field.COMPLETION})
    requires: frozenset[Field] = frozenset()

    def __init__(self, config: HostileConfig, spec: Spec) -> None:
        self._marker = config.marker

    def reference_problem(self, reference: Any) -> str | None:
        return None

    def grade(self, view: View) -> Scored:
        match view.completion.split()[-1]:
            case "hang":
                while True:
                    pass
            case "c_hang":
                sum(range(10**14))  # never returns to the interpreter
            case "sleep":
                time.sleep(3600)
            case "hog":
                bytearray(8 << 30)
            case "recurse":
                return self._deeper(0)
            case "segv":
                ctypes.string_at(0)
            case "abort":
                os.abort()
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(3)
            case "die_once":
                self._die_once(view.completion)
            case "raise":
                raise RuntimeError("a defect in the grader")
            case "swallow":
                while True:
                    try:
                        while True:
                            pass
                    except Exception:
                        continue
            case "slow":
                end = time.process_time() + 0.02
                while time.process_time() < end:
                    pass
            case "big_raw":
                return Scored(1.0, raw={"text": "x" * 1_000_000})
            case "bad":
                return Scored(float("nan"))
        return Scored(1.0, {"ok": 1.0}, raw={"outcome": "fine"})

    def _deeper(self, n: int) -> Scored:
        return self._deeper(n + 1)

    def _die_once(self, completion: str) -> None:
        assert self._marker is not None
        mark = Path(self._marker) / completion.replace(" ", "_")
        if not mark.exists():
            # Not written (RLIMIT_FSIZE is 0), only made.
            os.close(os.open(mark, os.O_CREAT | os.O_WRONLY))
            os.kill(os.getpid(), signal.SIGKILL)


HOSTILE = Kind(
    name="hostile",
    summary="Misbehaves as told.",
    config=HostileConfig,
    reference=Any,
    build=HostileGrader,
    budget=BUDGET,
)

CATALOG = Catalog((answer.KIND, code.KIND, exact.KIND, format.KIND, lean.KIND, HOSTILE))
PATH = "tests.hostile:CATALOG"
