"""Units: which words are one, which name the same one, and how quantities convert.

A unit in normal form is a string: names of ``_SAME`` with their powers, like ``cm^2`` or
``hour^-1*mile``. With any other noun it begins with ``?`` (``?kg_rice``). Units that are here in ``_SCALE``
convert into each other within their dimension; all others are equal only by name.
"""

from __future__ import annotations

import re
from fractions import Fraction

from reward_server.graders.answer.numbers import NUMBER_WORDS

_SAME: dict[str, str] = {
    alias: name
    for name, aliases in {
        "cm": "厘米 公分 cm centimeter centimetre centimeters centimetres",
        "mm": "毫米 mm millimeter millimetre millimeters millimetres",
        "m": "米 m meter metre meters metres",
        "km": "千米 公里 km kilometer kilometre kilometers kilometres",
        "inch": "inch inches in",
        "foot": "foot feet ft",
        "yard": "yard yards yd yds",
        "mile": "mile miles mi",
        "g": "克 g gram grams gm",
        "kg": "千克 公斤 kg kilogram kilograms kgs",
        "mg": "mg milligram milligrams",
        "pound": "pound pounds lb lbs",
        "ounce": "ounce ounces oz",
        "ton": "ton tons tonne tonnes",
        "second": "秒 second seconds sec secs s",
        "minute": "分钟 minute minutes min mins",
        "hour": "小时 hour hours hr hrs h",
        "day": "天 day days",
        "week": "week weeks",
        "month": "月 month months",
        "year": "年 year years yr yrs",
        "L": "升 l L liter litre liters litres",
        "mL": "毫升 ml mL milliliter millilitre milliliters millilitres",
        "gallon": "gallon gallons gal",
        "quart": "quart quarts qt",
        "pint": "pint pints pt",
        "cup": "cup cups",
        "unit": "unit units",
        "way": "way ways",
        "time": "time times",
        "point": "point points",
        "USD": "dollar dollars usd USD bucks",
        "cent": "cent cents",
        "EUR": "euro euros eur EUR",
        "GBP": "gbp GBP",
        "CNY": "元 yuan rmb RMB cny CNY",
        "JPY": "yen jpy JPY",
        "INR": "rupee rupees inr INR",
        "deg": "度 degree degrees deg",
        "rad": "radian radians rad",
        "N": "N newton newtons",
        "J": "J joule joules",
        "kJ": "kJ kilojoule kilojoules",
        "W": "W watt watts",
        "kW": "kW kilowatt kilowatts",
        "V": "V volt volts",
        "A": "A amp amps ampere amperes",
        "Hz": "Hz hertz",
        "kHz": "kHz kilohertz",
        "Pa": "Pa pascal pascals",
        "mol": "mol mole moles",
        "K": "kelvin kelvins",
        "mph": "mph",
        "kph": "kph kmh",
        "%": "% percent percents percentage pct",
    }.items()
    for alias in aliases.split()
}
_PLAIN_ONLY = frozenset(
    """
    cm mm km kg mg ml mL ft yd lb lbs oz mph kph kmh hr hrs sec secs min mins usd USD rad kJ kW Hz
    kHz Pa yr yrs gal deg EUR GBP JPY CNY INR RMB
    """.split()
)
"""Abbreviations that are a unit even outside ``\\text``, where a letter alone is a variable."""

_SCALE: dict[str, tuple[str, Fraction]] = {
    "mm": ("length", Fraction(1, 1000)),
    "cm": ("length", Fraction(1, 100)),
    "m": ("length", Fraction(1)),
    "km": ("length", Fraction(1000)),
    "inch": ("length", Fraction(254, 10000)),
    "foot": ("length", Fraction(3048, 10000)),
    "yard": ("length", Fraction(9144, 10000)),
    "mile": ("length", Fraction(1609344, 1000)),
    "mg": ("mass", Fraction(1, 1000)),
    "g": ("mass", Fraction(1)),
    "kg": ("mass", Fraction(1000)),
    "ounce": ("mass", Fraction(28349523125, 10**9)),
    "pound": ("mass", Fraction(45359237, 10**5)),
    "second": ("time", Fraction(1)),
    "minute": ("time", Fraction(60)),
    "hour": ("time", Fraction(3600)),
    "day": ("time", Fraction(86400)),
    "week": ("time", Fraction(604800)),
    "mL": ("volume", Fraction(1, 1000)),
    "L": ("volume", Fraction(1)),
    "cup": ("us volume", Fraction(1)),
    "pint": ("us volume", Fraction(2)),
    "quart": ("us volume", Fraction(4)),
    "gallon": ("us volume", Fraction(16)),
    "USD": ("dollars", Fraction(1)),
    "cent": ("dollars", Fraction(1, 100)),
    "J": ("energy", Fraction(1)),
    "kJ": ("energy", Fraction(1000)),
    "W": ("power", Fraction(1)),
    "kW": ("power", Fraction(1000)),
    "Hz": ("frequency", Fraction(1)),
    "kHz": ("frequency", Fraction(1000)),
    "%": ("number", Fraction(1, 100)),
}
_SPEEDS = {"mph": "mile/hour", "kph": "km/hour"}
GENERIC = frozenset({"unit", "way", "time", "point"})
"""Words after a number that say only what is counted: they match any other unit."""

MONEY = frozenset({"USD", "cent", "EUR", "GBP", "CNY", "JPY", "INR"})
CURRENCIES = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "CNY", "₹": "INR"}

_CHANGES_VALUE = frozenset(
    """
    half halve third fourth quarter fifth sixth seventh eighth ninth tenth eleventh twelfth
    twentieth hundredth thousandth millionth billionth zero one two hundred thousand million billion trillion
    dozen gross score double triple quadruple fold twofold ten pair couple factorial negative
    positive minus plus squared cubed inverse reciprocal root power exponent log modulo mod prime
    bar dot dozenth digit repeating recurring remainder base binary hex hexadecimal octal lakh crore
    myriad kilo mega giga milli micro googol pi tau decimal point percentile permille ppm tripled
    doubled halved negated fail error not opposite invert six backward grand
    """.split()
)
"""Nouns that make another number of the one before them."""
_COUNTERS = frozenset(
    """
    个 個 只 隻 本 人 张 張 条 條 块 塊 枚 辆 輛 名 位 次 件 棵 头 頭 支 台 颗 顆 粒 朵 瓶 盒
    袋 杯 页 頁 岁 歲 种 種 组 組 套 艘 座 间 間 家 份 片 根 匹 把 箱 排 行 列 道 题 題 步 级
    級 层 層 圈 人民币 平方米 平方厘米 立方米 立方厘米 平方千米 美元 欧元 小時 分鐘
    """.split()
)
"""Chinese counters; any other word after a number may make another number of it (点五, 分之一, 倍)."""
_CHANGING = re.compile(r".*(?:illions?|ths?|fold|times)")
_ADVERBS = frozenset("altogether total overall left remaining".split())
"""Words behind a counted noun that add nothing."""
_PLURALS = frozenset(
    "people men women children teeth mice geese fish sheep deer dice oxen data".split()
)

NO_UNIT = frozenset(
    """
    a an the this that these those it its is are was were be been being am do does did has have had
    can could will would shall should may might must let or nor and not no none never neither either
    both but yet so if then else unless except when where while because since as than though
    although maybe perhaps possibly probably likely approximately about around roughly nearly almost
    exactly only just also instead rather actually wait correct incorrect wrong right true false yes
    ok okay i we you he she they what which who how why answer solution final result equals equal
    plus minus less more fewer greater smaller larger least most over under above below between from
    to with without by for of at on any all some every each other another alternatively otherwise vs
    versus case cases if given assuming undefined unknown oder ou o y e und et odd even
    """.split()
)
"""Function words: text that has one after a number is a sentence, not a unit."""


def known(word: str) -> bool:
    return word in _SAME or (len(word) > 2 and word.lower() in _SAME)


def abbreviation(word: str) -> bool:
    return word in _PLAIN_ONLY


def normal(words: list[tuple[str, int]]) -> str | None:
    """The normal form of ``[(word, power), …]``; None where the words cannot be a unit.

    Words that are not known units are taken for what is counted (``apples``), unless one is a function
    word or changes the number; such a unit begins with ``?``, and :func:`only_counts` tells whether it
    may be dropped.
    """
    if not words or len(words) > 6:  # "per" and products included
        return None
    powers: dict[str, int] = {}
    nouns: list[str] = []
    pending = 1
    for word, power in words:
        low = word.lower()
        if low in ("square", "sq", "squared", "cubic", "cu", "cubed"):
            by = 2 if low.startswith("sq") else 3
            if low.endswith("ed"):
                last = next(reversed(powers), None)
                if last is None:
                    return None
                powers[last] *= by
            else:
                pending = by
            continue
        name = _SAME.get(word) or (_SAME.get(low) if len(word) > 2 else None)
        if name is not None:
            for part in _SPEEDS.get(name, name).split("/"):
                sign = -1 if powers and part != name else 1
                powers[part] = powers.get(part, 0) + sign * power * pending
            pending = 1
        elif low in NO_UNIT or low in NUMBER_WORDS or not low.replace("-", "").isalpha():
            return None
        elif low in _ADVERBS and nouns:
            continue
        else:
            if not low.isascii():
                if low not in _COUNTERS:
                    return None
                nouns.append(low)
                continue
            singular = _singular(low)
            if singular in _CHANGES_VALUE or len(low) == 1 or pending != 1:
                return None
            if any(_singular(p) in _CHANGES_VALUE or p in NUMBER_WORDS for p in low.split("-")):
                return None
            if low not in _PLURALS and low not in _SAFE_ENDINGS and _CHANGING.fullmatch(low):
                return None
            if power > 0:
                nouns.append(low)
    if len(nouns) > 3:
        return None
    terms = sorted(f"{u}^{p}" if p != 1 else u for u, p in powers.items() if p)
    if nouns:
        return "?" + "_".join([*terms, *nouns])
    return "*".join(terms) or None


_SAFE_ENDINGS = frozenset(
    "maths cloths births deaths paths baths booths moths mouths lengths widths depths growths".split()
)


def only_counts(unit: str, prompt_words: frozenset[str]) -> bool:
    """Whether a unit may stand behind a number whose reference has none.

    Known units may. Other words may if they stand in the prompt, or are one plural noun: anything else
    could say something of the number (``5 doubled``, ``5 rejected``).
    """
    if not unit.startswith("?"):
        return True
    words = unit[1:].split("_")
    if all(w in prompt_words or _singular(w) in prompt_words or w in _SAME.values() for w in words):
        return True
    if any(not w.isascii() for w in words):
        return len(words) == 1
    *before, last = words
    plural = last in _PLURALS or (last.endswith("s") and not last.endswith(("ss", "us", "is")))
    return plural and not before


def _singular(word: str) -> str:
    if len(word) > 3 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith(("ches", "shes", "xes", "sses")):
        return word[:-2]
    if len(word) > 2 and word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def factor(have: str, want: str) -> Fraction | None:
    """What a number of ``have`` is multiplied by to be one of ``want``; None where they differ in kind."""
    if have == want:
        return Fraction(1)
    if have.startswith("?") or want.startswith("?"):
        nouns = (
            {_singular(w) for w in have[1:].split("_")},
            {_singular(w) for w in want[1:].split("_")},
        )
        if have.startswith("?") and want.startswith("?"):
            return Fraction(1) if nouns[0] <= nouns[1] or nouns[1] <= nouns[0] else None
        other = want if have.startswith("?") else have
        return Fraction(1) if other in GENERIC else None
    for one, other in ((have, want), (want, have)):
        if one in GENERIC and not _measured(other):
            return Fraction(1)
        if (
            one.split("^")[0] == "unit"
            and (_power_of(one) == _power_of(other))
            and other not in MONEY
        ):
            return Fraction(1) if other != "%" else None
    mine, theirs = _dimension(have), _dimension(want)
    if mine is None or theirs is None or mine[0] != theirs[0]:
        return None
    return mine[1] / theirs[1]


def _measured(unit: str) -> bool:
    """Whether it is a unit of measure, and not one of counting."""
    return unit.split("^")[0].split("*")[0] in _SCALE or unit in MONEY or unit == "deg"


def _power_of(unit: str) -> str:
    return unit.partition("^")[2]


def _dimension(unit: str) -> tuple[tuple[tuple[str, int], ...], Fraction] | None:
    dimensions: dict[str, int] = {}
    scale = Fraction(1)
    for term in unit.split("*"):
        name, _, power_text = term.partition("^")
        power = int(power_text or 1)
        if name not in _SCALE:
            dimensions[name] = dimensions.get(name, 0) + power
            continue
        kind, size = _SCALE[name]
        dimensions[kind] = dimensions.get(kind, 0) + power
        scale *= size**power
    return tuple(sorted(dimensions.items())), scale
