"""High-precision numerical values: to refute an equality, never to grant one.

Two scalars that differ by more than rounding at a point differ; two that agree may still differ in a digit
that was not looked at. The points are derived from the texts compared, so that a verdict is the same on
every run and an answer cannot be built to agree at the points used.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction

import mpmath
from mpmath import mp

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

DIGITS = 50
_POINTS = 3
_AGREE = mpmath.mpf(10) ** -30
_LARGEST = 1_000_000
"""Decimal digits that a power may have."""


class NoValue(Exception):
    """The scalar has no value here that this module can find."""


_NO_VALUE = (
    NoValue,
    ValueError,
    TypeError,
    ZeroDivisionError,
    OverflowError,
    RecursionError,
    mpmath.libmp.NoConvergence,
)
"""What mpmath raises where there is no value to be had, TypeError for an order of complex numbers."""


def refuted(a: Node, b: Node, seed: str, *, natural_log: bool = True) -> bool:
    """Whether the scalars certainly differ somewhere."""
    names = sorted(_names(a) | _names(b))
    with mp.workdps(DIGITS):
        for point in range(_POINTS if names else 1):
            values = {n: _coordinate(seed, n, point) for n in names}
            try:
                left = _value(a, values, natural_log)
                right = _value(b, values, natural_log)
                scale = abs(left) + abs(right)
                if not mpmath.isfinite(scale):
                    continue
                if abs(left - right) > _AGREE * scale:
                    return True
            except _NO_VALUE:
                continue
    return False


def approximate(node: Node) -> mpmath.mpf | None:
    """The value of a real constant; None where it has none."""
    with mp.workdps(DIGITS):
        try:
            value = _value(node, {}, True)
        except _NO_VALUE:
            return None
        if isinstance(value, mpmath.mpc):
            if abs(value.imag) > _AGREE * (1 + abs(value)):
                return None
            value = value.real
        return value if not mpmath.isnan(value) else None


def _coordinate(seed: str, name: str, point: int) -> mpmath.mpf:
    digest = hashlib.sha256(f"{point}\0{name}\0{seed}".encode()).digest()
    part = mpmath.mpf(int.from_bytes(digest[:16])) / mpmath.mpf(2) ** 128
    # Points of both signs, so that √(x²) and x are told apart; the first is positive.
    return (mpmath.mpf("0.3") + part * 2) * (-1 if point == 1 else 1)


def _names(node: Node) -> set[str]:
    found: set[str] = set()
    todo: list[Node] = [node]
    while todo:
        one = todo.pop()
        if isinstance(one, Sym):
            found.add(one.name)
        elif isinstance(one, Add):
            todo += one.terms
        elif isinstance(one, Mul):
            todo += one.factors
        elif isinstance(one, Div):
            todo += (one.top, one.bottom)
        elif isinstance(one, Pow):
            todo += (one.base, one.exponent)
        elif isinstance(one, Root):
            todo.append(one.radicand)
        elif isinstance(one, Func):
            todo += one.args
    return found


def _value(node: Node, at: dict[str, mpmath.mpf], natural: bool) -> mpmath.mpf | mpmath.mpc:
    if isinstance(node, Num):
        return mpmath.mpf(node.value.numerator) / node.value.denominator
    if isinstance(node, Sym):
        if node.name not in at:
            raise NoValue
        return at[node.name]
    if isinstance(node, Const):
        return {"pi": mp.pi, "e": mp.e, "i": mpmath.mpc(0, 1), "inf": mpmath.inf}[node.name] * 1
    if isinstance(node, Add):
        return mpmath.fsum([_value(t, at, natural) for t in node.terms])
    if isinstance(node, Mul):
        return mpmath.fprod([_value(f, at, natural) for f in node.factors])
    if isinstance(node, Div):
        return _value(node.top, at, natural) / _value(node.bottom, at, natural)
    if isinstance(node, Pow):
        if (
            isinstance(node.exponent, Num)
            and node.exponent.value.denominator % 2
            and node.exponent.value.denominator > 1
        ):
            root = _real_root(_value(node.base, at, natural), node.exponent.value.denominator)
            return _power(root, mpmath.mpf(node.exponent.value.numerator))
        return _power(_value(node.base, at, natural), _value(node.exponent, at, natural))
    if isinstance(node, Root):
        return _real_root(_value(node.radicand, at, natural), node.index)
    if isinstance(node, Func):
        return _function(node, at, natural)
    raise NoValue


def _real_root(value: mpmath.mpf | mpmath.mpc, index: int) -> mpmath.mpf | mpmath.mpc:
    if index % 2 and isinstance(value, mpmath.mpf) and value < 0:
        return -mpmath.root(-value, index)
    return mpmath.root(value, index)


def _power(
    base: mpmath.mpf | mpmath.mpc, exponent: mpmath.mpf | mpmath.mpc
) -> mpmath.mpf | mpmath.mpc:
    if base == 0:
        return mpmath.power(base, exponent)
    size = abs(mpmath.log(abs(base)) * abs(exponent))
    if not size < _LARGEST:
        raise NoValue
    return mpmath.power(base, exponent)


def _function(node: Func, at: dict[str, mpmath.mpf], natural: bool) -> mpmath.mpf | mpmath.mpc:
    args = [_value(a, at, natural) for a in node.args]
    first = args[0] if args else mpmath.mpf(0)
    name = node.name
    if name in ("factorial", "binomial", "double factorial", "sinh", "cosh", "tanh"):
        if any(abs(a) > 10_000 for a in args):
            raise NoValue
    if name in ("sin", "cos", "tan", "cot", "sec", "csc") and abs(first) > mpmath.mpf(10) ** 20:
        raise NoValue  # the digits of the argument would be lost
    if name in ("floor", "ceil") and (
        isinstance(first, mpmath.mpc)
        or abs(first) > mpmath.mpf(10) ** 15
        or abs(first - mpmath.nint(first)) < mpmath.mpf(10) ** -20
    ):
        raise NoValue
    if name == "deg":
        return first * mp.pi / 180
    if name == "log?":
        return mpmath.log(first) if natural else mpmath.log10(first)
    if name == "log":
        return mpmath.log(first) / mpmath.log(args[1])
    if name in ("min", "max", "sgn") and any(isinstance(a, mpmath.mpc) for a in args):
        raise NoValue
    if name in ("min", "max"):
        return min(args) if name == "min" else max(args)
    known = {
        "ln": mpmath.log, "abs": abs, "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan,
        "cot": mpmath.cot, "sec": mpmath.sec, "csc": mpmath.csc, "arcsin": mpmath.asin,
        "arccos": mpmath.acos, "arctan": mpmath.atan, "sinh": mpmath.sinh, "cosh": mpmath.cosh,
        "tanh": mpmath.tanh, "coth": mpmath.coth, "sech": mpmath.sech, "csch": mpmath.csch,
        "floor": mpmath.floor, "ceil": mpmath.ceil, "factorial": mpmath.factorial,
        "double factorial": mpmath.fac2, "binomial": mpmath.binomial, "sgn": mpmath.sign,
        "Re": mpmath.re, "Im": mpmath.im,
    }.get(name)  # fmt: skip
    if known is None:
        raise NoValue
    return known(*args)


def within(a: Node, b: Node, absolute: Fraction, relative: Fraction) -> bool:
    """Whether ``b`` is within a tolerance of the reference ``a``: |a−b| ≤ max(absolute, relative·|a|)."""
    left, right = approximate(a), approximate(b)
    if left is None or right is None or not mpmath.isfinite(left) or not mpmath.isfinite(right):
        return False
    with mp.workdps(DIGITS):
        slack = mpmath.mpf(10) ** (5 - DIGITS)
        allowed = max(
            mpmath.mpf(absolute.numerator) / absolute.denominator,
            abs(left) * relative.numerator / relative.denominator,
        )
        return bool(abs(left - right) <= allowed * (1 + slack))


def rounds_to(exact: Node, rounded: Num) -> bool:
    """Whether a constant agrees with a decimal to the last of its places, rounded or cut off."""
    value = approximate(exact)
    if value is None or not mpmath.isfinite(value):
        return False
    with mp.workdps(DIGITS):
        shown = mpmath.mpf(rounded.value.numerator) / rounded.value.denominator
        unit = mpmath.mpf(10) ** -rounded.places
        cut_off = abs(value) - abs(shown)
        return bool(abs(value - shown) <= unit / 2 or (value * shown > 0 and 0 <= cut_off < unit))
