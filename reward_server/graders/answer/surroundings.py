"""What stands right before and after an answer, and changes what it says.

Four things do: a denial ("not [42]", "[42] is wrong"), an alternative ("[42] or 43", "41, or [42]"), a
formula that the answer is only a part of ("−[42]", "[42]+1", "[42] thousand"), and another statement at
its side. All of them are looked for in a window of fixed size, whatever the length of the completion.
"""

from __future__ import annotations

import re

from reward_server.graders.answer.lexer import FUNCTIONS, GREEK
from reward_server.graders.answer.numbers import SCALES

_WINDOW = 160
_DRESS = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|emph)(?![A-Za-z])\s?"
    r"|\\(?:q?quad|displaystyle)(?![A-Za-z])"
    r"|\\[,;:! ()\[\]]|[$_`{}\x00]|\*\*|(?<!\w)\*|\*(?!\w)"
)
"""What only dresses words up: the windows are read without it."""
_SENTENCE = re.compile(r"[.!?。](?=[\s\"')]|$)|\n\s*\n|<\|")

_SMALL = (
    r"(?:be|equal|equals|to|the|answer|is|think|believe|say|it|that|this|a|an|true|correct|choose|pick|even"
    r"|final)"
)
_DENIED_BEFORE = re.compile(
    rf"(?:\bnot|n't|\bnever|\bcannot|\bneither|\bnor|≠|\\neq?|\\neg|\\not)\s*(?:{_SMALL}\s+){{0,6}}$"
    rf"|\b(?:never|not)\s+(?:\w+\s+){{0,1}}$"
    r"|\b(?:wrong|incorrect|false|mistaken)\s+(?:answer|value|result|solution|option|choice|guess)\s*"
    r"(?:is|was|:|=|\()?\s*$"
    r"|\b(?:wrong|incorrect|mistaken)\s*[:=]?\s*$|(?:不是|并非)\s*$"
    r"|\bnot\s+(?:the\s+)?(?:right\s+|correct\s+)?answer\s*(?:is|:)?\s*$"
    r"|\b(?:rul(?:e|es|ed|ing)\s+out|reject\w*|exclud\w+|discard\w*|eliminat\w+|anything\s+but|instead\s+of"
    r"|rather\s+than|other\s+than|different\s+from|except)\s+(?:(?:the|that|option|answer|value|for)\s+){0,2}$"
    r"|\b(?:not\s+(?:true|correct|the\s+case)|false|untrue|wrong)\s+that\b[^.!?\n]*$",
    re.IGNORECASE,
)
_WRONG = (
    r"(?:(?:wrong|incorrect|false|untrue|rejected|invalid|impossible|mistaken|discarded|excluded)\b"
    r"|not\s+(?:the\s+|a\s+)?(?:answer|right|correct|true|it\b|possible|valid|good)|not\s*[.,;!)]|not\s*$)"
)
_DENIED_AFTER = re.compile(
    r"[\s)\]\"']*(?:"
    r"(?:[,(:–—-]+\s*)?(?:which|that|this|it|but\s+(?:this|that|it))?\s*(?:(?:is|was|seems|looks)\b|(?:must|has\s+to|"
    rf"would|should)\s+be\b)\s+(?:\w+\s+){{0,2}}?{_WRONG}(?!\s+(?:only|just|surpris))"
    r"|(?:[,(:–—-]+\s*)?(?:which|that|this|it)?\s*(?:isn't|wasn't|ain't|cannot\s+be|can't\s+be|couldn't\s+be)\b"
    rf"|[,.]?\s*[(:–—-]+\s*{_WRONG}"
    r"|\?\s*(?:no\b|nope|wrong|not)"
    r"|[.,;!]?\s*(?:no[.,!]|nope\b|(?:that|this|it)'?s\s+(?:wrong|incorrect|not\s+(?:it|right|correct))|scratch\s+that\b)"
    r"|\s*(?:doesn't\s+work|does\s+not\s+work|fails\b|不对|是错)"
    r")",
    re.IGNORECASE,
)
_OR = (
    r"(?:(?:and/)?or(?:\s+(?:maybe|perhaps|possibly|else|even|equivalently|simply|about))?\b|\\l?or\b|\\vee|∨|∥|或(?:者)?|oder\b|ou\b"
    r"|alternatively\b|otherwise\b|maybe\b|perhaps\b|possibly\b|actually\b"
    r"|but\s+(?:\w+\s+){0,2}(?:be|is|also)\b)"
)
_ALTERNATIVE = re.compile(
    rf"[\s)\]]*(?:(?:[.;,?!(–—，、；（-]|\b(?:so|where|as\s+we|since)\b)\s*){{0,3}}(?:{_OR}|(?P<apart>[;|/])|&(?=\s*-?\d))[\s,:(]*(?P<alt>[^\n]{{1,100}})",
    re.IGNORECASE,
)
_LISTED = re.compile(
    r"[\s)\]]*(?:[,，、]|[,(]?\s*\b(?:and(?:\s+(?:maybe|perhaps|also))?|but|where|while|though|as)\b|和|\bvs\.?|\()\s*"
    r"(?P<alt>-?\d[\d.,/]*|[A-J](?![\w']))"
    r"(?=\s*(?:$|[.;,)\n]|or\b|and\b|(?:is\s+)?also\b|as\s+well|too\b|possible|could\b|may\b|might\b))",
    re.IGNORECASE,
)
_NUMBER_FIRST = re.compile(r"(-?\d[\d.,/]*+)(?=\s+[A-Za-z]|[);])")
_EARLIER_MATH = re.compile(
    rf"(?P<word>\w+\s+)?\$(?P<alt>[^$]{{1,80}})\$,?\s*\(?{_OR},?\s*(?:\w+\s+)?"
    r"[$*(\[\\]{0,4}\s*$",
    re.IGNORECASE,
)
_EARLIER = re.compile(
    rf"(?P<word>[A-Za-z]+\s+)?(?P<alt>[^\s,]{{1,40}}),?\s*\(?(?:{_OR}|[|∨])[\s,(]*$", re.IGNORECASE
)
_EARLIER_AND = re.compile(
    r"(?:^|\n|[:.]\s|\b(?:is|are|either|both|answers?)\s)\s*"
    r"(?:(?P<alt>-?\d[\d./]*|[A-J])\s+and|(?P<two>\d+\s*,\s*\d+)\s*,)\s*$"
    r"|(?:^|\n)\s*(?P<one>-?\d[\d./]*|[A-J])\s*,\s*$"
)
_CAPITALS = frozenset("ABCDEFGHJ")
_RELATED = frozenset(
    "of past before after than from to by with in on about times plus minus over".split()
)
"""Words whose number is no answer: "of 360°, or [10°]"."""
_EQUAL_BEFORE = re.compile(
    r"(?:\n|(?<!\\)\$|\\[(\[])\s*(?P<alt>-?\d[\d.,]*)\s*=\s*(?:\$|\\[(\[])?\s*$"
)
_EQUAL_AFTER = re.compile(
    r"[\s)]*=\s*(?P<alt>-?\d[\d.,]*?)(?=\s*(?:$|[$\n]|\\[)\]]|[.,;](?:\s|$)))"
)
_HAS_LETTER = re.compile(r"(?<!\\)(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")

_MATH_COMMANDS = FUNCTIONS | GREEK | frozenset("pi infty frac dfrac tfrac cfrac binom".split())
_OPERATORS = frozenset("cdot times div pm mp mod bmod".split())
_WRAPPERS = frozenset(
    """
    text textbf textit textrm mathbf mathrm mbox boldsymbol bm underline emph large Large bf boxed fbox
    """.split()
)
_LEADING = re.compile(
    r"(?:\s|\$|\\[(\[,;:! ]|\\(?:displaystyle|left|q?quad)(?![A-Za-z])|\*\*|\()+$"
)
_WORD_BEFORE = re.compile(
    r"\b(?:minus|negative(?:\s+of)?|plus|times|half(?:\s+of)?|twice|double)\s*$", re.IGNORECASE
)
_INDEX_BEFORE = re.compile(r"[\^_]\{\s*$")
_FACTOR_BEFORE = re.compile(r"\d\.$|\\[dt]?frac\{[^{}]*\}\{[^{}]*\}$|\([-+]?\d[\d.]*\)$")
"""What multiplies or begins the number in a box right behind it."""
_COMMAND_AT_END = re.compile(r"\\([A-Za-z]+)$")
_IN_A_COMMAND = re.compile(r"\\([A-Za-z]+)\s*(?:\[[^\]]{0,20}\]|\{[^{}]{0,60}\})?\s*\{\s*\$?$")
_BULLET = re.compile(r"(?:^|\n)\s*[-+*>]\s+(?:\*\*|\$|\\[(\[])?\s*$")
_DASH = re.compile(r"[A-Za-z]{2,}\S?\s*[-–]\s+(?:\$|\\[(\[])?\s*$")
_TRAILING = re.compile(
    r"(?P<near>(?:\$|\\\))?(?:[0-9_²³½¼¾⅓⅔]|\^(?!\s*\{?\s*\\circ)|\.\d|\{?,\}?\d{3}|i(?![A-Za-z])|[eE]\d"
    r"|[kKM](?![A-Za-z])|:\d)|\s+\d+/\d|\s+and\s+a\s+(?:half|third|quarter)\b)"
    r"|(?:[ \t]|\$|\\[)\],;! ])*(?P<operator>[+×÷±·−]|\*(?=\s*\d)|-(?=\s*(?:\d|\\|\$|[a-z]\b)))"
    r"|!(?=\s*(?:\$|\\[)\]]|[+\-*/=)]))"
    r"|(?:[ \t]|\$|\\[)\],;! ])*\\(?P<command>[A-Za-z]+)"
    r"|[ \t]*(?P<chinese>[万亿千百十倍分点半萬億])"
)
_FIRST_WORD = re.compile(r"[ \t)]*([A-Za-z]+)")
_CALCULATED = re.compile(
    r"[ \t)]*(?:minus|plus|times|divided\s+by)\s+(?:-?[\d\\]|(?:one|two|three|four|five|ten|half|a)\b)",
    re.IGNORECASE,
)
_CHUNK_END = re.compile(r"\$|\\[)\]]|\n|[.,;](?=\s|$)|\Z")

_BREAK = re.compile(
    r"[.!?。！？](?=\s|$)|\n\s*\n|\x00"
    r"|\b(?:wait|actually|correction|sorry|mistake|no,|let me|recheck|so|thus|therefore|hence)\b",
    re.IGNORECASE,
)
_CONNECTOR = re.compile(r"\band\b|[,;/&|]|和|、|以及", re.IGNORECASE)
_ENUMERATED = re.compile(
    r"\b(?:case|part|option|answer|attempt|guess)\s*\w{0,3}\s*[:.)]?|\b\d+[.)]", re.IGNORECASE
)
_OFFERED = re.compile(
    r"\b(?:or|alternatively|otherwise|either|maybe|perhaps|possibly|oder|could\s+also"
    r"|(?:another|second|other)\s+(?:possibility|possible|answer|solution))\b|或",
    re.IGNORECASE,
)


def joined(gap: str) -> bool:
    """Whether two statements belong together, by the text between them.

    They do if nothing is said between them, if the second is offered beside the first ("or"), or if both
    stand in one enumeration; not if a sentence leads from one to the other.
    """
    if len(gap) > 240:
        return False
    plain = _DRESS.sub(" ", gap)
    if not any(c.isalpha() for c in _ENUMERATED.sub("", plain)):
        return "\x00" not in gap
    if _OFFERED.search(plain):
        return True
    if _BREAK.search(gap):
        return False
    return len(gap) <= 12 or (len(gap) <= 70 and _CONNECTOR.search(gap) is not None)


def denied(text: str, start: int, end: int) -> bool:
    """Whether the sentence says that ``text[start:end]`` is *not* the answer."""
    raw = text[max(0, start - _WINDOW) : start].replace("’", "'")
    if _may_deny(raw):
        head = _DRESS.sub(" ", raw)
        ends = [m.end() for m in _SENTENCE.finditer(head)]
        if ends and ends[-1] < len(head):
            head = head[ends[-1] :]
        if _DENIED_BEFORE.search(head):
            return True
    tail = text[end : end + _WINDOW].replace("’", "'")
    if not _may_deny(tail):
        return False
    return _DENIED_AFTER.match(_DRESS.sub(" ", tail)) is not None


_DENYING = (
    "no", "n't", "never", "\u2260", "\\ne", "wrong", "incorrect", "false", "untrue", "mistake", "rul",
    "reject", "exclu", "discard", "elimin", "anything", "instead", "rather", "other than", "except",
    "invalid", "impossible", "scratch", "fail", "different", "不", "错", "并非",
)  # fmt: skip
"""Without any of these in the window there is no denial; a look for them costs next to nothing."""


def _may_deny(window: str) -> bool:
    window = window.lower()
    for sign in _DENYING:  # noqa: SIM110  (a generator would cost more than the looks)
        if sign in window:
            return True
    return False


_OFFERING = frozenset(
    "or and/or and maybe perhaps possibly alternatively otherwise oder ou else even finally about "
    "simply equivalently sorry | \u2228 \\lor \\vee".split()
)


def alternatives(text: str, start: int, end: int, limit: int) -> list[str]:
    """Other answers offered right before ``start`` or after ``end``: texts, equal ones among them."""
    found: list[str] = []
    raw = text[end : min(limit, end + _WINDOW)]
    if raw.strip(" $.*)\\]}\n\t"):
        found += _offered_after(raw)
    head = text[max(0, start - 120) : start]
    last = head.lower().replace(",", " ").replace("(", " ").replace("$", " ").split()[-3:]
    if not _OFFERING.isdisjoint(last) or head.rstrip(" $(\\[*").endswith((",", "或", "或者", "|")):
        found += _offered_before(head)
    if "=" in raw[:4] and (equal := _EQUAL_AFTER.match(raw)) is not None:
        if _HAS_LETTER.search(text[start:end]) is None:  # "[x² − 1] = 0" names an equation
            found.append(equal["alt"])
    if "=" in head[-6:] and (equal := _EQUAL_BEFORE.search(head)) is not None:
        found.append(equal["alt"].rstrip(".,"))
    return [f for f in found if f.strip()]


def _offered_after(raw: str) -> list[str]:
    found: list[str] = []
    tail = _DRESS.sub(" ", raw)
    if (after := _ALTERNATIVE.match(tail)) is not None:
        offered = _SENTENCE.split(after["alt"], maxsplit=1)[0].strip(" ()[]")
        if (number := _NUMBER_FIRST.match(offered)) is not None:
            offered = number[1]
        words_only = after["apart"] and not any(c.isdecimal() or c == "\\" for c in offered)
        if offered and not words_only and "boxed" not in offered and len(offered.split()) <= 3:
            found.append(offered.rstrip(".,;"))  # longer is another solution, not another answer
    if (listed := _LISTED.match(tail)) is not None:
        found.append(listed["alt"].rstrip(".,"))
    return found


def _offered_before(head: str) -> list[str]:
    if (math := _EARLIER_MATH.search(head)) is not None:
        return [] if (math["word"] or "").strip().lower() in _RELATED else [math["alt"]]
    plain = _DRESS.sub(" ", head)
    if (word := _EARLIER.search(plain)) is not None:
        offered = word["alt"].strip("()[]")
        answers = any(c.isdecimal() or c == "\\" for c in offered) or offered in _CAPITALS
        related = (word["word"] or "").strip().lower() in _RELATED
        return [offered] if answers and not related else []
    if (both := _EARLIER_AND.search(plain)) is not None:
        alone = both["alt"] or both["one"]
        return [alone] if alone else both["two"].split(",")
    return []


def whole_formula(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The span of the formula that a box is only a part of; None where the box stands for itself."""
    head = text[max(0, start - 60) : start]
    bare = _LEADING.sub("", head[-20:])
    before = _binds_before(head, bare)
    after = _binds_after(text[end : end + 60])
    if not before and not after:
        return None
    since, until = start, end
    if before:
        cut = max(head.rfind(c) for c in "=$\n:") + 1
        bound = start - (len(head[-20:]) - len(bare)) - 1  # where what binds it stands
        since = min(start - len(head) + cut, bound)
    if after:
        stop = _CHUNK_END.search(text, end + 1, min(len(text), end + 60))
        until = stop.start() if stop else min(len(text), end + 60)
    return since, until


def _binds_before(head: str, bare: str) -> bool:
    if head.endswith(("$", " ")) and bare[-1:] in "=:." and "{" not in head[-3:]:
        return False  # by far the most
    if not bare or _BULLET.search(head) or _DASH.search(head):
        return False
    wrapper = _IN_A_COMMAND.search(head)
    if wrapper is not None:
        return wrapper[1] not in _WRAPPERS
    command = _COMMAND_AT_END.search(bare)
    if command is not None:
        return command[1] in _MATH_COMMANDS or command[1] in _OPERATORS
    if _INDEX_BEFORE.search(head) or (bare[-1] == "|" and head.endswith("|")):
        return True
    if bare[-1] in "-−+/^·×÷±√π∛":
        return True
    if bare[-1] == "–":
        return head.endswith("–")
    if _WORD_BEFORE.search(_DRESS.sub(" ", bare)) or _FACTOR_BEFORE.search(head):
        return True
    return head[-1].isalnum() and head[-1].isascii()


def _binds_after(tail: str) -> bool:
    found = _TRAILING.match(tail)
    if found is not None:
        command = found["command"]
        if command is None:
            return True
        if command in _MATH_COMMANDS or command in _OPERATORS:
            return True
    plain = _DRESS.sub(" ", tail)
    word = _FIRST_WORD.match(plain)
    if word is None:
        return False
    return word[1].lower() in _SCALING or _CALCULATED.match(plain) is not None


_SCALING = frozenset(SCALES) | frozenset("dozen lakh crore squared cubed factorial".split())
"""Words that make another number of the one before them."""
