"""What every engine must hold: a verdict depends on the item alone."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from reward_server.outcome import Outcome
from tests.engine.support import engine, grade, spec, view

_NUMBER = spec("exact", compare="number", extract={"regex": r"A: *(.*)"})
_VIEWS = [
    view("x\nA: 26", "26"),
    view("x\nA: 26.0", "26"),
    view("A: 1,000", 1000),
    view("A: 1,00", "100"),
    view("A: 26 or 27", "26"),
    view("no answer", "26"),
    view("A: 5", "not a number"),
    view("A: " + "9" * 5000, "9"),
    view("", "0"),
    view("A: ½", "0.5"),
    *(view(f"{n} A: {n}", str(n // 2 * 2)) for n in range(40)),
]
_BAD = [view("hang"), view("recurse"), view("segv"), view("ok"), view("raise"), view("big_raw")]


def outcomes(views: list[bytes], of: Any, **options: Any) -> list[Outcome]:
    async def main() -> list[Outcome]:
        async with engine(**options) as made:
            return [f.outcome for f in await grade(made, views, of)]

    return asyncio.run(main())


@pytest.fixture(scope="module")
def alone() -> list[Outcome]:
    """The verdicts when each item has a worker to itself."""
    return outcomes(_VIEWS, _NUMBER, workers=1, max_chunk=1, max_items=1)


@pytest.mark.parametrize("options", [{"max_chunk": 1}, {"max_chunk": 7}, {"workers": 1}, {}])
def test_verdicts_do_not_depend_on_chunks_or_workers(
    alone: list[Outcome], options: dict[str, int]
) -> None:
    assert outcomes(_VIEWS, _NUMBER, **options) == alone


def test_verdicts_do_not_depend_on_order(alone: list[Outcome]) -> None:
    order = list(range(len(_VIEWS)))
    random.Random(7).shuffle(order)
    shuffled = outcomes([_VIEWS[i] for i in order], _NUMBER)
    assert [shuffled[order.index(i)] for i in range(len(order))] == alone


def test_verdicts_do_not_depend_on_repetition(alone: list[Outcome]) -> None:
    assert outcomes(_VIEWS * 5, _NUMBER) == alone * 5


def test_verdicts_do_not_depend_on_bad_neighbours() -> None:
    expected = [outcomes([v], None, workers=1)[0] for v in _BAD]
    mixed = outcomes(_BAD * 3, None)
    assert mixed == expected * 3


def test_verdicts_do_not_depend_on_a_restart(alone: list[Outcome]) -> None:
    assert outcomes(_VIEWS, _NUMBER) == outcomes(_VIEWS, _NUMBER) == alone
