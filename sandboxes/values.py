"""Values of a Python function on their way out of a box: JSON of exact built-in types, read again outside.

The box writes them (``sandboxes.inside.codec``), so nothing here is trusted: the text is capped, nothing is
unpickled, and no object of the program's can take part in a comparison. Beyond JSON's own types::

    {"$tuple": […]}  {"$set": […]}  {"$dict": [[key, value], …]}  {"$bytes": "<hex>"}  {"$float": "nan"}
    {"$complex": [re, im]}  {"$array": […]}  (a numeric array as nested lists)
    {"$int": "<hex>"}  (beyond 4,000 digits)
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 200


class NotAValue(ValueError):
    """Text that is no value."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """A dict, as its pairs: keys need not be hashable to be compared."""

    items: tuple[tuple[Any, Any], ...]


@dataclass(frozen=True, slots=True)
class Bag:
    """A set or frozenset."""

    items: tuple[Any, ...]


def decode(text: bytes) -> Any:
    """What a box wrote. Raises NotAValue."""
    try:
        return tagged(json.loads(text, parse_constant=_no_constant))
    except (ValueError, RecursionError) as error:
        raise NotAValue(str(error)) from None


def tagged(value: Any) -> Any:
    """JSON with its tags resolved: a dict of one key that begins with ``$``. Raises NotAValue."""
    try:
        return _plain(value, 0)
    except (ValueError, RecursionError, KeyError, TypeError, OverflowError) as error:
        raise NotAValue(str(error)) from None


def _no_constant(name: str) -> Any:
    raise NotAValue(f"{name} is not JSON")


def _plain(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise NotAValue("nested too deeply")
    if isinstance(value, list):
        return [_plain(v, depth + 1) for v in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or not (tag := next(iter(value))).startswith("$"):
        return {k: _plain(v, depth + 1) for k, v in value.items()}
    inner = value[tag]
    match tag:
        case "$tuple":
            return tuple(_plain(v, depth + 1) for v in inner)
        case "$array":
            return _plain(inner, depth + 1)
        case "$set":
            return Bag(tuple(_plain(v, depth + 1) for v in inner))
        case "$dict":
            return Pairs(tuple((_plain(k, depth + 1), _plain(v, depth + 1)) for k, v in inner))
        case "$bytes":
            return bytes.fromhex(inner)
        case "$int":
            return int(inner, 16)
        case "$float":
            return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[inner]
        case "$complex":
            real, imaginary = (_plain(v, depth + 1) for v in inner)
            return complex(real, imaginary)
    raise NotAValue(f"no value has the tag {tag!r}")
