"""Grades a program by cases: what it prints, or what its function returns."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from reward_server.graders.base import Context
from reward_server.graders.code import checking, outputs, results
from reward_server.graders.code.extraction import Found
from reward_server.graders.code.limits import Failed, as_bytes, require, sandbox_limits, tail
from reward_server.graders.code.reference import CallCase, CodeReference, StdioCase
from reward_server.outcome import Basis, Outcome, Scored
from sandboxes import program as sandbox, values
from sandboxes.languages import LANGUAGES
from sandboxes.program import Execution, Run, Submission, Verdict

if TYPE_CHECKING:
    from reward_server.graders.code.kind import CodeConfig

_SHOWN = 500
_RECEIVED = 2000
_SMALL = 32 << 10
_LARGE = 256 << 10
_TIMES_AS_LONG = 12
_MOST_OUTPUT = 64 << 20


@dataclass(slots=True)
class _Progress:
    """Cases so far."""

    passed: list[float] = field(default_factory=list)
    """Share of each case's weight, in order."""
    words: list[str] = field(default_factory=list)
    """How each ended, for ``raw``."""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    output: int = 0
    """Bytes printed, of all runs."""
    limited: bool = False
    """Whether a limit decided anything: then the verdict may differ another time."""


class CasesGrading:
    """One completion against one reference."""

    def __init__(
        self, config: CodeConfig, reference: CodeReference, found: Found, ctx: Context
    ) -> None:
        self._config = config
        self._reference = reference
        self._cases: list[StdioCase] | list[CallCase] = reference.cases or []
        self._found = found
        self._deadline = ctx.deadline
        self._sandbox: sandbox.Sandbox = ctx.sandbox
        self._limits = reference.limits or config.limits
        comparison = reference.comparison or config.comparison
        tolerance = comparison.tolerance
        self._rule = outputs.Rule(
            comparison.mode,
            # The decimal that was written, not its nearest double.
            Fraction(repr(tolerance.absolute)) if tolerance else Fraction(0),
            Fraction(repr(tolerance.relative)) if tolerance else Fraction(0),
            comparison.case_sensitive,
        )
        self._progress = _Progress()
        self._runs: list[Execution] = []

    async def run(self) -> tuple[Outcome, bool]:
        """(outcome, whether a run that failed was starved of CPU). Raises as the pool does, and Failed."""
        reference, config = self._reference, self._config
        language = LANGUAGES[reference.canonical_language]
        await require(self._sandbox, config.required, config.runtime)
        source = reference.prefix + self._found.text + reference.suffix
        submission = Submission(
            language.name,
            source,
            tuple(self._run_of(c) for c in self._cases),
            sandbox_limits(self._limits),
            files={n: t.encode("utf-8", "surrogatepass") for n, t in reference.files.items()},
            stop_on_failure=self._stops and reference.checker is None,
        )
        needed = min(self._limits.total_cpu_s, self._limits.cpu_s * len(self._cases))
        if language.compile is not None:
            needed += language.compile_limits.cpu_s
        report = await self._sandbox.run(submission, self._on_run, self._deadline - needed)
        compilation = report.compilation
        if compilation is not None and not compilation.ok:
            if compilation.verdict is Verdict.SANDBOX_FAILED:
                raise Failed(compilation.detail)
            return self._ended("compile_error", compilation), compilation.starved
        if reference.checker is not None:
            await self._check()
        return self._ended(None, None), any(e.starved for e in self._runs)

    @property
    def _stops(self) -> bool:
        return self._config.score == "all" and self._config.stop_early

    def _run_of(self, case: StdioCase | CallCase) -> Run:
        if isinstance(case, CallCase):
            args, kwargs = results.argument(case.args), results.argument(case.kwargs)
            return Run(call=sandbox.Call(self._reference.entry_point or "", tuple(args), kwargs))
        return Run(stdin=as_bytes(case.stdin))

    # ── cases ────────────────────────────────────────────────────────────────────────────────────

    async def _on_run(self, number: int, execution: Execution) -> bool:
        """Hears of each run; whether to stop there."""
        if execution.verdict is Verdict.SANDBOX_FAILED:
            self._runs.append(execution)
            return True
        case = self._cases[number]
        progress = self._progress
        progress.cpu_s += execution.cpu_s
        if execution.ok and progress.cpu_s > self._limits.total_cpu_s:
            execution = execution.but(verdict=Verdict.TIME_LIMIT, killed_by="total_cpu")
        self._runs.append(execution)
        if not execution.ok:
            share, word = 0.0, execution.verdict.value
            # A crash, like a limit, may not happen another time.
            sure = (
                execution.verdict is Verdict.RUNTIME_ERROR
                and execution.signal is None
                and not execution.detail
            )
            progress.limited = progress.limited or not sure
        elif self._reference.checker is not None:
            share, word = 0.0, "unchecked"
        else:
            right = await self._judge(case, execution)
            share, word = float(right), "passed" if right else "wrong"
        progress.passed.append(share)
        progress.words.append(word)
        progress.output += len(execution.stdout)
        if self._reference.checker is None:  # judged: only what raw may show is kept
            self._runs[-1] = execution.but(
                stdout=execution.stdout[:_RECEIVED], result=(execution.result or b"")[:_RECEIVED]
            )
        elif progress.output > _MOST_OUTPUT:
            self._runs[-1] = execution.but(
                verdict=Verdict.OUTPUT_LIMIT, killed_by="total_output", stdout=b""
            )
            progress.words[-1], progress.limited = "output_limit", True
            return True
        progress.wall_s += execution.wall_s
        if progress.cpu_s > self._limits.total_cpu_s or progress.wall_s > self._limits.total_wall_s:
            progress.limited = True
            return True
        return self._stops and share < 1 and word != "unchecked"

    async def _judge(self, case: StdioCase | CallCase, execution: Execution) -> bool:
        """Compares, in a thread where that may take long: the event loop serves others."""
        size = len(execution.result or execution.stdout)
        if size <= _SMALL:
            return self._right(case, execution)
        expected = len(case.stdout) if isinstance(case, StdioCase) else len(repr(case.expected))
        if size > _TIMES_AS_LONG * expected + _LARGE:
            return False  # far more than what is expected, in any way of writing it
        return await asyncio.to_thread(self._right, case, execution)

    def _right(self, case: StdioCase | CallCase, execution: Execution) -> bool:
        if isinstance(case, StdioCase):
            return outputs.same(execution.stdout, as_bytes(case.stdout), self._rule)
        if not execution.result:
            return False  # the function never returned: the process ended by itself, whatever its exit status
        try:
            returned = values.decode(execution.result)
            return results.same_value(returned, results.expected_value(case.expected), self._rule)
        except (
            values.NotAValue,
            ValueError,
            ArithmeticError,
            RecursionError,
            TypeError,
            MemoryError,
        ):
            return False  # whatever a returned value makes of the comparison, it is not the one expected

    async def _check(self) -> None:
        """Asks the checker about every run that ended well."""
        checker, progress = self._reference.checker, self._progress
        assert checker is not None
        asked = [n for n, e in enumerate(self._runs) if e.ok]
        cases = [c for c in self._cases if isinstance(c, StdioCase)]
        questions = [
            checking.Question(
                as_bytes(cases[n].stdin), self._runs[n].stdout, as_bytes(cases[n].stdout)
            )
            for n in asked
        ]
        shares, certain = await checking.ask(
            self._sandbox, checker, questions, stop_at_wrong=self._stops
        )
        progress.limited = progress.limited or not certain
        for number, share in zip(asked, shares, strict=True):
            progress.passed[number] = share
            progress.words[number] = "passed" if share >= 1 else "wrong" if share <= 0 else "partly"

    # ── the outcome ──────────────────────────────────────────────────────────────────────────────

    def _ended(self, outcome: str | None, compilation: Execution | None) -> Outcome:
        reference, progress = self._reference, self._progress
        if any(e.verdict is Verdict.SANDBOX_FAILED for e in self._runs):
            raise Failed(next(e.detail for e in self._runs if e.verdict is Verdict.SANDBOX_FAILED))
        weights = [case.weight for case in self._cases]
        passed = sum(share >= 1 for share in progress.passed)
        weight = sum(w * share for w, share in zip(weights, progress.passed, strict=False)) / sum(
            weights
        )
        everything = passed == len(weights)
        reward = weight if self._config.score == "share" else float(everything)
        reward = 1.0 if everything else min(reward, 1.0)
        raw: dict[str, Any] = {
            "outcome": outcome or ("passed" if everything else "failed"),
            "language": reference.canonical_language,
            "rule": self._found.rule,
            "span": [self._found.start, self._found.end],
            "cases": len(weights),
            "run": len(self._runs),
            "passed": passed,
            "verdicts": progress.words,
            "cpu_s": round(progress.cpu_s, 4),
            "peak_memory_mb": round(max((e.memory_mb for e in self._runs), default=0.0), 1),
        }
        if compilation is not None:
            raw["compiler"] = compilation.verdict.value
            raw["stderr"] = tail(compilation.stderr)
        elif not everything:
            raw["first_failure"] = self._first_failure()
        limited = progress.limited or (
            compilation is not None and compilation.verdict is not Verdict.COMPILE_ERROR
        )
        return Scored(
            reward,
            {"correct": float(everything), "share": weight},
            raw=raw,
            basis=Basis.LIMIT if limited else Basis.VERDICT,
        )

    def _first_failure(self) -> dict[str, Any]:
        shares = self._progress.passed
        number = next((n for n, share in enumerate(shares) if share < 1), len(shares))
        if number >= len(self._runs):
            return {"case": number, "verdict": "not_run", "killed_by": "total_cpu or total_wall"}
        execution, case = self._runs[number], self._cases[number]
        shown: dict[str, Any] = {
            "case": number,
            "verdict": self._progress.words[number],
            "exit_code": execution.exit_code,
            "signal": execution.signal,
            "killed_by": execution.killed_by or None,
            "cpu_s": round(execution.cpu_s, 4),
            "wall_s": round(execution.wall_s, 4),
            "stderr": tail(execution.stderr),
        }
        if execution.detail:
            shown["detail"] = execution.detail[:_SHOWN]
        if case.public or self._config.reveal == "all":
            if isinstance(case, StdioCase):
                shown |= {"stdin": case.stdin[:_SHOWN], "expected": case.stdout[:_SHOWN]}
            else:
                shown |= {
                    "args": repr(case.args)[:_SHOWN],
                    "expected": repr(case.expected)[:_SHOWN],
                }
            received = execution.result if execution.result else execution.stdout
            shown["received"] = received[:_RECEIVED].decode("utf-8", "replace")
        return shown
