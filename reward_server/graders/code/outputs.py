"""Whether what a program printed is what was expected, by stated rules. Pure; runs outside of any box.

``lines``   line by line; white space at the ends of lines, and empty lines at the end, do not count. Spaces
            within a line do.
``tokens``  the same words in the same order, whatever white space stands between them.
``exact``   byte for byte, but for one line break at the end.

With a tolerance, ``lines`` and ``tokens`` compare word by word, and two numbers in plain digits are equal if
they differ by at most max(absolute, relative · |expected|). The difference is computed exactly, so
integers of any size are told apart. ``nan``, ``inf``, ``1_000`` and digits of other scripts are words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Mode = Literal["lines", "tokens", "exact"]

_NUMBER = re.compile(rb"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,3})?")


@dataclass(frozen=True, slots=True)
class Rule:
    mode: Mode = "lines"
    absolute: Fraction = Fraction(0)
    relative: Fraction = Fraction(0)
    case_sensitive: bool = True

    @property
    def tolerant(self) -> bool:
        return bool(self.absolute or self.relative)


def same(printed: bytes, expected: bytes, rule: Rule) -> bool:
    if not rule.case_sensitive:
        printed, expected = printed.lower(), expected.lower()
    if rule.mode == "exact":
        return printed.removesuffix(b"\n") == expected.removesuffix(b"\n")
    if rule.mode == "tokens":
        return _same_words(printed.split(), expected.split(), rule)
    mine, theirs = _lines(printed), _lines(expected)
    if mine == theirs:
        return True
    if not rule.tolerant or len(mine) != len(theirs):
        return False
    return all(_same_words(a.split(), b.split(), rule) for a, b in zip(mine, theirs, strict=True))


def _lines(text: bytes) -> list[bytes]:
    # Not splitlines: bytes.splitlines also breaks at a lone carriage return.
    lines = [line.rstrip() for line in text.split(b"\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_words(printed: list[bytes], expected: list[bytes], rule: Rule) -> bool:
    if len(printed) != len(expected):
        return False
    return all(a == b or _close(a, b, rule) for a, b in zip(printed, expected, strict=True))


def _close(printed: bytes, expected: bytes, rule: Rule) -> bool:
    if not rule.tolerant or not (_NUMBER.fullmatch(printed) and _NUMBER.fullmatch(expected)):
        return False
    return within(Fraction(printed.decode()), Fraction(expected.decode()), rule)


def within(value: Fraction, expected: Fraction, rule: Rule) -> bool:
    return abs(value - expected) <= max(rule.absolute, rule.relative * abs(expected))
