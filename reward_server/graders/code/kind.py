"""Kind ``code``: a program or function does in a sandbox what its hidden tests ask.

Find the program (``extraction``), run it on every case in one box (``sandboxes``), and compare outside of
that box what came out (``outputs`` for what it printed, ``results`` for what a function returned). What is
expected never enters a process that runs the completion, and an exit status passes nothing. ``raw`` says how it ended:

``passed``         every case.
``failed``         some case: ``first_failure`` says which, and how.
``compile_error``
``no_code``        no rule found a program.

What a program does to itself (time, memory, crash, output without end) fails its case. A fault of the sandbox
is tried once more and then leaves the item unscored.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field as ModelField, ValidationError

from reward_server.graders.base import Budget, Context, Field, Kind, Spec, View
from reward_server.graders.code import checking, outputs, results
from reward_server.graders.code.extraction import Found, Rule, extract
from reward_server.graders.code.reference import (
    CallCase,
    CodeReference,
    Comparison,
    Limits,
    StdioCase,
    names_of,
)
from reward_server.outcome import Basis, CannotScore, FailureKind, Outcome, Scored
from sandboxes import program as sandbox, values
from sandboxes.languages import LANGUAGES
from sandboxes.program import Execution, Run, Submission, Verdict

if TYPE_CHECKING:  # not imported here, but they decide verdicts, so they belong into the digest
    from sandboxes import keeper  # noqa: F401

Protection = Literal["namespaces", "seccomp", "unprivileged", "memory", "pids", "proc", "rlimits"]

_STDERR_TAIL = 2000
_SHOWN = 500
_RECEIVED = 2000
_TIMES_TO_TRY = 2
_SMALL = 32 << 10
_LARGE = 256 << 10
_TIMES_AS_LONG = 12
_MOST_OUTPUT = 64 << 20


class CodeConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    extract: list[Rule] = ModelField(["block", "whole"], min_length=1, max_length=2)
    """Where the program is looked for, in this order."""
    score: Literal["all", "share"] = "all"
    """``all``: 1 if every case passes, else 0. ``share``: the share of weight that passes."""
    stop_early: bool = True
    """With ``all``: whether the first failing case is the last to run."""
    comparison: Comparison = Comparison()
    limits: Limits = Limits()
    required: list[Protection] = ["namespaces", "rlimits", "seccomp", "unprivileged"]
    """Protections without which nothing is graded: a host that lacks one leaves items unscored."""
    reveal: Literal["all", "public"] = "public"
    """Whose input and expected output ``raw`` may show: a trainer that logs ``raw`` may train on it."""


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


class CodeGrader:
    reads = frozenset({Field.COMPLETION, Field.REFERENCE})
    requires = frozenset({Field.REFERENCE})

    def __init__(self, config: CodeConfig, spec: Spec) -> None:
        self._config = config

    def reference_problem(self, reference: Any) -> str | None:
        try:
            CodeReference.model_validate(reference)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(
                str(x) for x in first["loc"] if x not in ("list[StdioCase]", "list[CallCase]")
            )
            return f"an object with a language and cases: {where or 'reference'}: {first['msg']}"[
                :400
            ]
        return None

    async def grade_live(self, view: View, ctx: Context) -> Outcome:
        reference = CodeReference.model_validate(view.reference)
        language = reference.canonical_language
        found = extract(view.completion, tuple(self._config.extract), names_of(language))
        if found is None:
            return Scored(0.0, {"correct": 0.0}, raw={"outcome": "no_code", "language": language})
        starved = False
        for attempt in range(_TIMES_TO_TRY):
            grading = _Grading(self._config, reference, found, ctx)
            try:
                outcome, starved = await grading.run()
            except (sandbox.SandboxLost, _Failed) as error:
                if attempt + 1 == _TIMES_TO_TRY:
                    raise CannotScore(FailureKind.SANDBOX_UNAVAILABLE, str(error)) from None
                continue
            except sandbox.SandboxUnavailable as error:
                raise CannotScore(FailureKind.SANDBOX_UNAVAILABLE, str(error)) from None
            except sandbox.NoSlotInTime as error:
                raise CannotScore(FailureKind.DEADLINE_EXCEEDED, str(error)) from None
            if not starved:  # a program that got no core within its wall time is given another try
                break
        return outcome


class _Failed(Exception):
    """The sandbox failed; there is no verdict."""


class _Grading:
    """One completion against one reference."""

    def __init__(
        self, config: CodeConfig, reference: CodeReference, found: Found, ctx: Context
    ) -> None:
        self._config = config
        self._reference = reference
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
        """(outcome, whether a run that failed was starved of CPU). Raises as the pool does, and _Failed."""
        reference, config = self._reference, self._config
        language = LANGUAGES[reference.canonical_language]
        if missing := sorted(set(config.required) - set(await self._sandbox.active())):
            raise sandbox.SandboxUnavailable(
                f"this host lacks {missing}: run `reward-server doctor`, or leave them out of `required`"
            )
        source = reference.prefix + self._found.text + reference.suffix
        submission = Submission(
            language.name,
            source,
            tuple(self._run_of(c) for c in reference.cases),
            _limits(self._limits),
            files={n: t.encode("utf-8", "surrogatepass") for n, t in reference.files.items()},
            stop_on_failure=self._stops and reference.checker is None,
        )
        needed = min(self._limits.total_cpu_s, self._limits.cpu_s * len(reference.cases))
        if language.compile is not None:
            needed += language.compile_limits.cpu_s
        report = await self._sandbox.run(submission, self._on_run, self._deadline - needed)
        compilation = report.compilation
        if compilation is not None and not compilation.ok:
            if compilation.verdict is Verdict.SANDBOX_FAILED:
                raise _Failed(compilation.detail)
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
        return Run(stdin=_bytes(case.stdin))

    # ── cases ────────────────────────────────────────────────────────────────────────────────────

    async def _on_run(self, number: int, execution: Execution) -> bool:
        """Hears of each run; whether to stop there."""
        if execution.verdict is Verdict.SANDBOX_FAILED:
            self._runs.append(execution)
            return True
        case = self._reference.cases[number]
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
            return outputs.same(execution.stdout, _bytes(case.stdout), self._rule)
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
        cases = [c for c in self._reference.cases if isinstance(c, StdioCase)]
        questions = [
            checking.Question(_bytes(cases[n].stdin), self._runs[n].stdout, _bytes(cases[n].stdout))
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
            raise _Failed(next(e.detail for e in self._runs if e.verdict is Verdict.SANDBOX_FAILED))
        weights = [case.weight for case in reference.cases]
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
            raw["stderr"] = _tail(compilation.stderr)
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
        execution, case = self._runs[number], self._reference.cases[number]
        shown: dict[str, Any] = {
            "case": number,
            "verdict": self._progress.words[number],
            "exit_code": execution.exit_code,
            "signal": execution.signal,
            "killed_by": execution.killed_by or None,
            "cpu_s": round(execution.cpu_s, 4),
            "wall_s": round(execution.wall_s, 4),
            "stderr": _tail(execution.stderr),
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


def _limits(limits: Limits) -> sandbox.Limits:
    return sandbox.Limits(
        limits.cpu_s,
        limits.wall_s,
        limits.memory_mb,
        limits.pids,
        limits.output_kb,
        limits.disk_mb,
        limits.files,
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _tail(text: bytes) -> str:
    return text[-_STDERR_TAIL:].decode("utf-8", "replace")


def _unavailable() -> str | None:
    from sandboxes import doctor  # noqa: PLC0415

    return doctor.unavailable()


KIND = Kind(
    name="code",
    summary="A program or function, run in a sandbox on hidden cases.",
    config=CodeConfig,
    reference=CodeReference,
    build=CodeGrader,
    pure=False,
    budget=Budget(cpu_s=1.0),
    unavailable=_unavailable,
)
