"""What a read answer is made of: scalar expressions, and the things built from them.

Scalars (``Node``) are what arithmetic works on. Things (``Thing``) are whole answers: a scalar, a
sequence, a relation, a matrix, a quantity with its unit, words. Nothing here is evaluated: ``2/4`` stays
a quotient, so that a required form can still be checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(slots=True)
class Num:
    """A literal, by its exact value."""

    value: Fraction
    places: int = 0
    """Digits after the decimal point, as written."""


@dataclass(slots=True)
class Sym:
    """A variable, with its decoration: ``x``, ``x_{1}``, ``alpha``, ``f'``."""

    name: str


@dataclass(slots=True)
class Const:
    """``pi``, ``e``, ``i`` or ``inf``."""

    name: str


@dataclass(slots=True)
class Add:
    terms: tuple[Node, ...]


@dataclass(slots=True)
class Mul:
    factors: tuple[Node, ...]


@dataclass(slots=True)
class Div:
    top: Node
    bottom: Node


@dataclass(slots=True)
class Pow:
    base: Node
    exponent: Node


@dataclass(slots=True)
class Root:
    index: int
    radicand: Node


@dataclass(slots=True)
class Func:
    """A function by its canonical name; ``log`` with a base is ``log(argument, base)``."""

    name: str
    args: tuple[Node, ...]


@dataclass(slots=True)
class PlusMinus:
    """``left ± right``: two values at once."""

    left: Node
    right: Node
    minus_first: bool = False


@dataclass(slots=True)
class Big:
    """A sum, product, integral or limit: compared as it is written, never evaluated."""

    op: str
    lower: str
    upper: str
    body: Node


Node = Num | Sym | Const | Add | Mul | Div | Pow | Root | Func | PlusMinus | Big


@dataclass(slots=True)
class Seq:
    """Several things. ``opening`` and ``closing`` are ``( ) [ ] { } <>``, or empty for a bare list."""

    items: tuple[Thing, ...]
    opening: str = ""
    closing: str = ""
    joint: str = field(default=",", compare=False)
    """What joins the items of a bare list: ``,``, ``and``, ``or``, or ``mixed``."""


@dataclass(slots=True)
class Rel:
    """``sides[0] ops[0] sides[1] ops[1] …``, with ops of ``= < > <= >= != in``."""

    sides: tuple[Thing, ...]
    ops: tuple[str, ...]


@dataclass(slots=True)
class SetOp:
    """``union``, ``intersection`` or ``difference`` of sets."""

    op: str
    parts: tuple[Thing, ...]


@dataclass(slots=True)
class NamedSet:
    """``R Q Z N C``, or ``empty``."""

    name: str


@dataclass(slots=True)
class Matrix:
    rows: tuple[tuple[Thing, ...], ...]


@dataclass(slots=True)
class Quantity:
    """A scalar with a unit, in the normal form of ``units.py``; ``%`` is one."""

    value: Node
    unit: str


@dataclass(slots=True)
class Based:
    """Digits in a stated base."""

    digits: str
    base: int


@dataclass(slots=True)
class Clock:
    """A time of day: minutes as written, and ``am``, ``pm`` or nothing; or a duration like 1:30:05."""

    fields: tuple[int, ...]
    half: str = ""


@dataclass(slots=True)
class Ratio:
    parts: tuple[Node, ...]


@dataclass(slots=True)
class Ellipsis:
    """``…`` in a sequence."""


@dataclass(slots=True)
class Words:
    """Prose, or anything whose meaning is its wording; in its normal form."""

    text: str


Thing = (
    Node
    | Seq
    | Rel
    | SetOp
    | NamedSet
    | Matrix
    | Quantity
    | Based
    | Clock
    | Ratio
    | Ellipsis
    | Words
)
SCALARS = (Num, Sym, Const, Add, Mul, Div, Pow, Root, Func, PlusMinus, Big)
