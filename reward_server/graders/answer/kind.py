"""Kind ``answer``: the final answer of a completion equals the reference in value and form.

Find (``extraction``), read (``reading``, ``parser``), compare (``comparison``: texts, exact numbers, exact
algebra, structure, then numerical refutation and sympy under a CPU budget). ``raw`` says what was found,
by which rule and where, both normal forms, which layer decided and with what outcome:

``equal``      rewarded 1; everything else 0.
``different``  an answer was found and is another one (``reason`` says more where there is more).
``no_answer``  no rule found one.
``ambiguous``  the final statement offers several answers where one is asked for.
``undecided``  neither equality nor difference could be shown within the limits.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field as ModelField, ValidationError, model_validator

from reward_server.graders.answer import choice, forms, symbolic
from reward_server.graders.answer.comparison import Percent, Rules, Verdict, compare
from reward_server.graders.answer.extraction import Found, Rule, extract
from reward_server.graders.answer.lexer import matching_brace
from reward_server.graders.answer.reading import MAX_CHARS, Reading, as_written, key_of, read
from reward_server.graders.answer.scalars import Allowance, Tolerance
from reward_server.graders.answer.syntax import SCALARS, Quantity, Rel, Seq, Words
from reward_server.graders.base import Budget, Field, Kind, Spec, View
from reward_server.outcome import Basis, CannotScore, FailureKind, Scored

_MAX_ACCEPTED = 100
_MAX_SHOWN = 500
_DEFAULT_ORDER: tuple[Rule, ...] = ("answer_tag", "boxed", "hash", "statement", "whole")
_SOLUTION_END = re.compile(r"####\s*(.+?)\s*$", re.DOTALL)
_A_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_OPTION = re.compile(r"(?:\\text\{)?\(?(?:\\text\{)?\(?([A-Z])\)?\}?\)?\}?")


class ToleranceConfig(BaseModel):
    """|answer − reference| ≤ max(absolute, relative · |reference|)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    absolute: float = ModelField(0.0, ge=0, allow_inf_nan=False)
    relative: float = ModelField(0.0, ge=0, lt=1, allow_inf_nan=False)

    def exact(self) -> Tolerance:
        # The decimal that was written, not its nearest double.
        return Tolerance(Fraction(repr(self.absolute)), Fraction(repr(self.relative)))


class Options(BaseModel):
    """How an answer is compared: defaults in the config, or for one reference."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    tolerance: ToleranceConfig | None = None
    """None: exact values only."""
    form: forms.Form = "any"
    """What form a right value must have."""
    decimal_places: int | None = ModelField(None, ge=0, le=50)
    """The answer must be a decimal with exactly this many places."""
    ordered: bool = False
    """Whether the order of bare lists matters."""
    percent: Percent = "follow"
    """``follow`` the reference, ``strict``: a percent sign exactly where it has one, ``ignore`` the sign."""
    case_sensitive: bool = False
    """Whether words must agree in upper and lower case."""


class AnswerConfig(Options):
    compare: Literal["math", "choice"] = "math"
    """``choice``: answers are option letters."""
    extract: list[Rule] = ModelField(list(_DEFAULT_ORDER), min_length=1, max_length=6)
    """The rules that look for the answer, in this order; the first that finds one decides."""

    @model_validator(mode="after")
    def _each_rule_once(self) -> AnswerConfig:
        if len(set(self.extract)) != len(self.extract):
            raise ValueError("a rule is named twice")
        return self


class ReferenceWithOptions(Options):
    """A reference with options of its own; what it does not state is as in the config."""

    answer: str | int | float | list[str | int | float]
    """The right answer, or several accepted ones."""


Reference = str | int | float | list[str | int | float] | ReferenceWithOptions


@dataclass(frozen=True, slots=True)
class _Accepted:
    """A reference as it is compared with."""

    reading: Reading
    letters: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class _Judged:
    equal: bool
    outcome: str
    layer: str | None
    reason: str | None = None
    accepted: _Accepted | None = None


class AnswerGrader:
    reads = frozenset({Field.COMPLETION, Field.REFERENCE, Field.PROMPT})
    requires = frozenset({Field.REFERENCE})

    def __init__(self, config: AnswerConfig, spec: Spec) -> None:
        self._config = config
        self._order = tuple(config.extract)

    @property
    def tainted(self) -> bool:
        return symbolic.interruptions > 0

    def reference_problem(self, reference: Any) -> str | None:
        if isinstance(reference, dict):
            try:
                reference = ReferenceWithOptions.model_validate(reference).answer
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]
        values = reference if isinstance(reference, list) else [reference]
        if not values:
            return "an empty list accepts nothing"
        if len(values) > _MAX_ACCEPTED:
            return f"at most {_MAX_ACCEPTED} accepted answers"
        if any(isinstance(v, bool) or not isinstance(v, str | int | float) for v in values):
            return "a string or number, a list of them, or an object with 'answer' and options"
        return None

    def grade(self, view: View) -> Scored:
        options: Options = self._config
        reference = view.reference
        if isinstance(reference, dict):
            own = ReferenceWithOptions.model_validate(reference)
            stated = own.model_fields_set - {"answer"}
            options = options.model_copy(update={n: getattr(own, n) for n in stated})
            reference = own.answer
        texts = reference if isinstance(reference, list) else [reference]
        # The reference first: a broken one must not show as the completion being wrong.
        accepted = [self._accepted(t if isinstance(t, str) else json.dumps(t)) for t in texts]
        prompts = _texts(view.prompt)
        found = extract(view.completion, self._order, prompts)
        if found is None:
            return _scored(_Judged(False, "no_answer", None), None, None, accepted)
        if found.denied:
            denied = _Judged(False, "different", None, "the statement denies it")
            return _scored(denied, found, None, accepted)
        if self._config.compare == "choice":
            judged = self._choose(found, accepted)
            return _scored(judged, found, None, accepted)
        rules = Rules(
            tolerance=options.tolerance.exact() if options.tolerance else None,
            ordered=options.ordered,
            percent=options.percent,
            case_sensitive=options.case_sensitive,
            prompt=prompts[-1] if prompts else "",
        )
        answer: Reading | None = None
        try:
            allowance = Allowance()
            answer = _asked_for(_answer(found, rules, allowance), rules.prompt)
            judged = self._judge(answer, found, accepted, rules, allowance)
            if judged.equal and judged.accepted is not None:
                judged = _with_form(judged, answer, options, prompts)
        except Exception as error:
            # An answer must not gain by breaking the comparison: unscored is better than wrong.
            reason = f"the comparison failed: {type(error).__name__}"
            judged = _Judged(False, "undecided", None, reason)
        return _scored(judged, found, answer, accepted)

    def _accepted(self, text: str) -> _Accepted:
        text = _bare(text)
        if self._config.compare == "choice":
            letters = choice.letters(text)
            if letters is None:
                raise CannotScore(
                    FailureKind.INVALID_REFERENCE, f"{text[:200]!r} names no option letter"
                )
            return _Accepted(read(text), letters)
        reading = read(text)
        if reading.thing is None:
            raise CannotScore(
                FailureKind.INVALID_REFERENCE,
                f"the reference {text[:200]!r} cannot be read: {reading.problem}",
            )
        letter = _OPTION.fullmatch(text.strip())
        return _Accepted(reading, frozenset(letter[1]) if letter else None)

    def _judge(
        self,
        answer: Reading,
        found: Found,
        accepted: list[_Accepted],
        rules: Rules,
        allowance: Allowance,
    ) -> _Judged:
        verdicts: list[Verdict] = []
        for one in accepted:
            verdict = compare(one.reading, answer, rules, allowance)
            if verdict.equal:
                return _Judged(True, "equal", verdict.layer, accepted=one)
            if one.letters and not found.others and _names_option(found.text, one.letters):
                return _Judged(True, "equal", "choice", accepted=one)
            verdicts.append(verdict)
        last = verdicts[-1]
        if found.rule == "whole" and isinstance(answer.thing, Words | None):
            if not any(isinstance(a.reading.thing, Words) for a in accepted):
                return _Judged(False, "no_answer", None, "prose without an answer")
        if any(v.ambiguous for v in verdicts):
            return _Judged(False, "ambiguous", last.layer, "several answers are stated")
        if any(v.equal is None for v in verdicts):
            return _Judged(False, "undecided", last.layer, answer.problem or None)
        return _Judged(False, "different", last.layer, answer.problem or None)

    def _choose(self, found: Found, accepted: list[_Accepted]) -> _Judged:
        named = choice.letters(found.text)
        if named is None:
            return _Judged(False, "different", "choice", "no option letter")
        chosen = named.union(*(choice.letters(other) or () for other in found.others))
        for one in accepted:
            if one.letters == chosen:
                return _Judged(True, "equal", "choice", accepted=one)
        most = max(len(a.letters or ()) for a in accepted)
        if len(chosen) > most:
            return _Judged(False, "ambiguous", "choice", "several options are named")
        return _Judged(False, "different", "choice")


def _answer(found: Found, rules: Rules, allowance: Allowance) -> Reading:
    """The reading of what was found; further answers of the statement join it unless they equal it."""
    text = found.text
    if text.startswith("**") and text.count("**") == 2:  # "**42** ways"
        text = text.replace("**", "")
    main = _one_of_equals(read(text), rules, allowance)
    if not found.others or main.problem == "empty":
        return main
    others = [o for o in found.others if _is_another(main, read(o), rules, allowance)]
    if not others:
        return main
    return read(", ".join([*others, found.text]))


def _one_of_equals(answer: Reading, rules: Rules, allowance: Allowance) -> Reading:
    """The first of ``42 or 42.0``: the same value twice is one answer."""
    thing = answer.thing
    if not (isinstance(thing, Seq) and thing.joint == "or" and not thing.opening):
        return answer
    first, *rest = (Reading("", "", item) for item in thing.items)
    if rest and all(compare(first, other, rules, allowance).equal for other in rest):
        return replace(answer, thing=first.thing)
    return answer


def _asked_for(answer: Reading, prompt: str) -> Reading:
    """The 42 of ``m+n = 42`` where the prompt asks for m+n: without it, m+n = 42 is an equation."""
    if not (prompt and isinstance(answer.thing, Rel) and answer.thing.ops == ("=",)):
        return answer
    left, _, right = answer.text.partition("=")
    key = key_of(left.strip(" $"))
    if len(key) < 2 or key not in key_of(prompt):
        return answer
    value = read(right.strip(" $"))
    return value if value.thing is not None else answer


def _is_another(main: Reading, other: Reading, rules: Rules, allowance: Allowance) -> bool:
    """Whether what was found beside an answer is an answer too, and not the same."""
    if other.thing is None or isinstance(other.thing, Words):
        prose = isinstance(main.thing, Words)
        if not prose and not any(c.isdecimal() for c in other.text):
            return False  # "42 or so": words beside a value
        if not prose and other.thing is None and len(_A_WORD.findall(other.text)) > 2:
            return False  # a sentence
        return not prose or other.words != main.words
    if compare(main, other, rules, allowance).equal:
        return False
    if isinstance(other.thing, Rel) and set(other.thing.ops) == {"="}:
        last = Reading("", "", other.thing.sides[-1])
        return not compare(main, last, rules, allowance).equal  # "6·7 = 42"
    return True


def _names_option(text: str, letters: frozenset[str]) -> bool:
    """Whether the text is this option with its words: ``E: polygenic``. In mathematics, n is not N."""
    return choice.letters(text, in_mathematics=True) == letters and any(c in text for c in letters)


def _with_form(judged: _Judged, answer: Reading, options: Options, prompts: list[str]) -> _Judged:
    """A right value that lacks the form asked for, or only restates the task, is not the answer."""
    if options.form != "any" or options.decimal_places is not None:
        thing = as_written(answer.text)
        why = "not readable"
        if thing is not None:
            asked = as_written(judged.accepted.reading.text) if judged.accepted else None
            why = forms.problem(thing, options.form, options.decimal_places, asked) or ""
            if options.decimal_places is not None and "e" in answer.text.lower():
                why = "not a decimal in plain digits"
        if why:
            return _Judged(False, "different", judged.layer, f"right in value, but {why}")
    assert judged.accepted is not None
    if judged.layer not in ("text", "number", "words", "choice") and prompts:
        if _restates(answer, judged.accepted.reading, prompts[-1]):
            return _Judged(False, "different", judged.layer, "it restates the task unevaluated")
    return judged


def _restates(answer: Reading, reference: Reading, prompt: str) -> bool:
    """Whether the answer stands in the prompt as it is, and is no plain number."""
    thing = answer.thing.value if isinstance(answer.thing, Quantity) else answer.thing
    if not isinstance(thing, (*SCALARS, Rel)) or len(answer.key) < 3:
        return False
    if not isinstance(thing, Rel) and forms.is_literal(thing):
        return False
    where = re.compile(rf"(?<![A-Za-z0-9]){re.escape(answer.key)}(?![A-Za-z0-9])")
    return len(prompt) < 100_000 and where.search(key_of(prompt)) is not None


def _bare(text: str) -> str:
    """A reference without what data sets wrap it in: ``#### 72`` after a solution, one ``\\boxed{}``."""
    if "####" in text and (
        end := _SOLUTION_END.search(text.rpartition("####")[1] + text.rpartition("####")[2])
    ):
        text = end[1]
    if "\\boxed{" in text and len(text) > MAX_CHARS // 8:
        at = text.rindex("\\boxed{") + len("\\boxed")
        close = matching_brace(text, at)
        if close > 0:
            text = text[at + 1 : close]
    return text


def _texts(prompt: str | list[dict[str, str]] | None) -> list[str]:
    """The texts of a prompt, the question last."""
    if prompt is None:
        return []
    if isinstance(prompt, str):
        return [prompt]
    return [m["content"] for m in prompt if m.get("role") != "assistant"]


def _scored(
    judged: _Judged, found: Found | None, answer: Reading | None, accepted: list[_Accepted]
) -> Scored:
    shown = judged.accepted or accepted[0]
    raw: dict[str, Any] = {
        "outcome": judged.outcome,
        "layer": judged.layer,
        "extracted": None if found is None else found.text[:_MAX_SHOWN],
        "rule": None if found is None else found.rule,
        "span": None if found is None else [found.start, found.end],
        "normal": None if answer is None else _normal(answer),
        "reference_normal": _normal(shown.reading),
    }
    if judged.reason:
        raw["reason"] = judged.reason
    if found is not None and found.others:
        raw["others"] = [o[:_MAX_SHOWN] for o in found.others]
    reward = 1.0 if judged.equal else 0.0
    basis = Basis.UNDECIDED if judged.outcome == "undecided" else Basis.VERDICT
    return Scored(reward, {"correct": reward}, raw=raw, basis=basis)


def _normal(reading: Reading) -> str | None:
    if isinstance(reading.thing, Words):
        return reading.thing.text[:_MAX_SHOWN]
    return (reading.key or None) and reading.key[:_MAX_SHOWN]


KIND = Kind(
    name="answer",
    summary="A final answer in mathematics: found, read and compared by value.",
    config=AnswerConfig,
    reference=Reference,
    build=AnswerGrader,
    decided_by=("sympy", "mpmath"),
    cheap=True,
    budget=Budget(cpu_s=0.7, wall_s=10.0),
    preload=(
        "sympy",
        "mpmath",
        "reward_server.graders.answer.symbolic",
        "reward_server.graders.answer.numeric",
    ),
)
