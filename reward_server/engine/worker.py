"""The inside of a grading worker: takes chunks of work, grades item by item, answers.

A worker is forked from the zygote and handles hostile text with library code of ours and of others. It
has a scrubbed environment, no handle but its socket and its progress page, and a memory rlimit.

CPU time is budgeted per item by ``ITIMER_PROF`` in this process's only thread: when it fires, Python
code is interrupted with an exception. Code that never returns to the interpreter is killed from outside
(``local.py``), which reads the progress page to know which item was in hand.

After an item that hit a limit the worker answers what it has and exits, because an interrupted library
may be in any state: a neighbour's verdict must not depend on it.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import resource
import signal
import socket
import time
from dataclasses import dataclass
from typing import Any, NoReturn

from reward_server.engine.wire import pack_outcome, unpack_spec
from reward_server.frames import HEADER, frame, unpack
from reward_server.graders.base import PureGrader, Spec, View
from reward_server.graders.catalog import Catalog
from reward_server.outcome import CannotScore, FailureKind, Outcome, Scored, Unscored, spent

PROGRESS_BYTES = 32
"""Four int64: chunk, item index (−1 between items), its CPU start in ns, its wall start in ns."""

_FLUSH_AFTER_S = 0.02
_TIMER_REPEAT_S = 0.05
_MAX_GRADERS = 512


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    memory_mb: int
    max_items: int


class BudgetSpent(BaseException):
    """Not an Exception, so that no ``except Exception`` in a library can swallow it."""


class Retire(Exception):
    """This process answers what it has and ends."""


class Worker:
    def __init__(self, sock: socket.socket, page: mmap.mmap, catalog: Catalog) -> None:
        self._sock = sock
        self._progress = memoryview(page).cast("q")
        self._catalog = catalog
        self._graders: dict[str, PureGrader] = {}
        self._grading = False

    def run(self, limits: WorkerLimits) -> None:
        """Serves chunks until the socket closes, an item hits a limit, or enough were done."""
        signal.signal(signal.SIGPROF, self._on_timer)
        served = 0
        while served < limits.max_items:
            chunk = self._receive()
            if chunk is None:
                return
            served += len(chunk[2])
            if not self._serve(chunk, last=served >= limits.max_items):
                return

    def _serve(self, chunk: list[Any], *, last: bool) -> bool:
        """One chunk; False when this worker must not take another."""
        number, packed_specs, items = chunk
        specs = [unpack_spec(s) for s in packed_specs]
        self._progress[0] = number
        results: list[Any] = []
        flush_at = time.monotonic() + _FLUSH_AFTER_S
        clean = True
        for index, (spec_index, cpu_s, start_by, view) in enumerate(items):
            started = time.monotonic()
            if started > flush_at:
                self._send([number, results, False, False])
                results = []
                flush_at = started + _FLUSH_AFTER_S
            if started > start_by:
                outcome: Outcome | None = Unscored(
                    FailureKind.DEADLINE_EXCEEDED, "too little time was left to start grading"
                )
            else:
                self._progress[2] = time.process_time_ns()
                self._progress[3] = time.monotonic_ns()
                self._progress[1] = index
                outcome, clean = self._grade(specs[spec_index], view, cpu_s)
                self._progress[1] = -1
            elapsed_us = int((time.monotonic() - started) * 1e6)
            packed = None if outcome is None else pack_outcome(outcome)
            results.append([index, packed, elapsed_us])
            if not clean:
                break
        signal.setitimer(signal.ITIMER_PROF, 0)
        going_on = clean and not last
        self._send([number, results, True, not going_on])
        return going_on

    def _grade(self, spec: Spec, view: bytes, cpu_s: float) -> tuple[Outcome | None, bool]:
        """(outcome, whether this process is still clean).

        No outcome means: out of memory or stack here, to be tried alone in a fresh process before the
        item is blamed for what its neighbours may have left behind.
        """
        try:
            try:
                grader = self._grader(spec)
                parsed = View.parse(view)
                signal.setitimer(signal.ITIMER_PROF, cpu_s, _TIMER_REPEAT_S)
                self._grading = True
                scored = _finite(grader.grade(parsed))
                return scored, not getattr(grader, "tainted", False)
            finally:
                self._grading = False
        except BudgetSpent:
            signal.setitimer(signal.ITIMER_PROF, 0)
            return spent("cpu_limit", f"grading took more than {cpu_s:g} s of CPU time"), False
        except (MemoryError, RecursionError):
            return None, False
        except CannotScore as error:
            return Unscored(error.kind, error.detail), True
        except Exception as error:
            # The message may hold pieces of the completion, but never more than this.
            detail = f"{type(error).__name__}: {error}"[:500]
            return Unscored(FailureKind.GRADER_ERROR, detail), True

    def _grader(self, spec: Spec) -> PureGrader:
        grader = self._graders.get(spec.digest)
        if grader is None:
            if len(self._graders) >= _MAX_GRADERS:
                self._graders.clear()
            built = self._catalog.build(spec)
            if not isinstance(built, PureGrader):
                raise TypeError(f"kind {spec.kind} does not run in a worker")
            grader = self._graders[spec.digest] = built
        return grader

    def _on_timer(self, signum: int, frame_: object) -> None:
        if self._grading:
            raise BudgetSpent

    def _receive(self) -> list[Any] | None:
        header = self._exactly(HEADER.size)
        if header is None:
            return None
        body = self._exactly(HEADER.unpack(header)[0])
        if body is None:
            return None
        chunk: list[Any] = unpack(body)
        return chunk

    def _exactly(self, size: int) -> bytes | None:
        parts = []
        while size:
            part = self._sock.recv(min(size, 1 << 20))
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _send(self, message: list[Any]) -> None:
        self._sock.sendall(frame(message))


def _finite(scored: Scored) -> Scored:
    """A grader that gives NaN has a defect; that is found here, where the item is still known."""
    steps = [s.reward for s in scored.step_rewards or ()]
    if not all(map(math.isfinite, (scored.reward, *scored.components.values(), *steps))):
        raise ValueError("the grader gave a reward that is not finite")
    return scored


def main(sock: socket.socket, page_fd: int, catalog: Catalog, limits: WorkerLimits) -> NoReturn:
    """Runs a worker in this freshly forked process and leaves it."""
    code = 1
    try:
        page = mmap.mmap(page_fd, PROGRESS_BYTES)
        os.close(page_fd)
        confine(limits)
        Worker(sock, page, catalog).run(limits)
        code = 0
    except (ConnectionError, KeyboardInterrupt):
        code = 0
    finally:
        os._exit(code)


def confine(limits: WorkerLimits) -> None:
    """Memory, files and privileges: what this process may still do."""
    _cap(resource.RLIMIT_AS, _address_space() + (limits.memory_mb << 20))
    _cap(resource.RLIMIT_CORE, 0)
    _cap(resource.RLIMIT_FSIZE, 0)
    _cap(resource.RLIMIT_NOFILE, 64)
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no ptrace, no reading of /proc/<pid>/mem


def _cap(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()
