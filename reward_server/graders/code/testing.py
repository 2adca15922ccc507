"""Grades a function by tests written in Python, which call it from another box."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from reward_server.graders.base import Context
from reward_server.graders.code import tests
from reward_server.graders.code.extraction import Found
from reward_server.graders.code.limits import Failed, as_bytes, require, sandbox_limits, tail
from reward_server.graders.code.reference import CodeReference
from reward_server.outcome import Basis, CannotScore, FailureKind, Outcome, Scored
from sandboxes.inside.codec import NotAValue, decode, encode
from sandboxes.program import Execution, Limits, Peer, Run, Sandbox, Submission, Verdict

if TYPE_CHECKING:
    from reward_server.graders.code import runner  # noqa: F401 (it is part of the digest)
    from reward_server.graders.code.kind import CodeConfig

_TESTS = Limits(cpu_s=20.0, wall_s=60.0, memory_mb=1024, disk_mb=64)
"""What a test's own process may use, beside the candidate's: generous, because it is the reference's program."""
_SHOWN = 2000
_PLAN = "plan"
_RUNNER = files(__package__).joinpath("runner.py").read_text("utf-8")


@dataclass(slots=True)
class _Progress:
    words: list[str] = field(default_factory=list)
    """How each test ended: ``passed``, ``failed``, or what became of the candidate."""
    runs: list[Execution] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    wall_s: float = 0.0
    limited: bool = False


class TestsGrading:
    """One completion against the tests of one reference."""

    def __init__(
        self,
        config: CodeConfig,
        reference: CodeReference,
        found: Found,
        ctx: Context,
        prompt: str | list[dict[str, str]] | None,
    ) -> None:
        self._config = config
        self._reference = reference
        self._found = found
        self._deadline = ctx.deadline
        self._sandbox: Sandbox = ctx.sandbox
        self._limits = reference.limits or config.limits
        self._shared = reference.allow_shared
        self._progress = _Progress()
        self._token = secrets.token_hex(16)
        """What a report of success has to bring."""
        self._problem: CannotScore | None = None
        """With the tests themselves, or with what is installed for them."""
        given = reference.prefix or (prompt if isinstance(prompt, str) else "")
        self._prompt = tests.whole(given) or ""
        """What the prompt defines, where it is Python: the tests may use it."""
        self._given = given if self._prompt else ""
        """What the completion may continue."""
        entry = [] if reference.entry_point is None else [reference.entry_point]
        try:
            self._plan = tests.plan(
                reference.tests or "", (*entry, *reference.functions), self._prompt
            )
        except tests.BadTests as error:
            if not (self._shared and isinstance(error, tests.Undefined)):
                raise CannotScore(FailureKind.INVALID_REFERENCE, str(error)) from None
            self._plan = error.plan

    async def run(self) -> tuple[Outcome, bool]:
        """(outcome, whether a run that failed was starved of CPU). Raises as the pool does, CannotScore, and Failed."""
        await require(self._sandbox, self._config.required, self._config.runtime)
        await self._sandbox.run(self._submission(), self._on_run, self._deadline - self._needed())
        if self._problem is not None:
            raise self._problem
        starved = any(
            e.starved or (e.peer is not None and e.peer.starved) for e in self._progress.runs
        )
        return self._outcome(), starved

    def _needed(self) -> float:
        return min(self._limits.total_cpu_s, self._limits.cpu_s * len(self._plan.tests))

    def _program(self) -> str:
        """The candidate: what the prompt begins, the completion, and what the reference adds."""
        text = self._found.text
        joined = f"{self._given}\n{text}" if self._given else text
        if self._given and not self._reference.prefix and tests.parsed(joined) is None:
            joined = text
        return joined + self._reference.suffix

    def _submission(self) -> Submission:
        plan, limits = self._plan, sandbox_limits(self._limits)
        data = tests.as_data(
            plan,
            self._reference.tests or "",
            self._prompt,
            shared=self._shared,
            candidate=self._program(),
            most=self._limits.output_kb << 10,
            token=self._token,
        )
        given = {name: as_bytes(text) for name, text in self._reference.files.items()}
        runs = tuple(Run(argv=(str(n),), reports=True) for n in range(len(plan.tests)))
        return Submission(
            "python",
            _RUNNER,
            runs,
            limits if self._shared else _TESTS,
            files={**given, _PLAN: encode(data, exact=True).encode()},
            preload=("ast", *plan.imports),
            stop_on_failure=False,
            peer=None if self._shared else Peer(self._program(), limits, given),
        )

    # ── tests ────────────────────────────────────────────────────────────────────────────────────

    def _on_run(self, number: int, done: Execution) -> bool:
        """Hears of each test; whether to stop there."""
        progress, candidate = self._progress, done if self._shared else done.peer
        progress.runs.append(done.but(stdout=b"", result=None))
        if (
            done.verdict is Verdict.SANDBOX_FAILED
            or candidate is None
            or candidate.verdict is Verdict.SANDBOX_FAILED
        ):
            return True
        progress.cpu_s += candidate.cpu_s
        progress.wall_s += done.wall_s
        outcome, detail = _told(done, self._token)
        ended = candidate.ok or candidate.killed_by == "cancelled"
        if outcome == "broken":
            self._problem = CannotScore(
                FailureKind.INVALID_REFERENCE,
                f"test {number} fails before it has seen anything of the candidate: {detail}",
            )
            return True
        if outcome == "missing":
            self._problem = CannotScore(
                FailureKind.SANDBOX_UNAVAILABLE,
                f"the tests need what the sandboxes lack: {detail}. Packages: docs/how-to/sandboxes.md",
            )
            return True
        if candidate.ok and progress.cpu_s > self._limits.total_cpu_s:
            word, progress.limited = Verdict.TIME_LIMIT.value, True
        elif not ended:
            word = candidate.verdict.value
            progress.limited = progress.limited or candidate.verdict is not Verdict.RUNTIME_ERROR
        elif not done.ok:
            word = "failed"
            progress.limited = progress.limited or done.verdict is not Verdict.RUNTIME_ERROR
            detail = (
                detail
                or f"the tests' process: {done.verdict} {done.killed_by} {done.detail}".strip()
            )
        else:
            word = "passed" if outcome == "passed" else "failed"
        progress.words.append(word)
        progress.details.append(detail)
        if progress.cpu_s > self._limits.total_cpu_s or progress.wall_s > self._limits.total_wall_s:
            progress.limited = True
            return True
        return self._config.score == "all" and self._config.stop_early and word != "passed"

    # ── the outcome ──────────────────────────────────────────────────────────────────────────────

    def _outcome(self) -> Outcome:
        progress, count = self._progress, len(self._plan.tests)
        for done in progress.runs:
            for one in (done, done.peer):
                if one is not None and one.verdict is Verdict.SANDBOX_FAILED:
                    raise Failed(one.detail)
        passed = progress.words.count("passed")
        everything = passed == count
        share = passed / count
        raw: dict[str, Any] = {
            "outcome": "passed" if everything else "failed",
            "language": "python",
            "isolation": "shared" if self._shared else "separate",
            "rule": self._found.rule,
            "span": [self._found.start, self._found.end],
            "tests": count,
            "run": len(progress.words),
            "passed": passed,
            "verdicts": progress.words,
            "cpu_s": round(progress.cpu_s, 4),
        }
        if not everything:
            raw["first_failure"] = self._first_failure()
        return Scored(
            share if self._config.score == "share" else float(everything),
            {"correct": float(everything), "share": share},
            raw=raw,
            basis=Basis.LIMIT if progress.limited else Basis.VERDICT,
        )

    def _first_failure(self) -> dict[str, Any]:
        progress = self._progress
        number = next(
            (n for n, w in enumerate(progress.words) if w != "passed"), len(progress.words)
        )
        test = self._plan.tests[number]
        shown: dict[str, Any] = {"test": number, "name": test.name}
        if number >= len(progress.words):
            return {**shown, "verdict": "not_run", "killed_by": "total_cpu or total_wall"}
        done = progress.runs[number]
        candidate = done if done.peer is None else done.peer
        shown |= {
            "verdict": progress.words[number],
            "exit_code": candidate.exit_code,
            "signal": candidate.signal,
            "killed_by": None
            if candidate.killed_by == "cancelled"
            else candidate.killed_by or None,
            "cpu_s": round(candidate.cpu_s, 4),
            "wall_s": round(candidate.wall_s, 4),
            "stderr": tail(candidate.stderr),
        }
        if self._config.reveal == "all":
            shown["detail"] = progress.details[number][:_SHOWN]
        return shown


def _told(done: Execution, token: str) -> tuple[str, str]:
    """(outcome, detail) as the tests' process reported it; a report is one value and nothing else."""
    try:
        told: Any = decode((done.result or b"").decode("ascii"))
        outcome, detail, brought = (str(told[k]) for k in ("outcome", "detail", "token"))
    except (NotAValue, UnicodeDecodeError, TypeError, KeyError):
        return "failed", ""
    return outcome if brought == token else "failed", detail
