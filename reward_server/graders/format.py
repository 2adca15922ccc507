"""Kind ``format``: the completion has the asked-for shape, whatever it says.

Three independent checks, each a component of 0 or 1; the reward is 1 only if all that are asked for
hold.

``template``  ``think_answer``: ``<think>…</think>`` then ``<answer>…</answer>`` and nothing else, as in
              DeepSeek-R1 (arXiv:2501.12948, the template of R1-Zero). ``think``: ``<think>…</think>``
              then an answer in plain text. Each tag stands exactly once and no part is empty, so
              repeating, nesting or leaving a block open gains nothing.
``sections``  headings that stand at the start of a line, each exactly once, in this order, with text
              under each.
``language``  the share of letters that belong to the language's script, in the chosen region. A share
              of scripts cannot tell English from French; it catches the mixing of scripts that R1's
              language consistency reward was made against.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field as ModelField, model_validator

from reward_server.graders.base import Field, Kind, Spec, View
from reward_server.graders.patterns import Pattern
from reward_server.outcome import Scored

# Letters of no script of their own (the Japanese lengthening mark, "µ", "𝑥") speak for none.
_NO_SCRIPT = r"[\p{Common}\p{Inherited}]+"
_CORE = {"ja": (r"[\p{Hiragana}\p{Katakana}]+", 0.1), "ko": (r"\p{Hangul}+", 0.5)}
"""Languages that share a script with another: letters of their own, and their least share. Without it
Chinese would pass as Japanese."""
_SCRIPTS = {
    "ar": r"\p{Arabic}",
    "de": r"\p{Latin}",
    "el": r"\p{Greek}",
    "en": r"\p{Latin}",
    "es": r"\p{Latin}",
    "fr": r"\p{Latin}",
    "he": r"\p{Hebrew}",
    "hi": r"\p{Devanagari}",
    "it": r"\p{Latin}",
    "ja": r"[\p{Han}\p{Hiragana}\p{Katakana}]",
    "ko": r"[\p{Hangul}\p{Han}]",
    "pt": r"\p{Latin}",
    "ru": r"\p{Cyrillic}",
    "th": r"\p{Thai}",
    "uk": r"\p{Cyrillic}",
    "vi": r"\p{Latin}",
    "zh": r"\p{Han}",
}
_LETTER_RUN = re.compile(r"[^\W\d_]+")
# Only command names from a closed list are left out. To leave out whole formulas or fenced code would
# let a completion reason in any language inside a fence and keep one right letter outside.
_LATEX_COMMANDS = re.compile(
    r"\\(?:alpha|angle|approx|begin|beta|binom|boxed|cdot|cdots|circ|cos|dfrac|div|dots|end|equiv|exp"
    r"|frac|gamma|ge|geq|in|infty|int|lambda|ldots|le|left|leq|lim|ln|log|mathbb|mathrm|mod|mu|ne|neq"
    r"|omega|overline|phi|pi|pm|prod|qquad|quad|right|sigma|sin|sqrt|sum|tan|text|tfrac|theta|times"
    r"|to|triangle|vec)(?![A-Za-z])"
)


class Language(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    code: Literal[
        "ar", "de", "el", "en", "es", "fr", "he", "hi", "it",
        "ja", "ko", "pt", "ru", "th", "uk", "vi", "zh",
    ]  # fmt: skip
    min_share: float = ModelField(0.9, gt=0, le=1)
    """Least share of letters in the language's script. Code counts as written; the names of common
    LaTeX commands do not count."""
    region: Literal["all", "think", "answer"] = "all"
    """``think`` and ``answer`` need a ``template``."""


class FormatConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    template: Literal["think_answer", "think"] | None = None
    think_prefilled: bool = False
    """The prompt already ends with ``<think>``, so the completion starts inside the block."""
    sections: list[str] = ModelField(default_factory=list, max_length=64)
    language: Language | None = None

    @model_validator(mode="after")
    def _asks_for_something(self) -> FormatConfig:
        if not (self.template or self.sections or self.language):
            raise ValueError("nothing to check: give a template, sections or a language")
        if self.language and self.language.region != "all" and not self.template:
            raise ValueError(f"language.region {self.language.region!r} needs a template")
        if self.think_prefilled and not self.template:
            raise ValueError("think_prefilled needs a template")
        if any(s != s.strip() or len(s.splitlines()) != 1 or len(s) > 200 for s in self.sections):
            raise ValueError(
                "a section is one line of at most 200 characters, without white space around it"
            )
        for one in self.sections:
            if sum(_heads(other, one) for other in self.sections) > 1:
                raise ValueError(f"{one!r} would be found at the heading of another section too")
        return self


@dataclass(frozen=True, slots=True)
class Parts:
    """A completion that follows its template, taken apart."""

    think: str
    answer: str


class FormatGrader:
    reads = frozenset({Field.COMPLETION})
    requires: frozenset[Field] = frozenset()

    def __init__(self, config: FormatConfig, spec: Spec) -> None:
        self._config = config
        self._script = (
            Pattern(f"(?:{_SCRIPTS[config.language.code]})+") if config.language else None
        )
        core, self._core_share = _CORE.get(config.language.code if config.language else "", ("", 0))
        self._core = Pattern(core) if core else None
        self._no_script = Pattern(_NO_SCRIPT)

    def reference_problem(self, reference: Any) -> str | None:
        return None

    def grade(self, view: View) -> Scored:
        config = self._config
        components: dict[str, float] = {}
        raw: dict[str, Any] = {}
        parts: Parts | None = None
        if config.template:
            taken = take_apart(view.completion, config.template, config.think_prefilled)
            parts = taken if isinstance(taken, Parts) else None
            components["template"] = float(parts is not None)
            raw["template"] = "follows" if parts else taken
        if config.sections:
            problem = sections_problem(view.completion, config.sections)
            components["sections"] = float(problem is None)
            raw["sections"] = problem or "all present"
        if config.language:
            share = self._share(self._region(view.completion, parts))
            components["language"] = float(share is not None and share >= config.language.min_share)
            raw["language_share"] = share
        passed = all(components.values())
        raw["outcome"] = "follows" if passed else "deviates"
        return Scored(float(passed), components, raw=raw)

    def _region(self, completion: str, parts: Parts | None) -> str | None:
        assert self._config.language is not None
        match self._config.language.region:
            case "all":
                return completion
            case "think":
                return parts.think if parts else None
            case "answer":
                return parts.answer if parts else None

    def _share(self, text: str | None) -> float | None:
        """Share of letters in the script; None where there is no letter to judge."""
        if text is None or self._script is None:
            return None
        letters = "".join(_LETTER_RUN.findall(_LATEX_COMMANDS.sub(" ", text)))
        total = len(letters) - self._no_script.covered(letters)
        if not total:
            return None
        if self._core is not None and self._core.covered(letters) / total < self._core_share:
            return 0.0
        return round(self._script.covered(letters) / total, 4)


def take_apart(completion: str, template: str, prefilled: bool) -> Parts | str:
    """The parts of a completion that follows the template, or what is wrong with it."""
    text = completion.strip()
    wanted = {"<think>": 0 if prefilled else 1, "</think>": 1}
    if template == "think_answer":
        wanted |= {"<answer>": 1, "</answer>": 1}
    for tag, times in wanted.items():
        if (seen := text.count(tag)) != times:
            return f"{tag} stands {seen} times, not {times}"
    if not prefilled:
        if not text.startswith("<think>"):
            return "text before <think>"
        text = text.removeprefix("<think>")
    think, _, rest = text.partition("</think>")
    if template == "think_answer" and _has_tag(think):
        return "an <answer> tag inside <think>"
    rest = rest.strip()
    if template == "think_answer":
        if not rest.startswith("<answer>"):
            return "text between </think> and <answer>"
        if not rest.endswith("</answer>"):
            return "text after </answer>"
        rest = rest.removeprefix("<answer>").removesuffix("</answer>")
    if not _says_something(think):
        return "the reasoning is empty"
    if not _says_something(rest):
        return "the answer is empty"
    return Parts(think, rest)


def _says_something(text: str) -> bool:
    """White space, invisible characters and mere punctuation are no reasoning and no answer."""
    return any(c.isalnum() for c in text)


def _has_tag(text: str) -> bool:
    return "<answer>" in text or "</answer>" in text


def sections_problem(completion: str, sections: list[str]) -> str | None:
    """What is wrong with the sections of a completion, or None."""
    lines = completion.splitlines()
    stands = {s: [i for i, line in enumerate(lines) if _heads(line, s)] for s in sections}
    for section, at in stands.items():
        if len(at) != 1:
            return f"{section!r} stands {len(at)} times at the start of a line, not once"
    starts = [stands[s][0] for s in sections]
    if starts != sorted(starts):
        return "the sections are out of order"
    for section, start, end in zip(sections, starts, [*starts[1:], len(lines)], strict=True):
        body = [lines[start].strip()[len(section) :], *lines[start + 1 : end]]
        if not any(map(_says_something, body)):
            return f"{section!r} is empty"
    return None


def _heads(line: str, section: str) -> bool:
    """Whether a line starts with the heading as a whole word ("Answer" does not head "Answers")."""
    line = line.strip()
    if not line.startswith(section):
        return False
    after = line[len(section) : len(section) + 1]
    return not (after and after.isalnum() and section[-1].isalnum())


KIND = Kind(
    name="format",
    summary="Think/answer tags, required sections, language: the shape of a completion.",
    config=FormatConfig,
    reference=Any,
    build=FormatGrader,
    decided_by=("google-re2",),
    cheap=True,
)
