"""Answers that are option letters: ``C``, ``(C)``, ``C) 12 meters``, ``A, C``."""

from __future__ import annotations

import re

_WRAPPERS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|boldsymbol|mbox)\s*\{([^{}]*)\}")
_SINGLE = re.compile(
    r"(?:(?:option|choice|answer)\s+)?[(\[]?([A-Za-z])(?:[)\]]?|(?:[)\]]\s*[.:：,]?|\s*[.:：])\s+(?P<rest>[^\W_].*))",
    re.IGNORECASE | re.DOTALL,
)
_APART = re.compile(r"[(\[]?[A-Z][)\]]?(?:\s*(?:,|;|&|、|,?\s*\band\b)\s*[(\[]?[A-Z][)\]]?)+")
_TOGETHER = re.compile(r"[A-Z]{2,10}")
_OTHER_OPTION = re.compile(
    r"(?<![A-Za-z'])(?!A\s[a-z])[(\[]?[A-J][)\]]?(?![A-Za-z'])"
    r"|\b(?:or|and|option|choice|also)\s+[(\[]?[a-j][)\]]?(?![a-z])|[(\[][a-j][)\]]"
)
"""Another option's letter in the words of one; "A polygenic score" begins with an article."""
_DENIAL = re.compile(
    r"\b(?:not|no|nor|neither|never|wrong|incorrect|false|untrue|but|however|or|isn't|maybe|perhaps|both)\b",
    re.IGNORECASE,
)


def letters(text: str) -> frozenset[str] | None:
    """The options that a text names (upper case), or None where it is no such answer.

    The option's own words may follow one letter, if they name no other option and deny nothing.
    """
    if len(text) > 2000 or not text:
        return None
    text = _WRAPPERS.sub(r"\1", text).replace("\\ ", " ").strip()
    text = text.strip("$*_` .\n\t").replace("\\(", "").replace("\\)", "").replace("**", "").strip()
    if _APART.fullmatch(text):
        return frozenset(c for c in text if c.isupper() and c.isascii())
    if _TOGETHER.fullmatch(text):  # "AC", but no word
        return frozenset(text) if list(text) == sorted(set(text)) else None
    found = _SINGLE.fullmatch(text)
    if found is None or not found[1].isascii():
        return None
    rest = found["rest"]
    if rest and (len(rest) > 600 or _OTHER_OPTION.search(rest) or _DENIAL.search(rest)):
        return None
    return frozenset({found[1].upper()})
