"""Whether an answer has the form that was asked for, its value apart."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from reward_server.graders.answer.algebra import Algebra, TooBig, Undefined
from reward_server.graders.answer.syntax import (
    SCALARS,
    Add,
    Div,
    Func,
    Matrix,
    Mul,
    Node,
    Num,
    PlusMinus,
    Pow,
    Quantity,
    Rel,
    Root,
    Seq,
    SetOp,
    Sym,
    Thing,
)

Form = Literal["any", "number", "simplified", "factored", "expanded"]


def scalars_of(thing: Thing) -> Iterator[Node]:
    """The scalars that a thing is made of."""
    if isinstance(thing, SCALARS):
        yield thing
    elif isinstance(thing, Quantity):
        yield thing.value
    else:
        inner: tuple[Thing, ...] = ()
        if isinstance(thing, Seq):
            inner = thing.items
        elif isinstance(thing, Rel):
            inner = thing.sides
        elif isinstance(thing, SetOp):
            inner = thing.parts
        elif isinstance(thing, Matrix):
            inner = tuple(x for row in thing.rows for x in row)
        for part in inner:
            yield from scalars_of(part)


def problem(
    answer: Thing, form: Form, decimal_places: int | None, reference: Thing | None = None
) -> str | None:
    """What is wrong with the answer's form, or None.

    ``factored`` asks for at least as many factors as the reference has, where it is a product.
    """
    if form == "factored" and reference is not None:
        asked = sum(_factors(n) for n in scalars_of(reference))
        if sum(_factors(n) for n in scalars_of(answer)) < asked:
            return "not factored as far as the reference"
    for node in scalars_of(answer):
        if decimal_places is not None:
            places = _places(node)
            if places is None or places != decimal_places:
                return f"not a decimal with {decimal_places} places"
        if form == "number" and not is_literal(node):
            return "not a plain number"
        if form == "simplified" and (why := _unsimplified(node)) is not None:
            return why
        if form == "factored" and _factors(node) < 2 and not _linear(node):
            return "not factored"
        if form == "expanded" and _has_product_of_sums(node):
            return "not expanded"
    return None


def is_literal(node: Node) -> bool:
    """A number as people write one: digits, a fraction, a mixed number, with or without a sign."""
    node = _unsigned(node)
    if isinstance(node, Num):
        return True
    if isinstance(node, Div):
        return isinstance(_unsigned(node.top), Num) and isinstance(node.bottom, Num)
    return _mixed(node)


def _mixed(node: Node) -> bool:
    return (
        isinstance(node, Add)
        and len(node.terms) == 2
        and isinstance(node.terms[0], Num)
        and isinstance(node.terms[1], Div)
        and is_literal(node.terms[1])
    )


def _unsigned(node: Node) -> Node:
    if isinstance(node, Mul) and len(node.factors) == 2:
        first = node.factors[0]
        if isinstance(first, Num) and first.value == -1:
            return node.factors[1]
    return node


def _places(node: Node) -> int | None:
    node = _unsigned(node)
    return node.places if isinstance(node, Num) and node.value.denominator >= 1 else None


def _unsimplified(node: Node) -> str | None:
    if _mixed(node):
        assert isinstance(node, Add)
        return _unsimplified(node.terms[1])
    for one in _walk(node):
        if isinstance(one, Add | Mul) and (why := _uncollected(one)) is not None:
            return why
        if isinstance(one, Div):
            top, bottom = _unsigned(one.top), one.bottom
            if isinstance(bottom, Num):
                if bottom.value == 1:
                    return "a denominator of 1"
                if math.gcd(_content(top), _content(bottom)) > 1:
                    return "a fraction that is not in lowest terms"
            if _common_variable(top, bottom):
                return "a variable above and below a line"
            if any(isinstance(x, Root) for x in _walk(bottom)):
                return "a radical in a denominator"
        elif isinstance(one, Add):
            if sum(is_literal(t) for t in one.terms) > 1 and not _mixed(one):
                return "a sum of numbers that is not carried out"
        elif isinstance(one, Mul):
            numbers = [f for f in one.factors if isinstance(f, Num) and f.value != -1]
            if len(numbers) > 1:
                return "a product of numbers that is not carried out"
        elif isinstance(one, Pow):
            if isinstance(one.exponent, Num) and one.exponent.value in (0, 1):
                return "a power of 0 or 1"
            if isinstance(one.base, Num) and isinstance(one.exponent, Num):
                return "a power of a number that is not carried out"
        elif isinstance(one, Root):
            if isinstance(one.radicand, Num) and _has_power(one.radicand, one.index):
                return "a radical that is not simplified"
        elif isinstance(one, Func) and all(is_literal(a) for a in one.args):
            if one.name in (
                "factorial",
                "binomial",
                "gcd",
                "lcm",
                "abs",
                "floor",
                "ceil",
                "log",
                "ln",
            ):
                return f"a {one.name} that is not carried out"
    return None


def _uncollected(node: Add | Mul) -> str | None:
    """Like terms, equal factors, and a factor common to a number above and below a line."""
    algebra = Algebra()
    try:
        if isinstance(node, Add):
            top, bottom = algebra.form(node)
            if len(bottom) == 1 and len(top) < len(node.terms):
                return "like terms that are not collected"
            return None
        keys = [algebra.key(algebra.form(f)) for f in node.factors if not isinstance(f, Num)]
    except (TooBig, Undefined):
        return None
    if len(set(keys)) < len(keys):
        return "a product of equal factors"
    return (
        "a factor of 1" if any(isinstance(f, Num) and f.value == 1 for f in node.factors) else None
    )


def _content(node: Node) -> int:
    """The whole number in front of a product, or common to all terms of a sum."""
    if isinstance(node, Num):
        return abs(node.value.numerator) if node.value.denominator == 1 else 1
    if isinstance(node, Mul):
        return math.prod(_content(f) for f in node.factors if isinstance(f, Num))
    if isinstance(node, Add):
        return math.gcd(*(_content(t) for t in node.terms))
    return 1


def _common_variable(top: Node, bottom: Node) -> bool:
    """Whether two products have a variable in common."""

    def variables(node: Node) -> set[str]:
        factors = node.factors if isinstance(node, Mul) else (node,)
        bases = [f.base if isinstance(f, Pow) else f for f in factors]
        return {b.name for b in bases if isinstance(b, Sym)}

    return not variables(top).isdisjoint(variables(bottom))


def _has_power(number: Num, index: int) -> bool:
    value = number.value
    if value.denominator != 1:
        return True
    rest = abs(value.numerator)
    divisor = 2
    while divisor**index <= rest and divisor < 10_000:
        if rest % divisor**index == 0:
            return True
        divisor += 1
    return rest == 1


def _factors(node: Node) -> int:
    """How many factors with a variable in them a product has, powers counted."""
    node = _unsigned(node)
    if isinstance(node, Mul):
        return sum(_factors(f) for f in node.factors)
    if isinstance(node, Div):
        return _factors(node.top) if isinstance(_unsigned(node.bottom), Num) else 1
    if isinstance(node, Pow) and isinstance(node.exponent, Num):
        times = node.exponent.value
        return (
            int(times) * _factors(node.base) if times.denominator == 1 and 1 <= times <= 100 else 1
        )
    return int(any(isinstance(x, Sym) for x in _walk(node)))


def _linear(node: Node) -> bool:
    """Whether nothing in it is left to factor: no square, no product of variables."""
    return not any(
        isinstance(x, Pow)
        or (isinstance(x, Mul) and sum(isinstance(f, Sym) for f in x.factors) > 1)
        for x in _walk(node)
    )


def _has_product_of_sums(node: Node) -> bool:
    for one in _walk(node):
        if isinstance(one, Mul) and any(isinstance(f, Add) for f in one.factors):
            return True
        if isinstance(one, Pow) and isinstance(one.base, Add):
            return True
    return False


def _walk(node: Node) -> Iterator[Node]:
    yield node
    children: tuple[Node, ...] = ()
    if isinstance(node, Add):
        children = node.terms
    elif isinstance(node, Mul):
        children = node.factors
    elif isinstance(node, Div):
        children = (node.top, node.bottom)
    elif isinstance(node, Pow):
        children = (node.base, node.exponent)
    elif isinstance(node, Root):
        children = (node.radicand,)
    elif isinstance(node, Func):
        children = node.args
    elif isinstance(node, PlusMinus):
        children = (node.left, node.right)
    for child in children:
        yield from _walk(child)
