"""From what is known of an ended process to a verdict. Pure."""

from __future__ import annotations

import signal

from sandboxes.languages import Language
from sandboxes.program import Limits, Verdict

_TOLD = (
    b"MemoryError",
    b"std::bad_alloc",
    b"OutOfMemoryError",
    b"heap out of memory",
    b"Cannot allocate memory",
)


def verdict_on(
    limits: Limits, language: Language, killed: str, code: int, number: int | None, cpu_s: float, peak_kb: int,
    full: bool, stderr: bytes,
) -> Verdict:  # fmt: skip
    match killed:
        case "memory":
            return Verdict.MEMORY_LIMIT
        case "output":
            return Verdict.OUTPUT_LIMIT
        case "disk":
            return Verdict.DISK_LIMIT
        case "cpu" | "wall" | "cancelled":
            return Verdict.TIME_LIMIT
    if cpu_s > limits.cpu_s or number == signal.SIGXCPU:
        return Verdict.TIME_LIMIT
    if language.memory_counted and peak_kb > (limits.memory_mb + language.memory_mb) << 10:
        return Verdict.MEMORY_LIMIT
    if code == 0:
        return Verdict.OK
    if number == signal.SIGXFSZ or full:
        return Verdict.DISK_LIMIT
    # A process that was refused memory dies in its own way. Both are failures, so a lie gains nothing.
    near = language.memory_counted and peak_kb > 0.9 * (limits.memory_mb << 10)
    if near or any(t in stderr[-2000:] for t in _TOLD):
        return Verdict.MEMORY_LIMIT
    return Verdict.RUNTIME_ERROR
