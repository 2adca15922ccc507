"""Where the final answer of a completion stands.

Reasoning blocks and the echoed prompt are hidden first, position by position, so that spans stay those of
the completion. Then rules are tried in a stated order; the first that finds something decides. Each takes
the *last* complete statement of its kind. Statements side by side (two boxes joined by "or", two
``####`` lines) are one statement with several answers, which the comparison then treats as such; a box
further up that was corrected later is none of them. A number that merely appears is never an answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from reward_server.graders.answer.lexer import matching_brace
from reward_server.graders.answer.surroundings import alternatives, denied, joined, whole_formula
from reward_server.graders.answer.visible import visible

Rule = Literal["answer_tag", "boxed", "hash", "statement", "letter", "whole"]
_MAX_BOX = 6000
_MAX_TRIES = 64
_MAX_JOINED = 16
_MAX_STATEMENT = 600
_WHOLE = 400

_BOX = re.compile(r"\\(?:f?boxed|fbox)\s*\{")
_TAG = re.compile(r"<answer>|</answer>", re.IGNORECASE)
_HASHES = re.compile(r"####[ \t]*([^\n]*)")
_STATEMENT = re.compile(
    r"""
    (?: (?:answers?|option|choice)\b
        (?: \s+(?:choice|option|to\s[^.\n:=]{1,80}?|here) )?
        \s{0,3} (?: \*\*|__ )? \s{0,2}
        (?: (?:is|are|would\s+be|must\s+be|should\s+be)\b
            (?:\s+(?:therefore|thus|simply|then|just))? \s{0,2}:?
          | :{1,2} | = | ： | (?:\*\*|__|\#)*[ \t]*(?=\n) )
      | 答案(?:应该|应|就)?\s{0,2}(?:是|为|為|：|:)+ | (?:故|所以)选(?:择)?[：:]? | 答[：:]
      | ^A: )
    \s{0,3} (?: \*\*|__ )? [ \t]{0,3} :? [ \t]{0,3}
    """,
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
_STATING = ("answer", "option", "choice", "答", "故选", "所以选", "a:")
_MAX_MARKS = 8
_SENTENCE_END = re.compile(r"[.!?](?=[\s*_\"')$]|$)|。|\n|\x00|<\|")
_CLAUSE = re.compile(
    r",?\s+(?:because|since|which|so|where|hence|therefore|giving|as\s+(?:shown|required|desired|we))\b.*",
    re.DOTALL,
)
_OPTION_LABEL = re.compile(r"\s*\(?([A-J])[).:]\s")
_ONE_LETTER = re.compile(r"[($*\\]*[A-J][)$*\\]*")
_DOUBT = re.compile(
    r"\bnot\b|n't\b|\bno\b|\bwrong\b|\bit is [A-J]\b|\b(?:or|and) [(]?[A-Ja-j]\b[)]?|\([a-jA-J]\)",
    re.IGNORECASE,
)
_STATED_TWICE = re.compile(
    r",?\s*\b(?:or|and)\s+(?:the\s+)?(?:\w+\s+)?$|或$|(?<=\S)\s*\n\s*(?:\W{0,3}(?:the|final)\s+)*\W{0,3}$",
    re.IGNORECASE,
)
_STATED_BEFORE = re.compile(
    r"\s*(?P<alt>\S{1,60}?)[\s.,;/]*(?:\b(?:or|and|otherwise|else|alternatively)\b)?[\s,]*(?:if\b[^.\n]{0,40}?,?\s)?"
    r"(?:the\s+(?:final\s+|correct\s+)?)?\W*",
    re.IGNORECASE,
)
"""One short answer, and nothing but a connector, before the next statement."""
_LETTER_LINE = re.compile(r"\W{0,6}\(?([A-Za-z])\)?\W{0,6}")
_LETTER_NAMED = re.compile(
    r"(?:^|[.;,:]\s|\b(?:so|thus|hence|therefore|option|choice|answer|that|and|or)\s)\W{0,4}(?<![\w'])([A-J])\W{0,4}\s*"
    r"(?:is|are)\s+(?:the\s+)?(?:only\s+)?(?:correct|right|best|true)\b",
    re.IGNORECASE,
)
_LETTER_DENIED = re.compile(r"\bnot\b|n't\b|\bfalse\b|\bneither\b|\bno\b|\?", re.IGNORECASE)
_OPTION_START = re.compile(r"\W{0,4}([A-J])\W{0,3}[.):：]\s+\S[^\n]*|\(([A-J])\)\s+\S[^\n]*")


@dataclass(frozen=True, slots=True)
class Found:
    """An answer as it stands in the completion: ``completion[start:end]`` is ``text``."""

    text: str
    rule: Rule
    start: int
    end: int
    others: tuple[str, ...] = ()
    """Further answers of the same statement, before or after this one."""
    denied: bool = False
    """Whether the sentence says that this is *not* the answer."""


def extract(completion: str, order: Sequence[Rule], echoes: Sequence[str] = ()) -> Found | None:
    """The final answer by the first rule that finds one; ``echoes`` are texts of the prompt."""
    text = visible(completion, tuple(echoes))
    for rule in order:
        found = _RULES[rule](text, 0, len(text))
        if found is not None:
            return found
    return None


# ── the rules: (visible text, from, to) -> what stands there ─────────────────────────────────────


def _boxed(text: str, start: int, end: int) -> Found | None:
    boxes = _boxes(text, start, end)
    last = next(boxes, None)
    if last is None:
        return None
    others: list[str] = []
    first = last
    for box in boxes:
        if len(others) >= _MAX_JOINED or not joined(text[box[2] : first[0]]):
            break
        others.insert(0, text[box[1] : box[2] - 1])
        first = box
    others += alternatives(text, first[0], last[2], end)
    later = _statement(text, last[2], end)
    if later is not None and any(c.isdecimal() for c in later.text):
        others.append(later.text)  # stated again, and otherwise
    no = denied(text, last[0], last[2])
    if (formula := whole_formula(text, last[0], last[2])) is not None:
        since, until = formula
        return Found(text[since:until], "boxed", since, until, tuple(others), no)
    return Found(text[last[1] : last[2] - 1], "boxed", last[1], last[2] - 1, tuple(others), no)


def _boxes(text: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(start, start of content, end) of complete boxes, from the last back, outermost of nested ones."""
    if "box" not in text:
        return
    openings = [m.span() for m in _BOX.finditer(text, start, end)][-_MAX_TRIES:]
    spans: list[tuple[int, int, int]] = []
    for opening, content in openings:
        close = matching_brace(text[content - 1 : min(end, content + _MAX_BOX)], 0)
        if close > 0:
            spans.append((opening, content, content + close))
    limit = end + 1
    for position in range(len(spans) - 1, -1, -1):
        span = spans[position]
        if span[2] > limit:
            continue
        enclosing = next((s for s in spans[:position] if s[2] >= span[2]), None)
        chosen = enclosing or span
        limit = chosen[0]
        yield chosen


def _answer_tag(text: str, start: int, end: int) -> Found | None:
    spans: list[tuple[int, int, int, int]] = []
    opened: tuple[int, int] | None = None
    if "answer>" not in text and "ANSWER>" not in text and "Answer>" not in text:
        return None
    for tag in _TAG.finditer(text, start, end):
        if tag[0][1] != "/":
            opened = tag.span()
        elif opened is not None:
            spans.append((*opened, tag.start(), tag.end()))
            opened = None
    if not spans:
        return None
    last = spans[-1]
    others: list[str] = []
    if opened is not None:  # a second answer that was cut off
        others.append(text[opened[1] : opened[1] + 200].strip().split("\n")[0])
    others += alternatives(text, last[0], last[3], end)
    no = denied(text, last[0], last[3])
    first = last
    for span in reversed(spans[:-1]):
        if len(others) >= _MAX_JOINED or not joined(text[span[3] : first[0]]):
            break
        others.insert(0, text[span[1] : span[2]].strip())
        first = span
    for rule in (_boxed, _hash, _statement):
        if (inner := rule(text, last[1], last[2])) is not None:
            more = tuple(others) + inner.others
            return replace(inner, rule="answer_tag", others=more, denied=no or inner.denied)
    return replace(_trimmed(text, "answer_tag", last[1], last[2], others), denied=no)


def _hash(text: str, start: int, end: int) -> Found | None:
    if "####" not in text:
        return None
    lines = [m for m in _HASHES.finditer(text, start, end) if m[1].strip()]
    if not lines:
        return None
    last = lines[-1]
    others: list[str] = []
    first = last
    for line in reversed(lines[:-1]):
        if len(others) >= _MAX_JOINED or not joined(text[line.end() : first.start()]):
            break
        others.insert(0, line[1].strip())
        first = line
    others += alternatives(text, last.start(), last.end(1), end)
    no = denied(text, last.start(), last.end(1))
    return replace(_trimmed(text, "hash", last.start(1), last.end(1), others), denied=no)


def _statement(text: str, start: int, end: int) -> Found | None:
    marks = _marks(text, start, end)
    for position in range(len(marks) - 1, max(-1, len(marks) - 6), -1):
        mark = marks[position]
        here = mark[1]
        while here < end and text[here] in " \t\r\n":  # the answer may stand on a line of its own
            here += 1
        stop = _SENTENCE_END.search(text, here, min(end, here + _MAX_STATEMENT))
        until = stop.start() if stop else min(end, here + _MAX_STATEMENT)
        if stop is not None and text[until] == "\n" and text[here : here + 2] in ("\\[", "$$"):
            closing = text.find("\\]" if text[here + 1] == "[" else "$$", here + 2, here + 400)
            until = closing + 2 if closing > 0 else until
        if _ONE_LETTER.fullmatch(text, here, until):  # "A. Not that one, it is B"
            line = text.find("\n", until, min(end, until + 200))
            if _DOUBT.search(text, until, line if line > 0 else min(end, until + 200)):
                return Found(text[here:until], "statement", here, until, denied=True)
        content = _CLAUSE.sub("", text[here:until])
        if not content.strip(" $*_\\()[]{}.:") or (stop is not None and stop[0] == "?"):
            continue  # nothing, or a question
        others: list[str] = []
        if position:  # "the answer is 41 or the answer is 42"
            between = text[marks[position - 1][1] : mark[0]]
            if len(between) < 120:
                if _STATED_TWICE.search(between):
                    others.append(_STATED_TWICE.sub("", between).strip())
                elif (twice := _STATED_BEFORE.fullmatch(between)) and any(
                    c.isdecimal() or c.isupper() for c in twice["alt"]
                ):
                    others.append(twice["alt"].strip(" .,;"))  # "Answer: 41. Answer: 42"
        until = here + len(content)
        if _OPTION_LABEL.match(text, here, until) and (
            another := _OPTION_LABEL.match(text, until, min(end, until + 80))
        ):
            others.append(another[1])  # the options one by one
        others += alternatives(text, mark[0], until, end)
        no = denied(text, here, until)
        return replace(_trimmed(text, "statement", here, until, others), denied=no)
    return None


def _marks(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Where the last phrases stand that announce an answer: (start, end) of each, in order."""
    lowered = text.lower() if len(text.lower()) == len(text) else text
    found: dict[int, int] = {}
    for word in _STATING:
        at = end
        for _ in range(_MAX_MARKS):
            at = lowered.rfind(word, start, at)
            if at < 0:
                break
            if at and word.isascii() and (text[at - 1].isalnum() and text[at - 1].isascii()):
                continue
            if (mark := _STATEMENT.match(text, at, end)) is not None:
                found[at] = mark.end()
    return sorted(found.items())


def _letter(text: str, start: int, end: int) -> Found | None:
    lines = [line for line in text[start:end][-4000:].split("\n") if line.strip(" \t\r\x00*")]
    if not lines:
        return None
    if (single := _LETTER_LINE.fullmatch(lines[-1].strip("\x00"))) is not None:
        at = text.rindex(lines[-1], start, end) + lines[-1].index(single[1])
        return Found(single[1], "letter", at, at + 1)
    last = text.rindex(lines[-1], start, end)
    named = list(_LETTER_NAMED.finditer(text, last, min(end, last + len(lines[-1]))))
    if named and not _LETTER_DENIED.search(lines[-1]) and named[-1][1].isupper():
        others = tuple(m[1] for m in named[:-1])
        return Found(named[-1][1], "letter", *named[-1].span(1), others)
    if len(lines) == 1 and _OPTION_START.fullmatch(lines[0].strip("\x00 ")):
        at = text.rindex(lines[0], start, end)
        return _trimmed(text, "letter", at, at + len(lines[0]), [])
    return None


def _whole(text: str, start: int, end: int) -> Found | None:
    found = _trimmed(text, "whole", start, end, [])
    if not found.text or "\n" in found.text or len(found.text) > _WHOLE:
        return None
    return found


def _trimmed(text: str, rule: Rule, start: int, end: int, others: Sequence[str]) -> Found:
    """Without surrounding white space, hidden text and emphasis."""
    while start < end and text[start] in " \t\r\n\x00":
        start += 1
    while start < end and text[end - 1] in " \t\r\n\x00":
        end -= 1
    for mark in ("**", "__", "`"):
        if (
            text.startswith(mark, start)
            and text.endswith(mark, start, end)
            and end - start > 2 * len(mark)
        ):
            start, end = start + len(mark), end - len(mark)
        elif text.endswith(mark, start, end) and text.count(mark, start, end) == 1:
            end -= len(mark)
        while start < end and text[start] in " \t":
            start += 1
        while start < end and text[end - 1] in " \t":
            end -= 1
    return Found(text[start:end], rule, start, end, tuple(others))


_RULES: dict[Rule, Callable[[str, int, int], Found | None]] = {
    "answer_tag": _answer_tag,
    "boxed": _boxed,
    "hash": _hash,
    "statement": _statement,
    "letter": _letter,
    "whole": _whole,
}
