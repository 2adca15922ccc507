"""Kind ``code`` with tests written in Python: what the tests see, and whose fault a failure is."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reward_server.graders.code import tests as written
from reward_server.outcome import Basis, FailureKind, Outcome, Scored, Unscored
from tests.sandboxes.live import Live, live_pool
from tests.sandboxes.needs import needs_bubblewrap

pytestmark = needs_bubblewrap
HUMANEVAL = Path(__file__).parents[3] / "shared" / "data" / "humaneval.jsonl.gz"
ADD = "def add(a, b):\n    return a + b"
WRONG = "def add(a, b):\n    return a - b"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_pool(slots=2) as found:
        yield found


def reference(tests: str, entry_point: str | None = "add", **more: Any) -> dict[str, Any]:
    return {"tests": tests, **({"entry_point": entry_point} if entry_point else {}), **more}


def scored(outcome: Outcome) -> Scored:
    assert isinstance(outcome, Scored), outcome
    return outcome


def block(source: str) -> str:
    return f"```python\n{source}\n```"


# ── the shapes that tests have ───────────────────────────────────────────────────────────────────

SHAPES = {
    "asserts": ("assert add(1, 2) == 3\nassert add(2, 2) == 4", 2),
    "an assert in a loop": ("for n in range(3):\n    assert add(n, 1) == n + 1", 1),
    "check(candidate)": ("def check(candidate):\n    assert candidate(1, 2) == 3", 1),
    "check that is called": (
        "def check(candidate):\n    assert candidate(1, 2) == 3\n\ncheck(add)",
        1,
    ),
    "functions": (
        "def test_one():\n    assert add(1, 2) == 3\ndef test_two():\n    assert add(0, 0) == 0",
        2,
    ),
    "a class": (
        "class TestAdd:\n    def setup_method(self):\n        self.n = 3\n"
        "    def test_one(self):\n        assert add(1, 2) == self.n",
        1,
    ),
    "unittest": (
        "import unittest\nclass Sums(unittest.TestCase):\n    def setUp(self):\n        self.n = 3\n"
        "    def test_one(self):\n        self.assertEqual(add(1, 2), self.n)\n"
        "if __name__ == '__main__':\n    unittest.main()",
        1,
    ),
    "pytest": (
        "import pytest\n@pytest.mark.parametrize('a, b, c', [(1, 2, 3), (2, 2, 4)])\n"
        "def test_add(a, b, c):\n    assert add(a, b) == c",
        1,
    ),
    "a fixture": (
        "import pytest\n@pytest.fixture\ndef three():\n    return 3\n"
        "def test_add(three, tmp_path):\n    assert add(1, 2) == three",
        1,
    ),
    "the only name": ("import math\nassert math.isclose(add(1, 2), 3)", 1),
    "imported": ("from solution import add\ndef test_one():\n    assert add(1, 2) == 3", 1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_each_shape_of_tests_tells_right_from_wrong(live: Live, name: str) -> None:
    tests, count = SHAPES[name]
    given = reference(tests, None if name in ("imported", "the only name") else "add")
    right = scored(live.grade(block(ADD), given))
    assert (right.reward, right.raw["tests"], right.raw["passed"]) == (1.0, count, count)
    assert right.raw["isolation"] == "separate"
    wrong = scored(live.grade(block(WRONG), given))
    assert wrong.reward == 0.0
    assert wrong.raw["first_failure"]["verdict"] == "failed"


def test_the_share_of_tests_that_pass_can_be_the_reward(live: Live) -> None:
    given = reference("assert add(0, 0) == 0\nassert add(1, 2) == 3\nassert add(2, 0) == 2")
    outcome = scored(live.grade(block(WRONG), given, score="share"))
    assert outcome.reward == pytest.approx(2 / 3)
    assert outcome.raw["verdicts"] == ["passed", "failed", "passed"]


def test_each_test_has_a_candidate_of_its_own(live: Live) -> None:
    source = "calls = []\ndef add(a, b):\n    calls.append(1)\n    return len(calls)"
    assert (
        live.reward(block(source), reference("assert add(1, 2) == 1\nassert add(2, 2) == 1")) == 1
    )


def test_further_functions_of_the_candidate(live: Live) -> None:
    source = "def encode(s): return s[::-1]\ndef decode(s): return s[::-1]"
    tests = "assert decode(encode('abc')) == 'abc'\nassert encode('ab') == 'ba'"
    assert live.reward(block(source), reference(tests, "decode", functions=["encode"])) == 1.0


def test_classes_of_the_candidate_have_methods_to_test(live: Live) -> None:
    source = "class Solution:\n    def add(self, a, b):\n        return a + b"
    assert live.reward(block(source), reference("assert candidate(1, 2) == 3", "Solution.add")) == 1


def test_names_come_from_the_prompt_and_not_from_the_candidate(live: Live) -> None:
    prompt = (
        "def poly(xs, x):\n    return sum(c * x**i for i, c in enumerate(xs))\n\n\ndef root(xs):\n"
    )
    tests = "def check(candidate):\n    assert abs(poly([-2, 1], candidate([-2, 1]))) < 1e-6"
    given = reference(tests, "root")
    assert live.reward("    return 2.0", given, prompt=prompt, extract=["whole"]) == 1.0
    lying = "    return 7.0\n\ndef poly(xs, x):\n    return 0.0"
    assert live.reward(lying, given, prompt=prompt, extract=["whole"]) == 0.0
    assert live.reward("    return 2.0", given | {"prefix": prompt}, extract=["whole"]) == 1.0


def test_what_is_defined_nowhere_makes_the_reference_invalid(live: Live) -> None:
    outcome = live.grade(block(ADD), reference("assert helper(add(1, 2)) == 3"))
    assert isinstance(outcome, Unscored)
    assert outcome.kind is FailureKind.INVALID_REFERENCE
    assert "helper" in outcome.detail
    assert "allow_shared" in outcome.detail


# ── values ───────────────────────────────────────────────────────────────────────────────────────

VALUES = [
    "[1, (2, 3), {4}, frozenset([5]), {6: [7]}]",
    "10**3000",
    "float('inf')",
    "1e-320",
    "b'\\x00\\xff'",
    "bytearray(b'x')",
    "2 + 3j",
    "'\\ud800 \\U0001f600'",
    "__import__('decimal').Decimal('1.10')",
    "__import__('fractions').Fraction(1, 3)",
    "__import__('datetime').datetime(2020, 1, 2, 3, 4, 5)",
    "__import__('datetime').date(2020, 1, 2)",
    "__import__('datetime').timedelta(days=1, microseconds=3)",
    "__import__('collections').deque([1, 2])",
    "range(3, 9, 2)",
    "None",
    "True",
]


def test_values_arrive_as_they_are_with_their_types(live: Live) -> None:
    source = "def same(x):\n    return x"
    tests = "\n".join(
        f"x = {v}\nassert same(x) == x\nassert type(same(x)) is type(x)" for v in VALUES
    )
    outcome = scored(live.grade(block(source), reference(tests, "same"), score="share"))
    assert outcome.raw["verdicts"] == ["passed"] * 2 * len(VALUES)


def test_generators_and_views_arrive_as_iterators(live: Live) -> None:
    source = (
        "def f(n):\n    yield from range(n)\ndef g(d):\n    return d.keys()\n"
        "def h(xs):\n    return map(str, xs)"
    )
    tests = "assert list(f(3)) == [0, 1, 2]\nassert sorted(g({2: 1, 1: 1})) == [1, 2]\nassert next(h([5])) == '5'"
    given = reference(tests, "f", functions=["g", "h"])
    assert live.reward(block(source), given) == 1.0


@pytest.mark.parametrize(
    "value",
    [
        "object()",
        "lambda: 3",
        "open('x', 'w')",
        "type('T', (), {'__eq__': lambda s, o: True})()",
        "type('D', (), {'__iter__': lambda s: iter([])})()",
        "__import__('unittest.mock').mock.ANY",
        "10**400_000",
    ],
)
def test_a_value_that_is_no_plain_data_fails_its_test(live: Live, value: str) -> None:
    source = f"def add(a, b):\n    return {value}"
    outcome = scored(
        live.grade(block(source), reference("assert add(1, 2) or True\nassert add(1, 2) == 3"))
    )
    assert outcome.reward == 0.0


def test_exceptions_of_the_candidate_can_be_expected(live: Live) -> None:
    source = "class Own(Exception): pass\ndef f(x):\n    raise {0: ValueError, 1: KeyError, 2: Own}[x]('no ' + str(x))"
    tests = (
        "import pytest\n"
        "def test_it():\n    with pytest.raises(ValueError, match='no 0'):\n        f(0)\n"
        "def test_other():\n    with pytest.raises(KeyError):\n        f(1)\n"
    )
    assert live.reward(block(source), reference(tests, "f")) == 1.0
    by_hand = "try:\n    f(0)\n    assert False\nexcept ValueError as e:\n    assert 'no' in str(e)"
    assert live.reward(block(source), reference(by_hand, "f")) == 1.0
    assert live.reward(block("def f(x): return 1"), reference(by_hand, "f")) == 0.0
    assert live.reward(block(source), reference("assert f(2) == 1", "f")) == 0.0


@pytest.mark.parametrize(
    "body", ["os._exit(0)", "sys.exit(0)", "os.kill(os.getpid(), 9)", "return os"]
)
@pytest.mark.parametrize("catch", ["Exception", "BaseException", ""])
def test_a_test_that_catches_everything_does_not_hide_how_the_candidate_ended(
    live: Live, body: str, catch: str
) -> None:
    tests = f"try:\n    assert add(1, 2) == 3\nexcept {catch}:\n    pass".replace(
        "except :", "except:"
    )
    source = f"import os, sys\ndef add(a, b):\n    {body}"
    assert live.reward(block(source), reference(tests)) == 0.0


# ── limits, and whose fault it is ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("while True: pass", "time_limit"),
        ("__import__('time').sleep(60)", "time_limit"),
        ("return [0] * 10**9", "memory_limit"),
        ("return 'x' * 10**7", "runtime_error"),
        ("print('x' * 10**7)", "output_limit"),
        ("return add(a, b)", "failed"),
    ],
)
def test_what_the_candidate_does_to_itself_scores_0(live: Live, body: str, word: str) -> None:
    limits = {"cpu_s": 0.7, "wall_s": 3.0, "output_kb": 64}
    source = f"def add(a, b):\n    {body}"
    outcome = scored(live.grade(block(source), reference("assert add(1, 2) == 3", limits=limits)))
    assert outcome.reward == 0.0
    assert outcome.raw["verdicts"] == [word]
    assert (outcome.basis is Basis.LIMIT) == word.endswith("_limit")


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ("def", "parsed"),
        ("x = 1", "no tests"),
        ("assert 1 == 2\nassert add(1, 2) == 3", "line 1: assert 1 == 2"),
        ("raise ValueError('set-up')\nassert add(1, 2) == 3", "ValueError: set-up"),
        ("assert add(object(), 2) == 3", "an argument of add"),
    ],
)
def test_broken_tests_leave_the_item_unscored(live: Live, tests: str, words: str) -> None:
    for completion in (ADD, WRONG, "def add(a, b): raise SystemExit"):
        outcome = live.grade(block(completion), reference(tests))
        assert isinstance(outcome, Unscored)
        assert outcome.kind is FailureKind.INVALID_REFERENCE
        assert words in outcome.detail


def test_a_module_that_is_not_installed_leaves_the_item_unscored(live: Live) -> None:
    outcome = live.grade(block(ADD), reference("import no_such_module\nassert add(1, 2) == 3"))
    assert isinstance(outcome, Unscored)
    assert outcome.kind is FailureKind.SANDBOX_UNAVAILABLE
    assert "no_such_module" in outcome.detail


@pytest.mark.parametrize("source", ["def add(a, b)", "import no_such_module", "x = 1", "1 / 0"])
def test_a_candidate_that_does_not_load_scores_0(live: Live, source: str) -> None:
    outcome = scored(live.grade(block(source), reference("assert add(1, 2) == 3")))
    assert outcome.reward == 0.0


def test_what_was_expected_is_shown_only_where_the_config_says_so(live: Live) -> None:
    given = reference("assert add(20, 22) == 42")
    for reveal, shown in (("public", False), ("all", True)):
        outcome = scored(live.grade(block(WRONG), given, reveal=reveal))
        assert ("42" in json.dumps(outcome.raw["first_failure"])) is shown


# ── live objects ─────────────────────────────────────────────────────────────────────────────────

STACK = """
class Stack:
    def __init__(self):
        self.items = []
    def push(self, x):
        self.items.append(x)
    def pop(self):
        return self.items.pop()
"""


def test_of_several_unknown_names_none_is_taken_for_the_candidates() -> None:
    with pytest.raises(written.BadTests, match="entry_point"):
        written.plan("assert abs(poly(find_zero(1))) < 1", (), "")
    found = written.plan("assert abs(poly(find_zero(1))) < 1", (), "def poly(x):\n    return x\n")
    assert found.functions == ("find_zero",)
    assert found.prompt_names == ("poly",)


def test_live_objects_need_to_be_allowed_beforehand(live: Live) -> None:
    tests = "s = Stack()\ns.push(1)\nassert s.pop() == 1"
    given = reference(tests, "Stack", allow_shared=True)
    right = scored(live.grade(block(STACK), given))
    assert (right.reward, right.raw["isolation"]) == (1.0, "shared")
    assert live.reward(block(STACK.replace("pop()", "pop() + 1")), given) == 0.0
    assert (
        live.reward(block(STACK), reference(tests, "Stack")) == 0.0
    )  # its instance is no plain data


def test_functions_are_passed_to_a_candidate_that_shares_the_process(live: Live) -> None:
    source = "def twice(f, x):\n    return f(f(x))"
    tests = "assert twice(lambda x: x + 1, 1) == 3"
    assert live.reward(block(source), reference(tests, "twice", allow_shared=True)) == 1.0
    refused = live.grade(block(source), reference(tests, "twice"))
    assert isinstance(refused, Unscored)
    assert refused.kind is FailureKind.INVALID_REFERENCE
    assert "allow_shared" in refused.detail


# ── which tests there are ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import random\nrandom.seed(1)\nprint('x')\nassert f(1)", ["line 4"]),
        ("x = 1\nassert f(x)\nx = 2\nassert f(x)", ["line 2", "line 4"]),
        ("def helper(): assert f(1)\nhelper()", ["line 2"]),
        ("def test_a(): assert f(1)\ntest_a()", ["line 2"]),
        ("def check(candidate): pass\ndef check(candidate): assert candidate(1)", ["check"]),
        ("class TestX:\n  def test_a(self): pass\n  def help(self): pass", ["TestX.test_a"]),
        ("if __name__ == '__main__':\n  assert f(1)\nassert f(2)", ["line 3"]),
        ("with open('x') as g:\n  assert f(g.read())", ["line 1"]),
    ],
)
def test_what_is_a_test(source: str, names: list[str]) -> None:
    found = written.plan(source, ("f",), "")
    assert [t.name for t in found.tests] == names


# ── HumanEval ────────────────────────────────────────────────────────────────────────────────────

needs_humaneval = pytest.mark.skipif(not HUMANEVAL.exists(), reason="HumanEval is not here")


def humaneval() -> list[dict[str, Any]]:
    with gzip.open(HUMANEVAL, "rt") as file:
        return [json.loads(line) for line in file]


def verdicts(live: Live, body: Any) -> list[float]:
    """The reward of ``body(task)`` for each task."""
    rewards = []
    for task in humaneval():
        given = {
            "tests": task["test"],
            "entry_point": task["entry_point"],
            "prefix": task["prompt"],
        }
        rewards.append(live.reward(body(task), given, extract=["whole"]))
    return rewards


@needs_humaneval
def test_every_canonical_solution_of_humaneval_passes_in_separate_processes(live: Live) -> None:
    outcomes = [
        scored(
            live.grade(
                task["canonical_solution"],
                {
                    "tests": task["test"],
                    "entry_point": task["entry_point"],
                    "prefix": task["prompt"],
                },
                extract=["whole"],
            )
        )
        for task in humaneval()
    ]
    assert [o.reward for o in outcomes] == [1.0] * 164
    assert {o.raw["isolation"] for o in outcomes} == {"separate"}


LIAR = """
class {name}({base}):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = lambda self, other: True
    __bool__ = lambda self: True
    __len__ = lambda self: 1
    __hash__ = lambda self: 0
    __sub__ = __rsub__ = __add__ = __radd__ = lambda self, other: self
    __abs__ = __neg__ = lambda self: self
"""
CHEATS = {
    "pass": "    pass\n",
    "exits": "    import os\n    os._exit(0)\n",
    "leaves": "    import sys\n    sys.exit(0)\n",
    "equal to everything": LIAR.format(name="Liar", base="object") + "\ndef {entry}(*a, **k):\n    return Liar()\n",
    "a list that lies": LIAR.format(name="Liar", base="list") + "\ndef {entry}(*a, **k):\n    return Liar()\n",
    "an int that lies": LIAR.format(name="Liar", base="int") + "\ndef {entry}(*a, **k):\n    return Liar(10**6 + 3)\n",
    "patches frames": """
import sys
def {entry}(*a, **k):
    f = sys._getframe()
    while f is not None:
        for n in list(f.f_globals):
            if n in ("check", "candidate", "outcome_of", "answer_calls"):
                f.f_globals[n] = lambda *a, **k: ("passed", "")
        f = f.f_back
""",
    "forges a result": """
import os
def {entry}(*a, **k):
    line = b'{{"$dict":[["test",0],["outcome","passed"],["detail",""]]}}'
    for fd in range(3, 64):
        try:
            os.write(fd, line)
        except OSError:
            pass
    os._exit(0)
""",
}  # fmt: skip


@needs_humaneval
@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_passes_any_task_of_humaneval(live: Live, name: str) -> None:
    cheat = CHEATS[name]

    def body(task: dict[str, Any]) -> str:
        if cheat.startswith("    "):
            return cheat
        return "    pass\n" + cheat.replace("{entry}", task["entry_point"]).replace(
            "{{", "{"
        ).replace("}}", "}")

    assert sum(verdicts(live, body)) == 0
