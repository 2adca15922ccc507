"""Completions against kind ``answer``: none is rewarded, none is slow, none breaks a worker."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from reward_server.engine.base import Finished, Work
from reward_server.engine.local import LocalEngine
from reward_server.graders.base import Digest, PureGrader, Spec, View, canonical_json
from reward_server.graders.catalog import CATALOG
from reward_server.outcome import Scored

SPEC = Spec("answer", canonical_json({}), Digest("sha256:test"))
HEAVY: dict[str, tuple[str, str]] = {
    "tower": ("1", r"9^{9^{9^{9}}}"),
    "tower of brackets": ("1", r"(10^{10})^{10^{10}}"),
    "tower over itself": ("1", r"\frac{9^{9^{9^9}}}{9^{9^{9^9}}+1}"),
    "factorial": ("1", r"(10^6)!"),
    "factorials": ("1", "!".join(["9"] * 1) + "!" * 40),
    "factorial of a factorial": ("1", "((9!)!)!"),
    "binomial": ("1", r"\binom{10^8}{5\cdot10^7}"),
    "lcm": ("1", r"\operatorname{lcm}(10^{5000}, 3^{9000}, 7^{5000})"),
    "gcd": ("3", r"\gcd(6^{100000}, 9^{100000})"),
    "huge literal": ("1", "1" * 100_000),
    "huge literals": ("1", "+".join(["9" * 1900] * 2)),
    "huge product": ("1", r"\cdot".join(["9" * 900] * 4)),
    "huge exponent": ("1", "2^{" + "9" * 500 + "}"),
    "negative exponent": ("1", "10^{-10^{10}}"),
    "nested fractions": ("1", r"\frac{1}{" * 300 + "2" + "}" * 300),
    "nested roots": ("1", r"\sqrt{2+" * 38 + "2" + "}" * 38),
    "nested brackets": ("1", "(" * 2000 + "1" + ")" * 2000),
    "open brackets": ("1", "(" * 4000),
    "nested bars": ("1", "|" * 2000 + "1" + "|" * 2000),
    "nested text": ("1", r"\text{" * 400 + "1" + "}" * 400),
    "minus signs": ("1", "-" * 3000 + "1"),
    "expansion": ("1", "(x+y+z+w)^{200}"),
    "expansions": ("(x+y+z+w)^{60}", "(x+y+z+w)^{60}+1"),
    "product of sums": ("1", "".join(f"(x_{{{n}}}+1)" for n in range(40))),
    "determinant": ("1", r"\det(x)" * 60),
    "sum": ("1", r"\sum_{k=1}^{10^{9}} \frac{1}{k}"),
    "product": ("1", r"\prod_{k=1}^{10^{6}} k"),
    "integral": (r"\frac{1}{2}", r"\int_0^1 x \, dx"),
    "hard integral": ("1", r"\int_{-\infty}^{\infty} e^{-x^{2}} \sin(x^{x}) dx"),
    "limit": ("1", r"\lim_{x\to 0} \frac{\sin x}{x}"),
    "trigonometry": (r"\sin(x)^{20}", r"(1-\cos(x)^2)^{10} + 10^{-40}"),
    "nested trigonometry": ("1", r"\sin(\cos(\tan(" * 9 + "x" + ")))" * 9),
    "trigonometry of a tower": ("0", r"\sin(10^{10^{10}}\pi)"),
    "radicals": (r"\sqrt{2}", r"\sqrt{2+10^{-60}}"),
    "many radicals": ("1", "+".join(rf"\sqrt{{{n}}}" for n in range(2, 200))),
    "product of radicals": ("1", "".join(rf"(1+\sqrt{{{n}}})" for n in range(2, 40))),
    "nested radicals": (r"\sqrt{5}", "+".join(rf"\sqrt{{{n}+\sqrt{{1+\sqrt{{7}}}}}}" for n in range(9))),
    "logarithms": ("1", r"\log_{" * 30 + "2" + "}3" * 30),
    "floor of a near integer": ("13", r"(2+\sqrt{3})^{900} - \lfloor (2+\sqrt{3})^{900} \rfloor"),
    "many items": ("1", ",".join(["1"] * 5000)),
    "list of sums": (
        ", ".join(rf"\sin({n}x)^2" for n in range(38)),
        ", ".join(rf"1-\cos({n + 1}x)^2" for n in range(38)),
    ),
    "big matrix": ("1", r"\begin{pmatrix}" + r"\\".join(["&".join("1" * 60)] * 60) + r"\end{pmatrix}"),
    "many relations": ("x<1", "x" + "<1" * 1000),
    "unions": (r"(0,1)\cup(2,3)", r"\cup".join([rf"({n},{n + 1})" for n in range(300)])),
    "holes": (r"\mathbb{R}", r"\mathbb{R}\setminus\{" + ",".join(map(str, range(300))) + r"\}"),
}  # fmt: skip
_T = "e^{" * 30 + "x" + "}" * 30
HEAVY |= {
    "pairs of towers": ("-4,-2,-1,1,2,4", ",".join([_T] * 6)),
    "a set of towers": (r"\{1,2,3\}", rf"\{{{_T},{_T},{_T}\}}"),
    "a tuple of towers": ("(1,2,3)", f"({_T},{_T},{_T})"),
    "a matrix of towers": (
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        rf"\begin{{pmatrix}}{_T}&{_T}\\{_T}&{_T}\end{{pmatrix}}",
    ),
    "two signs of a tower": (r"\pm1", rf"\pm({_T})"),
    "an equation with a tower": ("y=2x", f"y={_T}"),
    "logarithm of a tower": ("1", rf"\log({_T})"),
    "long ratio": (
        ":".join(rf"\sin^2 {k}" for k in range(1, 58)),
        ":".join(rf"\frac{{1-\cos {2 * k}}}{{2}}" for k in range(1, 58)),
    ),
    "unions of radicals": (
        r"(0,1)\cup(2,3)",
        r"\cup".join(
            rf"(\sqrt{{{k}+\sqrt{{{k}}}}},\sqrt{{{k + 1}+\sqrt{{{k}}}}})" for k in range(2, 60)
        ),
    ),
    "power of a factorial": ("1", "5000!^{5000}"),
    "chain of factorials": ("1", "3" + "!" * 1100),
    "chain of powers": ("1", "x" + "^2!" * 390),
    "chain of degrees": ("1", "5" + r"^\circ" * 590),
    "chain of quotients": ("1", "x" + "/x" * 580),
    "digits in circles": ("1", "10_{①}"),
    "ratio to anything": ("1:2", r"1:\ldots"),
    "order of complex numbers": (r"\sin x", r"\max(i,\sin x)"),
    "powers of powers": ("1", "((2^{499})^{60})^{60}"),
    "root of a huge power": ("1", r"\sqrt[4]{-2^{20000}}"),
    "gcd of huge powers": ("1", r"\gcd(2^{2^{20000}},3)"),
}
LONG: dict[str, str] = {
    "open boxes": r"\boxed{" * 150_000,
    "open boxes in braces": r"\boxed{{" * 100_000,
    "boxes": r"\boxed{1} and " * 60_000,
    "closed boxes": r"\boxed{" * 60_000 + "}" * 60_000,
    "hashes": "####" * 250_000,
    "hash lines": "#### 1\n" * 140_000,
    "answer tags": "<answer>" * 120_000,
    "answer tag pairs": "<answer>1</answer>" * 55_000,
    "statements": "the answer is " * 70_000,
    "statements to": "answer to " * 100_000,
    "not statements": "answer " * 140_000,
    "letters A": "A:" * 500_000,
    "thinking": "<think>" * 140_000,
    "closing": "</think>" * 120_000,
    "comments": "<!--" * 250_000,
    "spaces": " " * 1_000_000,
    "spaces after a box": r"\boxed{1}" + " " * 1_000_000,
    "stars": "*" * 1_000_000,
    "dollars": "$" * 1_000_000,
    "backslashes": "\\" * 1_000_000,
    "newlines": "\n" * 1_000_000 + "x",
    "ors": "1 or " * 200_000 + r"\boxed{1}",
    "or tail": r"\boxed{1} or " + "1 or " * 200_000,
    "chinese": "答案是" * 300_000,
    "nuls": "\x00" * 1_000_000,
    "bidi": "\u202e" * 500_000,
    "combining": "e" + "\u0301" * 500_000,
}
CODE = [
    "__import__('os').system('touch /tmp/pwned')",
    r"\text{__import__('os').system('id')}",
    "exec(open('/etc/passwd').read())",
    r"{{7*7}}",
    r"\input{/etc/passwd}",
    r"\write18{id}",
    r"\def\x{42}\x",
    r"\newcommand{\y}{42}\y",
    r"\char52\char50",
    r"\unicode{52}\unicode{50}",
    r"\phantom{43}42",
    r"\color{white}{43}42",
    r"4\kern-1em 2",
    r"\rlap{43}42",
    "42\u202e",
    "\u202e24",
    "4\u200b2",
    "\u2066" + "42",
    "４\u0332２",
    "&#52;&#50;",
    "lambda: 42",
    "S(42).evalf()",
    "Integer(42)",
    "sympify('42')",
    "(42,)[0]",
    "42 if True else 43",
    "42 # 43",
    "42 // 1",
    "42 % 43",
    "0x2a",
    "0b101010",
    "4_2",
    "42 && 43",
    "42 || 43",
    "~42",
    "\\sim 42",
]


def built() -> PureGrader:
    grader = CATALOG.build(SPEC)
    assert isinstance(grader, PureGrader)
    return grader


def timed(completion: str, reference: str) -> tuple[Scored, float]:
    grader = built()
    started = time.process_time()
    scored = grader.grade(View(completion=completion, reference=reference))
    return scored, time.process_time() - started


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    timed(r"\boxed{\sin(x)^2}", r"1-\cos(x)^2")


@pytest.mark.parametrize("name", HEAVY)
def test_a_heavy_expression_is_neither_rewarded_nor_slow(name: str) -> None:
    reference, answer = HEAVY[name]
    scored, cpu_s = timed(rf"\boxed{{{answer}}}", reference)
    assert scored.reward == 0.0
    assert cpu_s < 1.0


@pytest.mark.parametrize("name", LONG)
def test_a_long_completion_is_neither_rewarded_nor_slow(name: str) -> None:
    scored, cpu_s = timed(LONG[name], "42")
    assert scored.reward == 0.0
    assert cpu_s < 1.0


@pytest.mark.parametrize("answer", CODE)
def test_code_and_tricks_of_type_are_text_and_no_answer(answer: str) -> None:
    for completion in (rf"\boxed{{{answer}}}", f"#### {answer}", f"<answer>{answer}</answer>"):
        assert timed(completion, "42")[0].reward == 0.0


def test_no_item_hurts_the_verdict_on_its_neighbours_in_a_worker() -> None:
    async def grade_all() -> list[Finished]:
        engine = LocalEngine(workers=2)
        await engine.start()
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[Finished]] = []
        for reference, answer in HEAVY.values():
            for item in ((rf"\boxed{{{answer}}}", reference), (r"\boxed{\sec^2 y}", r"\tan^2 y+1")):
                done: asyncio.Future[Finished] = loop.create_future()
                waiting.append(done)
                view = canonical_json({"completion": item[0], "reference": item[1], "prompt": None})
                engine.submit(Work(SPEC, view, CATALOG["answer"].budget, 1e12, done.set_result))
        results = await asyncio.gather(*waiting)
        await engine.close()
        return list(results)

    results = asyncio.run(grade_all())
    outcomes: list[Any] = [r.outcome for r in results]
    assert all(isinstance(o, Scored) for o in outcomes)
    assert [o.reward for o in outcomes] == [0.0, 1.0] * len(HEAVY)
