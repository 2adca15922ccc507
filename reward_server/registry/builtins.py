"""The graders that a fresh server has, with golden cases of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reward_server.schema import Case, Expectation


@dataclass(frozen=True, slots=True)
class BuiltIn:
    name: str
    kind: str
    description: str
    config: Mapping[str, Any] = field(default_factory=dict)
    cases: tuple[Case, ...] = ()


def _case(completion: str, reward: float, reference: Any = None) -> Case:
    return Case(completion=completion, reference=reference, expect=Expectation(reward=reward))


_SUMS = {
    "language": "python",
    "cases": [{"stdin": "1 2\n", "stdout": "3\n"}, {"stdin": "5", "stdout": "5"}],
}
_DOUBLES = {"entry_point": "double", "cases": [{"args": [1], "expected": [1, 1]}]}

BUILT_INS = (
    BuiltIn(
        name="exact",
        kind="exact",
        description="The whole completion equals the reference, surrounding white space apart.",
        cases=(
            _case("Paris", 1.0, "Paris"),
            _case(" Paris\n", 1.0, "Paris"),
            _case("paris", 0.0, "Paris"),
            _case("Paris or London", 0.0, "Paris"),
            _case("", 0.0, "Paris"),
        ),
    ),
    BuiltIn(
        name="math",
        kind="answer",
        description="The final answer in mathematics, by value: boxes, answer tags, stated answers.",
        cases=(
            _case(r"So the answer is $\boxed{\frac{1}{2}}$.", 1.0, "0.5"),
            _case(r"\boxed{(x+1)^2}", 1.0, "x^2+2x+1"),
            _case(r"<think>\boxed{41}</think> <answer>42</answer>", 1.0, "42"),
            _case(r"\boxed{2, 3}", 1.0, "3,2"),
            _case(r"<think>\boxed{42}</think> I give up.", 0.0, "42"),
            _case(r"\boxed{41}, \boxed{42}", 0.0, "42"),
            _case(r"\boxed{42\text{ or }43}", 0.0, "42"),
            _case(r"\boxed{43=42}", 0.0, "42"),
            _case("The number in the problem is 42.", 0.0, "42"),
        ),
    ),
    BuiltIn(
        name="gsm8k",
        kind="answer",
        description="A number after ####, in a box, in an answer tag or after 'the answer is' or 'A:'.",
        config={"extract": ["hash", "boxed", "answer_tag", "statement", "whole"], "form": "number"},
        cases=(
            _case("9+9=18\n#### 18", 1.0, "18"),
            _case("She makes $18.\nA: $18.00", 1.0, "9+9=18\n#### 18"),
            _case("#### 1,234", 1.0, "1234"),
            _case("#### 17\n#### 18", 0.0, "18"),
            _case("#### 9+9", 0.0, "18"),
            _case("She has 18 eggs.", 0.0, "18"),
        ),
    ),
    BuiltIn(
        name="code",
        kind="code",
        description="A program or function that passes every hidden case, in a sandbox.",
        cases=(
            _case("```python\nprint(sum(map(int, input().split())))\n```", 1.0, _SUMS),
            _case("```python\nprint(input())\n```", 0.0, _SUMS),
            _case("```python\nimport os\nos._exit(0)\n```", 0.0, _SUMS),
            _case("I would add the numbers.", 0.0, _SUMS),
            _case("```python\ndef double(x):\n    return [x, x]\n```", 1.0, _DOUBLES),
            _case(
                "```python\nclass Yes(list):\n    def __eq__(self, other):\n        return True\n"
                "def double(x):\n    return Yes()\n```",
                0.0,
                _DOUBLES,
            ),
        ),
    ),
    BuiltIn(
        name="multiple_choice",
        kind="answer",
        description="An option letter, or several: in a tag, a box, a statement, or on the last line.",
        config={
            "compare": "choice",
            "extract": ["answer_tag", "boxed", "hash", "statement", "letter", "whole"],
        },
        cases=(
            _case("The correct option is (C).", 1.0, "C"),
            _case(r"A: no. B: no. \boxed{\text{C}}", 1.0, "C"),
            _case("Answer: C) 12 meters", 1.0, "C"),
            _case(r"\boxed{A, B, C, D}", 0.0, "C"),
            _case("A or C\nAnswer: A or C", 0.0, "C"),
            _case("It could be C, I think.", 0.0, "C"),
        ),
    ),
    BuiltIn(
        name="lean",
        kind="lean",
        description="A Lean 4 file that proves the reference's theorem, replayed by a kernel of its own.",
    ),
    BuiltIn(
        name="format_think",
        kind="format",
        description="<think>…</think> then <answer>…</answer>, each once, and nothing else.",
        config={"template": "think_answer"},
        cases=(
            _case("<think>2+2</think>\n<answer>4</answer>", 1.0),
            _case("<answer>4</answer>", 0.0),
            _case("<think>2+2</think><think>x</think><answer>4</answer>", 0.0),
            _case("<think></think><answer>4</answer>", 0.0),
        ),
    ),
)
