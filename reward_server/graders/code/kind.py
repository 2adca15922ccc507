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

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field as ModelField, ValidationError

from reward_server.graders.base import Budget, Context, Field, Kind, Spec, View
from reward_server.graders.code.cases import CasesGrading
from reward_server.graders.code.extraction import Found, Rule, extract
from reward_server.graders.code.limits import Failed
from reward_server.graders.code.reference import CodeReference, Comparison, Limits, names_of
from reward_server.graders.code.testing import TestsGrading
from reward_server.outcome import CannotScore, FailureKind, Outcome, Scored
from sandboxes import program as sandbox

if TYPE_CHECKING:  # not imported here, but they decide verdicts, so they belong into the digest
    from sandboxes import keeper  # noqa: F401

Protection = Literal["namespaces", "seccomp", "unprivileged", "memory", "pids", "proc", "rlimits"]

_TIMES_TO_TRY = 2


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
    runtime: str | None = ModelField(None, max_length=200)
    """The only thing to run on: ``bubblewrap``, or the id (``sha256:…``) of an image of the Docker backend. A host that
    has another leaves items unscored. None: whatever the server uses, which the environment of a grading says."""
    reveal: Literal["all", "public"] = "public"
    """Whose input and expected output ``raw`` may show: a trainer that logs ``raw`` may train on it."""


class CodeGrader:
    reads = frozenset({Field.COMPLETION, Field.PROMPT, Field.REFERENCE})
    requires = frozenset({Field.REFERENCE})

    def __init__(self, config: CodeConfig, spec: Spec) -> None:
        self._config = config

    def reference_problem(self, reference: Any) -> str | None:
        try:
            CodeReference.model_validate(reference)
        except ValidationError as error:
            where, message = _first_problem(error, reference)
            return f"an object with cases or tests: {where or 'reference'}: {message}"[:400]
        return None

    async def grade_live(self, view: View, ctx: Context) -> Outcome:
        reference = CodeReference.model_validate(view.reference)
        language = reference.canonical_language
        found = extract(view.completion, tuple(self._config.extract), names_of(language))
        if found is None:
            return Scored(0.0, {"correct": 0.0}, raw={"outcome": "no_code", "language": language})
        starved = False
        for attempt in range(_TIMES_TO_TRY):
            try:
                outcome, starved = await self._once(view, reference, found, ctx)
            except (sandbox.SandboxLost, Failed) as error:
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

    async def _once(
        self, view: View, reference: CodeReference, found: Found, ctx: Context
    ) -> tuple[Outcome, bool]:
        if reference.tests is None:
            return await CasesGrading(self._config, reference, found, ctx).run()
        return await TestsGrading(self._config, reference, found, ctx, view.prompt).run()


def _first_problem(error: ValidationError, reference: Any) -> tuple[str, str]:
    """(field, message); of the two kinds of cases, about the one that the first case looks like."""
    cases = reference.get("cases") if isinstance(reference, dict) else None
    first = cases[0] if isinstance(cases, list) and cases else None
    calls = isinstance(first, dict) and bool(first.keys() & {"args", "kwargs", "expected"})
    meant, other = ("list[CallCase]", "list[StdioCase]")[:: 1 if calls else -1]
    problems = error.errors(include_url=False)
    problem = next((p for p in problems if other not in p["loc"]), problems[0])
    return ".".join(str(x) for x in problem["loc"] if x not in (meant, other)), problem["msg"]


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
