"""Whether two scalars are equal: exact forms first, then numerical refutation, then sympy."""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction

from reward_server.graders.answer.algebra import Algebra, TooBig, Undefined
from reward_server.graders.answer.syntax import (
    Add,
    Const,
    Div,
    Func,
    Mul,
    Node,
    Num,
    Pow,
    Root,
)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|answer − reference| ≤ max(absolute, relative · |reference|)."""

    absolute: Fraction = Fraction(0)
    relative: Fraction = Fraction(0)


@dataclass(frozen=True, slots=True)
class Decision:
    """``equal`` is None where nothing could decide; ``layer`` says what did."""

    equal: bool | None
    layer: str


class Allowance:
    """The CPU time that one item may spend on deciding, over all the pairs that it compares."""

    CPU_S = 0.4

    def __init__(self) -> None:
        self._until = time.process_time() + self.CPU_S

    def left_s(self) -> float:
        return self._until - time.process_time()


def decide(
    reference: Node, answer: Node, seed: str, tolerance: Tolerance | None, allowance: Allowance
) -> Decision:
    """``seed`` is the texts compared: points of numerical refutation are derived from it."""
    if isinstance(reference, Num) and isinstance(answer, Num):
        if reference.value == answer.value:
            return Decision(True, "number")
        if tolerance is None:
            return Decision(False, "number")
    if _infinite(reference) or _infinite(answer):
        # ∞ is a name, not a number to calculate with: ∞/∞ is nothing.
        sign = _infinity_sign(reference)
        return Decision(sign is not None and sign == _infinity_sign(answer), "structure")
    if allowance.left_s() <= 0:
        return Decision(None, "budget")
    decision = _decide(reference, answer, seed, allowance, natural_log=True)
    if decision.equal or tolerance is None:
        return decision
    from reward_server.graders.answer import numeric  # noqa: PLC0415  (keeps mpmath off the fast path)

    if numeric.within(reference, answer, tolerance.absolute, tolerance.relative):
        return Decision(True, "tolerance")
    return decision


def _decide(
    reference: Node, answer: Node, seed: str, allowance: Allowance, *, natural_log: bool
) -> Decision:
    algebra = Algebra(natural_log=natural_log)
    equal: bool | None = None
    undefined = False
    try:
        left = algebra.form(reference)
        right = algebra.form(answer)
        if algebra.equal(left, right):
            return Decision(True, "algebra")
        if algebra.complete:
            equal = False
    except TooBig:
        pass
    except Undefined:
        undefined = True
    if undefined:
        return Decision(False, "algebra")
    decision = (
        Decision(False, "algebra")
        if equal is False
        else _beyond(reference, answer, seed, allowance, natural_log)
    )
    if not decision.equal and natural_log and algebra.bare_log:
        # "log" alone is the natural or the common logarithm, as the author pleases.
        other = _decide(reference, answer, seed, allowance, natural_log=False)
        if other.equal or decision.equal is False:
            return other
    return decision


def _infinite(node: Node) -> bool:
    if isinstance(node, Const):
        return node.name == "inf"
    if isinstance(node, Add):
        return any(_infinite(t) for t in node.terms)
    if isinstance(node, Mul):
        return any(_infinite(f) for f in node.factors)
    if isinstance(node, Div):
        return _infinite(node.top) or _infinite(node.bottom)
    if isinstance(node, Pow):
        return _infinite(node.base) or _infinite(node.exponent)
    if isinstance(node, Root):
        return _infinite(node.radicand)
    return isinstance(node, Func) and any(_infinite(a) for a in node.args)


def _infinity_sign(node: Node) -> int | None:
    if isinstance(node, Const) and node.name == "inf":
        return 1
    if isinstance(node, Mul) and len(node.factors) == 2:
        first, second = node.factors
        if isinstance(first, Num) and first.value == -1 and second == Const("inf"):
            return -1
    return None


def _beyond(
    reference: Node, answer: Node, seed: str, allowance: Allowance, natural_log: bool
) -> Decision:
    from reward_server.graders.answer import numeric, symbolic  # noqa: PLC0415  (as above)

    if numeric.refuted(reference, answer, seed, natural_log=natural_log):
        return Decision(False, "numeric")
    proved = symbolic.proved_equal(
        reference, answer, natural_log=natural_log, cpu_s=allowance.left_s()
    )
    return Decision(proved, "symbolic")
