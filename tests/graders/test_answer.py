"""Kind ``answer``: what is found, what equals what, and what the options change."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from reward_server.graders.answer.numbers import from_chinese, from_words
from reward_server.graders.answer.reading import read
from reward_server.graders.base import Digest, PureGrader, Spec, View, canonical_json
from reward_server.graders.catalog import CATALOG
from reward_server.graders.visible import hide_reasoning
from reward_server.outcome import Basis, CannotScore, FailureKind, Scored
from reward_server.registry.builtins import BUILT_INS
from tests.graders.answer_completions import COMPLETIONS
from tests.graders.answer_families import FAMILIES
from tests.graders.answer_verdicts import VERDICTS


def grader(**config: Any) -> PureGrader:
    built = CATALOG.build(Spec("answer", canonical_json(config), Digest("sha256:test")))
    assert isinstance(built, PureGrader)
    return built


MATH = grader()


def grade(completion: str, reference: Any, prompt: Any = None, **config: Any) -> Scored:
    made = grader(**config) if config else MATH
    assert made.reference_problem(reference) is None
    return made.grade(View(completion=completion, reference=reference, prompt=prompt))


def equal(reference: Any, answer: str, **config: Any) -> bool:
    return grade(rf"\boxed{{{answer}}}", reference, **config).reward == 1.0


@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_of_the_family_is_judged_right(family: str) -> None:
    wrong = []
    for reference, answer, expected in FAMILIES[family]:
        if equal(reference, answer) is not expected:
            wrong.append((reference, answer, expected))
    assert wrong == []


@pytest.mark.parametrize(("reference", "completion", "accepted", "kind"), COMPLETIONS)
def test_the_completion_is_accepted_or_not(
    reference: str, completion: str, accepted: bool, kind: str
) -> None:
    scored = grade(completion, reference)
    assert scored.reward == float(accepted), (kind, scored.raw)


def test_raw_says_what_was_found_by_which_rule_and_where() -> None:
    completion = r"Since 1/2 is a half, the answer is $\boxed{\frac{1}{2}}$."
    raw = grade(completion, "0.5").raw
    start, end = raw["span"]
    assert completion[start:end] == raw["extracted"] == r"\frac{1}{2}"
    assert (raw["rule"], raw["outcome"], raw["layer"]) == ("boxed", "equal", "number")
    assert (raw["normal"], raw["reference_normal"]) == (r"\frac{1}{2}", "0.5")


@pytest.mark.parametrize(
    ("completion", "reference", "outcome", "layer"),
    [
        (r"\boxed{42}", "42", "equal", "text"),
        (r"\boxed{42.0}", "42", "equal", "number"),
        (r"\boxed{2\sqrt{3}}", r"\sqrt{12}", "equal", "algebra"),
        (r"\boxed{3,2}", "2,3", "equal", "structure"),
        (r"\boxed{\sec^2 y}", r"\tan^2 y+1", "equal", "symbolic"),
        (r"\boxed{\cos y}", r"\sin y", "different", "numeric"),
        (r"\boxed{41}", "42", "different", "number"),
        ("I cannot tell what it is.\nSorry.", "42", "no_answer", None),
        (r"\boxed{41, 42}", "42", "ambiguous", "structure"),
        (r"\boxed{2^{2^{2^{49}}}}", "1", "undecided", "symbolic"),
    ],
)
def test_the_outcome_and_the_layer_that_decided(
    completion: str, reference: str, outcome: str, layer: str | None
) -> None:
    scored = grade(completion, reference)
    assert (scored.raw["outcome"], scored.raw["layer"]) == (outcome, layer)
    assert scored.reward == float(outcome == "equal")
    expected = Basis.UNDECIDED if outcome == "undecided" else Basis.VERDICT
    assert scored.basis is expected


@pytest.mark.parametrize(
    "reference", ["", "  ", r"\frac{1}{", "x^^2", "(((", "1+", r"\boxed{", "9" * 3000, "$$"]
)
def test_an_unreadable_reference_is_unscored_whatever_the_completion(reference: str) -> None:
    for completion in (r"\boxed{42}", "no answer here\nat all", reference):
        with pytest.raises(CannotScore) as caught:
            grade(completion, reference)
        assert caught.value.kind is FailureKind.INVALID_REFERENCE


@pytest.mark.parametrize(
    "reference",
    [
        None,
        True,
        [],
        {"answer": []} | {"tolerence": 1},
        {"tolerance": {}},
        [["1"]],
        {"answer": None},
    ],
)
def test_a_reference_of_the_wrong_shape_is_refused(reference: Any) -> None:
    assert MATH.reference_problem(reference) is not None


@pytest.mark.parametrize(
    ("reference", "answer", "config", "expected"),
    [
        # several accepted answers
        (["7", "8"], "8", {}, True),
        (["7", "8"], "9", {}, False),
        ({"answer": ["7", r"\frac{1}{2}"]}, "0.5", {}, True),
        # numbers as JSON
        (42, "42", {}, True),
        (0.1, "0.1", {}, True),
        (0.1, r"\frac{1}{10}", {}, True),
        # a letter is a unit where the reference has one
        ("5 km", "5000 m", {}, True),
        ("5 km", "5 m", {}, False),
        ("15米", "15 m", {}, True),
        ("5m", "5 m", {}, True),
        # a solution as the reference
        ("9+9=18\n#### 18", "18", {}, True),
        # tolerance
        ("3.14", "3.14159", {}, False),
        ("3.14", "3.14159", {"tolerance": {"absolute": 0.01}}, True),
        ("3.14", "3.16", {"tolerance": {"absolute": 0.01}}, False),
        ("3.14", "3.15", {"tolerance": {"absolute": 0.01}}, True),
        ("200", "201", {"tolerance": {"relative": 0.005}}, True),
        ("200", "201.1", {"tolerance": {"relative": 0.005}}, False),
        ({"answer": r"3\sqrt{2}", "tolerance": {"absolute": 1e-4}}, "4.24264", {}, True),
        ({"answer": "1", "tolerance": {"absolute": 0.0}}, "1.5", {"tolerance": {"absolute": 1}}, False),
        # order
        ("1,2", "2,1", {}, True),
        ("1,2", "2,1", {"ordered": True}, False),
        ({"answer": "1,2", "ordered": True}, "2,1", {}, False),
        # percent
        (r"50\%", "50", {}, True),
        (r"50\%", "0.5", {}, True),
        (r"50\%", "50", {"percent": "strict"}, False),
        (r"50\%", r"50\%", {"percent": "strict"}, True),
        ("50", r"50\%", {}, False),
        ("0.5", r"50\%", {}, True),
        ("0.5", r"50\%", {"percent": "strict"}, False),
        ("50", r"50\%", {"percent": "ignore"}, True),
        # case
        (r"\text{Monday}", "monday", {}, True),
        (r"Monday", "monday", {"case_sensitive": True}, False),
        # form
        ("1/2", r"\frac{2}{4}", {}, True),
        ("1/2", r"\frac{2}{4}", {"form": "simplified"}, False),
        ("1/2", "0.5", {"form": "simplified"}, True),
        ("1/2", r"\frac{1}{2}", {"form": "simplified"}, True),
        (r"2\sqrt{3}", r"\sqrt{12}", {"form": "simplified"}, False),
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}", {"form": "simplified"}, False),
        ("2.5", r"2\frac{1}{2}", {"form": "simplified"}, True),
        ("42", "40+2", {"form": "simplified"}, False),
        ("42", r"6\cdot 7", {"form": "number"}, False),
        ("42", r"\$42", {"form": "number"}, True),
        ("120", "5!", {"form": "simplified"}, False),
        ("(x-1)(x+1)", "x^2-1", {"form": "factored"}, False),
        ("(x-1)(x+1)", "(x+1)(x-1)", {"form": "factored"}, True),
        ("x^2-1", "(x+1)(x-1)", {"form": "expanded"}, False),
        ("(x-1)(x+1)", r"1\cdot(x^2-1)", {"form": "factored"}, False),
        ("(x-1)(x+1)", "(x^2-1)^1", {"form": "factored"}, False),
        ("(x-1)(x+1)", r"\frac{x^2-1}{1}", {"form": "factored"}, False),
        ("x^2+2x+1", "(x+1)^2", {"form": "factored"}, True),
        ("2x", "x+x", {"form": "simplified"}, False),
        ("x", "x^1", {"form": "simplified"}, False),
        ("x", "1x", {"form": "simplified"}, False),
        ("x^2", r"x\cdot x", {"form": "simplified"}, False),
        ("x/2", r"\frac{2x}{4}", {"form": "simplified"}, False),
        ("1/2", r"\frac{2x}{4x}", {"form": "simplified"}, False),
        ("x/2", r"\frac{x}{2}", {"form": "simplified"}, True),
        ("2x+1", "1+2x", {"form": "simplified"}, True),
        ("0.5", "5.0e-1", {"decimal_places": 2}, False),
        # words keep their case where that is asked for
        ("Paris", r"\text{Paris}", {"case_sensitive": True}, True),
        # a tolerance and the order of a list; ratios are exact
        ("3,2", "2,4", {"tolerance": {"absolute": 1}}, True),
        ("1:2", "0.001:0.05", {"tolerance": {"absolute": 0.1}}, False),
        ({"answer": "x^2-1", "form": "expanded"}, "-1+x^2", {}, True),
        ("1.5", "1.50", {"decimal_places": 2}, True),
        ("1.5", "1.5", {"decimal_places": 2}, False),
        ("1.5", r"\frac{3}{2}", {"decimal_places": 2}, False),
    ],
)  # fmt: skip
def test_options(reference: Any, answer: str, config: dict[str, Any], expected: bool) -> None:
    assert equal(reference, answer, **config) is expected


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (["boxed", "hash"], "1"),
        (["hash", "boxed"], "2"),
        (["statement"], "3"),
        (["answer_tag"], None),
    ],
)
def test_the_order_of_the_rules_is_the_configs(order: list[str], expected: str | None) -> None:
    completion = "The answer is 3.\n#### 2\nIn a box: $\\boxed{1}$"
    raw = grade(completion, "0", extract=order).raw
    assert raw["extracted"] == expected


def test_an_answer_that_only_restates_the_task_is_not_rewarded() -> None:
    prompt = r"Compute $\sqrt{144} + 2^3$ and give the answer in a box."
    assert grade(r"\boxed{\sqrt{144} + 2^3}", "20", prompt).reward == 0.0
    assert grade(r"\boxed{\sqrt{144}+2^3}", "20", prompt).raw["reason"].startswith("it restates")
    assert grade(r"\boxed{20}", "20", prompt).reward == 1.0
    assert grade(r"\boxed{12+8}", "20", prompt).reward == 1.0
    messages = [{"role": "user", "content": r"Factor $x^2-1$."}]
    assert grade(r"\boxed{x^2-1}", "(x-1)(x+1)", messages).reward == 0.0


def test_a_percent_sign_is_fine_where_the_prompt_asks_for_a_percentage() -> None:
    assert grade(r"\boxed{50\%}", "50", "What percent of 4 is 2?").reward == 1.0
    assert grade(r"\boxed{50\%}", "50", "How many are there?").reward == 0.0


def test_what_the_prompt_asks_for_may_stand_before_its_value() -> None:
    prompt = "Let m/n be in lowest terms. Find $m + n$."
    assert grade(r"\boxed{m+n=42}", "42", prompt).reward == 1.0
    assert grade(r"\boxed{m+n=43}", "42", prompt).reward == 0.0
    assert grade(r"\boxed{x+1=42}", "42", prompt).reward == 0.0
    assert grade(r"\boxed{m+n=42}", "42").reward == 0.0


def test_what_is_counted_may_be_named_by_the_prompt() -> None:
    prompt = "How many red marble bags are there?"
    assert grade(r"\boxed{5\text{ marble bags}}", "5", prompt).reward == 1.0
    assert grade(r"\boxed{5\text{ rejected bags}}", "5", prompt).reward == 0.0


def test_the_echoed_prompt_is_no_answer() -> None:
    prompt = r"Example: 6*7. The answer is \boxed{42}. Now do the next one: what is 21*2?"
    assert grade(prompt + "\nI cannot.", "42", prompt).raw["outcome"] == "no_answer"
    assert grade(prompt + "\n\\boxed{42}", "42", prompt).reward == 1.0


@pytest.mark.parametrize(
    ("completion", "reference", "expected"),
    [
        ("Answer: C", "C", 1),
        ("The correct option is **(B)**.", "B", 1),
        ("(D)", "(D)", 1),
        ("Let me see.\n\nC", r"\text{(C)}", 1),
        (r"\boxed{\text{C}}", "C", 1),
        (r"\boxed{C. \ 12}", "C", 1),
        ("Answer: A, C", "AC", 1),
        ("Answer: C and A", "A,C", 1),
        ("答案：C", "C", 1),
        ("Reasons.\nTherefore, option C is the correct one.", "C", 1),
        ("So (C) is correct.", "C", 1),
        ("A is wrong. Thus C is right.", "C", 1),
        ("A is correct and C is correct.", "C", 0),
        ("C is not the correct answer.", "C", 0),
        ("Answer: A) wrong", "A", 0),
        ("Answer: A: is incorrect", "A", 0),
        ("Answer: A) but B is better", "A", 0),
        ("Answer: A) B is also right", "A", 0),
        ("Answer: A, or perhaps option b", "A", 0),
        ("Answer: A: (or b)", "A", 0),
        ("Answer: A – neither", "A", 0),
        ("The answer is A. Definitely not this one, it is B", "A", 0),
        ("The answer is A) 5\nB) 6", "A", 0),
        ("Not A is correct", "A", 0),
        ("It is not true that A is correct", "A", 0),
        ("A is correct? No, B is.", "A", 0),
        ("Answer: BAD", "ABD", 0),
        ("Answer: DAD", "AD", 0),
        ("Answer: A", "AC", 0),
        ("Answer: A, B, C, D", "C", 0),
        ("Answer: A) 5 B) 6 C) 7", "A", 0),
        ("Answer: C or D", "C", 0),
        ("Answer: \u0421", "C", 0),  # Cyrillic
        ("Answer: not C", "C", 0),
        ("I like C best, but who knows", "C", 0),
        ("Call it C++", "C", 0),
    ],
)
def test_multiple_choice(completion: str, reference: str, expected: float) -> None:
    config = next(dict(b.config) for b in BUILT_INS if b.name == "multiple_choice")
    assert grade(completion, reference, **config).reward == expected


@pytest.mark.parametrize(("name", "reference", "completion", "reward"), VERDICTS)
def test_the_built_in_gives(name: str, reference: str, completion: str, reward: int) -> None:
    config = next(dict(b.config) for b in BUILT_INS if b.name == name)
    assert grade(completion, reference, **config).reward == reward


@pytest.mark.parametrize("name", ["math", "gsm8k", "multiple_choice"])
def test_the_golden_cases_of_the_built_in_pass(name: str) -> None:
    built_in = next(b for b in BUILT_INS if b.name == name)
    for case in built_in.cases:
        assert case.expect.reward is not None
        scored = grade(case.completion, case.reference, **dict(built_in.config))  # type: ignore[arg-type]
        assert scored.reward == case.expect.reward, case.completion


def test_reasoning_is_hidden_without_moving_what_is_left() -> None:
    text = r"<think>\boxed{1}</think> so \boxed{2}"
    hidden = hide_reasoning(text)
    assert len(hidden) == len(text)
    assert hidden.index(r"\boxed{2}") == text.index(r"\boxed{2}")
    assert r"\boxed{1}" not in hidden


_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "kinds" / "answer.md"


@pytest.mark.parametrize(("heading", "reward"), [("What is accepted", 1.0), ("What is not", 0.0)])
def test_the_tables_of_the_manual_are_true(heading: str, reward: float) -> None:
    table = _PAGE.read_text().split(f"## {heading}\n")[1].split("\n#")[0]
    checked = 0
    for row in re.findall(r"^\| `.*$", table, re.MULTILINE):
        reference, answers = (c.replace("\\|", "|") for c in re.split(r"(?<!\\)\|", row)[1:3])
        for answer in re.findall("`([^`]+)`", answers):
            assert grade(rf"\boxed{{{answer}}}", reference.strip(" `")).reward == reward, row
            checked += 1
    assert checked > 30


# ── properties ───────────────────────────────────────────────────────────────────────────────────

numbers = st.one_of(
    st.integers(-(10**12), 10**12).map(str),
    st.decimals(-(10**6), 10**6, places=3).map(str),
    st.builds(lambda a, b: rf"\frac{{{a}}}{{{b}}}", st.integers(0, 10**6), st.integers(1, 10**6)),
)
variables = st.sampled_from(["x", "y", "a", r"\pi", r"\sqrt{2}", r"\sqrt{5}", "i"])
terms = st.builds(
    lambda n, v, p: f"{n}{v}^{{{p}}}", st.integers(2, 99), variables, st.integers(1, 4)
)
expressions = st.lists(terms, min_size=1, max_size=4).map(" + ".join)
answers = st.one_of(
    numbers,
    expressions,
    st.lists(numbers, min_size=2, max_size=4).map(", ".join),
    st.lists(numbers, min_size=2, max_size=3).map(lambda x: "(" + ", ".join(x) + ")"),
    st.builds(lambda a, b: f"x = {a} + {b}", numbers, numbers),
    st.builds(lambda a: f"x > {a}", numbers),
    st.builds(lambda a, b: rf"\begin{{pmatrix}}{a}\\{b}\end{{pmatrix}}", numbers, numbers),
)


@given(answers)
@settings(max_examples=150, deadline=None)
def test_everything_equals_itself(answer: str) -> None:
    assert equal(answer, answer)


@given(st.one_of(numbers, expressions), st.one_of(numbers, expressions))
@settings(max_examples=150, deadline=None)
def test_equality_of_scalars_is_symmetric(a: str, b: str) -> None:
    assert equal(a, b) is equal(b, a)


def _rewritten(answer: str, how: int) -> str:
    match how:
        case 0:
            return re.sub(r"(?<!,) ", "", answer)  # "3,100" is another number than "3, 100"
        case 1:
            return answer.replace("+", " + ").replace(",", ", ")
        case 2:
            return answer.replace(r"\frac", r"\dfrac")
        case 3:
            return answer.replace("(", r"\left(").replace(")", r"\right)")
        case 4:
            return f"${answer}$."
        case 5:
            return rf"\displaystyle {answer}\,"
        case _:
            return rf"\boxed{{{answer}}}"


@given(answers, st.integers(0, 6))
@settings(max_examples=250, deadline=None)
def test_harmless_rewriting_changes_nothing(answer: str, how: int) -> None:
    assert equal(answer, _rewritten(answer, how))


@given(expressions, st.randoms())
@settings(max_examples=100, deadline=None)
def test_the_order_of_terms_does_not_matter(expression: str, random: Any) -> None:
    parts = expression.split(" + ")
    random.shuffle(parts)
    assert equal(expression, " + ".join(parts))


@given(st.integers(-(10**15), 10**15), st.integers(0, 20), st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_a_perturbed_number_is_never_equal(number: int, place: int, by: int) -> None:
    value = Fraction(number, 10**6)
    perturbed = value + Fraction(by, 10**place)
    for text in (
        _decimal(perturbed),
        rf"\frac{{{perturbed.numerator}}}{{{perturbed.denominator}}}",
    ):
        assert not equal(_decimal(value), text)


def _decimal(value: Fraction) -> str:
    scaled = value * 10**20
    assert scaled.denominator == 1
    digits = str(abs(scaled.numerator)).rjust(21, "0")
    return ("-" if value < 0 else "") + digits[:-20] + "." + digits[-20:]


@given(expressions, st.integers(2, 99))
@settings(max_examples=100, deadline=None)
def test_an_expression_with_one_more_term_is_another(expression: str, number: int) -> None:
    assert not equal(expression, f"{expression} + {number}z")
    assert not equal(expression, f"{number}({expression})")


@given(st.text(max_size=300))
@settings(max_examples=400, deadline=None)
def test_any_text_is_read_and_graded_without_an_error(text: str) -> None:
    read(text)
    for completion in (text, rf"\boxed{{{text}}}", f"#### {text}", f"<answer>{text}</answer>"):
        scored = grade(completion, "42")
        json.dumps(dict(scored.raw))


latexish = st.lists(
    st.sampled_from(
        r"\frac \sqrt { } [ ] ( ) ^ _ + - * / = < > | ! , ; : . 1 2 42 x y \pi \infty \pm \cup \{ \} "
        r"\left \right \text \begin{pmatrix} \end{pmatrix} \sum \log \sin % \% $ ' \circ & \\ or and".split()
    ),
    max_size=25,
).map(" ".join)


@given(latexish)
@settings(max_examples=400, deadline=None)
def test_any_heap_of_tokens_is_graded_without_an_error(text: str) -> None:
    assert grade(f"<answer>{text}</answer>", r"\sqrt{7}+1").reward == 0.0
    if read(text).thing is not None:
        assert grade(f"<answer>{text}</answer>", text).reward == 1.0


@given(st.integers(0, 999_999_999))
@settings(max_examples=200)
def test_numbers_in_words_are_read_as_they_are_spelled(number: int) -> None:
    assert from_words(_spelled(number).split()) == number


def _spelled(number: int) -> str:
    ones = (
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
        "sixteen seventeen eighteen nineteen"
    ).split()
    tens = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()
    if number < 20:
        return ones[number]
    if number < 100:
        return tens[number // 10] + (f" {ones[number % 10]}" if number % 10 else "")
    for size, name in ((10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = number % size
            return f"{_spelled(number // size)} {name}" + (f" {_spelled(rest)}" if rest else "")
    raise AssertionError


@pytest.mark.parametrize(
    ("text", "value"),
    [("三", 3), ("十", 10), ("二十一", 21), ("三百零五", 305), ("一万二千", 12000), ("二〇二四", 2024),
     ("负三", -3), ("二分之一", Fraction(1, 2)), ("三点一四", Fraction(157, 50)), ("三亿", 300_000_000)],
)  # fmt: skip
def test_chinese_numerals(text: str, value: Fraction) -> None:
    assert from_chinese(text) == value
