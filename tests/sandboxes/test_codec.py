"""Values between processes: they arrive as they are, and whatever arrives is plain data or refused."""

from __future__ import annotations

import datetime
import json
import math
from collections import deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest
from hypothesis import given, settings, strategies as st

from sandboxes.inside.codec import MAX_DEPTH, NotAValue, decode, encode

_HUGE = 2**14_000
_HASHABLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=_HUGE, max_value=_HUGE + 9),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters()),  # with surrogates
    st.binary(),
    st.decimals(allow_nan=False) | st.just(Decimal("NaN")),
    st.fractions(),
    st.dates(),
    st.times().map(lambda t: t.replace(fold=0)),
    st.datetimes(timezones=st.sampled_from([None, datetime.UTC])).map(lambda t: t.replace(fold=0)),
    st.timedeltas(),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 9)),
)
_VALUES = st.recursive(
    _HASHABLE | st.binary().map(bytearray),
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.lists(inner).map(deque),
        st.sets(_HASHABLE),
        st.frozensets(_HASHABLE),
        st.dictionaries(_HASHABLE, inner),
    ),
    max_leaves=20,
)
_ALLOWED: tuple[type, ...] = (
    bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict, deque, range, Decimal,
    Fraction, datetime.date, datetime.time, datetime.timedelta, type(None), type(iter([])),
)  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Equal in types and contents; a NaN is itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(a, b) and same(v, w)
            for (a, v), (b, w) in zip(one.items(), other.items(), strict=True)
        )
    if isinstance(one, set | frozenset):
        return sorted(map(repr, one)) == sorted(map(repr, other))
    return repr(one) == repr(other)  # tells -0.0 from 0.0, and NaN is NaN


@given(_VALUES)
@settings(max_examples=300, deadline=None)
def test_a_value_arrives_as_it_is(value: Any) -> None:
    text = encode(value, exact=True)
    assert text.isascii()
    assert same(decode(text), value)


_TAGS = st.sampled_from(
    "$tuple $set $frozenset $dict $deque $iter $range $fraction $complex $timedelta $ndarray $scalar $int $float "
    "$bytes $bytearray $decimal $datetime $date $time $no".split()
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.sampled_from(["nan", "inf", "1e9", "0" * 30_000, "ff", "2020-01-01", "<f8", "|O", "<U4"]),
    lambda inner: st.lists(inner) | st.dictionaries(_TAGS, inner, max_size=2),
    max_leaves=12,
)  # fmt: skip


@given(_JSON.map(json.dumps) | st.text())
@settings(max_examples=500, deadline=None)
def test_whatever_arrives_is_plain_data_or_refused(text: str) -> None:
    try:
        value = decode(text)
    except NotAValue:
        return
    waiting = [value]
    while waiting:
        one = waiting.pop()
        assert type(one) in _ALLOWED or type(one).__module__ == "numpy"
        if isinstance(one, dict):
            waiting += [*one, *one.values()]
        elif isinstance(one, list | tuple | set | frozenset | deque):
            waiting += one


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10_000 + "]" * 10_000,
        '{"$tuple":[' * (MAX_DEPTH + 10) + "]}" * (MAX_DEPTH + 10),
        '{"$int":"%s"}' % ("f" * 300_000),
        '{"$decimal":"1e10001"}',
        '{"$decimal":"%s"}' % ("1" * 11_000),
        '{"$set":[[]]}',
        '{"$dict":[[{"$dict":[]},1]]}',
        '{"$ndarray":["|O",[1],{"$bytes":"0000000000000000"}]}',
        '{"$ndarray":["<f8",[-1],{"$bytes":"0000"}]}',
        '{"$ndarray":["<f8",[1000000000000],{"$bytes":""}]}',
        '{"$range":[0,1,0]}',
        '{"$fraction":[1,0]}',
        '{"$bytes":[1]}',
        '{"$tuple":"x"}',
        '{"$tuple":[],"$set":[]}',
        "{}",
        "1 2",
        "NaN",
        "",
    ],
    ids=lambda t: t[:24],
)
def test_refused(text: str) -> None:
    with pytest.raises(NotAValue):
        decode(text)


@pytest.mark.parametrize(
    "value", [object(), len, type, type("T", (), {})(), 10 ** (10**6) and print]
)
def test_what_is_no_plain_data_is_not_written(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode(value, exact=True)


def test_a_cycle_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="deep"):
        encode(loop, exact=True)


class _LyingInt(int):
    def __index__(self) -> int:
        return 3

    def __repr__(self) -> str:
        return "3"

    __int__ = __index__
    __str__ = __repr__


class _LyingList(list[Any]):
    def __iter__(self) -> Any:
        return iter([3])

    def __len__(self) -> int:
        return 1


class _LyingFloat(float):
    def __repr__(self) -> str:
        return "3.0"

    def __float__(self) -> float:
        return 3.0


class _LyingText(str):
    def __iter__(self) -> Any:
        return iter("3")


class _LyingDict(dict[Any, Any]):
    def items(self) -> Any:
        return [(3, 3)]


@pytest.mark.parametrize(
    ("liar", "truth"),
    [
        (_LyingInt(7), 7),
        (_LyingList([7]), [7]),
        (_LyingFloat(7), 7.0),
        (_LyingText("7"), "7"),
        (_LyingDict({7: 7}), {7: 7}),
    ],
)
def test_a_subclass_is_written_as_what_it_holds(liar: Any, truth: Any) -> None:
    for exact in (True, False):
        assert same(decode(encode(liar, exact=exact)), truth)


def test_arrays() -> None:
    for array in (
        numpy.arange(6.0).reshape(2, 3),
        numpy.zeros((0, 2), "i4"),
        numpy.array(["ab", "c"]),
    ):
        found = decode(encode(array, exact=True))
        assert isinstance(found, numpy.ndarray)
        assert (found.dtype, found.shape, found.tolist()) == (
            array.dtype,
            array.shape,
            array.tolist(),
        )
    number = decode(encode(numpy.float32(1.5), exact=True))
    assert isinstance(number, numpy.float32)
    assert math.isclose(float(number), 1.5)
