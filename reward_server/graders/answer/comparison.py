"""Whether an answer equals a reference, thing by thing.

The reference sets the form: its units, its percent sign, its kind of brackets. The comparison is symmetric
except where that says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from reward_server.graders.answer import units
from reward_server.graders.answer.algebra import (
    Algebra,
    TooBig,
    Undefined,
    proportional,
    symbols_of,
)
from reward_server.graders.answer.reading import Reading
from reward_server.graders.answer.realsets import real_set, same_set, unknowns
from reward_server.graders.answer.scalars import Allowance, Decision, Tolerance, decide
from reward_server.graders.answer.syntax import (
    SCALARS,
    Based,
    Clock,
    Const,
    Ellipsis,
    Func,
    Matrix,
    Mul,
    NamedSet,
    Node,
    Num,
    Quantity,
    Ratio,
    Rel,
    Seq,
    SetOp,
    Sym,
    Thing,
    Words,
)
from reward_server.graders.answer.things import (
    INTERVALS,
    assignment,
    brackets,
    difference,
    is_ellipsis,
    is_membership,
    is_open,
    is_order,
    name_of,
    names_in,
    no_root_at,
    plus_minus,
    ratio_of,
    same_time,
    scaled,
    set_of,
    spread,
    with_letter_as_unit,
)

Percent = Literal["follow", "strict", "ignore"]
_PERCENT = re.compile(r"percent|%|百分", re.IGNORECASE)
_MAX_UNORDERED = 40
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


@dataclass(frozen=True, slots=True)
class Rules:
    """What the options of a config or a reference come to."""

    tolerance: Tolerance | None = None
    ordered: bool = False
    percent: Percent = "follow"
    case_sensitive: bool = False
    prompt: str = ""
    """The question, where the item has one."""

    def asks_percent(self) -> bool:
        return _PERCENT.search(self.prompt) is not None

    def prompt_words(self) -> frozenset[str]:
        return frozenset(re.findall(r"[a-z]+", self.prompt[:20_000].lower()))


@dataclass(frozen=True, slots=True)
class Verdict:
    equal: bool | None
    """None: undecided."""
    layer: str
    ambiguous: bool = False
    """Whether it is different because it states several answers where one is asked for."""


def compare(
    reference: Reading, answer: Reading, rules: Rules, allowance: Allowance | None = None
) -> Verdict:
    """The reference must have been read; an answer that was not can only be the same text.

    ``allowance`` is shared by all comparisons of one item.
    """
    if answer.key and reference.key == answer.key:
        return Verdict(True, "text")
    if answer.thing is None:
        return Verdict(None if answer.too_large else False, "unreadable")
    if reference.thing is None:
        return Verdict(False, "text")
    comparison = _Comparison(rules, f"{reference.key}\0{answer.key}", allowance or Allowance())
    if isinstance(answer.thing, Words) and not _letters(reference.thing):
        return Verdict(False, "words")  # mathematics in the reference, prose in the answer
    if isinstance(reference.thing, Words) or isinstance(answer.thing, Words):
        return Verdict(_same_words(reference, answer, rules), "words")
    try:
        decision = comparison.things(*_singles(reference.thing, answer.thing))
    except RecursionError:
        return Verdict(None, "budget")
    ambiguous = not decision.equal and count_of(answer.thing) > count_of(reference.thing)
    return Verdict(decision.equal, decision.layer, ambiguous)


def _singles(r: Thing, a: Thing) -> tuple[Thing, Thing]:
    """A set of one against what is no set stands for its element; sets inside sets do not."""
    if isinstance(r, Seq) and brackets(r) == "{}" and len(r.items) == 1 and isinstance(a, SCALARS):
        return r.items[0], a
    if isinstance(a, Seq) and brackets(a) == "{}" and len(a.items) == 1 and isinstance(r, SCALARS):
        return r, a.items[0]
    return r, a


def count_of(thing: Thing) -> int:
    """How many answers a thing states: items of a bare list, values of a ±, sides of a chain."""
    if isinstance(thing, Seq) and not thing.opening:
        return sum(count_of(i) for i in thing.items)
    if plus_minus(thing):
        return 2
    if isinstance(thing, Rel) and all(op == "=" for op in thing.ops):
        return len(thing.sides) - 1 if name_of(thing.sides[0]) else len(thing.sides)
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
        return reference.cased == answer.cased
    if reference.words == answer.words:
        return True
    left, right = _bare_words(reference.words), _bare_words(answer.words)
    return left == right and any(c.isalpha() for c in left)


def _bare_words(words: str) -> str:
    """Without an article in front."""
    first, _, rest = words.partition(" ")
    return rest if rest and first in ("a", "an", "the") else words


def _best(row: Sequence[bool | None]) -> bool | None:
    return True if True in row else None if None in row else False


def _worst(verdicts: Sequence[bool | None]) -> bool | None:
    return False if False in verdicts else None if None in verdicts else True


def _matched(matches: Sequence[Sequence[bool | None]], *, allowed: tuple[bool | None, ...]) -> bool:
    """Whether each row can have a column of its own (augmenting paths; at most 40 rows)."""
    owner: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column, equal in enumerate(matches[row]):
            if equal in allowed and column not in tried:
                tried.add(column)
                if column not in owner or place(owner[column], tried):
                    owner[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(matches)))


def _names_a_function(one: str, other: str) -> bool:
    """Whether one is ``f(x)`` and the other ``y``: two names of the same graph."""
    return "y" in (one, other) and any(re.fullmatch(r"@[fgh]\(x\)", name) for name in (one, other))


TRUE = Decision(True, "structure")
FALSE = Decision(False, "structure")


class _Comparison:
    def __init__(self, rules: Rules, seed: str, allowance: Allowance) -> None:
        self._rules = rules
        self._seed = seed
        self._allowance = allowance

    # ── dispatch ─────────────────────────────────────────────────────────────────────────────────

    def things(self, r: Thing, a: Thing) -> Decision:
        if type(r) is Num and type(a) is Num:
            return decide(r, a, self._seed, self._rules.tolerance, self._allowance)
        if r == a and not isinstance(
            r, Seq
        ):  # "and" and "or" make different lists of the same items
            return TRUE  # written alike
        if self._allowance.left_s() <= 0:
            return Decision(None, "budget")
        if (is_membership(r) and isinstance(a, Seq)) or (is_membership(a) and isinstance(r, Seq)):
            r, a = set_of(r), set_of(a)
        if isinstance(r, SetOp | NamedSet) or isinstance(a, SetOp | NamedSet):
            return self._sets(r, a)
        if isinstance(r, Rel) or isinstance(a, Rel):
            return self._relations(r, a)
        if isinstance(r, Quantity) or isinstance(a, Quantity):
            return self._quantities(r, a)
        if plus_minus(r) or plus_minus(a):
            return self._several(r, a)
        if isinstance(r, SCALARS) and isinstance(a, SCALARS):
            return decide(r, a, self._seed, self._rules.tolerance, self._allowance)
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
            return TRUE if same_time(r, a) else FALSE
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
                self._sets(r, a) if brackets(r) in INTERVALS or brackets(a) in INTERVALS else FALSE
            )
        if is_order(r) or is_order(a):
            return self._sets(r, a)
        if (ordered := self._named(r, a)) is not None:
            return ordered
        left, right = brackets(r), brackets(a)
        if left == right or {left, right} <= {"()", "<>"}:
            if left in ("", "{}") and not self._rules.ordered:
                return self._several(r, a)
            return self._each(r.items, a.items)
        if {left, right} == {"", "{}"}:
            return self._several(r, a)
        return FALSE

    def _named(self, r: Seq, a: Seq) -> Decision | None:
        """``x = 1, y = 2`` against a list or tuple without names: then the order is that of the alphabet."""
        mine, theirs = names_in(r), names_in(a)
        if (mine is None) == (theirs is None):
            return None
        named, plain = (r, a) if mine is not None else (a, r)
        if plain.opening + plain.closing not in ("", "()"):
            return FALSE
        if any(isinstance(i, Rel) for i in plain.items):
            return None
        values = [v for _, v in sorted(mine or theirs or [], key=lambda pair: pair[0])]
        return self._each(values, plain.items) if named is r else self._each(plain.items, values)

    def _several(self, r: Thing, a: Thing) -> Decision:
        """Bare lists, in any order, and sets; ± counts as its two values."""
        left, right = spread(r), spread(a)
        sets = brackets(r) == "{}" and brackets(a) == "{}"
        if any(isinstance(i, Ellipsis) for i in (*left, *right)):
            return self._each(left, right)
        if self._rules.ordered:
            return self._each(left, right)
        if (len(left) != len(right) and not sets) or max(len(left), len(right)) > _MAX_UNORDERED:
            return self._each(left, right)
        matches = [[self.things(one, other).equal for other in right] for one in left]
        doubt = Decision(None, "symbolic")
        if sets:
            rows = [_best(row) for row in matches]
            columns = [_best([row[n] for row in matches]) for n in range(len(right))]
            worst = _worst([*rows, *columns])
            return doubt if worst is None else Decision(worst, "structure")
        if _matched(matches, allowed=(True,)):
            return TRUE
        return doubt if _matched(matches, allowed=(True, None)) else FALSE

    # ── sets of reals ────────────────────────────────────────────────────────────────────────────

    def _sets(self, r: Thing, a: Thing) -> Decision:
        r, a = set_of(r), set_of(a)
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
        left, right = assignment(r), assignment(a)
        if left is not None and right is not None:
            if _names_a_function(left[0], right[0]):
                return self.things(left[1], right[1])
            if left[0] == right[0]:
                decision = self.things(left[1], right[1])
                if decision.equal or not is_open(left[1]):
                    return decision
            elif not is_open(left[1]) or not is_open(right[1]):
                return FALSE  # y = 5 is no answer to x = 5
            return self._equations(r, a)
        if left is not None and not isinstance(a, Rel):
            return self.things(left[1], a)
        if right is not None and not isinstance(r, Rel):
            return self.things(r, right[1])
        if not (isinstance(r, Rel) and isinstance(a, Rel)):
            return (
                self._sets(r, a)
                if is_order(r) or is_order(a) or is_membership(r) or is_membership(a)
                else FALSE
            )
        if is_membership(r) or is_membership(a):
            return self._sets(r, a)
        if r.ops == a.ops == ("equiv", "mod"):
            return self._congruences(r, a)
        if r.ops == a.ops == ("=",):
            if left is not None and not is_open(left[1]):
                return FALSE  # the reference is solved for its unknown; the answer is not
            return self._equations(r, a)
        if is_order(r) and is_order(a):
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
            (left, low), (right, other) = difference(algebra, r), difference(algebra, a)
        except (TooBig, Undefined, TypeError):
            return self._each(r.sides, a.sides)
        # Cleared of denominators, y/x = 1 would be y = x, and have a point more.
        whole = low == other or (no_root_at(left, low) and no_root_at(right, other))
        if symbols_of(left) and whole and proportional(left, right):
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
            (left, low), (right, other) = difference(algebra, r), difference(algebra, a)
        except (TooBig, Undefined, TypeError):
            return self._each(r.sides, a.sides)
        if symbols_of(low) or symbols_of(other):  # whose sign is not known
            return self._each(r.sides, a.sides)
        if len(symbols_of(left)) < 2:  # of one unknown: solved forms are compared as sets
            return self._each(r.sides, a.sides)
        if proportional(left, right, positive=r.ops != ("!=",)):
            return Decision(True, "algebra")
        return self._each(r.sides, a.sides)

    # ── quantities, ratios ───────────────────────────────────────────────────────────────────────

    def _quantities(self, r: Thing, a: Thing) -> Decision:
        if isinstance(r, Quantity) and isinstance(a, Quantity):
            if (by := units.factor(a.unit, r.unit)) is None:
                if "%" in (a.unit, r.unit) and self._rules.percent == "ignore":
                    return self.things(r.value, a.value)
                return FALSE
            return self.things(r.value, scaled(a.value, by))
        if isinstance(r, Quantity):
            if (meant := with_letter_as_unit(a)) is not None:
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
            return self.things(scaled(r.value, Fraction(1, 100)), a)
        if r.unit == "deg":
            return self.things(Func("deg", (r.value,)), a)
        return same

    def _only_answer(self, r: Thing, a: Quantity) -> Decision:
        if not isinstance(r, SCALARS):
            return FALSE
        if a.unit == "%":
            if self._rules.percent == "ignore" or self._rules.asks_percent():
                same = self.things(r, a.value)
                if same.equal or self._rules.percent == "ignore":
                    return same
            if self._rules.percent == "strict":
                return FALSE
            return self.things(r, scaled(a.value, Fraction(1, 100)))
        if not units.only_counts(a.unit, self._rules.prompt_words()):
            return FALSE
        same = self.things(r, a.value)
        if a.unit == "deg" and not same.equal:
            return self.things(r, Func("deg", (a.value,)))
        return same

    def _ratios(self, r: Thing, a: Thing) -> Decision:
        if isinstance(r, Clock) != isinstance(a, Clock):
            other = a if isinstance(r, Clock) else r
            if not isinstance(other, Ratio):
                return FALSE  # 4:05 is no 4/5
        left, right = ratio_of(r), ratio_of(a)
        if left is None or right is None:
            return FALSE
        if any(is_ellipsis(p) for p in (*left, *right)):
            return self._each(left, right)
        if len(left) != len(right):
            return FALSE
        # a:b:c equals d:e:f when a·e = b·d and so on.
        for index in range(1, len(left)):
            # Exactly: a tolerance says nothing of products.
            one, other = Mul((left[0], right[index])), Mul((left[index], right[0]))
            decision = decide(one, other, self._seed, None, self._allowance)
            if not decision.equal:
                return decision
        return TRUE if self._nonzero((*left, *right)) else self._each(left, right)

    def _nonzero(self, parts: Sequence[Node]) -> bool:
        """Whether no part is zero, which would make a·0 = b·0 of any two ratios."""
        zero = Num(Fraction(0))
        return all(
            p.value != 0
            if isinstance(p, Num)
            else decide(p, zero, self._seed, None, self._allowance).equal is False
            for p in parts
        )
