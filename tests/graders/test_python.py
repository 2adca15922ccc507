"""Kind ``python``: functions that users register, in their sandbox."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from reward_server.graders.base import Digest, LiveGrader, Spec, View, canonical_json
from reward_server.graders.catalog import CATALOG
from reward_server.graders.python.returned import BadReturn, scored
from reward_server.outcome import Basis, CannotScore, FailureKind, Outcome, Scored, Unscored
from tests.sandboxes.live import Live, live_context, live_pool
from tests.sandboxes.needs import backends

EXACT = "def grade(completion, reference):\n    return completion.strip() == reference\n"


@pytest.fixture(scope="module", params=backends())
def live(request: pytest.FixtureRequest) -> Iterator[Live]:
    with live_pool(backend=request.param) as found:
        yield found


def grade(
    live: Live, source: str, *views: View, deadline_s: float = 60, **config: Any
) -> list[Outcome]:
    grader = CATALOG.build(
        Spec("python", canonical_json({"source": source, **config}), Digest("sha256:test"))
    )
    assert isinstance(grader, LiveGrader)

    async def one(view: View) -> Outcome:
        try:
            return await grader.grade_live(view, live_context(live.pool, deadline_s))
        except CannotScore as error:
            return Unscored(error.kind, error.detail)

    async def everything() -> list[Outcome]:
        return list(await asyncio.gather(*map(one, views)))

    return live.wait(everything())


def one(live: Live, source: str, completion: str = "x", **more: Any) -> Outcome:
    config = {k: v for k, v in more.items() if k not in ("reference", "prompt", "metadata")}
    fields = {k: v for k, v in more.items() if k not in config}
    (found,) = grade(live, source, View(completion=completion, **fields), **config)
    return found


def rewards(outcomes: list[Outcome]) -> list[float | None]:
    return [o.reward if isinstance(o, Scored) else None for o in outcomes]


def test_many_items_in_their_order(live: Live) -> None:
    views = [View(completion=f" {n % 7}\n", reference="3") for n in range(300)]
    assert rewards(grade(live, EXACT, *views)) == [float(n % 7 == 3) for n in range(300)]


def test_it_is_given_what_it_takes(live: Live) -> None:
    source = """
def grade(completion, reference, prompt, metadata):
    return {"reward": 0.5, "components": {"n": metadata["n"]}, "raw": {"saw": [completion, reference, prompt]}}
"""
    prompt = [{"role": "user", "content": "é\ud800?"}]
    found = one(live, source, "a\x00b", reference={"k": [1]}, prompt=prompt, metadata={"n": 2})
    assert isinstance(found, Scored)
    assert (found.reward, found.components) == (0.5, {"n": 2.0})
    assert found.raw["saw"] == ["a\x00b", {"k": [1]}, [{"role": "user", "content": "é??"}]] or (
        found.raw["saw"][2][0]["content"].startswith("é")
    )
    assert rewards([one(live, "def grade(**given): return len(given)")]) == [4.0]
    assert rewards([one(live, "async def grade(completion): return 0.25")]) == [0.25]


def test_step_rewards(live: Live) -> None:
    source = """
def grade(completion):
    return {"reward": 1, "step_rewards": [[0, 2, 0.5], {"start": 2, "end": 4, "reward": -1}]}
"""
    found = one(live, source, "abcd")
    assert isinstance(found, Scored)
    assert found.step_rewards is not None
    assert [(s.start, s.end, s.reward) for s in found.step_rewards] == [(0, 2, 0.5), (2, 4, -1.0)]
    outside = one(live, source, "abc")
    assert isinstance(outside, Scored)
    assert (outside.reward, outside.raw["outcome"]) == (0.0, "exception")


TROUBLE = """
import os, sys
def grade(completion):
    if completion == "exit": os._exit(0)
    if completion == "sys.exit": sys.exit(0)
    if completion == "loop":
        while True: pass
    if completion == "memory": return len([0] * 10**10)
    if completion == "kill": os.kill(os.getpid(), 9)
    if completion == "all": os.kill(-1, 9)
    if completion == "raise": raise ValueError("no: " + completion)
    if completion == "nan": return float("nan")
    if completion == "text": return "1.0"
    if completion == "object": return object()
    if completion == "deep":
        value = []
        for _ in range(10000): value = [value]
        return {"reward": 1, "raw": {"v": value}}
    if completion == "raw": return {"reward": 1, "raw": {"v": "x" * 10**6}}
    if completion == "flood":
        while True: os.write(3, b"x" * 65536)
    if completion == "key": return {"reward": 1, "rewards": 1}
    if completion == "missing": return {"raw": {}}
    return 1
"""
PROVOKED = [
    "exit", "sys.exit", "loop", "memory", "kill", "all", "raise", "nan", "text", "object", "deep", "raw", "flood",
    "key", "missing",
]  # fmt: skip


def test_what_an_item_provokes_is_its_own(live: Live) -> None:
    """Each between two good ones, in one batch."""
    completions = [c for word in PROVOKED for c in (word, "good")]
    views = [View(completion=c) for c in completions]
    limits = {"cpu_s": 1.0, "memory_mb": 128}
    found = grade(live, TROUBLE, *views, lowest=-1.0, limits=limits)
    assert rewards(found) == [1.0 if c == "good" else -1.0 for c in completions]
    words = {
        c: o.raw["outcome"]
        for c, o in zip(completions, found, strict=True)
        if isinstance(o, Scored) and c != "good"
    }
    assert words["loop"] == "time_limit"
    assert words["raise"] == "exception"
    assert words["flood"] == "output_limit"
    raised = found[completions.index("raise")]
    assert raised.raw["traceback"].endswith("ValueError: no: raise")
    assert "grader.py" in raised.raw["traceback"]


def test_unscored_on_request(live: Live) -> None:
    found = grade(live, TROUBLE, View(completion="raise"), View(completion="x"),
                  on_exception="unscored")  # fmt: skip
    assert rewards(found) == [None, 1.0]
    assert isinstance(found[0], Unscored)
    assert found[0].kind is FailureKind.GRADER_ERROR
    assert "ValueError: no: raise" in found[0].detail
    assert "Traceback" in found[0].raw["traceback"]


def test_none_is_no_reward(live: Live) -> None:
    found = one(live, "def grade(completion): return None")
    assert isinstance(found, Unscored)
    assert found.kind is FailureKind.GRADER_ERROR


def test_less_than_lowest_is_a_defect_not_a_reward(live: Live) -> None:
    found = one(live, "def grade(completion): return -1")
    assert isinstance(found, Unscored)
    assert "lowest" in found.detail


@pytest.mark.parametrize(
    "source",
    ["import nothing_such\ngrade = 1", "grade = 1 / 0", "def f():\n  global grade\n  grade = 1"],
)
def test_a_source_that_does_not_load_leaves_items_unscored(live: Live, source: str) -> None:
    found = one(live, source)
    assert isinstance(found, Unscored)
    assert found.kind is FailureKind.GRADER_ERROR
    assert "does not load" in found.detail


def test_state_does_not_outlive_a_process(live: Live) -> None:
    source = "seen = []\ndef grade(completion):\n    seen.append(1)\n    return len(seen)"
    views = [View(completion="x")] * 20
    assert rewards(grade(live, source, *views, isolate=True)) == [1.0] * 20
    together = rewards(grade(live, source, *views))
    assert max(r for r in together if r is not None) > 1


def test_files_do_not_outlive_a_process(live: Live) -> None:
    source = """
import os
def grade(completion):
    found = 0
    for folder in ("/tmp", ".", "/dev/shm"):
        found += os.path.exists(folder + "/mark")
        open(folder + "/mark", "w").close()
    return found
"""
    assert rewards(grade(live, source, *[View(completion="x")] * 5, isolate=True)) == [0.0] * 5


@pytest.mark.parametrize(
    ("signature", "source", "reward"),
    [
        ("trl", "def f(prompts, completions, answer, **kwargs):\n"
                "    return [float(c == a and p == 'p') for p, c, a in zip(prompts, completions, answer)]", 1.0),
        ("trl", "def f(completions, level):\n    return [float(n) for n in level]", 7.0),
        ("trl", "async def f(completions, **kwargs):\n    return [0.5] * len(completions)", 0.5),
        ("verl", "def f(data_source, solution_str, ground_truth, extra_info=None):\n"
                 "    return {'score': float(solution_str == ground_truth), 'level': extra_info['level']}", 1.0),
        ("verl", "def f(solution_str, ground_truth, **kw):\n    return solution_str == ground_truth", 1.0),
        ("openrlhf", "def f(queries, prompts, labels, **kw):\n"
                     "    return [float(q == p + l) for q, p, l in zip(queries, prompts, labels)]", 1.0),
        ("openrlhf", "def f(queries, prompts, labels):\n"
                     "    return {'rewards': [0.75], 'scores': [1], 'extra_logs': {'len': [3]}}", 0.75),
    ],
)  # fmt: skip
def test_signatures_of_trainers(live: Live, signature: str, source: str, reward: float) -> None:
    found = one(live, source, "a", reference="a", prompt="p", metadata={"level": 7},
                signature=signature, entry_point="f")  # fmt: skip
    assert isinstance(found, Scored), found
    assert found.reward == reward, found.raw


def test_trl_completions_are_messages_where_the_prompt_is(live: Live) -> None:
    source = """
def f(prompts, completions):
    assert prompts[0][0]["role"] == "user"
    return [float(c == [{"role": "assistant", "content": "a"}]) for c in completions]
"""
    found = one(live, source, "a", prompt=[{"role": "user", "content": "q"}], signature="trl",
                entry_point="f")  # fmt: skip
    assert rewards([found]) == [1.0]


def test_a_deadline_that_is_too_near_leaves_it_unscored(live: Live) -> None:
    found = grade(live, EXACT, View(completion="x", reference="x"), deadline_s=1.0)
    assert isinstance(found[0], Unscored)
    assert found[0].kind is FailureKind.DEADLINE_EXCEEDED


def test_a_cancelled_item_holds_nobody_up(live: Live) -> None:
    source = "import time\ndef grade(completion):\n    time.sleep(float(completion))\n    return 1"
    spec = Spec("python", canonical_json({"source": source}), Digest("sha256:test"))
    grader = CATALOG.build(spec)
    assert isinstance(grader, LiveGrader)

    async def work() -> Outcome:
        context = live_context(live.pool, 60)
        gone = asyncio.ensure_future(grader.grade_live(View(completion="0.2"), context))
        await asyncio.sleep(0)
        gone.cancel()
        return await grader.grade_live(View(completion="0"), context)

    assert rewards([live.wait(work())]) == [1.0]


def test_a_sleeper_spends_its_wall_limit(live: Live) -> None:
    began = time.monotonic()
    source = "import time\ndef grade(completion):\n    time.sleep(60)"
    found = one(live, source, limits={"wall_s": 1.0, "cpu_s": 1.0})
    assert isinstance(found, Scored)
    assert (found.reward, found.basis) == (0.0, Basis.LIMIT)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"source": "def grade(:"}, "line 1"),
        ({"source": "def other(): pass"}, "does not define 'grade'"),
        ({"source": "(" * 5000}, "source"),
        ({"source": "x = '\ud800'; grade = 1"}, "unicode"),
        ({"source": "\0"}, "source"),
        ({"source": EXACT, "lowest": float("inf")}, "finite"),
        ({"source": EXACT, "signature": "other"}, "signature"),
    ],
)
def test_a_wrong_config_is_said(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        CATALOG["python"].validate_config(config)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["reward", "components", "step_rewards", "raw", "start", "end", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JSON, st.integers(0, 10))
def test_whatever_is_returned_is_a_finite_reward_or_refused(value: Any, length: int) -> None:
    try:
        found = scored(value, length)
    except BadReturn:
        return
    if found is not None:
        assert abs(found.reward) < float("inf")
        assert all(0 <= s.start <= s.end <= length for s in found.step_rewards or ())
