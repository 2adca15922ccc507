"""Kind ``code``: what programs and functions are paid for, and what they are not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from reward_server.graders.code import outputs, results
from reward_server.graders.code.extraction import extract
from reward_server.graders.code.kind import CodeGrader
from reward_server.graders.code.reference import names_of
from reward_server.outcome import Basis, FailureKind, Scored, Unscored
from sandboxes import languages, values
from sandboxes.program import Execution, Report, SandboxLost, Submission, Verdict
from tests.sandboxes.live import Live, live_pool
from tests.sandboxes.needs import needs_bubblewrap

PYTHON = names_of("python")
SUMS = {"cases": [{"stdin": "1 2", "stdout": "3"}, {"stdin": "4 5", "stdout": "9", "weight": 3}]}
ADD = "```python\nprint(sum(map(int, input().split())))\n```"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_pool() as found:
        yield found


def python(source: str) -> str:
    return f"Here it is:\n```python\n{source}\n```\nDone."


# ── programs ─────────────────────────────────────────────────────────────────────────────────────


@needs_bubblewrap
def test_a_right_program_is_paid_and_a_wrong_one_is_not(live: Live) -> None:
    assert live.reward(ADD, SUMS) == 1.0
    assert live.reward(python("print(3)"), SUMS) == 0.0


@needs_bubblewrap
def test_the_share_of_weight_that_passes_can_be_the_reward(live: Live) -> None:
    assert live.reward(python("print(3)"), SUMS, score="share") == 0.25
    assert live.reward(python("print(9)"), SUMS, score="share") == 0.75


@needs_bubblewrap
@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("import os\nos._exit(0)", "wrong"),
        ("raise SystemExit", "wrong"),
        ("raise ValueError", "runtime_error"),
        ("while True: pass", "time_limit"),
        ("x = [0] * 10**9", "memory_limit"),
        ("while True: print('3' * 1000)", "output_limit"),
        ("open('x', 'wb').write(bytes(10**8))", "disk_limit"),
        ("import time\ntime.sleep(100)", "time_limit"),
        ("def", "runtime_error"),
    ],
)
def test_what_a_program_does_to_itself_scores_0(live: Live, source: str, word: str) -> None:
    reference = {**SUMS, "limits": {"cpu_s": 0.5, "wall_s": 1.0, "output_kb": 64, "disk_mb": 8}}
    outcome = live.grade(python(source), reference)
    assert isinstance(outcome, Scored)
    assert outcome.reward == 0.0
    assert outcome.raw["verdicts"] == [word]
    limit = word.endswith("_limit")
    assert outcome.basis is (Basis.LIMIT if limit else Basis.VERDICT)


@needs_bubblewrap
@pytest.mark.parametrize(
    ("language", "source"),
    [
        (
            "c",
            '#include <stdio.h>\nint main(void){int a,b;scanf("%d %d",&a,&b);printf("%d\\n",a+b);}',
        ),
        ("cpp", "#include <iostream>\nint main(){int a,b;std::cin>>a>>b;std::cout<<a+b;}"),
        ("bash", "read a b\necho $((a+b))"),
        (
            "javascript",
            "console.log(require('fs').readFileSync(0,'utf8').split(' ').map(Number).reduce((a,b)=>a+b))",
        ),
        (
            "java",
            "import java.util.*;\npublic class Main{public static void main(String[] x){Scanner s=new Scanner("
            "System.in);System.out.println(s.nextInt()+s.nextInt());}}",
        ),
    ],
)
def test_languages(live: Live, language: str, source: str) -> None:
    if languages.installed(language) is None:
        pytest.skip(f"{language} is not installed")
    reference = {**SUMS, "language": language, "limits": {"cpu_s": 5.0}}
    assert live.reward(f"```{language}\n{source}\n```", reference) == 1.0
    assert live.reward(f"```{language}\n{source.replace('+', '-')}\n```", reference) == 0.0


@needs_bubblewrap
def test_a_program_that_does_not_compile_scores_0_and_shows_why(live: Live) -> None:
    outcome = live.grade("```c\nint main(void) { return x; }\n```", {**SUMS, "language": "c"})
    assert isinstance(outcome, Scored)
    assert outcome.reward == 0.0
    assert outcome.raw["outcome"] == "compile_error"
    assert "undeclared" in outcome.raw["stderr"]


@needs_bubblewrap
def test_a_missing_language_is_unscored_and_says_what_to_install(live: Live) -> None:
    missing = next((n for n in ("rust", "go") if languages.installed(n) is None), None)
    if missing is None:
        pytest.skip("every language is installed")
    outcome = live.grade(f"```{missing}\nx\n```", {**SUMS, "language": missing})
    assert isinstance(outcome, Unscored)
    assert outcome.kind is FailureKind.SANDBOX_UNAVAILABLE
    assert "apt-get install" in outcome.detail


@needs_bubblewrap
def test_a_missing_protection_is_unscored(live: Live) -> None:
    class Bare:
        async def active(self) -> tuple[str, ...]:
            return ("namespaces",)

    outcome = live.grade(ADD, SUMS, sandbox=Bare())
    assert isinstance(outcome, Unscored)
    assert outcome.kind is FailureKind.SANDBOX_UNAVAILABLE
    assert "seccomp" in outcome.detail


# ── functions ────────────────────────────────────────────────────────────────────────────────────


def calls(*cases: tuple[list[Any], Any]) -> dict[str, Any]:
    return {"entry_point": "f", "cases": [{"args": a, "expected": e} for a, e in cases]}


@needs_bubblewrap
@pytest.mark.parametrize(
    ("source", "expected", "reward"),
    [
        ("def f(x): return [x, x]", [1, 1], 1),
        ("def f(x): return (x, x)", [1, 1], 1),
        ("def f(x): return [x, x]", {"$tuple": [1, 1]}, 0),
        ("def f(x): return {x: 'a'}", {"1": "a"}, 1),
        ("def f(x): return {x, 2}", {"$set": [2, 1]}, 1),
        ("def f(x): return float('nan')", {"$float": "nan"}, 1),
        ("def f(x): return float('nan')", 1.0, 0),
        ("def f(x): return 10**5000", 1, 0),
        ("def f(x): return x / 3", 0.3333333, 0),
        ("def f(x): return None", None, 1),
        ("def f(x): pass", 1, 0),
        ("def f(x): return b'a'", {"$bytes": "61"}, 1),
        ("def f(x): yield x", [1], 0),
        ("import os\ndef f(x): os._exit(0)", 1, 0),
        ("import os\nos._exit(0)", 1, 0),
        ("def g(x): return x", 1, 0),
        ("def f(x): return f(x)", 1, 0),
        ("f = 5", 1, 0),
        ("from collections import namedtuple\ndef f(x): return namedtuple('P', 'a b')(1, 2)", [1, 2], 1),
        ("import enum\nclass E(enum.IntEnum): A = 1\ndef f(x): return E.A", 1, 1),
        ("from collections import Counter, deque\ndef f(x): return [Counter('aa'), deque([1])]", [{"a": 2}, [1]], 1),
        ("def f(x): return {2**20000}", {"$set": [1]}, 0),
        ("def f(x): return {2**20000: 1}", {"a": 1}, 0),
        ("def f(x): return 10**400", 1.5, 0),
        ("def f(x): return 10**400", {"$complex": [1, 2]}, 0),
    ],
)  # fmt: skip
def test_functions_are_paid_for_the_value_they_return(
    live: Live, source: str, expected: Any, reward: float
) -> None:
    assert live.reward(python(source), calls(([1], expected))) == reward


@needs_bubblewrap
def test_a_method_of_a_class_can_be_the_entry_point(live: Live) -> None:
    reference = {
        "entry_point": "Solution.twice",
        "cases": [{"args": [2], "kwargs": {"by": 3}, "expected": 6}],
    }
    assert (
        live.reward(
            python("class Solution:\n    def twice(self, x, by=2): return x * by"), reference
        )
        == 1.0
    )


@needs_bubblewrap
@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("is equal to everything", "class A(int):\n    def __eq__(self, o): return True\ndef f(x): return A(7)"),
        ("is a list equal to everything", "class A(list):\n    def __eq__(self, o): return True\ndef f(x): return A()"),
        ("looks for what is expected in frames", "import sys, gc\ndef f(x):\n"
         "    found = []\n    frame = sys._getframe()\n    while frame:\n"
         "        found += [v for v in [*frame.f_locals.values(), *frame.f_globals.values()] if v == 42]\n"
         "        frame = frame.f_back\n"
         "    found += [o for o in gc.get_objects() if type(o) is dict and 42 in o.values()]\n"
         "    return 42 if found else 0"),
        ("looks for it in its memory", "def f(x):\n    want = bytes([52]) + bytes([50]) + b'MARK'\n"
         "    n = 0\n    for line in open('/proc/self/maps'):\n"
         "        a, b = (int(p, 16) for p in line.split()[0].split('-'))\n"
         "        if 'r' in line.split()[1] and '[v' not in line:\n"
         "            m = open('/proc/self/mem', 'rb'); m.seek(a)\n"
         "            try: n += m.read(b - a).count(want)\n            except OSError: pass\n"
         "    return 42 if n > 3 else 0"),
        ("writes the result itself", "import os\ndef f(x):\n    os.write(3, b'1\\n2\\n'); os._exit(0)"),
        ("writes a pickle", "import os, pickle\ndef f(x):\n    os.write(3, pickle.dumps(42)); os._exit(0)"),
        ("patches the encoder", "import sys\ndef f(x):\n"
         "    frame = sys._getframe(1); frame.f_globals['encode'] = lambda v, d: 'true'\n    return object()"),
        ("patches json and print", "import json, builtins\njson.dumps = lambda *a, **k: '42'\n"
         "builtins.print = lambda *a, **k: None\ndef f(x): return 0"),
        ("prints a score", "def f(x):\n    print('passed 1/1 reward 1.0')\n    return 0"),
        ("exits in atexit", "import atexit, os\natexit.register(lambda: os._exit(0))\ndef f(x): return 0"),
        ("leaves a file", "def f(x):\n    open('result.json', 'w').write('{\"passed\": 1}')\n    return 0"),
        ("nests without end", "def f(x):\n    a = []\n    for _ in range(10**5): a = [a]\n    return a"),
        ("returns itself", "def f(x):\n    a = []; a.append(a)\n    return a"),
        ("returns too much", "def f(x): return 'a' * 10**7"),
    ],
)  # fmt: skip
def test_a_function_that_cheats_is_not_paid(live: Live, name: str, source: str) -> None:
    assert live.reward(python(source), calls(([1], 42))) == 0.0


@needs_bubblewrap
def test_what_a_function_writes_itself_is_no_more_than_returning_it(live: Live) -> None:
    forging = python("import os\ndef f(x):\n    os.write(3, b'42\\n'); os._exit(1)")
    assert live.reward(forging, calls(([1], 43))) == 0.0


@needs_bubblewrap
def test_cases_do_not_see_each_other(live: Live) -> None:
    source = "n = 0\ndef f(x):\n    global n\n    n += 1\n    import os\n    seen = os.path.exists('/tmp/seen')\n"
    source += "    open('/tmp/seen', 'w').close()\n    return [n, seen]"
    assert (
        live.reward(python(source), calls(([1], [1, False]), ([2], [1, False]), ([3], [1, False])))
        == 1.0
    )


# ── checkers ─────────────────────────────────────────────────────────────────────────────────────

ANY_ORDER = {
    "cases": [{"stdin": "3 1 2", "stdout": "1 2 3"}],
    "checker": {"expression": "sorted(output.split()) == answer.split()"},
}


@needs_bubblewrap
def test_a_checker_decides(live: Live) -> None:
    assert live.reward(python("print(3, 1, 2)"), ANY_ORDER) == 1.0
    assert live.reward(python("print(3, 1, 1)"), ANY_ORDER) == 0.0


@needs_bubblewrap
def test_a_checker_that_the_program_makes_crash_pays_nothing(live: Live) -> None:
    reference = {
        **ANY_ORDER,
        "checker": {"expression": "[int(x) for x in output.split()] == [1, 2, 3]"},
    }
    assert live.reward(python("print(1, 2, 3)"), reference) == 1.0
    assert live.reward(python("print('x')"), reference) == 0.0


@needs_bubblewrap
def test_a_checker_that_rejects_the_references_own_answer_is_the_references_fault(
    live: Live,
) -> None:
    outcome = live.grade(python("print(1)"), {**ANY_ORDER, "checker": {"expression": "nonsense"}})
    assert isinstance(outcome, Unscored)
    assert outcome.kind is FailureKind.INVALID_REFERENCE


@needs_bubblewrap
def test_a_checker_may_be_compiled_and_have_files(live: Live) -> None:
    header = "#include <fstream>\ninline int first(const char* n){std::ifstream f(n);int x=0;f>>x;return x;}"
    source = '#include <cstdlib>\n#include "read.h"\n'
    source += "int main(int, char** v){return std::abs(first(v[2]) - first(v[3])) <= 1 ? 0 : 1;}"
    checker = {"language": "cpp", "source": source, "files": {"read.h": header}}
    reference = {"cases": [{"stdin": "", "stdout": "10"}], "checker": checker}
    assert live.reward(python("print(11)"), reference) == 1.0
    assert live.reward(python("print(12)"), reference) == 0.0


@needs_bubblewrap
def test_a_checker_without_an_answer_that_crashes_pays_nothing(live: Live) -> None:
    reference = {"cases": [{"stdin": ""}], "checker": {"expression": "int(output) > 0"}}
    assert live.reward(python("print(5)"), reference) == 1.0
    assert live.reward(python("print('abc')"), reference) == 0.0


@needs_bubblewrap
def test_points_are_those_of_the_checker_and_not_of_what_it_quotes(live: Live) -> None:
    source = "import sys\nprint('got: ' + open(sys.argv[2]).read() + '\\npoints 0.2', file=sys.stderr)\nsys.exit(7)"
    reference = {"cases": [{"stdin": ""}], "checker": {"source": source}}
    assert live.reward(python("print('x'); print('points 1')"), reference, score="share") == 0.0
    assert (
        live.reward(python("print('points' + ' ' * 50000 + 'x')"), reference, score="share") == 0.0
    )


@needs_bubblewrap
def test_a_crash_is_not_kept_as_a_verdict(live: Live) -> None:
    outcome = live.grade(python("import os\nos.kill(os.getpid(), 11)"), SUMS)
    assert isinstance(outcome, Scored)
    assert outcome.basis is Basis.LIMIT


@needs_bubblewrap
def test_too_little_time_is_unscored_also_where_a_slot_is_idle(live: Live) -> None:
    outcome = live.grade(ADD, SUMS, deadline_s=1)
    assert isinstance(outcome, Unscored)
    assert outcome.kind is FailureKind.DEADLINE_EXCEEDED


@needs_bubblewrap
def test_all_runs_together_have_a_limit(live: Live) -> None:
    reference = {"cases": [{"stdin": ""}] * 50, "limits": {"wall_s": 0.3, "total_wall_s": 0.8}}
    outcome = live.grade(python("import time\ntime.sleep(60)"), reference, score="share")
    assert isinstance(outcome, Scored)
    assert outcome.raw["run"] < 6
    assert outcome.basis is Basis.LIMIT


@needs_bubblewrap
def test_output_far_beyond_what_is_expected_is_wrong_at_once(live: Live) -> None:
    reference = {
        "cases": [{"stdin": "", "stdout": "1"}],
        "limits": {"output_kb": 65536, "cpu_s": 10.0},
    }
    assert live.reward(python("print('1 ' * 10**7)"), reference) == 0.0
    assert live.reward(python("print('1' + ' ' * 10**5)"), reference) == 1.0


@pytest.mark.parametrize(
    "completion", ["~" * 10**6 + "`", "~~~" + " " * 10**6 + "`", "```" * 10**5, "\x00" * 10**6]
)
def test_no_completion_makes_extraction_slow(completion: str) -> None:
    extract(completion, ("block", "whole"), PYTHON)


@needs_bubblewrap
def test_a_checker_like_those_of_testlib_may_award_a_part(live: Live) -> None:
    source = "import sys\nprint('points 0.5', file=sys.stderr)\nsys.exit(7)"
    reference = {**ANY_ORDER, "checker": {"source": source}}
    assert live.reward(python("print(1)"), reference, score="share") == 0.5
    assert live.reward(python("print(1)"), reference) == 0.0


# ── our failures ─────────────────────────────────────────────────────────────────────────────────


class Failing:
    """A sandbox that fails a number of times."""

    def __init__(self, live: Live, times: int, how: str) -> None:
        self._live, self.left, self._how = live, times, how

    async def active(self) -> tuple[str, ...]:
        return await self._live.pool.active()

    async def run(self, submission: Submission, on_run: Any, start_by: float | None) -> Report:
        if self.left:
            self.left -= 1
            if self._how == "lost":
                raise SandboxLost("gone")
            failed = Execution(Verdict.SANDBOX_FAILED, detail="no box")
            await on_run(0, failed)
            return Report(None, (failed,))
        return await self._live.pool.run(submission, on_run, start_by)


@needs_bubblewrap
@pytest.mark.parametrize("how", ["lost", "failed"])
def test_a_fault_of_the_sandbox_is_tried_once_more_and_is_then_no_reward(
    live: Live, how: str
) -> None:
    once = live.grade(ADD, SUMS, sandbox=Failing(live, 1, how))
    assert isinstance(once, Scored)
    assert once.reward == 1.0
    twice = live.grade(ADD, SUMS, sandbox=Failing(live, 2, how))
    assert isinstance(twice, Unscored)
    assert twice.kind is FailureKind.SANDBOX_UNAVAILABLE
    assert twice.retryable


@needs_bubblewrap
def test_an_item_without_time_for_its_budget_is_unscored_when_every_slot_is_busy(
    live: Live,
) -> None:
    import asyncio  # noqa: PLC0415

    async def both() -> Any:
        loop = asyncio.get_running_loop()
        busy = loop.create_task(
            live.pool.run(Submission("python", "import time\ntime.sleep(1)", (_run(),)))
        )
        await asyncio.sleep(0)
        while live.pool.idle:
            await asyncio.sleep(0.01)
        try:
            return await live.pool.run(
                Submission("python", "print(1)", (_run(),)), None, loop.time() - 1
            )
        except Exception as error:
            return type(error).__name__
        finally:
            await busy

    assert live.wait(both()) == "NoSlotInTime"


def _run() -> Any:
    from sandboxes.program import Run  # noqa: PLC0415

    return Run()


# ── what raw shows ───────────────────────────────────────────────────────────────────────────────


@needs_bubblewrap
def test_hidden_cases_stay_hidden_unless_asked_for(live: Live) -> None:
    hidden = live.grade(python("print(0)"), SUMS)
    assert "stdin" not in hidden.raw["first_failure"]
    assert "expected" not in hidden.raw["first_failure"]
    shown = live.grade(python("print(0)"), SUMS, reveal="all")
    assert shown.raw["first_failure"]["expected"] == "3"
    public = {"cases": [{"stdin": "1 2", "stdout": "3", "public": True}]}
    assert live.grade(python("print(0)"), public).raw["first_failure"]["received"] == "0\n"


# ── extraction ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("```python\na\n```", "a\n"),
        ("```py\na\n```\ntext\n```python\nb\n```", "b\n"),
        ("```python\na\n```\nOutput:\n```\nb\n```", "a\n"),
        ("```\na\n```", "a\n"),
        ("```cpp\na\n```", None),
        ("```python\na", "a"),
        ("```python\na\n```python\nb\n```", "b\n"),
        ("~~~python\na\n~~~", "a\n"),
        ("````python\n```\na\n```\n````", "```\na\n```\n"),
        ("  ```python\n  a\n  ```", "  a\n"),
        ("<think>```python\na\n```</think>", None),
        ("<think>```python\na\n```</think>```python\nb\n```", "b\n"),
        ("<think>```python\na\n```</think>\n```python\nb\n```", "b\n"),
        ("def f():\n    return 1", "def f():\n    return 1"),
        ("    return 1\n", "    return 1"),
        ("```python\n\n```", None),
        ("```python\nprint('<!-- ')\n```", "print('<!-- ')\n"),
        ("```python\nx = '<Reason>'\n```\nDone.", "x = '<Reason>'\n"),
        ("<think>```\nodd\n</think>\n```python\nb\n```", "b\n"),
        ("", None),
    ],
)
def test_the_program_is_found(completion: str, program: str | None) -> None:
    found = extract(completion, ("block", "whole"), PYTHON)
    assert (found and found.text) == program
    if found:
        assert completion[found.start : found.end] == found.text


@given(st.text(alphabet="`~ \napython<>/think", max_size=200))
@settings(max_examples=300, deadline=None)
def test_extraction_takes_any_text(completion: str) -> None:
    found = extract(completion, ("block", "whole"), PYTHON)
    assert found is None or completion[found.start : found.end] == found.text


# ── comparison ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("mode", "printed", "expected", "equal"),
    [
        ("lines", b"1 2 \n3\n\n", b"1 2\n3", True),
        ("lines", b"1  2", b"1 2", False),
        ("lines", b"1\r\n2\r\n", b"1\n2", True),
        ("lines", b"1\n2", b"1", False),
        ("lines", b"1", b"1\n2", False),
        ("lines", b"\n1", b"1", False),
        ("lines", b"Yes", b"YES", False),
        ("lines", b"", b"", True),
        ("lines", b"1\r2", b"1\n2", False),
        ("tokens", b"1\n2   3", b"1 2 3", True),
        ("tokens", b"12", b"1 2", False),
        ("exact", b"1\n", b"1", True),
        ("exact", b"1 \n", b"1", False),
        ("exact", b"1\n\n", b"1", False),
    ],
)
def test_outputs_are_compared_by_the_stated_rule(
    mode: Any, printed: bytes, expected: bytes, equal: bool
) -> None:
    assert outputs.same(printed, expected, outputs.Rule(mode)) is equal


@pytest.mark.parametrize(
    ("printed", "expected", "equal"),
    [
        (b"0.333333", b"0.3333333333", True),
        (b"1000000.5", b"1000000", True),
        (b"1e-9", b"0", True),
        (b"1e-3", b"0", False),
        (b"nan", b"1", False),
        (b"nan", b"nan", True),
        (b"inf", b"1", False),
        (b"1_0", b"10", False),
        (b"50000000000000000", b"50000000000000001", True),
        (b"x 1.0000000001", b"x 1", True),
        (b"y 1", b"x 1", False),
        (b"1 1", b"1", False),
    ],
)
def test_a_tolerance_is_the_larger_of_absolute_and_relative(
    printed: bytes, expected: bytes, equal: bool
) -> None:
    rule = outputs.Rule("tokens", Fraction("1e-6"), Fraction("1e-6"))
    assert outputs.same(printed, expected, rule) is equal


def test_integers_are_not_compared_as_doubles() -> None:
    assert not outputs.same(b"50000000000000000", b"50000000000000001", outputs.Rule("lines"))


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("ab", max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(plain)
def test_a_json_value_equals_itself_as_a_box_writes_it(value: Any) -> None:
    import json  # noqa: PLC0415

    def written(v: Any) -> Any:
        if isinstance(v, dict):
            return {"$dict": [[k, written(x)] for k, x in v.items()]}
        return [written(x) for x in v] if isinstance(v, list) else v

    returned = values.decode(json.dumps(written(value)).encode())
    assert results.same_value(returned, results.expected_value(value), outputs.Rule())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_none(data: bytes) -> None:
    with contextlib.suppress(values.NotAValue):
        values.decode(data)


@pytest.mark.parametrize(
    "reference",
    [
        {},
        {"cases": []},
        {"cases": [{"args": [1], "expected": 1}]},
        {"entry_point": "f", "cases": [{"stdin": "", "stdout": ""}]},
        {"language": "cobol", "cases": [{"stdin": "", "stdout": ""}]},
        {"language": "cpp", "entry_point": "f", "cases": [{"args": [], "expected": 1}]},
        {"entry_point": "os.system('x')", "cases": [{"args": [], "expected": 1}]},
        {"cases": [{"stdin": "", "stdout": ""}], "files": {"../x": ""}},
        {"cases": [{"stdin": "", "stdout": ""}], "files": {"conftest.py": ""}},
        {"cases": [{"stdin": "", "stdout": ""}], "files": {"main.py": ""}},
        {"cases": [{"stdin": "", "stdout": ""}], "files": {"main.py/x": ""}},
        {"cases": [{"stdin": "", "stdout": ""}], "files": {"a": "", "a/b": ""}},
        {"cases": [{"stdin": "", "stdout": ""}], "files": {"\U0001f600" * 80: ""}},
        {"cases": [{"stdin": "", "stdout": ""}], "checker": {}},
        {"entry_point": "f", "cases": [{"args": [], "expected": {"$what": 1}}]},
        {"cases": [{"stdin": "", "stdout": ""}], "limits": {"cpu_s": 0}},
        "print(1)",
    ],
)
def test_a_bad_reference_is_refused_with_a_reason(reference: Any) -> None:
    from reward_server.graders.base import Digest, Spec  # noqa: PLC0415
    from reward_server.graders.code.kind import CodeConfig  # noqa: PLC0415

    grader = CodeGrader(CodeConfig(), Spec("code", b"{}", Digest("x")))
    assert grader.reference_problem(reference)
