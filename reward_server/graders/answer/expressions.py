"""Tokens to scalars: a recursive-descent parser of arithmetic as it is written.

It reads what is there and corrects nothing: two numbers side by side are no product, an unknown command
is no symbol, a bracket without partner is an error. ``a/bc`` is (a/b)·c, ``\\sin 2x`` is sin(2x),
``-x^2`` is −(x²).
"""

from __future__ import annotations

from fractions import Fraction

from reward_server.graders.answer.cursor import Cursor
from reward_server.graders.answer.lexer import (
    END,
    FUNCTIONS,
    GREEK,
    Token,
    TooLarge,
    Unreadable,
)
from reward_server.graders.answer.numbers import (
    MAX_DIGITS,
    decimal,
    from_words,
    plain,
    repeating,
)
from reward_server.graders.answer.syntax import (
    SCALARS,
    Add,
    Based,
    Big,
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
    Pow,
    Quantity,
    Rel,
    Root,
    Seq,
    Sym,
    Thing,
)

MAX_DEPTH = 40

MINUS_ONE = Num(Fraction(-1))

_FRACTIONS = frozenset({"frac", "dfrac", "tfrac", "cfrac"})
_BINOMIALS = frozenset({"binom", "dbinom", "tbinom"})
_BIG = frozenset({"sum", "prod", "int", "iint", "oint", "lim"})
_MATRICES = frozenset({"pmatrix", "bmatrix", "Bmatrix", "matrix", "smallmatrix", "array"})
_DECORATIONS = frozenset(
    """
    overline bar vec hat tilde overrightarrow widehat widetilde dot ddot underline
    overleftrightarrow
    """.split()
)
_GEOMETRY = frozenset({"angle", "triangle", "measuredangle"})
_BRACKETS = {"(": ")", "[": "]"}
_APPLIED = frozenset("fghFGH")
_NAMED_SETS = frozenset("RQZNC")
_INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot"}


class Expressions(Cursor):
    """The part of the parser that knows arithmetic; ``Parser`` completes it."""

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self._depth = 0
        self._bars = 0
        self._bound: set[str] = set()
        """Names of the running variables of the sums around this place: there, i is not √−1."""

    def _items(self) -> list[Thing]:
        raise NotImplementedError

    def _ends_item(self, token: Token) -> bool:
        raise NotImplementedError

    def _sum(self) -> Thing:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooLarge("nested too deep")
        terms: list[Node] = []
        first = True
        left: Thing | None = None
        while True:
            token = self._peek()
            text = token.text
            if token.kind == "o" and text in "+-":
                self._at += 1
                if self._accept("o", "-"):  # "2 + -1"
                    text = "-" if text == "+" else "+"
                term = self._product()
                if isinstance(term, Based) and first:
                    self._depth -= 1
                    return Based(text.strip("+") + term.digits, term.base)
                if not isinstance(term, SCALARS):
                    raise Unreadable("a sign before what is no number")
                terms.append(negated(term) if text == "-" else term)
            elif token.kind == "c" and text in ("pm", "mp"):
                self._at += 1
                term = self._product()
                if not isinstance(term, SCALARS):
                    raise Unreadable("± before what is no number")
                so_far = _add(terms) if terms else Num(Fraction(0))
                terms = [PlusMinus(so_far, term, text == "mp")]
            elif first:
                left = self._product()
                if not isinstance(left, SCALARS):
                    self._depth -= 1
                    return left
                terms.append(left)
            else:
                break
            first = False
        self._depth -= 1
        return _add(terms)

    def _scalar(self) -> Node:
        value = self._sum()
        if not isinstance(value, SCALARS):
            raise Unreadable("arithmetic on what is no number")
        return value

    def _product(self) -> Thing:
        value = self._power()
        links = 0
        while True:
            token = self._peek()
            kind, text = token.kind, token.text
            if (kind == "o" and text == "*") or (kind == "c" and text in ("cdot", "times", "ast")):
                if kind == "o" and self._peek(1).text == "*":  # x**2
                    self._at += 2
                    value = Pow(scalar(value), self._exponent())
                    if self._peek().text == "^" or (self._peek().text, self._peek(1).text) == (
                        "*",
                        "*",
                    ):
                        raise Unreadable("a power of a power without brackets")
                    continue
                self._at += 1
                value = _times(scalar(value), scalar(self._signed_power()))
            elif (kind == "o" and text == "/") or (kind == "c" and text == "div"):
                self._at += 1
                links = self._link(links)
                value = Div(scalar(value), scalar(self._signed_power()))
            elif self._starts_factor(token):
                if kind == "n" and not (
                    isinstance(value, Func | Mul) and self._peek(-1).text == "!"
                ):
                    value = self._mixed(value)
                    continue
                before = self._at
                factor = self._power()
                if isinstance(value, Num) and token.kind == "c" and token.text in _FRACTIONS:
                    value = _mixed_or_product(value, scalar(factor))
                elif isinstance(factor, SCALARS) and isinstance(value, SCALARS):
                    value = _times(value, factor)
                elif isinstance(factor, Matrix) and isinstance(value, SCALARS):
                    raise Unreadable("a multiple of a matrix")
                else:
                    self._at = before
                    raise Unreadable("two things side by side")
            else:
                return value

    def _signed_power(self) -> Thing:
        if self._accept("o", "-"):
            return negated(scalar(self._power()))
        self._accept("o", "+")
        return self._power()

    def _mixed(self, value: Thing) -> Node:
        """``1 1/4`` in plain text: a number after a number is nothing else."""
        top = self._next()
        whole = (
            isinstance(value, Num)
            and value.value.denominator == 1
            and not value.places
            and top.spaced
            and top.text.isdecimal()
            and self._is("o", "/")
        )
        if whole:
            self._at += 1
            bottom = self._next()
            if (
                bottom.kind == "n"
                and bottom.text.isdecimal()
                and 0 < int(top.text) < int(bottom.text)
            ):
                assert isinstance(value, Num)
                return Add((value, Div(number(top.text), number(bottom.text))))
        raise Unreadable("two numbers side by side")

    def _starts_factor(self, token: Token) -> bool:
        kind, text = token.kind, token.text
        if kind == "n":
            return True
        if kind == "l":
            return not token.worded
        if kind == "o":
            return text in "([{" or (text == "|" and self._bars == 0)
        if kind == "c":
            return (
                text in _FRACTIONS
                or text in FUNCTIONS
                or text in GREEK
                or text in _BINOMIALS
                or text in _DECORATIONS
                or text in ("pi", "infty", "lfloor", "lceil", "lvert", "langle")
                or text in _BIG
            )
        return False

    def _power(self) -> Thing:
        base = self._postfix()
        links = 0
        while self._is("o", "^"):
            links = self._link(links)
            if self._degree():
                # 20 °C is no angle, and no multiple of C.
                scale = self._peek().text if self._peek()[:2] in (("l", "C"), ("l", "F")) else ""
                if scale and self._peek(1) is END:
                    self._at += 1
                    base = Func("deg " + scale, (scalar(base),))
                    continue
                base = Func("deg", (scalar(base),))
                continue
            self._at += 1
            if self._is("c", "prime"):
                self._at += 1
                base = _primed(base)
                continue
            base = Pow(scalar(base), self._exponent())
            if self._is("o", "^") and not self._degree(look=True):
                raise Unreadable("a power of a power without brackets")
            while self._accept("o", "!"):
                links = self._link(links)
                base = Func("factorial", (base,))
        return base

    def _link(self, links: int) -> int:
        """One more operator in a chain, each of which nests what came before. Raises TooLarge."""
        if links > MAX_DEPTH:
            raise TooLarge("a chain too long")
        return links + 1

    def _degree(self, *, look: bool = False) -> bool:
        """Whether ``^\\circ`` stands here; takes it unless it is only looked for."""
        names = ("circ", "degree")
        if self._peek(1).kind == "c" and self._peek(1).text in names:
            length = 2
        elif (
            self._peek(1).text == "{" and self._peek(2).text in names and self._peek(3).text == "}"
        ):
            length = 4
        else:
            return False
        if not look:
            self._at += length
        return True

    def _exponent(self) -> Node:
        if self._is("o", "{"):
            return self._group()
        negative = self._accept("o", "-")
        value = scalar(self._primary())
        return negated(value) if negative else value

    def _postfix(self) -> Thing:
        value = self._primary()
        links = 0
        while True:
            links = self._link(links)
            if self._is("o", "!"):
                if self._peek(1).text == "!":
                    self._at += 2
                    value = Func("double factorial", (scalar(value),))
                    continue
                self._at += 1
                value = Func("factorial", (scalar(value),))
            elif self._is("o", "'"):
                self._at += 1
                value = _primed(value)
            elif self._is("c", "degree"):
                self._at += 1
                value = Func("deg", (scalar(value),))
            elif self._is("o", "_"):
                value = self._subscripted(value)
            else:
                break
        return self._applied(value)

    def _applied(self, value: Thing) -> Thing:
        """``f(x)``: only the customary names of functions are applied, others are multiplied."""
        if not (isinstance(value, Sym) and value.name[0] in _APPLIED and self._is("o", "(")):
            return value
        if len(value.name) > 1 and value.name[1] not in "_'":
            return value
        self._at += 1
        args = self._closing_items("o", ")")
        return Func("@" + value.name, tuple(scalar(a) for a in args))

    def _closing_items(self, kind: str, text: str) -> list[Thing]:
        bars, self._bars = self._bars, 0
        items = self._items()
        self._bars = bars
        self._expect(kind, text)
        return items

    def _subscripted(self, value: Thing) -> Thing:
        before = self._tokens[self._at - 2]
        if isinstance(value, Num) and before.kind == "n" and self._tokens[self._at - 1].text == ")":
            return self._based(before.text)  # (1011)_2
        self._expect("o", "_")
        key = self._raw_group()
        if isinstance(value, Sym) and "_" not in value.name:
            return Sym(f"{value.name}_{key}")
        if isinstance(value, Num):
            raise Unreadable("a subscript of a number inside arithmetic")
        raise Unreadable("a subscript of what has none")

    def _raw_group(self) -> str:
        """The tokens of a group as they are, for what is compared as written."""
        if not self._accept("o", "{"):
            token = self._next()
            if token is END:
                raise Unreadable("an empty script")
            return token.text
        depth = 1
        out: list[str] = []
        while True:
            token = self._next()
            if token is END:
                raise Unreadable("a brace that is never closed")
            if token.kind == "o" and token.text in "{}":
                depth += 1 if token.text == "{" else -1
                if depth == 0:
                    return " ".join(out) if len(out) > 1 else "".join(out)
            out.append(token.text)

    # ── primaries ────────────────────────────────────────────────────────────────────────────────

    def _primary(self) -> Thing:
        token = self._next()
        kind, text = token.kind, token.text
        if kind == "n":
            if self._is("o", "_"):
                return self._based(text)
            return number(text)
        if kind == "l":
            constant = text in "ei" and not token.worded and text not in self._bound
            return Const(text) if constant else Sym(text)
        if kind == "c":
            return self._command(text)
        if kind == "o":
            if text in _BRACKETS:
                return self._bracketed(text)
            if text == "{":
                self._at -= 1
                return self._group()
            if text == "|":
                return self._bars_around("|")
        raise Unreadable("the expression breaks off" if token is END else f"{text!r} is no number")

    def _based(self, digits: str) -> Thing:
        self._expect("o", "_")
        key = self._raw_group()
        word = from_words([key.lower()]) if key.isalpha() else None
        base = word if word is not None else int(key) if key.isdecimal() and len(key) < 4 else 0
        if base == 10 and digits.isdecimal():
            return number(digits)
        if not 2 <= base <= 36:
            raise Unreadable("a subscript of a number that is no base")
        return Based(digits.lstrip("0") or "0", base)

    def _bracketed(self, opening: str) -> Thing:
        if self._accept("o", ")"):
            return Seq((), opening, ")")
        bars, self._bars = self._bars, 0
        items = self._items()
        self._bars = bars
        token = self._next()
        if token.kind != "o" or token.text not in (")", "]"):
            raise Unreadable("a bracket that is never closed")
        if len(items) == 1 and _BRACKETS[opening] == token.text:
            only = items[0]
            if isinstance(only, SCALARS) or (opening == "(" and not isinstance(only, Ellipsis)):
                return only
            if isinstance(only, Matrix):
                return only
        return Seq(tuple(items), opening, token.text)

    def _group(self) -> Node:
        """``{…}``: one scalar, also ``{a \\over b}``."""
        self._expect("o", "{")
        bars, self._bars = self._bars, 0
        value = self._scalar()
        if self._accept("c", "over"):
            value = Div(value, self._scalar())
        elif self._accept("c", "choose"):
            value = Func("binomial", (value, self._scalar()))
        self._bars = bars
        self._expect("o", "}")
        return value

    def _bars_around(self, closing: str) -> Node:
        self._bars += 1
        value = self._scalar()
        self._bars -= 1
        if closing == "|":
            self._expect("o", "|")
        else:
            self._expect("c", closing)
        return Func("abs", (value,))

    def _argument(self) -> Node:
        """The argument of a command: a group, or the next token, of a number its first digit."""
        if self._is("o", "{"):
            return self._group()
        token = self._peek()
        if token.kind == "n":
            first, rest = token.text[0], token.text[1:]
            if not first.isdecimal():
                raise Unreadable("a macro's argument that is no digit")
            if rest:
                self._tokens[self._at] = Token("n", rest, False, token.worded)
            else:
                self._at += 1
            return number(first)
        if token.kind == "l" or (token.kind == "c" and (token.text in GREEK or token.text == "pi")):
            return scalar(self._primary())
        if token.kind == "c" and token.text in ("sqrt", *_FRACTIONS):
            return scalar(self._primary())
        raise Unreadable("a command without its argument")

    def _command(self, name: str) -> Thing:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooLarge("nested too deep")
        value = self._commanded(name)
        self._depth -= 1
        return value

    def _commanded(self, name: str) -> Thing:
        if name in _FRACTIONS:
            top = self._argument()
            return Div(top, self._argument())
        if name == "sqrt":
            return self._root()
        if name == "cbrt":
            return Root(3, self._radicand())
        if name in ("pi", "infty"):
            return Const("pi" if name == "pi" else "inf")
        if name in GREEK:
            return Sym(name.removeprefix("var"))
        if name in _BINOMIALS:
            top = self._argument()
            return Func("binomial", (top, self._argument()))
        if name in FUNCTIONS:
            return self._function(name)
        if name == "{":
            if self._accept("c", "}"):
                return NamedSet("empty")
            return self._set_of()
        if name == "langle":
            return Seq(tuple(self._closing_items("c", "rangle")), "<", ">")
        if name in ("lvert", "vert"):
            return self._bars_around("rvert" if name == "lvert" else "vert")
        if name in ("lfloor", "lceil"):
            value = self._closed_scalar("r" + name[1:])
            return Func("floor" if name == "lfloor" else "ceil", (value,))
        if name in ("emptyset", "varnothing"):
            return NamedSet("empty")
        if name == "mathbb":
            return self._mathbb()
        if name == "begin":
            return self._environment()
        if name in _BIG:
            return self._big(name)
        if name in _DECORATIONS or name in _GEOMETRY:
            return Sym(f"{name} {self._marked()}")
        if name == "boxed":
            return self._boxed()
        raise Unreadable(f"\\{name} is not known here")

    def _set_of(self) -> Thing:
        """``{1, 2}``, or ``{x | x > 2}``, which is its condition."""
        bars, self._bars = self._bars, 0
        marks = (("c", "mid"), ("o", "|"), ("o", ":"))
        if self._peek().kind == "l" and self._peek(1)[:2] in marks:
            items: list[Thing] = [Sym(self._next().text)]
        else:
            items = self._items()
        if len(items) == 1 and self._peek()[:2] in marks:
            self._at += 1
            what = items[0]
            if isinstance(what, Rel) and what.ops == ("in",):
                what = what.sides[0]
            items = self._items()
            if not isinstance(what, Sym) or len(items) != 1 or not isinstance(items[0], Rel):
                raise Unreadable("a set by a condition that is not known here")
            self._bars = bars
            self._expect("c", "}")
            return items[0]
        self._bars = bars
        self._expect("c", "}")
        return Seq(tuple(items), "{", "}")

    def _closed_scalar(self, closing: str) -> Node:
        bars, self._bars = self._bars, 0
        value = self._scalar()
        self._bars = bars
        self._expect("c", closing)
        return value

    def _marked(self) -> str:
        """What a decoration or ``\\angle`` stands over or before: a group, or letters."""
        if self._is("o", "{"):
            return self._raw_group()
        letters: list[str] = []
        while self._peek().kind in "lw" and len(letters) < 4:
            letters.append(self._next().text)
        if not letters:
            raise Unreadable("a decoration of nothing")
        return " ".join("".join(letters))

    def _boxed(self) -> Thing:
        self._expect("o", "{")
        items = self._closing_items("o", "}")
        if self._starts_factor(self._peek()):
            raise Unreadable("a box beside something else")
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def _mathbb(self) -> Thing:
        letter = self._raw_group()
        if letter not in _NAMED_SETS:
            raise Unreadable(f"\\mathbb{{{letter}}} is not known here")
        if self._is("o", "^") or self._is("o", "_"):
            return Sym(f"mathbb {letter}" + self._next().text + self._raw_group())
        return NamedSet(letter)

    def _root(self) -> Node:
        index = 2
        if self._accept("o", "["):
            token = self._next()
            if (
                token.kind != "n"
                or not token.text.isdecimal()
                or not 2 <= int(token.text[:4]) <= 100
            ):
                raise Unreadable("a root's index that is no number from 2 to 100")
            index = int(token.text)
            self._expect("o", "]")
        return Root(index, self._radicand())

    def _radicand(self) -> Node:
        if self._is("o", "{"):
            return self._group()
        token = self._peek()
        if token.kind == "n":
            self._at += 1
            return number(token.text)
        if token.kind == "o" and token.text == "(":
            return scalar(self._primary())
        return self._argument()

    def _function(self, name: str) -> Node:
        power: Node | None = None
        base: Node | None = None
        while self._is("o", "^") or self._is("o", "_"):
            mark = self._peek().text
            self._at += 1
            script = self._exponent()
            if mark == "^":
                power = script
            else:
                base = script
        if name == "exp":
            return Pow(Const("e"), self._function_argument(name)[0])
        if power is not None and _is_minus_one(power):
            if name not in _INVERSE:
                raise Unreadable(f"{name}^-1")
            name, power = _INVERSE[name], None
        args = self._function_argument(name)
        if name in ("log", "lg", "ln"):
            if base is not None:
                args = (args[0], base)
            if name == "lg" and base is None:
                args = (args[0], Num(Fraction(10)))
                name = "log"
            elif base is not None:
                name = "log"
            elif name == "log":
                name = "log?"  # natural or common: scalars.py tries both
        elif base is not None:
            raise Unreadable(f"{name} with a subscript")
        made: Node = Func(name, args)
        return made if power is None else Pow(made, power)

    def _function_argument(self, name: str) -> tuple[Node, ...]:
        if self._accept("o", "("):
            items = self._closing_items("o", ")")
        elif name in ("min", "max", "gcd", "lcm") and self._accept("c", "{"):
            items = self._closing_items("c", "}")
        elif self._is("o", "{"):
            items = [self._group()]
        else:
            factors = [scalar(self._power())]
            while True:
                token = self._peek()
                if not self._starts_factor(token) or token.kind == "n":
                    break
                if token.kind == "o" or (token.kind == "c" and token.text in FUNCTIONS):
                    break
                factors.append(scalar(self._power()))
            items = [factors[0] if len(factors) == 1 else Mul(tuple(factors))]
        several = name in ("min", "max", "gcd", "lcm")
        if len(items) != 1 and not several:
            raise Unreadable(f"{name} of several things")
        return tuple(scalar(i) for i in items)

    def _big(self, name: str) -> Node:
        lower = upper = ""
        while self._is("o", "_") or self._is("o", "^"):
            if self._next().text == "_":
                lower = self._raw_group()
            else:
                upper = self._raw_group()
        if name in ("int", "iint", "oint"):
            return Big(name, lower, upper + "|" + self._rest_as_written(), Num(Fraction(0)))
        running = lower.split()[0] if lower else ""
        added = {running} - self._bound
        self._bound |= added
        body = scalar(self._product())
        self._bound -= added
        return Big(name, lower, upper, body)

    def _rest_as_written(self) -> str:
        """The tokens of an integrand, whose differential is no product."""
        out: list[str] = []
        depth = 0
        while True:
            token = self._peek()
            if token is END or (depth == 0 and (self._ends_item(token) or token.text == "=")):
                return " ".join(out)
            depth += (
                1 if token.text in ("(", "[", "{") else -1 if token.text in (")", "]", "}") else 0
            )
            out.append(self._next().text)

    def _environment(self) -> Thing:
        name = self._raw_group().replace(" ", "")
        if name not in _MATRICES:
            raise Unreadable(f"the environment {name[:20]} is not known here")
        if name == "array":
            self._raw_group()
        rows: list[tuple[Thing, ...]] = []
        row: list[Thing] = []
        while True:
            if self._is("c", "end"):
                break
            row.append(self._scalar())
            if self._accept("o", "&"):
                continue
            if self._is("c", "\\"):
                self._at += 1
                rows.append(tuple(row))
                row = []
            elif not self._is("c", "end"):
                raise Unreadable("a matrix that is never closed")
            if len(rows) > 64:
                raise TooLarge("more than 64 rows")
        if row:
            rows.append(tuple(row))
        self._expect("c", "end")
        if self._raw_group().replace(" ", "") != name or not rows:
            raise Unreadable("a matrix that is never closed")
        if any(len(r) != len(rows[0]) for r in rows):
            raise Unreadable("a matrix with uneven rows")
        return Matrix(tuple(rows))


def number(text: str) -> Node:
    if len(text) > MAX_DIGITS:
        raise TooLarge(f"a number of more than {MAX_DIGITS} digits")
    if "\\" in text:
        whole, _, rest = text.partition(".")
        part, _, period = rest.partition("\\")
        return repeating(whole, part, period.partition("{")[2].rstrip("}"))
    if "e" in text or "E" in text:
        value = plain(text)
        if value is None:
            raise TooLarge("an exponent out of all proportion")
        return value
    whole, mark, part = text.partition(".")
    if not mark:
        return Num(Fraction(int(text)))
    made = decimal("", whole or "0", part)
    assert made is not None
    return made


def scalar(thing: Thing) -> Node:
    if isinstance(thing, Quantity) and thing.unit == "deg":
        return Func("deg", (thing.value,))
    if not isinstance(thing, SCALARS):
        raise Unreadable("arithmetic on what is no number")
    return thing


def negated(node: Node) -> Node:
    if isinstance(node, Num):
        return Num(-node.value, node.places)
    return Mul((MINUS_ONE, node))


def _add(terms: list[Node]) -> Node:
    return terms[0] if len(terms) == 1 else Add(tuple(terms))


def _times(left: Node, right: Node) -> Node:
    if isinstance(left, Mul):
        return Mul((*left.factors, right))
    return Mul((left, right))


def _mixed_or_product(whole: Num, fraction: Node) -> Node:
    """``2\\frac{1}{2}`` is two and a half; before an improper fraction a whole number is
    neither clearly added nor multiplied; a fraction with more than numbers is multiplied."""
    if (
        isinstance(fraction, Div)
        and isinstance(fraction.top, Num)
        and isinstance(fraction.bottom, Num)
        and whole.value.denominator == 1
        and not whole.places
        and fraction.top.value.denominator == fraction.bottom.value.denominator == 1
    ):
        if not 0 < fraction.top.value < fraction.bottom.value:
            raise Unreadable("a whole number before an improper fraction: a sum or a product?")
        return Add((whole, fraction))
    return Mul((whole, fraction))


def _primed(value: Thing) -> Thing:
    if not isinstance(value, Sym):
        raise Unreadable("a prime on what is no name")
    return Sym(value.name + "'")


def is_minus(node: Node) -> bool:
    return isinstance(node, Mul) and len(node.factors) == 2 and node.factors[0] is MINUS_ONE


def _is_minus_one(node: Node) -> bool:
    return isinstance(node, Num) and node.value == -1
