"""A text as an answer: its key, and the thing that it means.

The *key* is the text without what only looks different (spaces, ``\\left``, ``\\dfrac``); equal keys are
equal answers whatever they mean. The *thing* is what the parser makes of it. Prose that is no mathematics is
``Words``, equal only to the same words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from reward_server.graders.answer.characters import to_ascii_math, unseen
from reward_server.graders.answer.lexer import (
    END,
    Token,
    TooLarge,
    Unreadable,
    matching_brace,
    tokens,
)
from reward_server.graders.answer.numbers import plain
from reward_server.graders.answer.parser import Parser
from reward_server.graders.answer.syntax import Thing, Words

MAX_CHARS = 4096
_REMEMBERED_CHARS = 200

_REPLACED = (
    ("\\dfrac", "\\frac"),
    ("\\tfrac", "\\frac"),
    ("\\cfrac", "\\frac"),
    ("\\left", ""),
    ("\\right", ""),
    ("\\displaystyle", ""),
    ("\\!", " "),
    ("\\,", " "),
    ("\\;", " "),
    ("\\:", " "),
    ("\\leq", "\\le"),
    ("\\geq", "\\ge"),
    ("\\neq", "\\ne"),
)
_SPACE = re.compile(r"(?<![A-Za-z0-9,])\s+|(?<!\d),\s+|,\s+(?!\d)|(?<!,)\s+(?![A-Za-z0-9])")
_LONE_COLON = re.compile(r"(?<![A-Za-z])\{:\}")
_SPACES = re.compile(r"\s+")
_WRAPPED = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.*)\\\)|\\\[(.*)\\\]|\*\*([^*]+)\*\*", re.DOTALL)
_SPACING = ("\\,", "\\;", "\\:", "\\!", "\\ ", "\\>")
_PROSE = re.compile(r"[^\\{}^_=<>+*&#@$()\[\]|~`]*")


@dataclass(frozen=True, slots=True)
class Reading:
    """``thing`` is None where the text cannot be read; ``problem`` says why then."""

    text: str
    key: str
    thing: Thing | None
    words: str = ""
    """The text's words in their normal form, for comparison with prose."""
    cased: str = ""
    """The same, in upper and lower case as they were."""
    problem: str = ""
    too_large: bool = False


def read(text: str) -> Reading:
    """Never raises: what cannot be read has no thing."""
    # Only short texts are remembered, so that no completion can fill the memory with syntax.
    return _remembered(text) if len(text) <= _REMEMBERED_CHARS else _read(text)


@lru_cache(maxsize=2048)
def _remembered(text: str) -> Reading:
    return _read(text)


def _read(text: str) -> Reading:
    if (number := plain(text)) is not None:
        return Reading(text, text, number)
    if len(text) > MAX_CHARS:
        return Reading(text, "", None, problem=f"over {MAX_CHARS} characters", too_large=True)
    if unseen(text):
        return Reading(text, "", None, problem="characters that change what is seen")
    clean = _clean(text)
    if not clean:
        return Reading(text, "", None, problem="empty")
    key = key_of(clean)
    if (number := plain(clean)) is not None:
        return Reading(text, key, number)
    found: list[Token] = []
    try:
        found = tokens(clean)
        thing = Parser(found).answer()
        cased = _words(found)
        return Reading(text, key, thing, cased.casefold(), cased)
    except TooLarge as error:
        return Reading(text, key, None, problem=str(error), too_large=True)
    except RecursionError:
        return Reading(text, key, None, problem="nested too deep", too_large=True)
    except Unreadable as error:
        problem = str(error)
    except Exception as error:  # a defect of the reader: the text is not readable, and says why
        return Reading(text, key, None, problem=f"the reader failed: {type(error).__name__}")
    cased = _words(found)
    words = cased.casefold()
    if _is_prose(clean, found):
        return Reading(text, key, Words(words), words, cased)
    return Reading(text, key, None, words, cased, problem)


def as_written(text: str) -> Thing | None:
    """The thing with every quotient as it stands, where ``read`` takes ``2/4`` for its value."""
    try:
        return Parser(tokens(_clean(text))).answer()
    except (Unreadable, RecursionError):
        return None


def key_of(clean: str) -> str:
    """The text without what only looks different."""
    if "\\" in clean:
        if "\\left" in clean or "\\right" in clean:
            if "arrow" in clean or "harpoon" in clean:
                return _SPACES.sub(" ", clean)
        for old, new in _REPLACED:
            if old in clean:
                clean = clean.replace(old, new)
    return _SPACES.sub(" ", _SPACE.sub(_comma_or_nothing, clean))


def _comma_or_nothing(space: re.Match[str]) -> str:
    """``1, 234`` keeps its space, which tells it from 1,234."""
    return "," if space[0][0] == "," else ""


def _clean(text: str) -> str:
    """ASCII mathematics without surrounding delimiters and trailing punctuation."""
    text = to_ascii_math(text)
    if text.endswith("\\ "):
        text = text[:-2]
    text = text.strip()
    if "{:}" in text:
        text = _LONE_COLON.sub(":", text)
    for _ in range(4):
        before = text
        text = _without_boxes(_without_trailing(text))
        if text[:1] in "$\\*" and (wrapped := _WRAPPED.fullmatch(text)) is not None:
            inner = wrapped[wrapped.lastindex or 1]
            if "\\(" not in inner and "\\)" not in inner and "\\]" not in inner:
                text = inner.strip()
        if text == before:
            break
    return text


def _without_trailing(text: str) -> str:
    """Without the punctuation of the sentence around it; an ellipsis and spacing commands are none."""
    while text:
        if text.endswith(_SPACING):
            text = text[:-2]
        elif text[-1].isspace():
            text = text.rstrip()
            if text.endswith("\\") and not text.endswith("\\\\"):
                text = text[:-1]
        elif text[-1] in ".,;:" and not text.endswith(".."):
            text = text[:-1]
        else:
            break
    while text.startswith(_SPACING):
        text = text[2:].lstrip()
    return text


def _without_boxes(text: str) -> str:
    """Without a box around all of it."""
    while text.startswith(("\\boxed", "\\fbox")):
        brace = text.find("{")
        if brace < 0 or text[:brace].strip() not in ("\\boxed", "\\fbox"):
            break
        if matching_brace(text, brace) != len(text) - 1:
            break
        text = text[brace + 1 : -1].strip()
    return text


def _words(found: list[Token]) -> str:
    """The tokens as plain words: letters run together as they were, punctuation and case dropped."""
    out: list[str] = []
    for token in found:
        if token is END:
            break
        if token.kind == "o" and token.text in ".,;:!?'\"()`*":
            continue
        if out and not token.spaced and token.kind in "lwn" and out[-1].isalnum():
            out[-1] += token.text
        else:
            out.append(token.text)
    return " ".join(out)


def _is_prose(clean: str, found: list[Token]) -> bool:
    """Whether an unparsed text is to be compared by its words: it has some, or no operators at all."""
    if not found or clean.count("{") != clean.count("}"):
        return False
    if any(t.kind == "w" for t in found):
        return True
    return bool(_PROSE.fullmatch(clean)) and any(t.kind == "l" for t in found)
