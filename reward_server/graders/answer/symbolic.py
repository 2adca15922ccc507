"""The last layer: sympy, on our own syntax, under a CPU budget.

Sympy never sees a string. Expressions whose evaluation could take memory or uninterruptible time (towers,
factorials of large numbers) are refused before they are built. A proof counts; an agreement of digits does
not. What is not proved in time is undecided, and an undecided answer is not rewarded.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

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
    Sym,
)

CPU_S = 0.3
_MAX_NODES = 250
_MAX_EXPONENT = 60
_MAX_BITS = 2000
_MAX_FACTORIAL = 300


interruptions = 0
"""How often sympy was interrupted in this process, and may have been left in an odd state."""


class OutOfTime(BaseException):
    """Not an Exception, so that no handler inside sympy can swallow it."""


class Refused(Exception):
    """Not given to sympy: over a static cap, or nothing it could decide."""


def proved_equal(
    a: Node, b: Node, *, natural_log: bool = True, cpu_s: float = CPU_S
) -> bool | None:
    """True with a proof, False with a refutation, None undecided within ``cpu_s`` seconds."""
    if cpu_s <= 0.005:
        return None
    if threading.current_thread() is not threading.main_thread():
        return None  # the budget could not be kept here
    import sympy  # noqa: PLC0415  (a quarter of a second that most processes never need)

    try:
        with _budget(min(cpu_s, CPU_S)):
            builder = _Builder(sympy, natural_log)
            difference = builder.build(a) - builder.build(b)
            return _is_zero(sympy, difference)
    except OutOfTime:
        global interruptions
        interruptions += 1
        sympy.core.cache.clear_cache()  # what was interrupted may have left half-known facts
        return None
    except RecursionError:
        sympy.core.cache.clear_cache()
        return None
    except Refused:
        return None
    except Exception:
        return None


@contextmanager
def _budget(seconds: float) -> Iterator[None]:
    """Interrupts Python code of the main thread after CPU seconds; again and again until it is out."""
    armed = True

    def fire(signum: int, frame: FrameType | None) -> None:
        if armed:
            raise OutOfTime

    def unraisable(found: sys.UnraisableHookArgs) -> None:
        if not isinstance(
            found.exc_value, OutOfTime
        ):  # in a destructor it is lost, and fires again
            hook(found)

    hook, sys.unraisablehook = sys.unraisablehook, unraisable
    before = signal.signal(signal.SIGVTALRM, fire)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.02)
    try:
        yield
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        sys.unraisablehook = hook


def _is_zero(sympy: Any, difference: Any) -> bool | None:
    if difference.is_zero:
        return True
    if difference.has(sympy.nan, sympy.zoo, sympy.oo):
        return None
    if difference.free_symbols:
        for attempt in (sympy.expand, sympy.trigsimp, sympy.powsimp, sympy.simplify):
            if attempt(difference) == 0:
                return True
        return None
    for attempt in (sympy.expand, sympy.sqrtdenest, sympy.radsimp):
        if attempt(difference) == 0:
            return True
    if difference.is_algebraic:
        x = sympy.Symbol("x")
        return bool(sympy.minimal_polynomial(difference, x) == x)
    for attempt in (sympy.simplify, sympy.trigsimp, sympy.logcombine):
        if attempt(difference) == 0:
            return True
    return None


class _Builder:
    def __init__(self, sympy: Any, natural_log: bool) -> None:
        self._sympy = sympy
        self._natural = natural_log
        self._nodes = 0

    def build(self, node: Node) -> Any:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise Refused
        sympy = self._sympy
        if isinstance(node, Num):
            if node.value.numerator.bit_length() + node.value.denominator.bit_length() > _MAX_BITS:
                raise Refused
            return sympy.Rational(node.value.numerator, node.value.denominator)
        if isinstance(node, Sym):
            return sympy.Symbol(node.name, real=True)
        if isinstance(node, Const):
            return {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "inf": sympy.oo}[node.name]
        if isinstance(node, Add):
            return sympy.Add(*(self.build(t) for t in node.terms))
        if isinstance(node, Mul):
            return sympy.Mul(*(self.build(f) for f in node.factors))
        if isinstance(node, Div):
            return self.build(node.top) / self.build(node.bottom)
        if isinstance(node, Pow):
            return self._power(self.build(node.base), self.build(node.exponent))
        if isinstance(node, Root):
            return self._root(self.build(node.radicand), node.index)
        if isinstance(node, Func):
            return self._function(node)
        raise Refused

    def _power(self, base: Any, exponent: Any) -> Any:
        if exponent.is_Rational:
            limit = _MAX_EXPONENT if not base.is_number or not base.is_Rational else _MAX_BITS // 4
            if abs(exponent.p) > limit or exponent.q > limit:
                raise Refused
            if exponent.q % 2 and exponent.q > 1:
                return self._root(base, exponent.q) ** exponent.p
        elif exponent.is_number and abs(exponent.evalf(5)) > _MAX_EXPONENT:
            raise Refused
        return base**exponent

    def _root(self, radicand: Any, index: int) -> Any:
        """Odd roots are the real ones, also where the sign is not known."""
        if index % 2 and radicand.is_extended_real and not radicand.is_nonnegative:
            if radicand.is_negative:
                return -((-radicand) ** self._sympy.Rational(1, index))
            sign, size = self._sympy.sign(radicand), self._sympy.Abs(radicand)
            return sign * size ** self._sympy.Rational(1, index)
        return radicand ** self._sympy.Rational(1, index)

    def _function(self, node: Func) -> Any:
        sympy = self._sympy
        args = [self.build(a) for a in node.args]
        name = node.name
        if name in ("factorial", "binomial", "double factorial"):
            if any(a.is_number and not abs(a.evalf(5)) <= _MAX_FACTORIAL for a in args):
                raise Refused
        if name == "deg":
            return args[0] * sympy.pi / 180
        if name == "log?":
            return sympy.log(args[0]) if self._natural else sympy.log(args[0], 10)
        if name.startswith("@"):
            return sympy.Function(name[1:])(*args)
        known = {
            "ln": sympy.log, "log": sympy.log, "abs": sympy.Abs, "sin": sympy.sin, "cos": sympy.cos,
            "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec, "csc": sympy.csc,
            "arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan, "arccot": sympy.acot,
            "sinh": sympy.sinh, "cosh": sympy.cosh, "tanh": sympy.tanh, "coth": sympy.coth,
            "factorial": sympy.factorial, "binomial": sympy.binomial, "floor": sympy.floor,
            "ceil": sympy.ceiling, "Re": sympy.re, "Im": sympy.im, "sgn": sympy.sign,
        }.get(name)  # fmt: skip
        if known is None:
            raise Refused
        return known(*args)
