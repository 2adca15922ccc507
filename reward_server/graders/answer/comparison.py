"""Whether an answer equals a reference, thing by thing.

The reference sets the form: its units, its percent sign, its kind of brackets. The comparison is symmetric
except where that says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from reward_server.graders.answer import units
from reward_server.graders.answer.algebra import (
    Algebra,
    Poly,
    TooBig,
    Undefined,
    proportional,
    symbols_of,
)
from reward_server.graders.answer.reading import Reading
from reward_server.graders.answer.realsets import real_set, same_set, unknowns
from reward_server.graders.answer.scalars import Decision, Tolerance, decide
from reward_server.graders.answer.syntax import (
    SCALARS,
    Add,
    Based,
    Clock,
    Const,
    Div,
    Ellipsis,
    Func,
    Matrix,
    Mul,
    NamedSet,
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
    Words,
)

Percent = Literal["follow", "strict", "ignore"]
_MAX_UNORDERED = 40
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


@dataclass(frozen=True, slots=True)
class Rules:
    """What the options of a config or a reference come to."""

    tolerance: Tolerance | None = None
    ordered: bool = False
    percent: Percent = "follow"
    case_sensitive: bool = False
    asks_percent: bool = False
    """Whether the prompt asks for a percentage."""


@dataclass(frozen=True, slots=True)
class Verdict:
    equal: bool | None
    """None: undecided."""
    layer: str
    ambiguous: bool = False
    """Whether it is different because it states several answers where one is asked for."""


def compare(reference: Reading, answer: Reading, rules: Rules) -> Verdict:
    """The reference must have been read; an answer that was not can only be the same text."""
    if answer.key and reference.key == answer.key:
        return Verdict(True, "text")
    if answer.thing is None:
        return Verdict(None if answer.too_large else False, "unreadable")
    if reference.thing is None:
        return Verdict(False, "text")
    comparison = _Comparison(rules, f"{reference.key}\0{answer.key}")
    if isinstance(answer.thing, Words) and not _letters(reference.thing):
        return Verdict(False, "words")  # mathematics in the reference, prose in the answer
    if isinstance(reference.thing, Words) or isinstance(answer.thing, Words):
        return Verdict(_same_words(reference, answer, rules), "words")
    decision = comparison.things(*_singles(reference.thing, answer.thing))
    ambiguous = not decision.equal and count_of(answer.thing) > count_of(reference.thing)
    return Verdict(decision.equal, decision.layer, ambiguous)


def _singles(r: Thing, a: Thing) -> tuple[Thing, Thing]:
    """A set of one against what is no set stands for its element; sets inside sets do not."""
    if isinstance(r, Seq) and _brackets(r) == "{}" and len(r.items) == 1 and isinstance(a, SCALARS):
        return r.items[0], a
    if isinstance(a, Seq) and _brackets(a) == "{}" and len(a.items) == 1 and isinstance(r, SCALARS):
        return r, a.items[0]
    return r, a


def count_of(thing: Thing) -> int:
    """How many answers a thing states: items of a bare list, values of a ±, sides of a chain."""
    if isinstance(thing, Seq) and not thing.opening:
        return sum(count_of(i) for i in thing.items)
    if _plus_minus(thing):
        return 2
    if isinstance(thing, Rel) and all(op == "=" for op in thing.ops):
        return len(thing.sides) - 1 if _name(thing.sides[0]) else len(thing.sides)
    return 1


def _letters(thing: Thing) -> bool:
    """Words, or letters that may have been meant as one."""
    if isinstance(thing, Mul):
        return all(isinstance(f, Sym | Const) for f in thing.factors)
    return isinstance(thing, Sym | Const | Words)


def _same_words(reference: Reading, answer: Reading, rules: Rules) -> bool:
    if not reference.words or not answer.words:
        return False
    if rules.case_sensitive:
        return " ".join(reference.text.split()) == " ".join(answer.text.split())
    if reference.words == answer.words:
        return True
    left, right = _bare_words(reference.words), _bare_words(answer.words)
    return left == right and any(c.isalpha() for c in left)


def _bare_words(words: str) -> str:
    kept = [w for w in words.split() if w not in ("a", "an", "the")]
    return " ".join(kept) or words


TRUE = Decision(True, "structure")
FALSE = Decision(False, "structure")


class _Comparison:
    def __init__(self, rules: Rules, seed: str) -> None:
        self._rules = rules
        self._seed = seed

    # ── dispatch ─────────────────────────────────────────────────────────────────────────────────

    def things(self, r: Thing, a: Thing) -> Decision:
        if type(r) is Num and type(a) is Num:
            return decide(r, a, self._seed, self._rules.tolerance)
        if isinstance(r, SetOp | NamedSet) or isinstance(a, SetOp | NamedSet):
            return self._sets(r, a)
        if isinstance(r, Rel) or isinstance(a, Rel):
            return self._relations(r, a)
        if isinstance(r, Quantity) or isinstance(a, Quantity):
            return self._quantities(r, a)
        if _plus_minus(r) or _plus_minus(a):
            return self._several(r, a)
        if isinstance(r, SCALARS) and isinstance(a, SCALARS):
            return decide(r, a, self._seed, self._rules.tolerance)
        if isinstance(r, Seq) or isinstance(a, Seq):
            return self._sequences(r, a)
        if isinstance(r, Matrix) and isinstance(a, Matrix):
            if len(r.rows) != len(a.rows) or len(r.rows[0]) != len(a.rows[0]):
                return FALSE
            return self._each(
                [x for row in r.rows for x in row], [x for row in a.rows for x in row]
            )
        if isinstance(r, Based) and isinstance(a, Based):
            return TRUE if (r.base, r.digits) == (a.base, a.digits) else FALSE
        if isinstance(r, Clock) and isinstance(a, Clock):
            return TRUE if _same_time(r, a) else FALSE
        if isinstance(r, Clock | Ratio) or isinstance(a, Clock | Ratio):
            return self._ratios(r, a)
        if isinstance(r, Words) and isinstance(a, Words):
            return TRUE if r.text == a.text else FALSE
        return TRUE if isinstance(r, Ellipsis) and isinstance(a, Ellipsis) else FALSE

    def _each(self, r: Sequence[Thing], a: Sequence[Thing]) -> Decision:
        if len(r) != len(a):
            return FALSE
        undecided, layer = False, "structure"
        for left, right in zip(r, a, strict=True):
            decision = self.things(left, right)
            if decision.equal is False:
                return decision
            undecided = undecided or decision.equal is None
            layer = decision.layer
        return Decision(None if undecided else True, layer)

    # ── sequences ────────────────────────────────────────────────────────────────────────────────

    def _sequences(self, r: Thing, a: Thing) -> Decision:
        if not (isinstance(r, Seq) and isinstance(a, Seq)):
            return (
                self._sets(r, a)
                if _brackets(r) in _INTERVALS or _brackets(a) in _INTERVALS
                else FALSE
            )
        left, right = _brackets(r), _brackets(a)
        if left == right or {left, right} <= {"()", "<>"}:
            if left in ("", "{}") and not self._rules.ordered:
                return self._several(r, a)
            return self._each(r.items, a.items)
        if {left, right} == {"", "{}"}:
            return self._several(r, a)
        return FALSE

    def _several(self, r: Thing, a: Thing) -> Decision:
        """Bare lists and sets, in any order; ± counts as its two values."""
        left, right = _spread(r), _spread(a)
        sets = _brackets(r) == "{}" or _brackets(a) == "{}"
        if any(isinstance(i, Ellipsis) for i in (*left, *right)):
            return self._each(left, right)
        if self._rules.ordered:
            return self._each(left, right)
        if (len(left) != len(right) and not sets) or max(len(left), len(right)) > _MAX_UNORDERED:
            return self._each(left, right)
        undecided = False
        pool = list(right)
        for one in left:
            match, doubt = self._find(one, pool)
            if match is None:
                if sets and self._find(one, right)[0] is not None:
                    continue  # a set does not count
                undecided = undecided or doubt
                if not doubt:
                    return FALSE
                continue
            pool.pop(match)
        if pool and not all(sets and self._find(one, left)[0] is not None for one in pool):
            return Decision(None, "symbolic") if undecided else FALSE
        return Decision(None if undecided else True, "structure")

    def _find(self, one: Thing, pool: Sequence[Thing]) -> tuple[int | None, bool]:
        doubt = False
        for index, other in enumerate(pool):
            equal = self.things(one, other).equal
            if equal:
                return index, False
            doubt = doubt or equal is None
        return None, doubt

    # ── sets of reals ────────────────────────────────────────────────────────────────────────────

    def _sets(self, r: Thing, a: Thing) -> Decision:
        r, a = _membership(r), _membership(a)
        if isinstance(r, NamedSet) and isinstance(a, NamedSet):
            return TRUE if r.name == a.name else FALSE
        mine, theirs = unknowns(r), unknowns(a)
        if mine and theirs and mine != theirs:
            return FALSE
        left, right = real_set(r), real_set(a)
        if left is not None and right is not None:
            return same_set(left, right, self.things)
        if isinstance(r, SetOp) and isinstance(a, SetOp) and r.op == a.op:
            if len(r.parts) != len(a.parts):
                return FALSE
            if r.op == "difference":
                return self._each(r.parts, a.parts)
            return self._several(Seq(r.parts), Seq(a.parts))
        return FALSE

    # ── relations ────────────────────────────────────────────────────────────────────────────────

    def _relations(self, r: Thing, a: Thing) -> Decision:
        left, right = _assigned(r), _assigned(a)
        if left is not None and right is not None:
            if left[0] == right[0]:
                decision = self.things(left[1], right[1])
                if decision.equal or not _open(left[1]):
                    return decision
            elif not _open(left[1]) or not _open(right[1]):
                return FALSE  # y = 5 is no answer to x = 5
            return self._equations(r, a)
        if left is not None and not isinstance(a, Rel):
            return self.things(left[1], a)
        if right is not None and not isinstance(r, Rel):
            return self.things(r, right[1])
        if not (isinstance(r, Rel) and isinstance(a, Rel)):
            return (
                self._sets(r, a) if _orders(r) or _orders(a) or _member(r) or _member(a) else FALSE
            )
        if _member(r) or _member(a):
            return self._sets(r, a)
        if r.ops == a.ops == ("equiv", "mod"):
            return self._congruences(r, a)
        if r.ops == a.ops == ("=",):
            if left is not None and not _open(left[1]):
                return FALSE  # the reference is solved for its unknown; the answer is not
            return self._equations(r, a)
        if _orders(r) and _orders(a):
            if real_set(r) is not None and real_set(a) is not None:
                return self._sets(r, a)
            if len(r.ops) == 1 and len(a.ops) == 1:
                return self._inequalities(r, a)
            return self._chains(r, a)
        if r.ops == a.ops:
            return self._each(r.sides, a.sides)
        return FALSE

    def _congruences(self, r: Rel, a: Rel) -> Decision:
        name, value, modulus = r.sides
        other, rest, by = a.sides
        if name != other or not self.things(modulus, by).equal:
            return FALSE
        if (
            isinstance(value, Num)
            and isinstance(rest, Num)
            and isinstance(modulus, Num)
            and modulus.value
        ):
            return TRUE if (value.value - rest.value) % modulus.value == 0 else FALSE
        return self.things(value, rest)

    def _chains(self, r: Rel, a: Rel) -> Decision:
        if r.ops == a.ops:
            return self._each(r.sides, a.sides)
        if r.ops == tuple(_FLIPPED.get(op, op) for op in reversed(a.ops)):
            return self._each(r.sides, tuple(reversed(a.sides)))
        return FALSE

    def _equations(self, r: Thing, a: Thing) -> Decision:
        """Equal up to sides and a constant factor."""
        if not (isinstance(r, Rel) and isinstance(a, Rel)):
            return FALSE
        if len(r.ops) != 1 or len(a.ops) != 1:
            return self._chains(r, a)
        algebra = Algebra()
        try:
            left, right = _zero_side(algebra, r), _zero_side(algebra, a)
        except (TooBig, Undefined, TypeError):
            return self._each(r.sides, a.sides)
        if left and proportional(left, right):
            return Decision(True, "algebra")
        if algebra.complete:
            return Decision(False, "algebra")
        same = self._each(r.sides, a.sides)
        return same if same.equal else self._each(r.sides, tuple(reversed(a.sides)))

    def _inequalities(self, r: Rel, a: Rel) -> Decision:
        if a.ops != r.ops:
            if _FLIPPED[a.ops[0]] != r.ops[0]:
                return FALSE
            a = Rel((a.sides[1], a.sides[0]), r.ops)
        algebra = Algebra()
        try:
            left, right = _zero_side(algebra, r), _zero_side(algebra, a)
        except (TooBig, Undefined, TypeError):
            return self._each(r.sides, a.sides)
        if len(symbols_of(left)) < 2:  # of one unknown: solved forms are compared as sets
            return self._each(r.sides, a.sides)
        if left and proportional(left, right, positive=r.ops != ("!=",)):
            return Decision(True, "algebra")
        return self._each(r.sides, a.sides)

    # ── quantities, ratios ───────────────────────────────────────────────────────────────────────

    def _quantities(self, r: Thing, a: Thing) -> Decision:
        if isinstance(r, Quantity) and isinstance(a, Quantity):
            if (by := units.factor(a.unit, r.unit)) is None:
                if "%" in (a.unit, r.unit) and self._rules.percent == "ignore":
                    return self.things(r.value, a.value)
                return FALSE
            return self.things(r.value, _scaled(a.value, by))
        if isinstance(r, Quantity):
            if (meant := _lettered(a)) is not None:
                return self._quantities(r, meant)
            return self._only_reference(r, a)
        assert isinstance(a, Quantity)
        return self._only_answer(r, a)

    def _only_reference(self, r: Quantity, a: Thing) -> Decision:
        """The reference has a unit; an answer without one is taken to mean it."""
        if r.unit == "%" and self._rules.percent == "strict":
            return FALSE
        if not isinstance(a, SCALARS):
            return FALSE
        same = self.things(r.value, a)
        if same.equal:
            return same
        if r.unit == "%" and self._rules.percent == "follow":
            return self.things(_scaled(r.value, Fraction(1, 100)), a)
        if r.unit == "deg":
            return self.things(Func("deg", (r.value,)), a)
        return same

    def _only_answer(self, r: Thing, a: Quantity) -> Decision:
        if not isinstance(r, SCALARS):
            return FALSE
        if a.unit == "%":
            if self._rules.percent == "ignore" or self._rules.asks_percent:
                same = self.things(r, a.value)
                if same.equal or self._rules.percent == "ignore":
                    return same
            if self._rules.percent == "strict":
                return FALSE
            return self.things(r, _scaled(a.value, Fraction(1, 100)))
        same = self.things(r, a.value)
        if a.unit == "deg" and not same.equal:
            return self.things(r, Func("deg", (a.value,)))
        return same

    def _ratios(self, r: Thing, a: Thing) -> Decision:
        if isinstance(r, Clock) and isinstance(a, Clock | Ratio) and isinstance(a, Clock):
            return FALSE
        left, right = _ratio(r), _ratio(a)
        if left is None or right is None:
            return FALSE
        if any(_is_ellipsis(p) for p in (*left, *right)):
            return self._each(left, right)
        if len(left) != len(right):
            return FALSE
        # a:b:c equals d:e:f when a·e = b·d and so on.
        for index in range(1, len(left)):
            decision = self.things(Mul((left[0], right[index])), Mul((left[index], right[0])))
            if not decision.equal:
                return decision
        return TRUE if self._nonzero((*left, *right)) else self._each(left, right)

    def _nonzero(self, parts: Sequence[Node]) -> bool:
        return not any(isinstance(p, Num) and p.value == 0 for p in parts)


# ── small questions about things ─────────────────────────────────────────────────────────────────

_INTERVALS = frozenset({"[]", "[)", "(]"})


def _brackets(thing: Thing) -> str:
    return thing.opening + thing.closing if isinstance(thing, Seq) else "-"


def _spread(thing: Thing, *, top: bool = True) -> list[Thing]:
    """The items of a bare list, or of a set if it is the whole; ± as its two values."""
    brackets = _brackets(thing)
    if isinstance(thing, Seq) and (not brackets or (top and brackets == "{}")):
        return [v for item in thing.items for v in _spread(item, top=False)]
    if isinstance(thing, SCALARS):
        plus, minus = signed(thing, first=True), signed(thing, first=False)
        return [thing] if plus is thing else [plus, minus]
    if isinstance(thing, Rel) and (assigned := _assigned(thing)) is not None:
        if isinstance(assigned[1], SCALARS) and signed(assigned[1], first=True) is not assigned[1]:
            return _spread(assigned[1], top=False)
    return [thing]


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


def _plus_minus(thing: Thing) -> bool:
    return isinstance(thing, SCALARS) and signed(thing, first=True) is not thing


def _name(thing: Thing) -> str | None:
    """The name on the left of an assignment: a variable, or a function of variables."""
    if isinstance(thing, Sym):
        return thing.name
    if isinstance(thing, Seq) and thing.items and all(isinstance(i, Sym) for i in thing.items):
        names = ",".join(i.name for i in thing.items if isinstance(i, Sym))
        return f"({names})" if _brackets(thing) == "()" else None
    if isinstance(thing, Div) and (top := _differential(thing.top)) is not None:
        bottom = _differential(thing.bottom)
        return f"d{top}/d{bottom}" if bottom is not None else None
    if isinstance(thing, Func) and thing.name.startswith("@"):
        if all(isinstance(x, Sym) for x in thing.args):
            return (
                thing.name + "(" + ",".join(x.name for x in thing.args if isinstance(x, Sym)) + ")"
            )
        return thing.name + "(…)"
    return None


def _differential(node: Node) -> str | None:
    """The ``y`` of ``dy``."""
    if isinstance(node, Mul) and len(node.factors) == 2:
        first, second = node.factors
        if isinstance(first, Sym) and first.name == "d" and isinstance(second, Sym):
            return second.name
    return None


def _assigned(thing: Thing) -> tuple[str, Thing] | None:
    """(name, value) of ``x = 5``, also written ``5 = x``."""
    if not isinstance(thing, Rel) or thing.ops != ("=",):
        return None
    left, right = thing.sides
    if (name := _name(left)) is not None and not _mentions(right, name):
        return name, right
    if (name := _name(right)) is not None and not _mentions(left, name) and _name(left) is None:
        return name, left
    return None


def _mentions(thing: Thing, name: str) -> bool:
    return name in _free(thing)


def _free(thing: Thing) -> set[str]:
    """Names of variables in a thing."""
    if isinstance(thing, Sym):
        return {thing.name}
    found: set[str] = set()
    for child in _children(thing):
        found |= _free(child)
    return found


def _open(thing: Thing) -> bool:
    """Whether it depends on variables."""
    return bool(_free(thing))


def _children(thing: Thing) -> Sequence[Thing]:
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


def _orders(thing: Thing) -> bool:
    if isinstance(thing, Seq) and not thing.opening:
        return all(_orders(i) for i in thing.items)
    return isinstance(thing, Rel) and all(op in ("<", ">", "<=", ">=", "!=") for op in thing.ops)


def _member(thing: Thing) -> bool:
    return isinstance(thing, Rel) and thing.ops == ("in",)


def _membership(thing: Thing) -> Thing:
    """``x ∈ S`` is S."""
    if isinstance(thing, Rel) and thing.ops == ("in",) and _name(thing.sides[0]):
        return thing.sides[1]
    return thing


def _zero_side(algebra: Algebra, relation: Rel) -> Poly:
    """The numerator of left − right. Raises TypeError for sides that are no scalars."""
    left, right = relation.sides
    if not isinstance(left, SCALARS) or not isinstance(right, SCALARS):
        raise TypeError
    top, bottom = algebra.add(algebra.form(left), algebra.negative(algebra.form(right)))
    lead = bottom[min(bottom)]
    return {m: c / lead for m, c in top.items()}


def _lettered(thing: Thing) -> Quantity | None:
    """``5000 m``, which is a product until the reference has a unit."""
    if isinstance(thing, Mul) and len(thing.factors) == 2:
        number, letter = thing.factors
        if isinstance(number, Num) and isinstance(letter, Sym) and units.known(letter.name):
            unit = units.normal([(letter.name, 1)])
            return None if unit is None else Quantity(number, unit)
    return None


def _scaled(node: Node, by: Fraction) -> Node:
    if by == 1:
        return node
    if isinstance(node, Num):
        return Num(node.value * by)
    return Mul((Num(by), node))


def _same_time(r: Clock, a: Clock) -> bool:
    if r.half == a.half:
        return _padded(r) == _padded(a)
    if r.half and a.half:
        return False
    timed, plain = (r, a) if r.half else (a, r)
    hour = timed.fields[0] % 12 + (12 if timed.half == "pm" else 0)
    # 13:03 is 1:03 PM; 1:03 alone is not.
    return plain.fields[0] > 12 and _padded(
        replace(timed, fields=(hour, *timed.fields[1:]))
    ) == _padded(plain)


def _padded(clock: Clock) -> tuple[int, ...]:
    return clock.fields if len(clock.fields) > 1 else (*clock.fields, 0)


def _ratio(thing: Thing) -> tuple[Node, ...] | None:
    if isinstance(thing, Ratio):
        return thing.parts
    if isinstance(thing, Clock) and not thing.half:
        return tuple(Num(Fraction(f)) for f in thing.fields)
    if isinstance(thing, Div):
        return (thing.top, thing.bottom)
    if isinstance(thing, Num) and thing.value.denominator != 1:
        return (Num(Fraction(thing.value.numerator)), Num(Fraction(thing.value.denominator)))
    return None


def _is_ellipsis(node: Node) -> bool:
    return isinstance(node, Func) and node.name == "@ellipsis"
