"""Checkers: programs of a reference that decide whether an output is right, in boxes of their own.

A checker reads what a hostile program printed, so it may be made to crash or to run out of time. That must
not be better for the program than being wrong: when a checker ends in no way that it should, it is asked
about the reference's own answer; if that is accepted, the checker works, and the output was wrong. If it is not,
the reference is at fault.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from reward_server.graders.code.reference import Checker
from reward_server.outcome import CannotScore, FailureKind
from sandboxes.program import Execution, Limits, Run, Sandbox, SandboxLost, Submission, Verdict

_LIMITS = Limits(cpu_s=10.0, wall_s=30.0, memory_mb=512, disk_mb=256)
_TOTAL_S = 60.0
_NAMES = ("input.txt", "output.txt", "answer.txt")
_POINTS = re.compile(
    rb"(?:points?:?|partially correct) ++\(?(\d{1,3}(?:\.\d{0,20})?(?:[eE]-?\d{1,2})?|\.\d{1,20})\)?\s*+\Z",
    re.IGNORECASE,
)
_EXPRESSION = """\
import sys
def _read(name):
    with open(name, encoding="utf-8", errors="replace") as file:
        return file.read()
input, output, answer = map(_read, sys.argv[1:4])
sys.exit(0 if ({expression}
) else 1)
"""


@dataclass(frozen=True, slots=True)
class Question:
    stdin: bytes
    printed: bytes
    answer: bytes


async def ask(
    pool: Sandbox, checker: Checker, questions: Sequence[Question], *, stop_at_wrong: bool
) -> tuple[list[float], bool]:
    """(the share of each question's weight: 0, 1, or what the checker awards; whether every check ended as a check
    does, or may end otherwise another time). All questions together have
    ``_TOTAL_S`` seconds; what is not answered then counts as wrong.

    Raises CannotScore where the checker itself is at fault, SandboxLost where the sandbox is.
    """
    if not questions:
        return [], True
    certain = True
    shares: list[float] = []
    health: bool | None = None
    for question, done in zip(
        questions, await _run(pool, checker, questions, stop_at_wrong), strict=False
    ):
        share = _share(done)
        if share is None:
            certain = False
            # Once is enough: a checker that works for one answer does not depend on the others.
            if question.answer and health is None:
                health = await _must_work(pool, checker, question, done)
            share = 0.0
        shares.append(share)
    left = len(questions) - len(shares)
    return shares + [0.0] * left, certain and (left == 0 or stop_at_wrong)


async def _run(
    pool: Sandbox, checker: Checker, questions: Sequence[Question], stop_at_wrong: bool
) -> tuple[Execution, ...]:
    source = checker.source
    if source is None:
        source = _EXPRESSION.format(expression=checker.expression)
    runs = tuple(
        Run(argv=_NAMES, files=dict(zip(_NAMES, (q.stdin, q.printed, q.answer), strict=True)))
        for q in questions
    )
    spent = 0.0

    def enough(number: int, done: Execution) -> bool:
        nonlocal spent
        spent += done.wall_s
        return spent > _TOTAL_S or (stop_at_wrong and _share(done) != 1.0)

    files = {name: text.encode("utf-8", "surrogatepass") for name, text in checker.files.items()}
    report = await pool.run(
        Submission(checker.language, source, runs, _LIMITS, files=files), enough, None
    )
    if report.compilation is not None and not report.compilation.ok:
        if report.compilation.verdict is Verdict.SANDBOX_FAILED:
            raise SandboxLost(report.compilation.detail)
        text = report.compilation.stderr[-500:].decode("utf-8", "replace")
        raise CannotScore(FailureKind.INVALID_REFERENCE, f"the checker does not compile: {text}")
    for done in report.runs:
        if done.verdict is Verdict.SANDBOX_FAILED:
            raise SandboxLost(done.detail)
    return report.runs


def _share(done: Execution) -> float | None:
    """None where the checker did not end as a checker does."""
    if done.signal is not None or done.killed_by:
        return None
    match done.exit_code:
        case 0:
            return 1.0
        case 1 | 2:
            # An interpreter exits with 1 as well when the checker's own code raised.
            return None if b"Traceback (most recent call last)" in done.stderr else 0.0
        case 7:
            # The first line alone: what follows may be what the program printed, quoted.
            found = _POINTS.match(done.stderr[:200].split(b"\n", 1)[0])
            share = -1.0 if found is None else float(found[1])
            return share if 0 <= share <= 1 else None
    return None


async def _must_work(pool: Sandbox, checker: Checker, question: Question, done: Execution) -> bool:
    own = Question(question.stdin, question.answer, question.answer)
    (health,) = await _run(pool, checker, [own], False)
    if _share(health) != 1.0:
        how = f"exit status {done.exit_code}" if done.signal is None else f"signal {done.signal}"
        raise CannotScore(
            FailureKind.INVALID_REFERENCE,
            f"the checker ends with {how}, and does not accept the reference's own answer either: "
            + done.stderr[-300:].decode("utf-8", "replace"),
        )
    return True
