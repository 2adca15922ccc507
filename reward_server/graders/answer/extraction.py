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
from dataclasses import dataclass
from typing import Literal

from reward_server.graders.answer.lexer import matching_brace

Rule = Literal["answer_tag", "boxed", "hash", "statement", "letter", "whole"]
HIDDEN = "\x00"

_MAX_BOX = 6000
_MAX_TRIES = 64
_MAX_JOINED = 16
_MAX_STATEMENT = 600
_LEAST_ECHO = 20
_WHOLE = 400

_NAMES = (
    "think|thinking|thoughts?|thought_process|reasoning|reason|scratchpad|analysis|reflection|seed:think|"
    "inner_monologue"
)
_REASONING = re.compile(
    rf"<(?P<close>/)?(?:{_NAMES})(?:\s[^<>]{{0,80}})?>|\[(?P<close2>/)?THINK\]|◁(?P<close3>/)?think▷"
    r"|<\|(?:begin|(?P<close4>end))_of_(?:thought|thinking)\|>|<\|START_THINKING\|>|(?P<close5><\|END_THINKING\|>)",
    re.IGNORECASE,
)
_REASON_WORDS = (
    "think", "thought", "reason", "scratchpad", "analysis", "reflection", "monologue", "<|", "<!--", "[//]"
)  # fmt: skip
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)|^[ ]{0,3}\[//\]: [^\n]*", re.DOTALL | re.MULTILINE)
_FINAL_CHANNEL = re.compile(r"<\|channel\|>\s*final\s*(?:<\|[a-z_]+\|>[^<]{0,40})?<\|message\|>")
_BOX = re.compile(r"\\f?boxed\s*\{")
_TAG = re.compile(r"<answer>|</answer>", re.IGNORECASE)
_HASHES = re.compile(r"####[ \t]*([^\n]*)")
_STATEMENT = re.compile(
    r"""
    (?: (?:answers?|option|choice)\b
        (?: \s+(?:choice|option|to\s[^.\n:=]{1,80}?|here) )?
        \s{0,3} (?: \*\*|__ )? \s{0,2}
        (?: (?:is|are|would\s+be|must\s+be|should\s+be)\b
            (?:\s+(?:therefore|thus|simply|then|just))? \s{0,2}:?
          | :{1,2} | = | ： )
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
_BREAK = re.compile(
    r"[.!?。！？](?=\s|$)|\n\s*\n|\x00|\b(?:wait|actually|correction|sorry|mistake|no,|let me|recheck|"
    r"thus|therefore|hence|finally)\b",
    re.IGNORECASE,
)
_CONNECTOR = re.compile(r"\b(?:and|or|oder|ou)\b|[,;/&|]|或|和|、|以及", re.IGNORECASE)
_ALTERNATIVE = re.compile(
    r"[\s$*)\]}\\]{0,6}[,;(]{0,2}\s{0,3}(?:(?:and/)?or\b|and\s+(?=[$\\(]{0,4}-?\d)|/\s*(?=[$\\(]{0,3}\d)|或(?:者)?|alternatively,?|maybe|possibly)"
    r"\s{0,3}([^\n]{1,120})",
    re.IGNORECASE,
)
_EARLIER = re.compile(
    r"(?:^|(?<=\$)|(?<=\()|(?<=[a-z:,]\s)(?<!cdot\s)(?<!times\s))(-?\d[\d.,/]*)"
    r"(?:[$)\]\\*]{0,4},?\s+(?:and/)?or\s{0,3}|[$\s]{0,2}或\s{0,3})[$*(\[\\]{0,4}$",
    re.IGNORECASE,
)
_STATED_TWICE = re.compile(
    r",?\s*\b(?:or|and)\s+(?:the\s+)?(?:\w+\s+)?$|或$|(?<=\S)\s*\n\s*(?:\W{0,3}(?:the|final)\s+)*\W{0,3}$",
    re.IGNORECASE,
)
_ONE_WORD = re.compile(r"\s*\S{1,60}\s*")
_DENIED_BEFORE = re.compile(
    r"(?:\bnot|n't|\bnever|≠|\\neq?|\\neg)\s{0,3}[$*(\[\\]{0,4}$|\bnot\s+(?:true|correct|the\s+case)\b[^.!?\n]{0,80}$",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    r"[\s$*)\]\\]{0,6}(?:,\s*which\s+|\s*that\s+)?(?:is|was|would\s+be|seems)\s+(?:(?:clearly|definitely|probably)\s+)?(?:wrong|incorrect|false|not\b(?!\s+only))",
    re.IGNORECASE,
)
_GLUED_BEFORE = re.compile(
    r"(?:[0-9]|(?:^|[=(,:$\[{\s])-\s?|\\(?:[dtc]?frac|sqrt|binom)\s?(?:\{[^{}]{0,60}\}|\[\d\])?\s?\{\s?)$"
)
_GLUED_AFTER = re.compile(r"[0-9!_]|\^(?!\s*\{?\\circ)|\.\d|\{?,\}?\d{3}")
_LISTED_AFTER = re.compile(
    r"[\s$)\]\\]{0,5},\s{0,3}[$(\\]{0,3}(-?\d[\d./]*)[$)\\]{0,3}\s*(?:\.?\s*$|\.\s|\n)"
)
_LETTER_LINE = re.compile(r"\W{0,6}\(?([A-Za-z])\)?\W{0,6}")
_LETTER_NAMED = re.compile(
    r"(?:\b(?:[Oo]ption|[Cc]hoice)\s)?(?<![\w'])[($*\\]{0,3}([A-J])[)$*\\]{0,3}\s+(?:is|are)\s+(?:the\s+)?"
    r"(?:only\s+)?(?:correct|right|best|true)\b"
)
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
    visible = hide_reasoning(completion)
    for echo in echoes:
        visible = _hide_echo(visible, echo)
    for rule in order:
        found = _RULES[rule](visible, 0, len(visible))
        if found is not None:
            return found
    return None


def hide_reasoning(completion: str) -> str:
    """The completion with every reasoning block blanked out, the same length as before.

    A block that never ends hides all after it. A closing tag without an opening one hides all before it:
    the prompt opened the block.
    """
    lowered = completion.lower()
    if not any(word in lowered for word in _REASON_WORDS):
        return completion
    if (final := _last(_FINAL_CHANNEL, completion)) is not None:
        return HIDDEN * final.end() + completion[final.end() :]
    if "<!--" in completion or "[//]" in completion:
        completion = _COMMENT.sub(lambda m: HIDDEN * len(m[0]), completion)
    hidden: list[tuple[int, int]] = []
    opened: int | None = None
    for tag in _REASONING.finditer(completion):
        closes = any(tag[name] for name in ("close", "close2", "close3", "close4", "close5"))
        if not closes:
            opened = tag.start() if opened is None else opened
        elif opened is None:
            hidden = [(0, tag.end())]
        else:
            hidden.append((opened, tag.end()))
            opened = None
    if opened is not None:
        hidden.append((opened, len(completion)))
    out, at = [], 0
    for start, end in hidden:
        out += [completion[at:start], HIDDEN * (end - start)]
        at = end
    return "".join([*out, completion[at:]])


def _hide_echo(visible: str, echo: str) -> str:
    echo = echo.strip()
    if len(echo) < _LEAST_ECHO or echo not in visible:
        return visible
    return visible.replace(echo, HIDDEN * len(echo))


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return max(pattern.finditer(text), key=lambda found: found.start(), default=None)


# ── the rules: (visible text, from, to) -> what stands there ─────────────────────────────────────


def _boxed(text: str, start: int, end: int) -> Found | None:
    boxes = _boxes(text, start, end)
    last = next(boxes, None)
    if last is None:
        return None
    others: list[str] = []
    first = last
    for box in boxes:
        if len(others) >= _MAX_JOINED or not _joined(text[box[2] : first[0]]):
            break
        others.insert(0, text[box[1] : box[2] - 1])
        first = box
    others += _around(text, first[0], last[2], end)
    head = text[max(0, last[0] - 160) : last[0]]
    denied = bool(_DENIED_BEFORE.search(head) or _DENIED_AFTER.match(text, last[2], end))
    before, after = _GLUED_BEFORE.search(head), _GLUED_AFTER.match(text, last[2], end)
    if before is not None or after is not None:
        # What is glued to a box is part of what it says: −[42], [42]².
        since = last[0] - (len(before[0].lstrip("=(,:$[{ \n\t")) if before else 0)
        until = after.end() if after else last[2]
        return Found(text[since:until], "boxed", since, until, tuple(others), denied)
    return Found(text[last[1] : last[2] - 1], "boxed", last[1], last[2] - 1, tuple(others), denied)


def _boxes(text: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(start, start of content, end) of complete boxes, from the last back, outermost of nested ones."""
    if "boxed" not in text:
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


def _joined(gap: str) -> bool:
    """Whether two statements belong together, by the text between them."""
    if len(gap) > 70 or _BREAK.search(gap):
        return False
    return len(gap) <= 12 or _CONNECTOR.search(gap) is not None


def _around(text: str, start: int, end: int, limit: int) -> list[str]:
    """Alternatives offered right before or after a box: ``41 or \\boxed{42}``, ``\\boxed{42} (or 43)``."""
    found: list[str] = []
    if (tail := _ALTERNATIVE.match(text, end, min(limit, end + 160))) is not None:
        offered = _SENTENCE_END.split(tail[1], maxsplit=1)[0].strip(" $*()\\[]")
        if _BOX.search(offered) is None and any(c.isdigit() or c in "\\=" for c in offered):
            found.append(offered)
    if (listed := _LISTED_AFTER.match(text, end, min(limit, end + 80))) is not None:
        found.append(listed[1])
    if (head := _EARLIER.search(text[max(0, start - 80) : start])) is not None:
        # Only a bare number is an alternative: "18·17, or" goes on to evaluate.
        found.append(head[1].rstrip(".,/"))
    return found


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
    first = last
    for span in reversed(spans[:-1]):
        if len(others) >= _MAX_JOINED or not _joined(text[span[3] : first[0]]):
            break
        others.insert(0, text[span[1] : span[2]].strip())
        first = span
    for rule in (_boxed, _hash, _statement):
        if (inner := rule(text, last[1], last[2])) is not None:
            more = tuple(others) + inner.others
            return Found(inner.text, "answer_tag", inner.start, inner.end, more, inner.denied)
    return _trimmed(text, "answer_tag", last[1], last[2], others)


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
        if len(others) >= _MAX_JOINED or text[line.end() : first.start()].strip():
            break
        others.insert(0, line[1].strip())
        first = line
    return _trimmed(text, "hash", last.start(1), last.end(1), others)


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
        content = _CLAUSE.sub("", text[here:until])
        if not content.strip(" $*_\\()[]{}.:"):
            continue
        others: list[str] = []
        if position:  # "the answer is 41 or the answer is 42"
            between = text[marks[position - 1][1] : mark[0]]
            if len(between) < 80 and not _BREAK.search(between):
                if _STATED_TWICE.search(between):
                    others.append(_STATED_TWICE.sub("", between).strip())
                elif _ONE_WORD.fullmatch(between) and any(c.isdigit() for c in between):
                    others.append(between.strip(" .,;"))  # "Answer: 41 Answer: 42"
        return _trimmed(text, "statement", here, here + len(content), others)
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
    if named:
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
