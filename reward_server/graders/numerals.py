"""Plain numerals as exact values: the rule by which ``exact`` compares numbers.

Accepted, after surrounding white space is dropped: an optional sign, an optional currency symbol,
digits with or without well-placed thousands commas, an optional decimal part, an optional exponent
up to 400, or a fraction of two integers; one full stop may follow. ``$1,234.50`` is 1234.5,
``2/4`` is 1/2. Not accepted: percent signs, units, words, ``1,23``, digits of other scripts. The value
is a Fraction: ``0.1`` and ``0.10`` are equal, ``0.1`` and ``0.10000001`` are not, and no tolerance exists.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARS = 400
MAX_EXPONENT = 400

_NUMERAL = re.compile(
    r"""
    (?P<sign>[+\-]?) [$€£¥]? (?P<inner_sign>[+\-]?)
    (?: (?P<integer> [0-9]{1,3}(?:,[0-9]{3})+ | [0-9]+ ) (?P<decimals> \.[0-9]+ )?
      | (?P<bare> \.[0-9]+ ) )
    (?: [eE] (?P<exponent> [+\-]?[0-9]{1,4} ) )?
    (?: / (?P<denominator> [0-9]+ ) )?
    \.?
    """,
    re.VERBOSE | re.ASCII,
)


def parse_number(text: str) -> Fraction | None:
    """The exact value of a numeral, or None where the text is not one (or is over the caps)."""
    text = text.strip().replace("\u2212", "-")
    if len(text) > MAX_CHARS:
        return None
    match = _NUMERAL.fullmatch(text)
    if match is None or (match["sign"] and match["inner_sign"]):
        return None
    exponent = int(match["exponent"] or 0)
    if abs(exponent) > MAX_EXPONENT:
        return None
    plain = (match["integer"] or "0").replace(",", "") + (match["decimals"] or match["bare"] or "")
    value = Fraction(plain) * Fraction(10) ** exponent
    if match["denominator"] is not None:
        whole = match["integer"] and not (match["decimals"] or match["exponent"])
        denominator = int(match["denominator"])
        if not whole or denominator == 0:
            return None
        value /= denominator
    return -value if "-" in (match["sign"], match["inner_sign"]) else value


def show(value: Fraction) -> str:
    """The normal form shown in ``raw``: an integer, or a fraction in lowest terms."""
    return str(value)
