"""Raw access to the sandbox for adapters that grade nothing, under the same admission as scoring."""

from __future__ import annotations

from contextlib import suppress

from reward_server.scoring.service import Service
from sandboxes.program import (
    Execution,
    Limits,
    NoSlotInTime,
    Report,
    Run,
    SandboxLost,
    SandboxUnavailable,
    Submission,
    Verdict,
    files_problem,
    name_problem,
)

__all__ = [
    "Execution",
    "Executor",
    "Limits",
    "NoSlotInTime",
    "Report",
    "Run",
    "SandboxLost",
    "SandboxUnavailable",
    "Submission",
    "Verdict",
    "files_problem",
    "name_problem",
]

_TRIES = 2


class Executor:
    """Runs submissions for whoever may, in the pool that grading uses."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def run(self, submission: Submission, size: int, start_by: float) -> Report:
        """``size`` is the request's bytes; ``start_by`` a time of ``time.monotonic()``.

        A fault of the sandbox is tried once more. Raises Unavailable (no room), NoSlotInTime,
        SandboxUnavailable, SandboxLost.
        """
        with self._service.admission.admitted(1, size):
            for _ in range(_TRIES - 1):
                with suppress(SandboxLost):
                    report = await self._service.sandbox.run(submission, None, start_by)
                    if not _failed(report):
                        return report
            return await self._service.sandbox.run(submission, None, start_by)


def _failed(report: Report) -> bool:
    ends = (report.compilation, *report.runs)
    return any(e is not None and e.verdict is Verdict.SANDBOX_FAILED for e in ends)
