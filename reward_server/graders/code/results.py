"""Whether what a function returned is what was expected. Pure; on values that were read from text again.

Equality is that of Python on built-in types (``1 == 1.0``, ``True == 1``), with these additions for what JSON
cannot say: an expected list takes a tuple as well; an expected object's keys take the integers that they
spell. ``{"$tuple": […]}``, ``{"$set": […]}``, ``{"$dict": [[k, v], …]}``, ``{"$bytes": "hex"}`` and ``{"$float":
"inf"}`` state the type. NaN equals nothing but an expected NaN. A tolerance applies where either side is a
float.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from reward_server.graders.code.outputs import Rule, within
from sandboxes.values import Bag, Pairs, tagged

_MOST_UNORDERED = 300
_MOST_BITS = 10_000


def _finite(value: int | float) -> bool:
    return isinstance(value, int) or math.isfinite(value)


class BadValue(ValueError):
    """A value of a reference that means nothing."""


def expected_value(value: Any) -> Any:
    """What a reference states, as :func:`same_value` compares it. Raises BadValue."""
    try:
        return tagged(value)
    except ValueError as error:
        raise BadValue(str(error)) from None


def argument(value: Any) -> Any:
    """What a reference states as an argument: Python's own values. Raises BadValue."""
    return _native(expected_value(value))


def _native(value: Any) -> Any:
    match value:
        case list():
            return [_native(v) for v in value]
        case tuple():
            return tuple(_native(v) for v in value)
        case Bag():
            items = [_native(v) for v in value.items]
            try:
                return set(items)
            except TypeError:
                raise BadValue("a set of what cannot be in a set") from None
        case Pairs():
            try:
                return {_native(k): _native(v) for k, v in value.items}
            except TypeError:
                raise BadValue("a key that cannot be one") from None
        case dict():
            return {k: _native(v) for k, v in value.items()}
    return value


def same_value(returned: Any, expected: Any, rule: Rule) -> bool:
    """``expected`` comes from :func:`expected_value`, ``returned`` from :func:`sandboxes.values.decode`."""
    match expected:
        case bool() | int() | float() | complex():
            return isinstance(returned, bool | int | float | complex) and _same_number(
                returned, expected, rule
            )
        case None | str() | bytes():
            return type(returned) is type(expected) and returned == expected
        case tuple():
            return isinstance(returned, tuple) and _each(returned, expected, rule)
        case list():
            return isinstance(returned, list | tuple) and _each(returned, expected, rule)
        case Bag():
            return isinstance(returned, Bag) and _any_order(returned.items, expected.items, rule)
        case Pairs():
            return isinstance(returned, Pairs) and _any_order(returned.items, expected.items, rule)
        case dict():  # keys are strings; a program's may be the integers they spell
            if not isinstance(returned, Pairs) or len(returned.items) != len(expected):
                return False
            by_name = {_name(k): v for k, v in returned.items if type(k) in (str, int)}
            return by_name.keys() == expected.keys() and all(
                same_value(by_name[k], v, rule) for k, v in expected.items()
            )
    return False


def _name(key: str | int) -> str:
    if isinstance(key, str):
        return key
    return str(key) if key.bit_length() < _MOST_BITS else hex(key)


def _each(
    returned: list[Any] | tuple[Any, ...], expected: list[Any] | tuple[Any, ...], rule: Rule
) -> bool:
    return len(returned) == len(expected) and all(
        same_value(a, b, rule) for a, b in zip(returned, expected, strict=True)
    )


def _any_order(returned: tuple[Any, ...], expected: tuple[Any, ...], rule: Rule) -> bool:
    """As sets and dicts, whose items are distinct; quadratic, so of limited size."""
    if len(returned) != len(expected):
        return False
    if len(expected) > _MOST_UNORDERED:
        try:  # too many to try each with each: by what they are, without a tolerance
            return frozenset(map(_identity, returned)) == frozenset(map(_identity, expected))
        except TypeError:
            return False
    left = list(returned)
    for item in expected:
        found = next((n for n, other in enumerate(left) if same_value(other, item, rule)), None)
        if found is None:
            return False
        del left[found]
    return True


def _identity(value: Any) -> Any:
    """Hashable, and equal for equal values. Raises TypeError."""
    match value:
        case list() | tuple():
            return (type(value).__name__, tuple(_identity(v) for v in value))
        case Bag() | Pairs():
            return (type(value).__name__, frozenset(_identity(v) for v in value.items))
    hash(value)
    return value


def _same_number(returned: Any, expected: Any, rule: Rule) -> bool:
    if isinstance(returned, complex) or isinstance(expected, complex):
        # .real and .imag of an int are ints: nothing is rounded, or too large to be a float.
        return _same_number(returned.real, expected.real, rule) and _same_number(
            returned.imag, expected.imag, rule
        )
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(returned, float) and math.isnan(returned)
    if returned == expected:
        return True
    if not rule.tolerant or not (isinstance(returned, float) or isinstance(expected, float)):
        return False
    if not (_finite(returned) and _finite(expected)):
        return False
    return within(Fraction(returned), Fraction(expected), rule)
