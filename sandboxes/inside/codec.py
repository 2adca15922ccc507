"""Values between processes that do not trust each other: JSON with tags for what JSON cannot say.

``encode`` runs beside the program whose value it is, so what it writes is only what that program wants to be
understood. ``decode`` trusts nothing: it makes plain data and nothing else, runs no code of the other side, and has
caps on nesting, digits and exponents. Beyond JSON's own::

    {"$tuple": […]}  {"$set": […]}  {"$dict": [[key, value], …]}  {"$bytes": "<hex>"}  {"$float": "nan"}
    {"$int": "<hex>"}  (beyond 13,000 bits)  {"$complex": [re, im]}

and, only where ``exact``: ``$frozenset $bytearray $deque $range $iter $decimal $fraction $datetime $date $time
$timedelta $ndarray $scalar``. Without ``exact``, what is left of these (deques, views of dicts, numeric arrays) is written as a
list, for readers that compare by content.

Of a subclass of a built-in type, what is written is what the built-in type holds: only methods of the built-in types
themselves are called, so a subclass says what it holds, not what it likes.
"""

# mypy: ignore-errors

import _json

MAX_DEPTH = 100
MAX_BITS = 1_000_000
MAX_DIGITS = 10_000
"""Digits of a Decimal, and how far its exponent may be from zero."""
_DECIMAL_BITS = 13_000
_KINDS = "biufcSU"


class NotAValue(ValueError):
    """Something that is no plain value, or is beyond a cap."""


# ── out ──────────────────────────────────────────────────────────────────────────────────────────


def encode(value: object, depth: int = 0, exact: bool = False) -> str:
    """JSON text. Raises TypeError for what is no plain value, ValueError for what is nested too deeply."""
    if depth > (MAX_DEPTH if exact else 190):
        raise ValueError("the returned value is nested too deeply")
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    kind = type(value)
    if issubclass(kind, int):
        value = int.__index__(value)
        if value.bit_length() > _DECIMAL_BITS:
            return '{"$int":"%x"}' % value
        return int.__repr__(value)
    if issubclass(kind, float):
        text = float.__repr__(float.__float__(value))
        return text if text.lstrip("-")[0].isdigit() else '{"$float":"%s"}' % text
    if issubclass(kind, str):
        return _json.encode_basestring_ascii("".join(str.__iter__(value)))
    if issubclass(kind, list):
        return _several(list.__iter__(value), depth, exact)
    if issubclass(kind, tuple):
        return '{"$tuple":%s}' % _several(tuple.__iter__(value), depth, exact)
    if issubclass(kind, dict):
        pairs = [
            "[%s,%s]" % (encode(k, depth + 1, exact), encode(v, depth + 1, exact))
            for k, v in dict.items(value)
        ]
        return '{"$dict":[%s]}' % ",".join(pairs)
    if issubclass(kind, set):
        return '{"$set":%s}' % _several(set.__iter__(value), depth, exact)
    if issubclass(kind, frozenset):
        tag = "$frozenset" if exact else "$set"
        return '{"%s":%s}' % (tag, _several(frozenset.__iter__(value), depth, exact))
    if issubclass(kind, bytes) or (issubclass(kind, bytearray) and not exact):
        return '{"$bytes":"%s"}' % bytes(memoryview(value)).hex()
    if issubclass(kind, complex):
        real, imaginary = encode(value.real, depth), encode(value.imag, depth)
        return '{"$complex":[%s,%s]}' % (real, imaginary)
    found = _exact(value, kind, depth) if exact else _lenient(value, kind, depth)
    if found is not None:
        return found
    raise TypeError(f"a {kind.__name__} cannot be returned: return built-in types")


def _several(values, depth, exact):
    return "[" + ",".join([encode(v, depth + 1, exact) for v in values]) + "]"


def _lenient(value, kind, depth):
    if kind.__name__ == "deque" or kind in (type({}.keys()), type({}.values())):
        return encode(list(value), depth)
    if kind.__module__.split(".")[0] == "numpy":
        if getattr(value, "dtype", None) is not None and value.dtype.kind in _KINDS:
            plain = value.tolist()
            if value.ndim == 0:
                return encode(plain, depth)
            return '{"$array":%s}' % encode(plain, depth + 1)
    return None


def _exact(value, kind, depth):
    if issubclass(kind, bytearray):
        return '{"$bytearray":"%s"}' % bytes(memoryview(value)).hex()
    if kind is range:
        return '{"$range":%s}' % encode([value.start, value.stop, value.step], depth, True)
    module = kind.__module__
    if module == "collections" and kind.__name__ == "deque":
        return '{"$deque":%s}' % _several(value, depth, True)
    if module == "builtins" and hasattr(kind, "__iter__") and kind is not memoryview:
        return '{"$iter":%s}' % _several(value, depth, True)  # generators, map, zip, views of dicts
    if module == "itertools":
        return '{"$iter":%s}' % _several(value, depth, True)
    if module == "decimal" and kind.__name__ == "Decimal":
        return '{"$decimal":"%s"}' % value
    if module == "fractions" and kind.__name__ == "Fraction":
        return '{"$fraction":%s}' % encode([value.numerator, value.denominator], depth, True)
    if module == "datetime" and kind.__name__ in ("datetime", "date", "time"):
        return '{"$%s":"%s"}' % (kind.__name__, value.isoformat())
    if module == "datetime" and kind.__name__ == "timedelta":
        parts = [value.days, value.seconds, value.microseconds]
        return '{"$timedelta":%s}' % encode(parts, depth, True)
    if module.split(".")[0] == "numpy":
        dtype = getattr(value, "dtype", None)
        if dtype is not None and dtype.kind in _KINDS:
            tag = (
                "$ndarray"
                if hasattr(value, "__array_finalize__") and value.shape != ()
                else "$scalar"
            )
            body = [dtype.str, list(value.shape), value.tobytes()]
            return '{"%s":%s}' % (tag, encode(body, depth, True))
    return None


# ── in ───────────────────────────────────────────────────────────────────────────────────────────


class _Context:
    """What the scanner of the C module asks of a decoder."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, memo = float, int, {}

    @staticmethod
    def parse_constant(name):
        raise NotAValue(f"{name} is not JSON")


_scan = _json.make_scanner(_Context())


def decode(text: str) -> object:
    """The value that ``encode(…, exact=True)`` wrote. Raises NotAValue, and nothing else but MemoryError."""
    try:
        value, end = _scan(text, 0)
        if end != len(text):
            raise NotAValue("more than one value")
        return _plain(value, 0)
    except NotAValue:
        raise
    except (StopIteration, ValueError, TypeError, KeyError, IndexError, OverflowError, ArithmeticError, AttributeError,
            RecursionError, ImportError) as error:  # fmt: skip
        raise NotAValue(f"{type(error).__name__}: {error}"[:200]) from None


def _plain(value, depth):
    if depth > MAX_DEPTH + 3:
        raise NotAValue("nested too deeply")
    kind = type(value)
    if kind is list:
        return [_plain(v, depth + 1) for v in value]
    if kind is not dict:
        return value
    if len(value) != 1:
        raise NotAValue("an object without a tag")
    ((tag, inner),) = value.items()
    read = _READERS.get(tag)
    if read is None:
        raise NotAValue(f"no value has the tag {tag[:20]!r}")
    if tag in _OF_TEXT:
        if type(inner) is not str:
            raise NotAValue(f"{tag} is written as text")
        return read(inner)
    if type(inner) is not list:
        raise NotAValue(f"{tag} is written as a list")
    return read([_plain(v, depth + 1) for v in inner])


def _int(text):
    if len(text) > MAX_BITS // 4:
        raise NotAValue("an integer of too many digits")
    return int(text, 16)


def _ints(values, count=None):
    if (count is not None and len(values) != count) or any(type(v) is not int for v in values):
        raise NotAValue("integers are needed")
    return values


def _decimal(text):
    from decimal import Decimal

    if len(text) > MAX_DIGITS + 20:
        raise NotAValue("a Decimal of too many digits")
    found = Decimal(text)
    exponent = found.as_tuple().exponent
    if isinstance(exponent, int) and abs(exponent) > MAX_DIGITS:
        raise NotAValue("a Decimal with too large an exponent")
    return found


def _fraction(values):
    from fractions import Fraction

    return Fraction(*_ints(values, 2))


def _complex(values):
    real, imaginary = values
    if type(real) is not float or type(imaginary) is not float:
        raise NotAValue("a complex number has two floats")
    return complex(real, imaginary)


def _dict(pairs):
    found = {}
    for pair in pairs:
        if type(pair) is not list:
            raise NotAValue("a dict is written as pairs")
        key, value = pair
        found[key] = value
    return found


def _dated(name):
    def read(text):
        import datetime

        if len(text) > 64:
            raise NotAValue("a date is shorter")
        return getattr(datetime, name).fromisoformat(text)

    return read


def _timedelta(values):
    import datetime

    days, seconds, microseconds = _ints(values, 3)
    return datetime.timedelta(days, seconds, microseconds)


def _deque(values):
    from collections import deque

    return deque(values)


def _array(body):
    import numpy

    dtype, shape, data = body
    if (
        type(dtype) is not str
        or type(shape) is not list
        or type(data) is not bytes
        or len(shape) > 32
    ):
        raise NotAValue("an array is its type, its shape and its bytes")
    if (
        dtype[:1] not in "<>|="
        or dtype[1:2] not in _KINDS
        or not dtype[2:].isdigit()
        or len(dtype) > 12
    ):
        raise NotAValue("an array of what is no number or text")
    _ints(shape)
    return numpy.frombuffer(data, numpy.dtype(dtype)).reshape(shape).copy()


def _scalar(body):
    return _array([body[0], [1], body[2]])[0]


_READERS = {
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$dict": _dict,
    "$deque": _deque,
    "$iter": iter,
    "$range": lambda values: range(*_ints(values, 3)),
    "$fraction": _fraction,
    "$complex": _complex,
    "$timedelta": _timedelta,
    "$ndarray": _array,
    "$scalar": _scalar,
    "$int": _int,
    "$float": lambda text: {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}[text],
    "$bytes": bytes.fromhex,
    "$bytearray": bytearray.fromhex,
    "$decimal": _decimal,
    "$datetime": _dated("datetime"),
    "$date": _dated("date"),
    "$time": _dated("time"),
}
_OF_TEXT = frozenset("$int $float $bytes $bytearray $decimal $datetime $date $time".split())


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


def send(fd, text):
    """Writes one message: four bytes of length, then the text. Raises OSError."""
    import os

    data = text.encode()
    data = len(data).to_bytes(4, "little") + data
    while data:
        data = data[os.write(fd, data) :]


def receive(fd, most):
    """The next message's text; None at the end of the stream. Raises NotAValue, OSError."""
    header = _exactly(fd, 4)
    if header is None:
        return None
    size = int.from_bytes(header, "little")
    if size > most:
        raise NotAValue(f"a value of {size} bytes; the limit is {most}")
    data = _exactly(fd, size)
    if data is None:
        return None
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise NotAValue("not ASCII") from None


def _exactly(fd, size):
    import os

    found = bytearray()
    while len(found) < size:
        piece = os.read(fd, min(1 << 20, size - len(found)))
        if not piece:
            return None
        found += piece
    return bytes(found)
