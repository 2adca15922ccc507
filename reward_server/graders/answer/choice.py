"""Answers that are option letters: ``C``, ``(C)``, ``C) 12 meters``, ``A, C``."""

from __future__ import annotations

import re

_WRAPPERS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|boldsymbol|mbox)\s*\{([^{}]*)\}")
_DROPPED = re.compile(r"[$*_`\s]|\\[,;!() \[\]]")
_SINGLE = re.compile(
    r"(?:(?:option|choice|answer)\s*)?[(\[]?([A-Za-z])(?:[)\]]?|(?:[)\]]\s*[.:：,]?|\s*[.:：,\-–—])\s*(?P<rest>\S.*))",
    re.IGNORECASE | re.DOTALL,
)
_SEVERAL = re.compile(r"[(\[]?[A-Z][)\]]?(?:\s*(?:,|;|&|、|\band\b)?\s*[(\[]?[A-Z][)\]]?)+")
_OTHER_OPTION = re.compile(
    r"(?:^|[\s(,;])\(?([A-Z])(?:[).:](?=\s|$)|\)|$|(?=\s*(?:,|or\b|and\b|/)))|\b(?:or|and)\s+\(?[A-Z]\b"
)


def letters(text: str) -> frozenset[str] | None:
    """The options that a text names (upper case), or None where it is no such answer.

    The option's own words may follow one letter, if no other option is named in them.
    """
    if len(text) > 2000 or not text:
        return None
    text = _WRAPPERS.sub(r"\1", text).strip()
    text = text.strip("$*_` .\n\t").replace("\\(", "").replace("\\)", "").replace("**", "").strip()
    if _SEVERAL.fullmatch(text):
        return frozenset(c for c in text if c.isupper() and c.isascii())
    found = _SINGLE.fullmatch(text)
    if found is None or not found[1].isascii():
        return None
    rest = found["rest"]
    if rest and (_OTHER_OPTION.search(rest) or len(rest) > 600):
        return None
    return frozenset({found[1].upper()})
