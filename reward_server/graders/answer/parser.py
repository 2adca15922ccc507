"""Tokens to whole answers: lists, relations, sets, quantities with units, times, words.

What they are made of is read by ``expressions.py``.
"""

from __future__ import annotations

from fractions import Fraction

from reward_server.graders.answer import units
from reward_server.graders.answer.expressions import (
    MAX_DEPTH,
    MINUS_ONE,
    Expressions,
    is_minus,
    negated,
)
from reward_server.graders.answer.lexer import (
    END,
    Token,
    TooLarge,
    Unreadable,
)
from reward_server.graders.answer.numbers import (
    CHINESE_SCALES,
    NUMBER_WORDS,
    SCALES,
    from_chinese,
    from_words,
)
from reward_server.graders.answer.syntax import (
    SCALARS,
    Clock,
    Const,
    Ellipsis,
    Func,
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

MAX_ITEMS = 400


_RELATIONS = {
    ("o", "="): "=", ("o", "<"): "<", ("o", ">"): ">", ("o", "<="): "<=", ("o", ">="): ">=",
    ("o", "!="): "!=", ("o", "=="): "=", ("c", "lt"): "<", ("c", "gt"): ">", ("c", "le"): "<=",
    ("c", "leq"): "<=", ("c", "leqslant"): "<=", ("c", "ge"): ">=", ("c", "geq"): ">=",
    ("c", "geqslant"): ">=", ("c", "ne"): "!=", ("c", "neq"): "!=", ("c", "in"): "in",
    ("w", "in"): "in",
}  # fmt: skip
_SET_OPS = {
    "cup": "union",
    "cap": "intersection",
    "setminus": "difference",
    "backslash": "difference",
}
_JOINTS = {
    ("w", "and"): "and", ("c", "land"): "and", ("c", "wedge"): "and",
    ("w", "or"): "or", ("c", "lor"): "or", ("c", "vee"): "or",
}  # fmt: skip
_ELLIPSES = frozenset({"ldots", "dots", "cdots", "dotsc", "dotsb"})
_CURRENCIES = {("c", "$"): "USD"} | {("o", sign): unit for sign, unit in units.CURRENCIES.items()}
_NO_VALUE = {
    "no solution": "empty", "no solutions": "empty", "no real solution": "empty",
    "no real solutions": "empty", "empty set": "empty", "the empty set": "empty",
    "all real numbers": "R", "all reals": "R", "the real numbers": "R", "real numbers": "R",
    "all real x": "R",
}  # fmt: skip


class Parser(Expressions):
    _joint = ","

    def answer(self) -> Thing:
        """Everything, as one thing. Raises Unreadable, TooLarge."""
        items = self._items()
        if self._peek() is not END:
            raise Unreadable(f"{self._peek().text!r} where nothing was expected")
        return items[0] if len(items) == 1 else Seq(tuple(items), joint=self._joint)

    # ── lists ────────────────────────────────────────────────────────────────────────────────────

    def _items(self) -> list[Thing]:
        """The items of a list; what joins them is left in ``_joint``."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooLarge("nested too deep")
        items = [self._item()]
        joints: set[str] = set()
        while (separator := self._separator()) is not None:
            joints.add(separator)
            items.append(self._item())
            if len(items) > MAX_ITEMS:
                raise TooLarge(f"more than {MAX_ITEMS} items")
        self._depth -= 1
        words = joints - {","}
        self._joint = "," if not words else words.pop() if len(words) == 1 else "mixed"
        return items

    def _separator(self) -> str | None:
        token = self._peek()
        if token.kind == "o" and token.text in ",;":
            self._at += 1
            if (word := _JOINTS.get(self._peek()[:2])) is not None:
                self._at += 1
                return word
            return ","
        if token.kind == "c" and token.text == "\\":
            self._at += 1
            return ","
        if (word := _JOINTS.get((token.kind, token.text.lower()))) is not None:
            self._at += 1
            return word
        return None

    def _ends_item(self, token: Token) -> bool:
        return (
            token is END
            or (token.kind == "o" and token.text in ",;)]|}")
            or (token.kind == "c" and token.text in ("\\", "}", "rangle"))
            or (token.kind, token.text.lower()) in _JOINTS
        )

    def _item(self) -> Thing:
        token = self._peek()
        if token.kind == "c" and token.text in _ELLIPSES:
            self._at += 1
            return Ellipsis()
        if token.kind == "o" and token.text == "." and self._peek(1).text == ".":
            while self._accept("o", "."):
                pass
            return Ellipsis()
        words = self._words()
        if words is not None and not self._is("o", "="):
            return words
        sides = [self._set() if words is None else words]
        ops: list[str] = []
        if self._is("c", "equiv") or self._is("c", "pmod") or self._is("c", "bmod"):
            return self._congruence(sides[0])
        while (op := _RELATIONS.get(self._tokens[self._at][:2])) is not None:
            self._at += 1
            ops.append(op)
            sides.append(self._set())
        if self._accept("c", "approx"):
            self._rounding_of(sides[-1])
        return Rel(tuple(sides), tuple(ops)) if ops else sides[0]

    def _rounding_of(self, exact: Thing) -> None:
        """The ``1.414`` of ``\\sqrt{2} \\approx 1.414``: if right, it is no second answer."""
        rounded = self._scalar()
        if not isinstance(exact, SCALARS) or not isinstance(rounded, Num) or not rounded.places:
            raise Unreadable("an approximation of what has no value")
        from reward_server.graders.answer import numeric  # noqa: PLC0415  (keeps mpmath off the fast path)

        if not numeric.rounds_to(exact, rounded):
            raise Unreadable("an approximation that is another value")

    def _congruence(self, left: Thing) -> Rel:
        """``x ≡ 3 (mod 7)``, also without its left side."""
        right = left
        if self._accept("c", "equiv"):
            right = self._scalar()
        elif isinstance(left, Sym):
            raise Unreadable("a modulus without a value")
        else:
            left = Sym("?")
        if not self._accept("c", "pmod") and not self._accept("c", "bmod"):
            self._expect("o", "(")
            if not self._accept("c", "bmod"):
                self._expect("w", "mod")
            modulus = self._scalar()
            self._expect("o", ")")
        else:
            modulus = self._argument()
        return Rel((left, right, modulus), ("equiv", "mod"))

    def _words(self) -> Thing | None:
        """An item that is words and nothing else, as number, named set, letter or prose."""
        at = self._at
        token = self._peek()
        if token.kind != "w" and not (token.kind == "l" and token.worded):
            return None
        run: list[str] = []
        while True:
            token = self._peek()
            joins = (
                token.kind == "w" and token.text.lower() == "and" and run and self._number_goes_on()
            )
            if not joins and self._ends_item(token):
                break
            if token.kind == "o" and token.text == "-" and run:
                self._at += 1
                continue
            if token.kind == "o" and token.text == "=" and run and self._tokens[at].worded:
                return Sym(" ".join(run).lower())  # \\text{Area} = 42
            if token.kind not in "wl" or (token.kind == "l" and not token.worded and not run):
                self._at = at
                return None
            run.append(token.text)
            self._at += 1
        if len(run) == 1 and len(run[0]) == 1 and run[0].isascii():
            self._at = at
            return None  # a letter is a symbol, also in \text
        return _prose(run)

    def _number_goes_on(self) -> bool:
        """Whether the ``and`` here stands within a number in words (one hundred and five)."""
        before, after = self._tokens[self._at - 1], self._peek(1)
        return before.text.lower() in ("hundred", "thousand", "million") and (
            after.text.lower() in NUMBER_WORDS and after.text.lower() not in ("hundred", "thousand")
        )

    # ── sets and quantities ──────────────────────────────────────────────────────────────────────

    def _set(self) -> Thing:
        parts = [self._quantity()]
        op = ""
        while True:
            token = self._peek()
            found = _SET_OPS.get(token.text) if token.kind == "c" else None
            if token.kind == "l" and token.text == "U" and isinstance(parts[-1], Seq):
                found = "union"
            if found is None:
                break
            if op and found != op:
                raise Unreadable("set operations mixed without brackets")
            op = found
            self._at += 1
            parts.append(self._quantity())
        return SetOp(op, tuple(parts)) if op else parts[0]

    def _quantity(self) -> Thing:
        if (clock := self._clock()) is not None:
            return clock
        negative = False
        if self._is("o", "-") and self._peek(1)[:2] in _CURRENCIES:
            negative = True
            self._at += 1
        currency = _CURRENCIES.get(self._tokens[self._at][:2])
        if currency is not None:
            self._at += 1
        value = self._sum()
        if not isinstance(value, SCALARS):
            if currency or negative:
                raise Unreadable("a currency before what is no number")
            return value
        if negative:
            value = Mul((MINUS_ONE, value))
        if self._is("o", ":") and not currency:
            return self._ratio(value)
        if (scale := self._scale()) is not None:
            value = Mul((value, Num(Fraction(scale))))
        if currency is not None and self._is("w", "per"):
            self._at += 1
            self._only_nouns()  # "$18 per day"
        unit = self._unit()
        if unit is not None and isinstance(value, Sym):
            raise Unreadable("words after a letter")
        if currency is not None:
            if unit == "%" or (unit in units.MONEY and unit != currency):
                raise Unreadable("a currency with another unit")
            unit = currency  # "$5 per hour", "$5 apples": what it is paid for is not compared
        if unit is None:
            if isinstance(value, Func) and value.name.startswith("deg"):
                return Quantity(value.args[0], value.name)
            if is_minus(value):
                inner = value.factors[1]  # type: ignore[union-attr]
                if isinstance(inner, Func) and inner.name.startswith("deg"):
                    return Quantity(Mul((MINUS_ONE, inner.args[0])), inner.name)
            return value
        return Quantity(value, unit)

    def _scale(self) -> int | None:
        """``million`` after a number, ``万`` also at the start of a word."""
        token = self._peek()
        if token.kind != "w":
            return None
        if (scale := SCALES.get(token.text.lower())) is not None:
            self._at += 1
            return scale
        if token.text[0] in CHINESE_SCALES and not units.known(token.text):
            scale = CHINESE_SCALES[token.text[0]]
            if len(token.text) > 1:
                self._tokens[self._at] = token._replace(text=token.text[1:])
            else:
                self._at += 1
            return scale
        return None

    def _ratio(self, first: Node) -> Thing:
        parts: list[Node] = [first]
        while self._accept("o", ":"):
            token = self._peek()
            if token.kind == "c" and token.text in _ELLIPSES:
                self._at += 1
                parts.append(Func("@ellipsis", ()))
                continue
            part = self._sum()
            if not isinstance(part, SCALARS):
                raise Unreadable("a ratio of what are no numbers")
            parts.append(part)
        return Ratio(tuple(parts))

    def _clock(self) -> Clock | None:
        """``4:30``, ``11:30 p.m.``, ``1:05:09``: numbers as a clock writes them."""
        at = self._at
        fields: list[int] = []
        while self._peek().kind == "n" and len(fields) < 3:
            digits = self._peek().text
            if not digits.isdecimal() or len(digits) > 2 or (fields and len(digits) != 2):
                break
            fields.append(int(digits))
            self._at += 1
            if not (self._is("o", ":") and len(fields) < 3):
                break
            self._at += 1
        half = self._half() if fields else ""
        good = len(fields) >= 2 or (len(fields) == 1 and half)
        if not good or any(f > 59 for f in fields[1:]) or not self._ends_item(self._peek()):
            self._at = at
            return None
        return Clock(tuple(fields), half)

    def _half(self) -> str:
        """``a.m.``, ``PM`` and the like."""
        at = self._at
        first = self._peek().text.lower()
        if first in ("am", "pm") and self._peek().kind == "w":
            self._at += 1
            self._accept("o", ".")
            return first
        if first in ("a", "p") and self._peek().kind == "l":
            self._at += 1
            self._accept("o", ".")
            if self._peek().text.lower() == "m":
                self._at += 1
                self._accept("o", ".")
                return first + "m"
        self._at = at
        return ""

    def _unit(self) -> str | None:
        """The unit after a number, in normal form; None where there is none."""
        if self._accept("c", "%") or self._accept("o", "%"):
            return "%"
        words: list[tuple[str, int]] = []
        sign = 1
        while True:
            token = self._peek()
            low = token.text.lower()
            if token.kind == "w" and low == "per" and self._peek(1).text.lower() == "cent":
                self._at += 2
                if words:
                    raise Unreadable("per cent of what is counted")
                return "%"
            if (
                token.kind in "wl"
                and low in ("per", "a", "an")
                and words
                and self._peek(1).kind == "w"
            ):
                self._at += 1  # "dollars a day"
                sign = -1
                continue
            if token.kind == "w" and low == "of" and words and self._peek(1).kind == "w":
                self._at += 1
                self._only_nouns()
                break
            if token.kind == "w" and low == "in" and self._peek(1).text.lower() in ("total", "all"):
                self._at += 2
                continue
            if token.kind == "o" and token.text == "/" and words and self._peek(1).kind in "wl":
                self._at += 1
                sign = -1
                continue
            if (
                token.kind in "oc"
                and token.text in ("*", "cdot", "-")
                and words
                and self._peek(1).kind == "w"
            ):
                self._at += 1
                continue
            if token.kind == "o" and token.text == "." and words:
                self._at += 1
                continue
            if token.kind == "w" and token.text.lower() in ("and", "or"):
                break
            if token.kind == "w" or (token.kind == "l" and token.worded):
                self._at += 1
                power = self._unit_power()
                words.append((token.text, sign * power))
                continue
            if token.kind in "oc" and token.text in CURRENCY_SIGNS and not words:
                self._at += 1
                return CURRENCY_SIGNS[token.text]
            break
        if not words:
            return None
        if len(words) == 1 and words[0][0].lower() in ("hundred", "thousand", "million", "billion"):
            raise Unreadable("a scale word")
        normal = units.normal(words)
        if normal is None:
            raise Unreadable("words after a number that are no unit")
        return normal

    def _only_nouns(self) -> None:
        """The rest of ``kg of brown rice``: what is measured, which is not compared."""
        words: list[tuple[str, int]] = []
        while self._peek().kind == "w" and not self._ends_item(self._peek()):
            words.append((self._next().text, 1))
        if units.normal(words) is None:
            raise Unreadable("words after a number that are no unit")

    def _unit_power(self) -> int:
        if not self._accept("o", "^"):
            token = self._peek()
            if token.kind == "n" and token.text in ("2", "3") and token.worded and not token.spaced:
                self._at += 1
                return int(token.text)
            return 1
        braced = self._accept("o", "{")
        sign = -1 if self._accept("o", "-") else 1
        token = self._next()
        if token.kind != "n" or not token.text.isdecimal() or len(token.text) > 2:
            raise Unreadable("a unit's power that is no number")
        if braced:
            self._expect("o", "}")
        return sign * int(token.text)


CURRENCY_SIGNS = {"$": "USD"} | dict(units.CURRENCIES)


def _prose(run: list[str]) -> Thing:
    lowered = [w.lower() for w in run]
    if (value := from_words(lowered)) is not None:
        return Num(Fraction(value))
    joined = " ".join(lowered)
    if joined in ("infinity", "positive infinity"):
        return Const("inf")
    if joined in ("negative infinity", "minus infinity"):
        return negated(Const("inf"))
    if (named := _NO_VALUE.get(joined)) is not None:
        return NamedSet(named)
    if len(run) == 1 and not run[0].isascii():
        if (chinese := from_chinese(run[0])) is not None:
            return Num(chinese)
    for cut in range(len(lowered) - 1, 0, -1):  # "three apples"
        if (value := from_words(lowered[:cut])) is not None:
            unit = units.normal([(w, 1) for w in run[cut:]])
            if unit is not None and not NUMBER_WORDS.intersection(lowered[cut:]):
                return Quantity(Num(Fraction(value)), unit)
            break
    return Words(joined)
