"""Which part of a completion is the program."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from reward_server.graders.visible import HIDDEN, visible

Rule = Literal["block", "whole"]

_FENCE = re.compile(
    r"(?:^|(?<=>)|(?<=\x00))[ \t]{0,3}+(?P<marks>`{3,}+|~{3,}+)[ \t]*+(?P<info>[^\n`]*+)$",
    re.MULTILINE,
)
_MAX_FENCES = 2000
_TAG = re.compile(r"[{.]*([A-Za-z0-9+#_-]+)")


@dataclass(frozen=True, slots=True)
class Found:
    """A program as it stands in the completion: ``completion[start:end]``."""

    text: str
    rule: Rule
    start: int
    end: int
    tag: str = ""
    """What the fence said of its language, in lower case."""


@dataclass(frozen=True, slots=True)
class _Block:
    start: int
    end: int
    tag: str
    fence: int
    """Where its opening fence stands."""


def extract(completion: str, order: tuple[Rule, ...], names: frozenset[str]) -> Found | None:
    """The program, by the first rule that finds one; ``names`` are those of its language.

    ``block``: the last fenced block that is tagged with the language, or, where none is, the last
    without a tag. A last fence that is never closed counts: stop sequences often take the closing one.
    ``whole``: all of a completion that has no fence. Reasoning is hidden first.
    """
    text = visible(completion)
    fenced = _FENCE.search(text) is not None
    # Fences are those of the completion as it stands: a tag or a comment in a program hides nothing of it. Only
    # where a block begins says whether it is part of the reasoning.
    blocks = [b for b in _blocks(completion) if text[b.fence] != HIDDEN] if fenced else []
    for rule in order:
        if rule == "block":
            tagged = [b for b in blocks if b.tag in names]
            chosen = tagged or [b for b in blocks if not b.tag]
            if chosen:
                last = chosen[-1]
                return Found(
                    completion[last.start : last.end], "block", last.start, last.end, last.tag
                )
        elif not fenced:
            start = len(text) - len(text.lstrip("\x00 \t\r\n"))
            stripped = text.strip("\x00 \t\r\n")
            if stripped:
                # Its first line keeps its indentation: that of a program is part of it.
                start = text.rfind("\n", 0, start) + 1 if "\x00" not in text[:start] else start
                end = len(text.rstrip("\x00 \t\r\n"))
                return Found(completion[start:end], "whole", start, end)
    return None


def _blocks(text: str) -> list[_Block]:
    found: list[_Block] = []
    opened: re.Match[str] | None = None
    for count, fence in enumerate(_FENCE.finditer(text)):
        if count > _MAX_FENCES:
            break
        if opened is None:
            opened = fence
        elif fence["marks"][0] == opened["marks"][0] and len(fence["marks"]) >= len(
            opened["marks"]
        ):
            if fence["info"].strip():
                # "```python" inside an open block: the one before was never closed.
                found.append(_block(opened, fence.start()))
                opened = fence
            else:
                found.append(_block(opened, fence.start()))
                opened = None
    if opened is not None:
        found.append(_block(opened, len(text)))
    return [b for b in found if text[b.start : b.end].strip()]


def _block(fence: re.Match[str], end: int) -> _Block:
    tag = _TAG.match(fence["info"].strip())
    return _Block(
        min(fence.end() + 1, end), end, tag[1].lower() if tag else "", fence.start("marks")
    )
