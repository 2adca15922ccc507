"""Exact normal forms of scalars: quotients of polynomials over atoms.

An atom is a variable, π, e, i, the root of a prime, or anything that is not taken apart further
(``sin(…)``, ``2^x``). Polynomials have exact rational coefficients, and powers of roots and of i are
reduced by their relations (√3² = 3, i² = −1). Roots of different primes are independent over the
rationals (Besicovitch 1940), so over variables, i, square roots and one of π and e two scalars are equal
exactly when their cross-multiplied forms are: no numerics, no tolerance. (π and e together are taken to be
unrelated; that is not known.) Where opaque atoms occur, equal forms are
equal values, and different forms say nothing (``complete`` is False).
"""

from __future__ import annotations

import math
from fractions import Fraction

from reward_server.graders.answer.syntax import (
    Add,
    Big,
    Const,
    Div,
    Func,
    Mul,
    Node,
    Num,
    PlusMinus,
    Pow,
    Root,
    Sym,
)

Mono = tuple[tuple[str, int], ...]
"""Atoms with their powers, sorted by atom."""
Poly = dict[Mono, Fraction]

MAX_TERMS = 400
MAX_BITS = 60_000
MAX_POWER = 200
MAX_FACTORIAL = 5_000
_TRIAL = 1000
ZERO = Fraction(0)
ONE = Fraction(1)


class TooBig(Exception):
    """Over a static cap: nothing is said about the value."""


class Undefined(Exception):
    """The scalar has no value: division by zero, or a function outside its domain."""


Form = tuple[Poly, Poly]
"""(numerator, denominator), never reduced to lowest terms but without common content."""


class Algebra:
    """Normal forms that may be compared with each other.

    ``natural_log``: whether ``log`` without a base is the natural logarithm, or the common one.
    """

    def __init__(self, *, natural_log: bool = True) -> None:
        self.complete = True
        """Whether different forms are different values."""
        self.bare_log = False
        """Whether a logarithm without a base occurred."""
        self._natural_log = natural_log
        self._relations: dict[str, tuple[int, Poly]] = {"c:i": (2, {(): Fraction(-1)})}
        self._indices: dict[int, int] = {}

    # ── from syntax ──────────────────────────────────────────────────────────────────────────────

    def form(self, node: Node) -> Form:
        """Raises TooBig, Undefined."""
        kind = type(node)
        if kind is Num:
            value = node.value  # type: ignore[union-attr]
            return _constant(value)
        if kind is Sym:
            return self._atom("s:" + node.name)  # type: ignore[union-attr]
        if isinstance(node, Const):
            return self._atom("c:" + node.name)
        if isinstance(node, Add):
            total = self.form(node.terms[0])
            for term in node.terms[1:]:
                total = self.add(total, self.form(term))
            return total
        if isinstance(node, Mul):
            total = self.form(node.factors[0])
            for factor in node.factors[1:]:
                total = self.multiply(total, self.form(factor))
            return total
        if isinstance(node, Div):
            return self.divide(self.form(node.top), self.form(node.bottom))
        if isinstance(node, Pow):
            return self._power(node.base, node.exponent)
        if isinstance(node, Root):
            return self.root(self.form(node.radicand), node.index)
        if isinstance(node, Func):
            return self._function(node)
        if isinstance(node, Big):
            body = self.key(self.form(node.body))
            return self._opaque(f"{node.op}[{node.lower};{node.upper}]{{{body}}}")
        assert isinstance(node, PlusMinus)
        raise TooBig("two values at once")

    def equal(self, a: Form, b: Form) -> bool:
        """Whether the forms are the same quotient."""
        if a[1] == b[1]:
            return a[0] == b[0]
        return self._product(a[0], b[1]) == self._product(b[0], a[1])

    def key(self, form: Form) -> str:
        """A canonical spelling, for atoms made of forms and for what is shown."""
        top, bottom = _monic(form)
        spelled = _spell(top)
        return spelled if bottom == {(): ONE} else f"({spelled})/({_spell(bottom)})"

    # ── arithmetic ───────────────────────────────────────────────────────────────────────────────

    def add(self, a: Form, b: Form) -> Form:
        if a[1] == b[1]:
            return _checked(_plus(a[0], b[0])), a[1]
        top = _plus(self._product(a[0], b[1]), self._product(b[0], a[1]))
        return _tidy(top, self._product(a[1], b[1]))

    def negative(self, a: Form) -> Form:
        return {m: -c for m, c in a[0].items()}, a[1]

    def multiply(self, a: Form, b: Form) -> Form:
        return _tidy(self._product(a[0], b[0]), self._product(a[1], b[1]))

    def divide(self, a: Form, b: Form) -> Form:
        if not b[0]:
            raise Undefined("division by zero")
        return _tidy(self._product(a[0], b[1]), self._product(a[1], b[0]))

    def _product(self, a: Poly, b: Poly) -> Poly:
        if len(a) * len(b) > MAX_TERMS * 8:
            raise TooBig("a product of too many terms")
        out: Poly = {}
        for m, c in a.items():
            for n, d in b.items():
                coefficient = c * d
                if not m or not n:
                    mono = m or n
                    out[mono] = out.get(mono, ZERO) + coefficient
                    continue
                powers = dict(m)
                reduce = False
                for atom, power in n:
                    total = powers.get(atom, 0) + power
                    powers[atom] = total
                    if atom in self._relations and total >= self._relations[atom][0]:
                        reduce = True
                if reduce:
                    for mono, factor in self._reduced(powers).items():
                        out[mono] = out.get(mono, ZERO) + coefficient * factor
                else:
                    mono = tuple(sorted(powers.items()))
                    out[mono] = out.get(mono, ZERO) + coefficient
        return _checked({m: c for m, c in out.items() if c})

    def _reduced(self, powers: dict[str, int]) -> Poly:
        """A monomial with powers of atoms beyond their relations, as a polynomial."""
        extra: Poly = {(): ONE}
        kept: dict[str, int] = {}
        for atom, power in powers.items():
            relation = self._relations.get(atom)
            if relation is None or power < relation[0]:
                kept[atom] = power
                continue
            times, rest = divmod(power, relation[0])
            if rest:
                kept[atom] = rest
            extra = self._product(extra, self._poly_power(relation[1], times))
        return self._product({tuple(sorted(kept.items())): ONE}, extra)

    def _poly_power(self, poly: Poly, times: int) -> Poly:
        if len(poly) > 1 and times > 1:
            if math.comb(len(poly) + times - 1, times) > MAX_TERMS * 4:
                raise TooBig("a power of too many terms")
        out: Poly = {(): ONE}
        while times:
            if times & 1:
                out = self._product(out, poly)
            times >>= 1
            if times:
                poly = self._product(poly, poly)
        return out

    def power(self, base: Form, times: int) -> Form:
        if times < 0:
            if not base[0]:
                raise Undefined("zero to a negative power")
            base, times = (base[1], base[0]), -times
        return _tidy(self._poly_power(base[0], times), self._poly_power(base[1], times))

    # ── powers and roots ─────────────────────────────────────────────────────────────────────────

    def _power(self, base_node: Node, exponent_node: Node) -> Form:
        exponent = self.form(exponent_node)
        value = constant_of(exponent)
        base = self.form(base_node)
        if value is None:
            return self._symbolic_power(base, exponent)
        number = constant_of(base)
        if value.denominator == 1:
            times = value.numerator
            if number is not None:
                if number == 0:
                    if times <= 0:
                        raise Undefined("zero to a power that is not positive")
                    return _constant(ZERO)
                if abs(number) == 1:
                    return _constant(number if times % 2 else ONE)
                bits = max(number.numerator.bit_length(), number.denominator.bit_length())
                if bits * abs(times) <= MAX_BITS:
                    return _constant(number**times)
                return self._opaque(f"{_shown(number)}^({_shown(value)})")
            try:
                limit = MAX_POWER if len(base[0]) > 1 or len(base[1]) > 1 else 10**6
                if abs(times) > limit:
                    raise TooBig("a high power")
                return self.power(base, times)
            except TooBig:
                return self._opaque(f"({self.key(base)})^({_shown(value)})")
        if abs(value.numerator) > MAX_POWER or value.denominator > 100:
            return self._opaque(f"({self.key(base)})^({_shown(value)})")
        return self.power(self.root(base, value.denominator), value.numerator)

    def _symbolic_power(self, base: Form, exponent: Form) -> Form:
        """``a^(c₁m₁ + c₂m₂ + …)`` as a product of powers of the atoms ``a^m``."""
        key = self.key(base)
        top, bottom = _monic(exponent)
        if bottom != {(): ONE} or not base[0]:
            return self._opaque(f"({key})^({self.key(exponent)})")
        total = _constant(ONE)
        for mono, coefficient in top.items():
            if mono == ():
                number = Num(coefficient)
                whole = constant_of(base)
                if whole is not None:
                    total = self.multiply(total, self._power(Num(whole), number))
                elif coefficient.denominator == 1 and abs(coefficient) <= MAX_POWER:
                    total = self.multiply(total, self.power(base, int(coefficient)))
                else:
                    total = self.multiply(total, self._opaque(f"({key})^({_shown(coefficient)})"))
                continue
            if abs(coefficient.numerator) > 10**6:
                raise TooBig("a high power")
            one = _spell({mono: Fraction(1, coefficient.denominator)})
            atom = self._opaque(f"({key})^({one})")
            total = self.multiply(total, self.power(atom, coefficient.numerator))
        return total

    def root(self, form: Form, index: int) -> Form:
        value = constant_of(form)
        if value is not None:
            return self._root_of_number(value, index)
        top, bottom = _monic(form)
        number = constant_of((bottom, {(): ONE}))
        if len(top) == 1 and number is not None:
            ((mono, coefficient),) = top.items()
            whole = [(a, p) for a, p in mono if p % index == 0 and index % 2 and a.startswith("s:")]
            if whole and len(whole) == len(mono):
                rest = self._root_of_number(coefficient / number, index)
                return self.multiply(
                    rest, ({tuple((a, p // index) for a, p in mono): ONE}, {(): ONE})
                )
        self.complete = False
        atom = f"R:{index}:{self.key((top, bottom))}"
        if number is not None and atom not in self._relations:
            self._relations[atom] = (index, {m: c / number for m, c in top.items()})
        return self._atom(atom)

    def _root_of_number(self, value: Fraction, index: int) -> Form:
        if value == 0:
            return _constant(ZERO)
        unit = _constant(ONE)
        if value < 0:
            if index % 2:
                unit = _constant(Fraction(-1))
            elif index == 2:
                unit = self._atom("c:i")
            else:
                self.complete = False
                return self._opaque(f"({_shown(value)})^(1/{index})")
            value = -value
        if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS // 8:
            raise TooBig("a root of a huge number")
        # The n-th root of p/q is the n-th root of p·qⁿ⁻¹, over q.
        powers = _factored(value.numerator)
        for prime, power in _factored(value.denominator).items():
            powers[prime] = powers.get(prime, 0) + power * (index - 1)
        common = math.gcd(index, *powers.values())
        index //= common
        outside = Fraction(1, value.denominator)
        mono: list[tuple[str, int]] = []
        for prime, power in sorted(powers.items()):
            times, rest = divmod(power // common, index)
            outside *= prime**times
            if rest:
                atom = f"r:{index}:{prime}"
                self._relations.setdefault(atom, (index, {(): Fraction(prime)}))
                if self._indices.setdefault(prime, index) != index or prime > _TRIAL**2:
                    self.complete = False
                mono.append((atom, rest))
        found: Form = ({tuple(sorted(mono)): outside}, {(): ONE})
        return self.multiply(unit, found)

    # ── functions ────────────────────────────────────────────────────────────────────────────────

    def _function(self, node: Func) -> Form:
        name = node.name
        if name == "deg":
            inner = self.multiply(self.form(node.args[0]), self._atom("c:pi"))
            return self.multiply(inner, _constant(Fraction(1, 180)))
        if name.startswith("@"):
            return self._opaque(f"{name}({','.join(self.key(self.form(a)) for a in node.args)})")
        if name == "gcd":
            return self._common_divisor(node)
        if name == "log?":
            self.bare_log = True
            return self._logarithm(self.form(node.args[0]), None if self._natural_log else 10)
        args = [self.form(a) for a in node.args]
        if name == "ln":
            return self._logarithm(args[0], None)
        if name == "log":
            bottom = self._logarithm(args[1], None)
            return self.divide(self._logarithm(args[0], None), bottom)
        values = [constant_of(a) for a in args]
        if all(v is not None for v in values):
            found = _evaluated(name, [v for v in values if v is not None])
            if found is not None:
                return _constant(found)
        if name == "abs":
            if (sign := self._sign(args[0])) is not None:
                return args[0] if sign > 0 else self.negative(args[0])
        keys = ",".join(self.key(a) for a in args)
        return self._opaque(f"{name}({keys})")

    def _common_divisor(self, node: Func) -> Form:
        """Also of powers far too large to be written down: gcd(10^n, 3^m) is 1."""
        bases: list[int] = []
        for arg in node.args:
            value = constant_of(self.form(arg.base if isinstance(arg, Pow) else arg))
            if value is None or value.denominator != 1:
                return self._opaque(
                    "gcd(" + ",".join(self.key(self.form(a)) for a in node.args) + ")"
                )
            bases.append(int(value))
        if math.gcd(*bases) == 1 and all(
            not isinstance(a, Pow) or (isinstance(a.exponent, Num) and a.exponent.value > 0)
            for a in node.args
        ):
            return _constant(ONE)
        values = [constant_of(self.form(a)) for a in node.args]
        if any(v is None or v.denominator != 1 for v in values):
            return self._opaque("gcd(" + ",".join(self.key(self.form(a)) for a in node.args) + ")")
        return _constant(Fraction(math.gcd(*(int(v) for v in values if v is not None))))

    def _logarithm(self, form: Form, base: int | None) -> Form:
        if base is not None:
            return self.divide(
                self._logarithm(form, None), self._logarithm(_constant(Fraction(base)), None)
            )
        value = constant_of(form)
        if value is not None:
            if value <= 0:
                raise Undefined("the logarithm of what is not positive")
            if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS // 8:
                raise TooBig("the logarithm of a huge number")
            total = _constant(ZERO)
            powers = _factored(value.numerator)
            for prime, power in _factored(value.denominator).items():
                powers[prime] = powers.get(prime, 0) - power
            for prime, power in powers.items():
                if prime > _TRIAL**2:
                    self.complete = False
                term: Form = ({((f"ln:{prime}", 1),): Fraction(power)}, {(): ONE})
                total = self.add(total, term)
            return total
        top, bottom = _monic(form)
        if bottom == {(): ONE} and len(top) == 1:
            ((mono, coefficient),) = top.items()
            if coefficient == 1 and len(mono) == 1 and mono[0][0] == "c:e":
                return _constant(Fraction(mono[0][1]))
        return self._opaque(f"ln({self.key(form)})")

    def _sign(self, form: Form) -> int | None:
        """The sign of a real constant, where floating point leaves no doubt."""
        total = 1.0
        for poly in form:
            value, scale = 0.0, 0.0
            for mono, coefficient in poly.items():
                try:
                    term = float(coefficient)
                    for atom, power in mono:
                        term *= _approximate(atom) ** power
                except (KeyError, OverflowError):
                    return None
                value += term
                scale += abs(term)
            if not math.isfinite(value) or abs(value) <= 1e-9 * scale:
                return None
            total *= value
        return 1 if total > 0 else -1

    # ── atoms ────────────────────────────────────────────────────────────────────────────────────

    def _atom(self, name: str) -> Form:
        return {((name, 1),): ONE}, {(): ONE}

    def _opaque(self, spelled: str) -> Form:
        self.complete = False
        if len(spelled) > 20_000:
            raise TooBig("an expression too long to be named")
        return self._atom("f:" + spelled)


def constant_of(form: Form) -> Fraction | None:
    """The rational that a form is, or None."""
    top, bottom = form
    if not top:
        return ZERO
    if len(top) == 1 and len(bottom) == 1 and () in top and () in bottom:
        return top[()] / bottom[()]
    if len(top) == len(bottom) and top.keys() == bottom.keys():  # a common factor, like √3/√3
        ratios = {top[m] / bottom[m] for m in top}
        if len(ratios) == 1:
            return ratios.pop()
    return None


def proportional(a: Poly, b: Poly, *, positive: bool = False) -> bool:
    """Whether one polynomial is a rational multiple of the other."""
    if a.keys() != b.keys() or not a:
        return False
    first = next(iter(a))
    ratio = a[first] / b[first]
    if positive and ratio < 0:
        return False
    return all(a[m] == ratio * b[m] for m in a)


def symbols_of(poly: Poly) -> set[str]:
    return {atom for mono in poly for atom, _ in mono if atom.startswith("s:")}


def _constant(value: Fraction) -> Form:
    return ({(): value} if value else {}), {(): ONE}


def _plus(a: Poly, b: Poly) -> Poly:
    out = dict(a)
    for mono, coefficient in b.items():
        total = out.get(mono, ZERO) + coefficient
        if total:
            out[mono] = total
        else:
            out.pop(mono, None)
    return out


def _checked(poly: Poly) -> Poly:
    if len(poly) > MAX_TERMS:
        raise TooBig("too many terms")
    for coefficient in poly.values():
        if coefficient.numerator.bit_length() > MAX_BITS * 4:
            raise TooBig("a huge coefficient")
    return poly


def _tidy(top: Poly, bottom: Poly) -> Form:
    """Divides out the common monomial and a constant denominator."""
    if not bottom:
        raise Undefined("division by zero")
    if not top:
        return {}, {(): ONE}
    if len(bottom) == 1:
        ((mono, coefficient),) = bottom.items()
        if not mono:
            if coefficient == 1:
                return top, bottom
            return {m: c / coefficient for m, c in top.items()}, {(): ONE}
        common = dict(mono)
        for other in top:
            powers = dict(other)
            common = {a: min(p, powers[a]) for a, p in common.items() if a in powers}
            if not common:
                break
        top = {_less(m, common): c / coefficient for m, c in top.items()}
        return top, {_less(mono, common): ONE}
    return top, bottom


def _less(mono: Mono, common: dict[str, int]) -> Mono:
    if not common:
        return mono
    return tuple((a, p - common.get(a, 0)) for a, p in mono if p != common.get(a, 0))


def _monic(form: Form) -> Form:
    """With a denominator whose first coefficient is 1."""
    top, bottom = form
    lead = bottom[min(bottom)]
    if lead == 1:
        return form
    return {m: c / lead for m, c in top.items()}, {m: c / lead for m, c in bottom.items()}


def _spell(poly: Poly) -> str:
    if not poly:
        return "0"
    terms = []
    for mono in sorted(poly):
        factors = [f"{a}^{p}" if p != 1 else a for a, p in mono]
        coefficient = poly[mono]
        if coefficient != 1 or not factors:
            factors.insert(0, _shown(coefficient))
        terms.append("*".join(factors))
    return "+".join(terms)


def _shown(number: Fraction) -> str:
    """Raises TooBig for what Python would not spell out (4,300 digits)."""
    if number.numerator.bit_length() + number.denominator.bit_length() > 14_000:
        raise TooBig("a huge number inside an atom")
    return str(number)


def _factored(number: int) -> dict[int, int]:
    """Prime powers by trial division; what is left over counts as one prime."""
    out: dict[int, int] = {}
    for prime in _PRIMES:
        if prime * prime > number:
            break
        while number % prime == 0:
            out[prime] = out.get(prime, 0) + 1
            number //= prime
    if number > 1:
        root = math.isqrt(number)
        if number > _TRIAL**2 and root * root == number:
            out[root] = out.get(root, 0) + 2
        else:
            out[number] = out.get(number, 0) + 1
    return out


_PRIMES = [n for n in range(2, _TRIAL) if all(n % d for d in range(2, math.isqrt(n) + 1))]


def _approximate(atom: str) -> float:
    """Raises KeyError for an atom that is not a real constant."""
    if atom == "c:pi":
        return math.pi
    if atom == "c:e":
        return math.e
    if atom.startswith("r:"):
        _, index, prime = atom.split(":")
        return float(int(prime) ** (1 / int(index)))
    if atom.startswith("ln:"):
        return math.log(int(atom[3:]))
    raise KeyError(atom)


def _evaluated(name: str, values: list[Fraction]) -> Fraction | None:
    """A function of rationals whose value is rational; None where it is not known to be."""
    first = values[0]
    if name == "abs":
        return abs(first)
    if name == "floor":
        return Fraction(math.floor(first))
    if name == "ceil":
        return Fraction(math.ceil(first))
    if name == "min":
        return min(values)
    if name == "max":
        return max(values)
    if name == "sgn":
        return Fraction((first > 0) - (first < 0))
    if any(v.denominator != 1 for v in values):
        return None
    whole = [int(v) for v in values]
    if name == "lcm" and sum(w.bit_length() for w in whole) < MAX_BITS:
        return Fraction(math.lcm(*whole))
    if name == "factorial" and 0 <= whole[0] <= MAX_FACTORIAL:
        return Fraction(math.factorial(whole[0]))
    if name == "double factorial" and 0 <= whole[0] <= 1000:
        return Fraction(math.prod(range(whole[0], 0, -2)))
    if name == "binomial" and 0 <= whole[1] <= whole[0] <= MAX_FACTORIAL:
        return Fraction(math.comb(whole[0], whole[1]))
    return None
