"""What of a completion may hold its answer: not its reasoning, not its comments, not the echoed prompt.

What may not is blanked out position by position, so that spans stay those of the completion.
"""

from __future__ import annotations

import re

HIDDEN = "\x00"

_LEAST_ECHO = 20
_NAMES = (
    "think|thinking|thoughts?|thought_process|reasoning|reason|scratchpad|analysis|reflection|seed:think|"
    "inner_monologue"
)
_REASONING = re.compile(
    rf"<(?P<close>/)?(?:{_NAMES})(?:\s[^<>]{{0,80}})?>|\[(?P<close2>/)?THINK\]|◁(?P<close3>/)?think▷"
    r"|<\|(?:begin|(?P<close4>end))_of_(?:thought|thinking)\|>|<\|START_THINKING\|>|(?P<close5><\|END_THINKING\|>)",
    re.IGNORECASE,
)
_MARKS = (
    "think", "thought", "reason", "scratchpad", "analysis", "reflection", "monologue", "<|", "<!--", "[//]"
)  # fmt: skip
_CHANNEL = "<|channel|>"
_FINAL_CHANNEL = re.compile(
    r"<\|channel\|>\s*final\s*(?:<\|[a-z_]+\|>[^<]{0,40})?<\|message\|>(?P<said>(?:(?!<\|(?:end|return|start|channel)\|>).)*)",
    re.DOTALL,
)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)|^[ ]{0,3}\[//\]: [^\n]*", re.DOTALL | re.MULTILINE)
_END_MARKS = re.compile(
    r"(?:\s*(?:<\|[a-z0-9_]{1,30}\|>|</s>|<eos>|<pad>|<end_of_turn>|<｜[a-z▁_]{1,30}｜>))+\s*\Z",
    re.IGNORECASE,
)
_END_WINDOW = 300


def visible(completion: str, echoes: tuple[str, ...] = ()) -> str:
    """The completion with reasoning, comments, echoes of the prompt and the tokenizer's marks of the end
    blanked out, as long as before.
    """
    text = hide_reasoning(completion)
    if text.rstrip()[-1:] in (">", "｜"):
        tail = max(0, len(text) - _END_WINDOW)
        if (marks := _END_MARKS.search(text, tail)) is not None:
            text = text[: marks.start()] + HIDDEN * (len(text) - marks.start())
    for echo in echoes:
        echo = echo.strip()
        if len(echo) >= _LEAST_ECHO and echo in text:
            text = text.replace(echo, HIDDEN * len(echo))
    return text


def hide_reasoning(completion: str) -> str:
    """A block that never ends hides all after it. A closing tag without an opening one hides all before
    it: the prompt opened the block. Of a text in channels only the last final one is visible.
    """
    if not _may_hide(completion.lower()):
        return completion
    if _CHANNEL in completion:
        completion = _final_channel(completion)
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


def _may_hide(lowered: str) -> bool:
    for mark in _MARKS:  # noqa: SIM110  (a generator would cost more than the looks)
        if mark in lowered:
            return True
    return False


def _final_channel(completion: str) -> str:
    last = max(_FINAL_CHANNEL.finditer(completion), key=lambda m: m.start(), default=None)
    if last is None:
        return HIDDEN * len(completion)
    start, end = last.span("said")
    return HIDDEN * start + completion[start:end] + HIDDEN * (len(completion) - end)
