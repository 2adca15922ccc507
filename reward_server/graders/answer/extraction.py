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
from reward_server.graders.visible import visible

Rule = Literal["answer_tag", "boxed", "hash", "statement", "letter", "whole"]
_MAX_BOX = 6000
_MAX_TRIES = 64
_MAX_JOINED = 16
_MAX_STATEMENT = 600
_WHOLE = 400

_BOX = re.compile(r"\\(?:f?boxed|fbox)\s*\{")
_TAG = re.compile(r"<answer>|</answer>", re.IGNORECASE)
_HASHES = re.compile(r"(?<!#)####(?!#)[ \t]*([^\n]*)")
_LABEL = re.compile(
    r"[*_ \t]{0,4}(?:the\s+)?(?:final\s+|correct\s+)?answer(?:\s+is)?[*_ \t]{0,4}(?:[:：]|$)[*_ \t]{0,4}",
    re.IGNORECASE,
)
_PROSE = re.compile(
    r"[^\w\\]*(?:(?!(?:sin|cos|tan|log|ln)\b)[^\W\d_]{2,}|\d{1,2}[.)]\s+[A-Za-z]{2,})"
)
"""The start of a sentence or a heading, and of no value: "Step 2: …", "2. Multiply"."""
_SAYING = re.compile(
    r"(?:there\s+(?:are|is|were|will\s+be)|(?:a\s+)?total\s+of|exactly|indeed|precisely|simply)\s+(?=\W{0,4}[\d\\])",
    re.IGNORECASE,
)
"""Words before a value that leave it as it is."""
_STATEMENT = re.compile(
    r"""
    (?: (?:answers?|option|choice|ans|antwort|ответ|respuesta|réponse|risposta|resposta)\b
        (?: \s+(?:choice|option|to\s[^.\n:=]{1,80}?|here) )?
        \s{0,3} (?: \*{1,2}|__? )? \s{0,2}
        (?: (?:is|are|equals|would\s+be|must\s+be|should\s+be|ist|es|est|è|é)\b
            (?:\s+(?:therefore|thus|simply|then|just|clearly|indeed|exactly|definitely|obviously|certainly))?
            \s{0,2}:?
          | :{1,2} | = | ： | (?:\*\*|__|\#)*[ \t]*(?=\n) | (?<=\*\*\ )(?=[\d$\\]) )
      | (?:答案|答え|정답)(?:\*\*)?(?:应该|应|就)?\s{0,2}(?:是|为|為|は|은|：|:)+
      | (?:故|所以|因此)选(?:择)?[：:]? | 答[：:]
      | ^A: )
    \s{0,3} (?: \*{1,2}|__? )? [ \t]{0,3} :? [ \t]{0,3}
    (?: 选项 | (?<=\n)```\w{0,10}\n | (?<=\n)-[ ](?=\d) )?
    """,
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
_STATING = (
    "answer", "option", "choice", "答", "故选", "所以选", "因此选", "a:", "ans:",
    "antwort", "ответ", "respuesta", "réponse", "risposta", "resposta", "정답",
)  # fmt: skip
_MAX_MARKS = 8
_SENTENCE_END = re.compile(r"[.!?](?=[\s*_\"')$]|$)|。|\n|\x00|<\|")
_CLAUSE = re.compile(
    r",?\s+(?:because|since|which|so|where|hence|therefore|giving|as\s+(?:shown|required|desired|we))\b.*"
    r"|,\s+and\s+(?:we|this|that|it|the)\s.*|,?\s+(?:and\s+)?not\s+\S{1,20}$",
    re.DOTALL,
)
_OPTION_LABEL = re.compile(r"\s*\(?([A-J])[).:]\s")
_ONE_LETTER = re.compile(r"[($*\\]*[A-J][)$*\\]*")
_QUOTES = (('"', '"'), ("“", "”"), ("「", "」"))
_GLUED = re.compile(r"[\d^²³½¼¾]|\.\d")
"""What makes another number of one that ends right before it."""
_DOUBT = re.compile(
    r"^\W*(?:no[,.!]|nope\b|not\s+(?:that|it|this|really|quite|[A-J]\b)|wait\b|wrong\b|incorrect\b"
    r"|(?:that|this|it|which)(?:'s|\s+is)\s+(?:wrong|incorrect|false|not))"
    r"|\b(?:it\s+is|it's|answer\s+is|rather|actually|or|instead)\s+(?:perhaps\s+|maybe\s+|option\s+)?\W?[A-J]\b(?!\s[a-z]{2})"
    r"|\b[A-J]\W?\s+is\s+(?:also|too|better|equally|right|correct|the)\b",
    re.IGNORECASE,
)
"""After "The answer is C.": it is taken back, or another option is offered."""
_BOTH_NAMED = re.compile(r"\b[A-J]\b(?:\s*,\s*[A-J]\b)*\s*,?\s*(?:and|nor)\s+[A-J]\b")
_STATED_TWICE = re.compile(
    r",?\s*\b(?:or|and)\s+(?:the\s+)?(?:\w+\s+)?$|或$|(?<=\S)\s*\n\s*(?:\W{0,3}(?:the|final)\s+)*\W{0,3}$",
    re.IGNORECASE,
)
_STATED_BEFORE = re.compile(
    r"\s*(?P<alt>[^\s,;]{1,60}?)[\s.,;/]*+(?:\b(?:or|and|otherwise|else|alternatively)\b)?[\s,]*(?:if\b[^.\n]{0,40}?,?\s)?"
    r"(?:the\s+(?:final\s+|correct\s+)?)?\W*",
    re.IGNORECASE,
)
"""One short answer, and nothing but a connector, before the next statement."""
_LETTER_LINE = re.compile(r"\W{0,6}(?:(?:option|choice)\s+)?\(?([A-Za-z])\)?\W{0,6}", re.IGNORECASE)
_LETTER_NAMED = re.compile(
    r"(?:(?:^|[.;,:]\s|\b(?:so|thus|hence|therefore|option|choice|answer|that|and|or)\s)\W{0,4}(?<![\w'])"
    r"|\b(?:I|we)\s+(?:would\s+|will\s+)?(?:choose|pick|select|go\s+with)\s+(?:option\s+)?\W{0,3}(?=[A-J]\W{0,4}$))"
    r"(?P<letter>[A-J])\W{0,4}\s*"
    r"(?:(?:is|are)\s+(?:the\s+)?(?:only\s+)?(?:best\s+|right\s+|correct\s+)?"
    r"(?:correct|right|best|true|answer|choice|option)\b|(?<=\W)$|$)",
    re.IGNORECASE,
)
_SO_IS = re.compile(r"\b(?:so|as)\s+(?:is|are)\s+([A-J])\b")
_LETTER_DENIED = re.compile(
    r"\bnot\b|n't\b|\bfalse\b|\bneither\b|\bno\b|\?|\bdoubt\w*|\bimpossible\b|\bunlikely\b",
    re.IGNORECASE,
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
    text = visible(completion, tuple(echoes))
    for rule in order:
        found = _RULES[rule](text, 0, len(text))
        if found is not None:
            later = tuple(_later(text, found))
            return replace(found, others=found.others + later) if later else found
    return None


def _later(text: str, found: Found) -> Iterator[str]:
    """Values stated again after the answer by another rule: where they differ, it is two answers."""
    since = found.end
    if found.rule in ("whole", "letter") or not text[since:].strip(" .$})*\\]\t\n\x00"):
        return
    for rule in ("boxed", "hash", "statement"):
        if rule != found.rule and (later := _RULES[rule](text, since, len(text))) is not None:
            value = _OPTION_LABEL.sub("", later.text).strip()
            letter = _ONE_LETTER.fullmatch(value)
            if letter is None and _ONE_LETTER.fullmatch(found.text.strip()):
                continue  # an option, and then its value
            told = letter or any(c.isdecimal() for c in value)
            if told and not _PROSE.match(value) and later.start >= since:
                yield value


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
    if _GLUED.match(text, last[3]):  # "<answer>42</answer>0"
        return Found(text[last[0] : last[3] + 2], "answer_tag", last[0], min(end, last[3] + 2))
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
    lines = list(_hash_lines(text, start, end))
    if not lines:
        return None
    last = lines[-1]
    others: list[str] = []
    first = last
    for line in reversed(lines[:-1]):
        if len(others) >= _MAX_JOINED or not joined(text[line[2] : first[0]]):
            break
        others.insert(0, text[line[1] : line[2]].strip())
        first = line
    others += alternatives(text, last[0], last[2], end)
    no = denied(text, last[0], last[2])
    return replace(_trimmed(text, "hash", last[1], last[2], others), denied=no)


def _hash_lines(text: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(start, start of content, end) of the lines that give an answer; other ``####`` are headings."""
    for mark in _HASHES.finditer(text, start, end):
        begin, until = mark.span(1)
        if (label := _LABEL.match(text, begin, until)) is not None:
            begin = label.end()
            if not text[begin:until].strip(" *_"):  # "#### Final answer", and the value below
                while until < end and text[until] in " \t\n":
                    until += 1
                begin, until = until, text.find("\n", until, end)
                until = until if until >= 0 else end
        elif _PROSE.match(text, begin, until) and (
            text[until:end].strip(" \n\t\x00") or text[begin:until].rstrip(" *_").endswith(":")
        ):
            continue
        if text[begin:until].strip(" *_\x00"):
            yield mark.start(), begin, until


def _statement(text: str, start: int, end: int) -> Found | None:
    marks = _marks(text, start, end)
    prose: Found | None = None
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
            rest = text[until : line if line > 0 else min(end, until + 200)].replace("’", "'")
            if _DOUBT.search(_BOTH_NAMED.sub(" ", rest)):
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
        found = replace(_trimmed(text, "statement", here, until, others), denied=no)
        if no or not _PROSE.match(found.text):
            return found
        prose = (
            prose or found
        )  # "The answer is unique" says nothing, where one is stated further up
    return prose


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
    """An option's letter on a line of its own, first or last, or called the right one in the last line."""
    lines = list(_lines(text, max(start, end - 4000), end))
    if not lines:
        return None
    bare = [(m.start(1), m.end(1)) for x in lines if (m := _LETTER_LINE.fullmatch(text, *x))]
    begun = [x for x in lines if _OPTION_START.fullmatch(text, *x)]
    first, last = lines[0], lines[-1]
    if bare and bare[-1][0] >= last[0]:
        other = [text[x:y] for x, y in bare[:-1] if x >= lines[max(0, len(lines) - 2)][0]]
        return Found(text[slice(*bare[-1])], "letter", *bare[-1], tuple(other))
    line = text[slice(*last)].replace("’", "'")
    named = list(_LETTER_NAMED.finditer(text, *last))
    if named and not _LETTER_DENIED.search(line) and text[named[-1].start("letter")].isupper():
        others = [m["letter"] for m in named[:-1]] + _SO_IS.findall(line)
        return Found(named[-1]["letter"], "letter", *named[-1].span("letter"), tuple(others))
    if len(begun) == 1 and begun[0] in (first, last) and not bare:
        return _trimmed(text, "letter", *begun[0], [])
    if len(bare) == 1 and bare[0][0] < first[1] and not begun:
        return Found(text[slice(*bare[0])], "letter", *bare[0])
    return None


def _lines(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """(start, end) of lines that say something, without hidden text at their ends."""
    while start < end:
        stop = text.find("\n", start, end)
        stop = stop if stop >= 0 else end
        since, until = start, stop
        while since < until and text[since] in " \t\r\x00":
            since += 1
        while since < until and text[until - 1] in " \t\r\x00":
            until -= 1
        if text[since:until].strip("*"):
            yield since, until
        start = stop + 1


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
    if end - start > 2 and (text[start], text[end - 1]) in _QUOTES:
        start, end = start + 1, end - 1
    if (saying := _SAYING.match(text, start, end)) is not None:
        start = saying.end()
    return Found(text[start:end], rule, start, end, tuple(others))


_RULES: dict[Rule, Callable[[str, int, int], Found | None]] = {
    "answer_tag": _answer_tag,
    "boxed": _boxed,
    "hash": _hash,
    "statement": _statement,
    "letter": _letter,
    "whole": _whole,
}
