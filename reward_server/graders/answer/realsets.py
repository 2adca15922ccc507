"""Sets of real numbers in one normal form: intervals and points in ascending order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cmp_to_key

from reward_server.graders.answer.algebra import Algebra, TooBig, Undefined, constant_of
from reward_server.graders.answer.scalars import Decision
from reward_server.graders.answer.syntax import (
    SCALARS,
    Const,
    Mul,
    NamedSet,
    Node,
    Num,
    Rel,
    Seq,
    SetOp,
    Sym,
    Thing,
)

MAX_PIECES = 64


@dataclass(slots=True)
class Piece:
    """From ``low`` to ``high``; a point where they are the same."""

    low: Node
    low_closed: bool
    high: Node
    high_closed: bool


INFINITY: Node = Const("inf")
MINUS_INFINITY: Node = Mul((Num(Fraction(-1)), INFINITY))


class _NoSet(Exception):
    pass


def real_set(thing: Thing) -> list[Piece] | None:
    """The pieces of a set, as written and in order; None for what is no set of reals by its form.

    Solved inequalities (one unknown alone on a side, constants on the others) are sets; ``x² < 1`` is
    not: it states the task.
    """
    try:
        pieces = _pieces(thing)
        return _merged(pieces) if len(pieces) <= MAX_PIECES else None
    except _NoSet:
        return None


def same_set(a: list[Piece], b: list[Piece], equal: Callable[[Thing, Thing], Decision]) -> Decision:
    if len(a) != len(b):
        return Decision(False, "structure")
    undecided = False
    for left, right in zip(a, b, strict=True):
        if (left.low_closed, left.high_closed) != (right.low_closed, right.high_closed):
            return Decision(False, "structure")
        for x, y in ((left.low, right.low), (left.high, right.high)):
            decision = equal(x, y)
            if decision.equal is False:
                return decision
            undecided = undecided or decision.equal is None
    return Decision(None if undecided else True, "structure")


def _pieces(thing: Thing) -> list[Piece]:
    if isinstance(thing, Seq):
        brackets = thing.opening + thing.closing
        if brackets in ("()", "[]", "[)", "(]"):
            if len(thing.items) != 2:
                raise _NoSet
            low, high = (_scalar(i) for i in thing.items)
            return [Piece(low, thing.opening == "[", high, thing.closing == "]")]
        if brackets == "{}":
            return [_point(_scalar(i)) for i in thing.items]
        if not brackets:
            return _listed(thing)
        raise _NoSet
    if isinstance(thing, NamedSet):
        if thing.name == "R":
            return [_everything()]
        if thing.name == "empty":
            return []
        raise _NoSet
    if isinstance(thing, SetOp):
        if thing.op == "union":
            return [p for part in thing.parts for p in _pieces(part)]
        if thing.op == "difference" and len(thing.parts) == 2:
            return _without(_pieces(thing.parts[0]), _pieces(thing.parts[1]))
        raise _NoSet
    if isinstance(thing, Rel):
        return _solved(thing)
    raise _NoSet


def _listed(thing: Seq) -> list[Piece]:
    """``x < 1 or x > 5``; ``x ≠ 1, 2`` and ``x ≠ 1, x ≠ 2`` are one hole after the other."""
    relations = [i for i in thing.items if isinstance(i, Rel)]
    if relations and relations[0].ops == ("!=",):
        holes: list[Piece] = []
        for item in thing.items:
            if isinstance(item, Rel):
                if item.ops != ("!=",) or item.sides[0] != relations[0].sides[0]:
                    raise _NoSet
                holes.append(_point(_scalar(item.sides[1])))
            else:
                holes.append(_point(_scalar(item)))
        return _without([_everything()], holes)
    if len(relations) != len(thing.items):
        raise _NoSet
    names = {n for r in relations for n in _unknowns(r)}
    if len(names) != 1:
        raise _NoSet
    sets = [_merged(_solved(r)) for r in relations]
    both = sets[0]
    for other in sets[1:]:
        both = _common(both, other)
    if thing.joint == "and":
        return both
    if thing.joint == "or" or (thing.joint == "," and not both):
        return [p for one in sets for p in one]
    raise _NoSet  # "x > 3, x < 5": all of it, or either?


def _common(a: list[Piece], b: list[Piece]) -> list[Piece]:
    """The intersection."""
    out: list[Piece] = []
    for one in a:
        for other in b:
            low = one if _before(one, other) > 0 else other
            x, y = _position(one.high), _position(other.high)
            high = one if x < y or (x == y and not one.high_closed) else other
            start, stop = _position(low.low), _position(high.high)
            if start < stop or (start == stop and low.low_closed and high.high_closed):
                out.append(Piece(low.low, low.low_closed, high.high, high.high_closed))
    return out


def unknowns(thing: Thing) -> set[str]:
    """Names of the variables that stand alone on a side of a relation in this thing."""
    if isinstance(thing, Rel):
        return _unknowns(thing)
    if isinstance(thing, Seq):
        return {n for i in thing.items for n in unknowns(i)}
    return set()


def _unknowns(relation: Rel) -> set[str]:
    return {s.name for s in relation.sides if isinstance(s, Sym)}


def _solved(relation: Rel) -> list[Piece]:
    sides, ops = relation.sides, relation.ops
    if len(ops) == 1:
        left, right = sides
        op = ops[0]
        if op == "in":
            return _pieces(right) if isinstance(left, Sym) else _raise()
        if not isinstance(left, Sym):
            left, right = right, left
            op = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(op, op)
        bound = _scalar(right)
        if not isinstance(left, Sym):
            raise _NoSet
        if op == "=":
            return [_point(bound)]
        if op == "!=":
            return _without([_everything()], [_point(bound)])
        if op in ("<", "<="):
            return [Piece(MINUS_INFINITY, False, bound, op == "<=")]
        if op in (">", ">="):
            return [Piece(bound, op == ">=", INFINITY, False)]
        raise _NoSet
    if len(ops) == 2 and isinstance(sides[1], Sym):
        low, high = _scalar(sides[0]), _scalar(sides[2])
        if all(op in ("<", "<=") for op in ops):
            return [Piece(low, ops[0] == "<=", high, ops[1] == "<=")]
        if all(op in (">", ">=") for op in ops):
            return [Piece(high, ops[1] == ">=", low, ops[0] == ">=")]
    raise _NoSet


def _raise() -> list[Piece]:
    raise _NoSet


def _scalar(thing: Thing) -> Node:
    """A constant: the bound of a set may not depend on variables."""
    if not isinstance(thing, SCALARS):
        raise _NoSet
    _position(thing)
    return thing


def _point(node: Node) -> Piece:
    return Piece(node, True, node, True)


def _everything() -> Piece:
    return Piece(MINUS_INFINITY, False, INFINITY, False)


def _position(node: Node) -> Fraction | float:
    """Where a constant lies, for ordering; computed once for each node. Raises _NoSet."""
    if isinstance(node, Num):
        return node.value
    known = _POSITIONS.get(id(node))
    if known is None or known[0] is not node:
        if len(_POSITIONS) > 256:
            _POSITIONS.clear()
        known = _POSITIONS[id(node)] = (node, _place(node))
    return known[1]


_POSITIONS: dict[int, tuple[Node, Fraction | float]] = {}


def _place(node: Node) -> Fraction | float:
    if isinstance(node, Num):
        return node.value
    if node == INFINITY:
        return float("inf")
    if node == MINUS_INFINITY:
        return float("-inf")
    try:
        algebra = Algebra()
        if (exact := constant_of(algebra.form(node))) is not None:
            return exact
    except (TooBig, Undefined):
        raise _NoSet from None
    from reward_server.graders.answer import numeric  # noqa: PLC0415  (keeps mpmath off the fast path)

    value = numeric.approximate(node)
    if value is None:
        raise _NoSet
    return float(value)


def _before(a: Piece, b: Piece) -> int:
    x, y = _position(a.low), _position(b.low)
    if x == y:
        return b.low_closed - a.low_closed
    return -1 if x < y else 1


def _merged(pieces: list[Piece]) -> list[Piece]:
    """In order, with touching and overlapping pieces made one. Raises _NoSet for a reversed interval."""
    out: list[Piece] = []
    for piece in sorted(pieces, key=cmp_to_key(_before)):
        low, high = _position(piece.low), _position(piece.high)
        if low > high or (low == high and not (piece.low_closed and piece.high_closed)):
            raise _NoSet
        if out:
            last = out[-1]
            end = _position(last.high)
            if low < end or (low == end and (piece.low_closed or last.high_closed)):
                if high > end or (high == end and piece.high_closed):
                    last.high, last.high_closed = piece.high, piece.high_closed
                continue
        out.append(Piece(piece.low, piece.low_closed, piece.high, piece.high_closed))
    return out


def _without(pieces: list[Piece], holes: list[Piece]) -> list[Piece]:
    """Set difference; holes must be points."""
    for hole in holes:
        at = _position(hole.low)
        if hole.low is not hole.high:
            raise _NoSet
        cut: list[Piece] = []
        for piece in pieces:
            low, high = _position(piece.low), _position(piece.high)
            if not low <= at <= high:
                cut.append(piece)
                continue
            if low < at:
                cut.append(Piece(piece.low, piece.low_closed, hole.low, False))
            if at < high:
                cut.append(Piece(hole.low, False, piece.high, piece.high_closed))
        pieces = cut
    return pieces
