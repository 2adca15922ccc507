"""Numbers as people write them: digits, grouped digits, decimals, fractions, words, Chinese numerals.

Every value is exact (a Fraction). ``plain`` is the fast path: it knows by one regular expression what
most answers are, and says nothing of what it does not know.
"""

from __future__ import annotations

import re
from fractions import Fraction

from reward_server.graders.answer.syntax import Num

MAX_DIGITS = 2000
MAX_EXPONENT = 2000

_PLAIN = re.compile(
    r"""
    (?P<sign>[+\-]?)\s?
    (?: (?P<whole>[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+) (?:\.(?P<part>[0-9]*))? | \.(?P<bare>[0-9]+) )
    (?: [eE](?P<exponent>[+\-]?[0-9]{1,4}) )?
    | (?P<fsign>[+\-]?)\s?
      (?: \\[dtc]?frac\{\s?(?P<top>[0-9]+)\s?\}\{\s?(?P<bottom>[0-9]+)\s?\}
        | (?P<over>[0-9]+)/(?P<under>[0-9]+) )
    """,
    re.VERBOSE | re.ASCII,
)


def plain(text: str) -> Num | None:
    """The number that a text is, or None where it is not one this path knows."""
    if len(text) > MAX_DIGITS:
        return None
    found = _PLAIN.fullmatch(text)
    if found is None:
        return None
    if (whole := found["whole"]) is not None or found["bare"] is not None:
        part = found["part"] or found["bare"] or ""
        if not part and found["exponent"] is None:
            whole = whole.replace(",", "")
            return Num(Fraction(-int(whole) if found["sign"] == "-" else int(whole)))
        return decimal(found["sign"], (whole or "0").replace(",", ""), part, found["exponent"])
    bottom = int(found["bottom"] or found["under"])
    if bottom == 0:
        return None
    value = Fraction(int(found["top"] or found["over"]), bottom)
    return Num(-value if found["fsign"] == "-" else value)


def decimal(sign: str, whole: str, part: str, exponent: str | None = None) -> Num | None:
    """``whole.part × 10^exponent``; None for an exponent out of all proportion."""
    value = Fraction(int(whole + part), 10 ** len(part))
    places = len(part)
    if exponent is not None:
        power = int(exponent)
        if abs(power) > MAX_EXPONENT:
            return None
        value *= Fraction(10) ** power
        places = max(0, places - power)
    return Num(-value if sign == "-" else value, places)


def repeating(whole: str, part: str, period: str) -> Num:
    """``whole.part(period)``, like 0.1666… as ``("0", "1", "6")``."""
    shift = 10 ** len(part)
    value = Fraction(int(whole + part or "0"), shift)
    return Num(value + Fraction(int(period), (10 ** len(period) - 1) * shift))


_ONES = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen
    """.split()
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SMALL = {w: n for n, w in enumerate(_ONES)} | {w: 10 * n for n, w in enumerate(_TENS, 2)}
SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
NUMBER_WORDS = frozenset(_SMALL) | frozenset(SCALES)


def from_words(words: list[str]) -> int | None:
    """``["twenty", "one"]`` -> 21; None where the words are not one well-formed number."""
    words = [w for w in words if w != "and"] if words and words[-1] != "and" else words
    if not words:
        return None
    total, group, least = 0, 0, 10**15
    room = 0  # what may still be added to the group: below 100, below 10, or nothing
    first = True
    for word in words:
        if word in SCALES:
            scale = SCALES[word]
            if scale == 100:
                if not 0 < group < 10:
                    return None
                group *= 100
                room = 100
            else:
                if not group or scale >= least:
                    return None
                total, group, least, room = total + group * scale, 0, scale, 1000
        elif word in _SMALL:
            small = _SMALL[word]
            if first or room == 1000:
                room = 10 if small >= 20 else 0
                if word == "zero" and len(words) > 1:
                    return None
            elif room == 100 and small:
                room = 10 if small >= 20 else 0
            elif room == 10 and 0 < small < 10:
                room = 0
            else:
                return None
            group += small
        else:
            return None
        first = False
    return total + group


_CHINESE = {c: n for n, c in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2, "兩": 2}
_CHINESE_UNITS = {"十": 10, "百": 100, "千": 1000}
_CHINESE_GROUPS = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
CHINESE_SCALES = {"千": 1000, "百": 100} | _CHINESE_GROUPS
CHINESE_NUMERALS = frozenset(_CHINESE) | frozenset(_CHINESE_UNITS) | frozenset(_CHINESE_GROUPS)


def from_chinese(text: str) -> Fraction | None:
    """``三百零五`` -> 305, ``二分之一`` -> 1/2, ``负三`` -> −3, ``三点一四`` -> 3.14."""
    if len(text) > 40:
        return None
    if text[:1] in ("负", "負"):
        value = from_chinese(text[1:])
        return None if value is None else -value
    bottom, mark, top = text.partition("分之")
    if mark:
        high, low = _chinese_integer(top), _chinese_integer(bottom)
        return Fraction(high, low) if high is not None and low else None
    whole, mark, part = text.partition("点")
    if mark:
        left = _chinese_integer(whole)
        digits = [_CHINESE.get(c) for c in part]
        if left is None or not digits or None in digits:
            return None
        return left + Fraction(int("".join(map(str, digits))), 10 ** len(digits))
    integer = _chinese_integer(text)
    return None if integer is None else Fraction(integer)


def _chinese_integer(text: str) -> int | None:
    if not text or any(c not in CHINESE_NUMERALS for c in text):
        return None
    if all(c in _CHINESE for c in text):  # digit by digit: 二〇二四
        return int("".join(str(_CHINESE[c]) for c in text))
    total, group, digit = 0, 0, -1
    for character in text:
        if character in _CHINESE:
            if digit > 0:
                return None
            digit = _CHINESE[character]
        elif character in _CHINESE_UNITS:
            group += (1 if digit < 0 else digit) * _CHINESE_UNITS[character]
            digit = -1
        else:
            total = (total + group + max(digit, 0)) * _CHINESE_GROUPS[character]
            group, digit = 0, -1
    return total + group + max(digit, 0)
