"""Small questions about things: what they are named, made of, and depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from reward_server.graders.answer import units
from reward_server.graders.answer.algebra import (
    Algebra,
    Poly,
)
from reward_server.graders.answer.syntax import (
    SCALARS,
    Add,
    Clock,
    Div,
    Func,
    Matrix,
    Mul,
    Node,
    Num,
    PlusMinus,
    Quantity,
    Ratio,
    Rel,
    Root,
    Seq,
    SetOp,
    Sym,
    Thing,
)

INTERVALS = frozenset({"[]", "[)", "(]"})


def brackets(thing: Thing) -> str:
    return thing.opening + thing.closing if isinstance(thing, Seq) else "-"


def spread(thing: Thing, *, top: bool = True) -> list[Thing]:
    """The items of a bare list, or of a set if it is the whole; ± as its two values."""
    if isinstance(thing, Seq) and (not thing.opening or (top and brackets(thing) == "{}")):
        return [v for item in thing.items for v in spread(item, top=False)]
    if isinstance(thing, SCALARS):
        plus, minus = signed(thing, first=True), signed(thing, first=False)
        return [thing] if plus is thing else [plus, minus]
    if isinstance(thing, Rel) and (assigned := assignment(thing)) is not None:
        if isinstance(assigned[1], SCALARS) and signed(assigned[1], first=True) is not assigned[1]:
            return spread(assigned[1], top=False)
    return [thing]


def names_in(thing: Thing) -> list[tuple[str, Thing]] | None:
    """(name, value) of each item of a bare list whose items are assignments to different names."""
    if not isinstance(thing, Seq) or thing.opening:
        return None
    pairs = [assignment(i) for i in thing.items]
    found = [p for p in pairs if p is not None]
    if len(found) < len(pairs) or len({n for n, _ in found}) < len(found):
        return None
    return found


def signed(node: Node, *, first: bool) -> Node:
    """The scalar with the upper (or the lower) signs of its ±; itself where it has none."""
    if isinstance(node, PlusMinus):
        left, right = signed(node.left, first=first), signed(node.right, first=first)
        if first == node.minus_first:
            right = Mul((Num(Fraction(-1)), right))
        return Add((left, right))
    if isinstance(node, Add):
        terms = tuple(signed(t, first=first) for t in node.terms)
        return (
            Add(terms) if any(t is not o for t, o in zip(terms, node.terms, strict=True)) else node
        )
    if isinstance(node, Mul):
        factors = tuple(signed(f, first=first) for f in node.factors)
        changed = any(f is not o for f, o in zip(factors, node.factors, strict=True))
        return Mul(factors) if changed else node
    if isinstance(node, Div):
        top, bottom = signed(node.top, first=first), signed(node.bottom, first=first)
        return Div(top, bottom) if top is not node.top or bottom is not node.bottom else node
    if isinstance(node, Root):
        inside = signed(node.radicand, first=first)
        return Root(node.index, inside) if inside is not node.radicand else node
    return node


def plus_minus(thing: Thing) -> bool:
    return isinstance(thing, SCALARS) and signed(thing, first=True) is not thing


def name_of(thing: Thing) -> str | None:
    """The name on the left of an assignment: a variable, or a function of variables."""
    if isinstance(thing, Sym):
        return thing.name
    if isinstance(thing, Func) and thing.name == "abs":
        inner = name_of(thing.args[0])
        return None if inner is None or len(inner) < 2 else f"|{inner}|"
    if isinstance(thing, Mul) and all(
        isinstance(f, Sym) and f.name.isupper() for f in thing.factors
    ):
        return "".join(f.name for f in thing.factors if isinstance(f, Sym))  # AB, P(A)
    if isinstance(thing, Seq) and thing.items and all(isinstance(i, Sym) for i in thing.items):
        names = ",".join(i.name for i in thing.items if isinstance(i, Sym))
        return f"({names})" if brackets(thing) == "()" else None
    if isinstance(thing, Div) and (top := differential(thing.top)) is not None:
        bottom = differential(thing.bottom)
        return f"d{top}/d{bottom}" if bottom is not None else None
    if isinstance(thing, Func) and thing.name.startswith("@"):
        if all(isinstance(x, Sym) for x in thing.args):
            return (
                thing.name + "(" + ",".join(x.name for x in thing.args if isinstance(x, Sym)) + ")"
            )
        return f"{thing.name}({thing.args!r})"
    return None


def differential(node: Node) -> str | None:
    """The ``y`` of ``dy``."""
    if isinstance(node, Mul) and len(node.factors) == 2:
        first, second = node.factors
        if isinstance(first, Sym) and first.name == "d" and isinstance(second, Sym):
            return second.name
    return None


def assignment(thing: Thing) -> tuple[str, Thing] | None:
    """(name, value) of ``x = 5``, also written ``5 = x``."""
    if not isinstance(thing, Rel) or thing.ops != ("=",):
        return None
    left, right = thing.sides
    if (name := name_of(left)) is not None and not mentions(right, name):
        return name, right
    if (name := name_of(right)) is not None and not mentions(left, name) and name_of(left) is None:
        return name, left
    return None


def mentions(thing: Thing, name: str) -> bool:
    return name in variables(thing)


def variables(thing: Thing) -> set[str]:
    """Names of variables in a thing."""
    if isinstance(thing, Sym):
        return {thing.name}
    found: set[str] = set()
    for child in parts_of(thing):
        found |= variables(child)
    return found


def is_open(thing: Thing) -> bool:
    """Whether it depends on variables."""
    return bool(variables(thing))


def parts_of(thing: Thing) -> Sequence[Thing]:
    if isinstance(thing, Add):
        return thing.terms
    if isinstance(thing, Mul):
        return thing.factors
    if isinstance(thing, Div):
        return (thing.top, thing.bottom)
    if isinstance(thing, Func):
        return thing.args
    if isinstance(thing, PlusMinus):
        return (thing.left, thing.right)
    if isinstance(thing, Quantity):
        return (thing.value,)
    if isinstance(thing, Seq):
        return thing.items
    if isinstance(thing, Rel):
        return thing.sides
    if isinstance(thing, SetOp | Ratio):
        return thing.parts
    if isinstance(thing, Matrix):
        return [x for row in thing.rows for x in row]
    return [
        getattr(thing, name)
        for name in ("base", "exponent", "radicand", "body")
        if isinstance(getattr(thing, name, None), SCALARS)
    ]


def is_order(thing: Thing) -> bool:
    if isinstance(thing, Seq) and not thing.opening:
        return all(is_order(i) for i in thing.items)
    return isinstance(thing, Rel) and all(op in ("<", ">", "<=", ">=", "!=") for op in thing.ops)


def is_membership(thing: Thing) -> bool:
    return isinstance(thing, Rel) and thing.ops == ("in",)


def set_of(thing: Thing) -> Thing:
    """``x ∈ S`` is S."""
    if isinstance(thing, Rel) and thing.ops == ("in",) and name_of(thing.sides[0]):
        return thing.sides[1]
    return thing


def difference(algebra: Algebra, relation: Rel) -> tuple[Poly, Poly]:
    """Numerator and denominator of left − right. Raises TypeError for sides that are no scalars."""
    left, right = relation.sides
    if not isinstance(left, SCALARS) or not isinstance(right, SCALARS):
        raise TypeError
    top, bottom = algebra.add(algebra.form(left), algebra.negative(algebra.form(right)))
    lead = bottom[min(bottom)]
    return {m: c / lead for m, c in top.items()}, {m: c / lead for m, c in bottom.items()}


def no_root_at(top: Poly, bottom: Poly) -> bool:
    """Whether ``top`` has certainly no zero where ``bottom`` has one: y = 1/x is x·y = 1."""
    if len(bottom) != 1:
        return False
    (mono,) = bottom
    return all({m for m in top if all(other != atom for other, _ in m)} == {()} for atom, _ in mono)


def with_letter_as_unit(thing: Thing) -> Quantity | None:
    """``5000 m``, which is a product until the reference has a unit."""
    if isinstance(thing, Mul) and len(thing.factors) == 2:
        number, letter = thing.factors
        if isinstance(number, Num) and isinstance(letter, Sym) and units.known(letter.name):
            unit = units.normal([(letter.name, 1)])
            return None if unit is None else Quantity(number, unit)
    return None


def scaled(node: Node, by: Fraction) -> Node:
    if by == 1:
        return node
    if isinstance(node, Num):
        return Num(node.value * by)
    return Mul((Num(by), node))


def same_time(r: Clock, a: Clock) -> bool:
    if r.half == a.half:
        return padded(r) == padded(a)
    if r.half and a.half:
        return False
    timed, plain = (r, a) if r.half else (a, r)
    hour = timed.fields[0] % 12 + (12 if timed.half == "pm" else 0)
    # 13:03 is 1:03 PM; 1:03 alone is not.
    return plain.fields[0] > 12 and padded(
        replace(timed, fields=(hour, *timed.fields[1:]))
    ) == padded(plain)


def padded(clock: Clock) -> tuple[int, ...]:
    return clock.fields if len(clock.fields) > 1 else (*clock.fields, 0)


def ratio_of(thing: Thing) -> tuple[Node, ...] | None:
    if isinstance(thing, Ratio):
        return thing.parts
    if isinstance(thing, Clock) and not thing.half and all(f > 9 for f in thing.fields[1:]):
        return tuple(Num(Fraction(f)) for f in thing.fields)
    if isinstance(thing, Div):
        return (thing.top, thing.bottom)
    if isinstance(thing, Num) and thing.value.denominator != 1:
        return (Num(Fraction(thing.value.numerator)), Num(Fraction(thing.value.denominator)))
    return None


def is_ellipsis(node: Node) -> bool:
    return isinstance(node, Func) and node.name == "@ellipsis"
