"""Kind ``exact``: what equals what, by its stated normalisation."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from reward_server.graders.base import Digest, PureGrader, Spec, View, canonical_json
from reward_server.graders.catalog import CATALOG
from reward_server.graders.numerals import parse_number
from reward_server.outcome import CannotScore, FailureKind, Scored


def grader(**config: Any) -> PureGrader:
    built = CATALOG.build(Spec("exact", canonical_json(config), Digest("sha256:test")))
    assert isinstance(built, PureGrader)
    return built


def grade(completion: str, reference: Any, **config: Any) -> Scored:
    made = grader(**config)
    assert made.reference_problem(reference) is None
    return made.grade(View(completion=completion, reference=reference))


STRING: list[tuple[str, Any, dict[str, Any], float]] = [
    ("Paris", "Paris", {}, 1),
    ("  Paris\n", "Paris", {}, 1),
    ("paris", "Paris", {}, 0),
    ("paris", "Paris", {"ignore_case": True}, 1),
    ("Paris or London", "Paris", {}, 0),
    ("a  b", "a b", {}, 0),
    ("a \n b", "a b", {"collapse_whitespace": True}, 1),
    (" a", "a", {"strip": False}, 0),
    ("e\u0301", "é", {}, 1),
    ("e\u0301", "é", {"unicode": "none"}, 0),
    ("ﬁne", "fine", {}, 0),
    ("ﬁne", "fine", {"unicode": "NFKC"}, 1),
    ("STRASSE", "straße", {"ignore_case": True}, 1),
    ("B", ["A", "B"], {}, 1),
    ("C", ["A", "B"], {}, 0),
    ("7", 7, {}, 1),
    ("Раris", "Paris", {}, 0),  # Cyrillic look-alikes
    ("Pa\u200bris", "Paris", {}, 0),  # zero-width space
    ("Paris\0", "Paris", {}, 0),
]

NUMBER: list[tuple[str, Any, float]] = [
    ("26", "26", 1),
    ("26.0", "26", 1),
    ("26.", "26", 1),
    ("+26", 26, 1),
    ("-26", "26", 0),
    ("\u221226", "-26", 1),
    ("$1,234.50", "1234.5", 1),
    ("-$5", "-5", 1),
    ("$-5", "-5", 1),
    ("--5", "5", 0),
    ("1,23", "123", 0),
    ("1,2345", "12345", 0),
    ("2/4", "0.5", 1),
    ("1/0", "0", 0),
    ("1/3", "0.3333333333", 0),
    ("0.1", "0.10000000000000001", 0),
    ("1e3", "1000", 1),
    ("1e999999999", "1", 0),
    ("9" * 5000, "9", 0),
    ("26%", "26", 0),
    ("26 apples", "26", 0),
    ("26 or 27", "26", 0),
    ("43=42", "42", 0),
    ("²", "2", 0),
    ("٢", "2", 0),
    ("５", "5", 0),
    ("nan", "0", 0),
    ("inf", "0", 0),
    ("0x1A", "26", 0),
    ("1_000", "1000", 0),
    ("", "0", 0),
    ("3", [2, 3], 1),
    ("0.5", 0.5, 1),
]

JSON: list[tuple[str, Any, float]] = [
    ('{"b": 1, "a": [1, 2]}', {"a": [1, 2], "b": 1}, 1),
    ("1.0", 1, 1),
    ("1", True, 0),
    ("true", True, 1),
    ("null", None, 1),
    ("[1, 2]", [2, 1], 0),
    ('{"a": 1, "a": 2}', {"a": 2}, 0),
    ('{"a": 1}', {"a": 1, "b": None}, 0),
    ('"1"', 1, 0),
    ("NaN", 0, 0),
    ("1e400", 1, 0),
    ("1e9999999", 1, 0),
    ("9" * 5000, 1, 0),
    ("[" * 100_000, [], 0),
    ("{} extra", {}, 0),
]


@pytest.mark.parametrize(("completion", "reference", "config", "reward"), STRING)
def test_strings(completion: str, reference: Any, config: dict[str, Any], reward: float) -> None:
    assert grade(completion, reference, **config).reward == reward


@pytest.mark.parametrize(("completion", "reference", "reward"), NUMBER)
def test_numbers(completion: str, reference: Any, reward: float) -> None:
    assert grade(completion, reference, compare="number").reward == reward


@pytest.mark.parametrize(("completion", "reference", "reward"), JSON)
def test_json(completion: str, reference: Any, reward: float) -> None:
    assert grade(completion, reference, compare="json").reward == reward


def test_extraction_reports_what_it_found_and_where() -> None:
    scored = grade("é A: 1\nA: 26", "26", compare="number", extract={"regex": r"A: *(\S+)"})
    assert scored.reward == 1.0
    assert scored.raw["extracted"] == "26"
    assert scored.raw["span"] == [10, 12]
    assert scored.raw["rule"] == "regex"


def test_the_first_match_can_be_asked_for() -> None:
    config = {"compare": "number", "extract": {"regex": r"A: (\d+)", "which": "first"}}
    assert grade("A: 1 A: 2", "1", **config).reward == 1.0


def test_nothing_found_is_no_answer() -> None:
    scored = grade("nothing", "26", compare="number", extract={"regex": r"A: (\d+)"})
    assert (scored.reward, scored.raw["outcome"]) == (0.0, "no_answer")


@pytest.mark.parametrize("reference", ["abc", "", ["1", "x"], "1e99999"])
def test_a_reference_that_is_no_number_is_not_the_completions_fault(reference: Any) -> None:
    with pytest.raises(CannotScore) as caught:
        grade("1", reference, compare="number")
    assert caught.value.kind is FailureKind.INVALID_REFERENCE


def test_an_empty_reference_does_not_reward_an_empty_completion() -> None:
    with pytest.raises(CannotScore):
        grade("", " ", compare="string")


@pytest.mark.parametrize("reference", [None, True, {"a": 1}, [], [None]])
def test_references_of_the_wrong_shape(reference: Any) -> None:
    assert grader().reference_problem(reference)


@pytest.mark.parametrize("regex", ["(", "(?=a)", r"(a)\1", "a{2000}", "[z-a]"])
def test_a_pattern_that_re2_refuses_is_refused_with_the_reason(regex: str) -> None:
    with pytest.raises(ValueError, match="RE2"):
        grader(extract={"regex": regex})


@pytest.mark.parametrize("group", [2, -1, "name"])
def test_a_group_that_does_not_exist_is_refused(group: int | str) -> None:
    with pytest.raises(ValueError, match="group"):
        grader(extract={"regex": "(a)", "group": group})


@given(st.fractions())
def test_a_fraction_is_read_as_itself(value: Fraction) -> None:
    assert parse_number(str(value)) == value or len(str(value)) > 400


@given(st.integers(), st.integers(min_value=0, max_value=10**9))
def test_decimals_are_exact(whole: int, decimals: int) -> None:
    text = f"{abs(whole)}.{decimals}"
    scale = Fraction(1, 10 ** len(str(decimals)))
    assert parse_number(text) == abs(whole) + decimals * scale


@given(st.integers())
def test_thousands_commas_do_not_matter(value: int) -> None:
    assert parse_number(f"{value:,}") == value


@given(st.text())
def test_any_text_is_a_number_or_not_and_never_an_error(text: str) -> None:
    value = parse_number(text)
    assert value is None or isinstance(value, Fraction)


@given(st.text(), st.text(min_size=1))
def test_a_string_equals_itself_and_grading_is_total(completion: str, reference: str) -> None:
    text = completion.encode("utf-8", "replace").decode()
    wanted = reference.encode("utf-8", "replace").decode()
    if not wanted.strip():
        return
    assert grade(wanted, wanted).reward == 1.0
    assert grade(text, wanted).reward in (0.0, 1.0)


_PLAIN = st.dictionaries(st.text(), st.none() | st.text())


@given(_PLAIN)
def test_both_ways_of_writing_canonical_json_agree(value: dict[str, str | None]) -> None:
    import json  # noqa: PLC0415

    value = {_clean(k): None if v is None else _clean(v) for k, v in value.items()}
    slow = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    assert canonical_json(value) == slow


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
