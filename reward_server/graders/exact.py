"""Kind ``exact``: the completion, or what a pattern finds in it, equals the reference.

Three comparisons, each with its stated normalisation and nothing more:

``string``  after Unicode normalisation (NFC by default) and the options asked for, code point by code
            point.
``number``  exact values by the numeral rule of ``numerals.py``; there is no tolerance.
``json``    structural equality: key order and white space do not matter, numbers compare by value
            (1 equals 1.0), booleans are not numbers, a repeated key is no valid answer.

What is *not* done: stripping of reasoning blocks, units, LaTeX. That is the work of ``answer``.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from decimal import Decimal
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field as ModelField, model_validator

from reward_server.graders.base import Field, Kind, Spec, View
from reward_server.graders.numerals import parse_number, show
from reward_server.graders.patterns import MAX_PATTERN_CHARS, Found, Pattern
from reward_server.outcome import CannotScore, FailureKind, Scored

_MAX_ALTERNATIVES = 1000
_MAX_SHOWN = 2000
"""Characters of a text that ``raw`` repeats."""


class Extract(BaseModel):
    """Where in the completion the answer stands."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    regex: str = ModelField(min_length=1, max_length=MAX_PATTERN_CHARS)
    """RE2 syntax."""
    group: int | str | None = None
    """Number or name of the group that is the answer; by default the first, or the whole match."""
    which: Literal["last", "first"] = "last"

    @model_validator(mode="after")
    def _compiles(self) -> Extract:
        Pattern(self.regex, self.group)
        return self


class ExactConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    compare: Literal["string", "number", "json"] = "string"
    extract: Extract | None = None
    """Without it the whole completion is the answer."""
    strip: bool = True
    """string: drop surrounding white space on both sides."""
    collapse_whitespace: bool = False
    """string: runs of white space become one space."""
    ignore_case: bool = False
    """string: compare case-folded."""
    unicode: Literal["NFC", "NFKC", "none"] = "NFC"
    """string: the normal form that both sides are brought into."""


class ExactGrader:
    reads = frozenset({Field.COMPLETION, Field.REFERENCE})
    requires = frozenset({Field.REFERENCE})

    def __init__(self, config: ExactConfig, spec: Spec) -> None:
        self._config = config
        self._extract = config.extract
        self._pattern = (
            Pattern(config.extract.regex, config.extract.group) if config.extract else None
        )

    def reference_problem(self, reference: Any) -> str | None:
        if self._config.compare == "json":
            return None
        if isinstance(reference, list):
            if not reference:
                return "an empty list accepts nothing"
            if len(reference) > _MAX_ALTERNATIVES:
                return f"at most {_MAX_ALTERNATIVES} accepted references"
            return next((p for r in reference if (p := self._scalar_problem(r))), None)
        return self._scalar_problem(reference)

    def grade(self, view: View) -> Scored:
        # The reference first: a broken one must not show as the completion being wrong.
        match self._config.compare:
            case "string":
                accepted = self._accepted_strings(view.reference)
            case "number":
                accepted = self._accepted_numbers(view.reference)
            case "json":
                accepted = [_jsonable(view.reference)]
        found = self._find(view.completion)
        if found is None:
            return self._wrong("no_answer", None, accepted)
        match self._config.compare:
            case "string":
                answer: Any = self._normal_string(found.text)
            case "number":
                answer = parse_number(found.text)
            case "json":
                answer = _parse_json(found.text)
        if answer is None:
            return self._wrong("no_answer", found, accepted)
        if any(_same(answer, a) for a in accepted):
            raw = self._raw("equal", found, accepted) | {"normal": _shown(answer)}
            return Scored(1.0, {"correct": 1.0}, raw=raw)
        scored = self._wrong("different", found, accepted)
        return Scored(0.0, scored.components, raw={**scored.raw, "normal": _shown(answer)})

    def _find(self, completion: str) -> Found | None:
        if self._pattern is None or self._extract is None:
            return Found(completion, 0, len(completion))
        if self._extract.which == "last":
            return self._pattern.last(completion)
        return self._pattern.first(completion)

    def _wrong(self, outcome: str, found: Found | None, accepted: list[Any]) -> Scored:
        return Scored(0.0, {"correct": 0.0}, raw=self._raw(outcome, found, accepted))

    def _raw(self, outcome: str, found: Found | None, accepted: list[Any]) -> dict[str, Any]:
        return {
            "outcome": outcome,
            "extracted": None if found is None else found.text[:_MAX_SHOWN],
            "rule": "regex" if self._pattern else "whole",
            "span": None if found is None else [found.start, found.end],
            "reference_normal": [_shown(a) for a in accepted[:16]],
        }

    def _scalar_problem(self, reference: Any) -> str | None:
        if isinstance(reference, bool) or not isinstance(reference, str | int | float):
            return f"a string or number (or a list of them), not {_json_type(reference)}"
        return None

    def _accepted_strings(self, reference: Any) -> list[Any]:
        texts = reference if isinstance(reference, list) else [reference]
        normal = [self._normal_string(_as_text(t)) for t in texts]
        if not all(normal):
            raise CannotScore(
                FailureKind.INVALID_REFERENCE,
                "the reference is empty (an empty completion would be right) or no writing at all",
            )
        return list(normal)

    def _accepted_numbers(self, reference: Any) -> list[Any]:
        texts = reference if isinstance(reference, list) else [reference]
        numbers = [parse_number(_as_text(t)) for t in texts]
        for text, number in zip(texts, numbers, strict=True):
            if number is None:
                raise CannotScore(
                    FailureKind.INVALID_REFERENCE,
                    f"{_as_text(text)[:200]!r} is not a number by the rule of kind exact",
                )
        return list(numbers)

    def _normal_string(self, text: str) -> str | None:
        """The text in its normal form; None for one that no normal form is worth its time."""
        config = self._config
        if config.unicode != "none" and _piles_up(text):
            return None
        if config.unicode != "none":
            text = unicodedata.normalize(config.unicode, text)
        if config.ignore_case:
            text = text.casefold()
            if config.unicode != "none":  # folding can undo normalisation
                text = unicodedata.normalize(config.unicode, text)
        if config.collapse_whitespace:
            text = " ".join(text.split()) if config.strip else _collapse(text)
        return text.strip() if config.strip else text


def _piles_up(text: str) -> bool:
    """Whether more than 30 combining marks follow each other: more than any writing has (Unicode's
    stream-safe format, UAX 15), and normalisation takes quadratic time over them."""
    if text.isascii() or not _MARKS.search(text):
        return False
    run = 0
    for character in text:
        run = run + 1 if unicodedata.combining(character) else 0
        if run > _MAX_MARKS:
            return True
    return False


_MAX_MARKS = 30
_MARKS = re.compile(r"[^\x00-\u02ff]{31}")
"""A cheap look before the slow one: marks start at U+0300."""


def _collapse(text: str) -> str:
    """Runs of white space become one space, at the ends too."""
    inner = " ".join(text.split())
    if not inner:
        return " " if text else ""
    return (" " if text[0].isspace() else "") + inner + (" " if text[-1].isspace() else "")


class _RepeatedKey(ValueError):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # {"answer": 1, "answer": 2} would let a completion hold two answers and be right by parser.
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _RepeatedKey
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _parse_json(text: str) -> Any:
    """A JSON document with numbers as Decimal; None (no answer) where it is not one."""
    try:
        parsed = json.loads(
            text,
            parse_float=Decimal,
            parse_int=Decimal,
            parse_constant=_no_constant,
            object_pairs_hook=_object,
        )
    except (ValueError, RecursionError, ArithmeticError):
        return None
    return _Json(parsed)


class _Json:
    """Marks a parsed document, so that the document ``null`` is not "no answer"."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _jsonable(reference: Any) -> Any:
    """The reference as the completion's own parser would see it: numbers as Decimal."""
    return _Json(json.loads(json.dumps(reference), parse_float=Decimal, parse_int=Decimal))


def _same(answer: Any, accepted: Any) -> bool:
    if isinstance(answer, _Json):
        return isinstance(accepted, _Json) and _equal_json(answer.value, accepted.value)
    return bool(answer == accepted)


def _equal_json(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal_json(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_equal_json(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


def _as_text(reference: Any) -> str:
    return reference if isinstance(reference, str) else json.dumps(reference)


def _shown(answer: Any) -> Any:
    if isinstance(answer, _Json):
        text = json.dumps(answer.value, default=_shown_number, ensure_ascii=False)
        return text[:_MAX_SHOWN]
    return answer[:_MAX_SHOWN] if isinstance(answer, str) else show(answer)


def _shown_number(value: Decimal) -> int | float | str:
    if value == value.to_integral_value() and value.adjusted() < 50:
        return int(value)
    near = float(value)
    return near if math.isfinite(near) else str(value)


def _json_type(value: Any) -> str:
    names = {bool: "a boolean", dict: "an object", list: "a list", type(None): "null"}
    return names.get(type(value), type(value).__name__)


KIND = Kind(
    name="exact",
    summary="Equality of strings, numbers or JSON, of the whole completion or of what a regex finds.",
    config=ExactConfig,
    reference=Any,
    build=ExactGrader,
    decided_by=("google-re2",),
    cheap=True,
)
