"""Answers that are option letters: ``C``, ``(C)``, ``C) 12 meters``, ``C, Paris``, ``A, C``."""

from __future__ import annotations

import re

_WRAPPERS = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|mathrm|mathbf|mathit|boldsymbol|mbox|underline|emph)"
    r"\s*\{([^{}]*)\}"
)
_DRESS = re.compile(r"\\(?:bf|it|rm|tt|bfseries|displaystyle)(?![A-Za-z])|\\[()\[\],;: ]|\*\*|~")
_SINGLE = re.compile(
    r"(?:(?:option|choice|answer)\s+)?[(\[{]?([A-Za-z])"
    r"(?:[)\]}]?|(?:[)\]]\s*[.:：,–—-]?|\s*[.:：,])\s*(?P<rest>\S.*)|\s+(?P<apart>[(–—-].*))",
    re.IGNORECASE | re.DOTALL,
)
_APART = re.compile(
    r"[(\[]?[A-Z][)\]]?(?:\s*+(?:[,;&、](?:\s*+and\b)?|and\b)\s*+[(\[]?[A-Z][)\]]?)+"
)
_TOGETHER = re.compile(r"[A-Z]{2,10}")
_BOTH = re.compile(
    r"\b(?:both\s+|either\s+|neither\s+)?[(\[]?[A-J][)\]]?(?:\s*,\s*[(\[]?[A-J][)\]]?)*"
    r"\s+(?:and|nor)\s+[(\[]?[A-J][)\]]?(?![A-Za-z'])"
)
"""Options named by the words of one: ``D. Both A and C``."""
_ANOTHER = re.compile(
    r"^[A-Ja-j]$|^[a-j]\s+(?:is|are)\s|^[A-J](?:\s+(?:is|are)\b|[\s.,;:)\]]+(?!\s*[a-z]))"
    r"|\s[(\[]?[A-J][):\]]\s"
    r"|(?:\b(?:or|and|maybe|perhaps|possibly|also|but|alternatively|otherwise|option|choice)\b|[/|;])[\s,(]*"
    r"(?:(?:it'?s?|is|could|may|might|be|the|option|choice|maybe|perhaps|possibly)\s+){0,4}"
    r"(?:[(\[]?[A-J][)\]]?(?![A-Za-z'])(?!\s[a-z]{2})|[(\[][a-j][)\]])",
)
_WORDS = re.compile(r"[^\W_].*", re.DOTALL)
_WORDS_APART = re.compile(r"\W{0,4}[A-Za-z]{2,}.*", re.DOTALL)
_BUT = re.compile(
    r"^\W*(?:(?:but|or|nor|maybe|perhaps|however)\b|(?:is\s+)?(?:wrong|incorrect|rejected)\W*$"
    r"|not\s+(?:correct|right|(?:the\s+)?(?:correct\s+|right\s+)?answer|it|this|that)\W*$)"
    r"|^[–—-]\s*(?:neither|none)\b|\b(?:but|however)\s+\W?[A-J]\W?\s+(?:is|seems|looks)\b",
    re.IGNORECASE,
)


def letters(text: str, *, in_mathematics: bool = False) -> frozenset[str] | None:
    """The options that a text names (upper case), or None where it is no such answer.

    The option's own words may follow one letter, whatever they say ("C. No change"), unless they offer
    another option beside it ("C. or D") or take it back ("C. but B is better"). ``in_mathematics`` a
    letter may be a variable: "N - 3" and "E: +1" are then no option with its words.
    """
    if len(text) > 2000 or not text:
        return None
    for _ in range(3):
        text = _WRAPPERS.sub(r"\1", text)
    text = _DRESS.sub(" ", text).strip("$*_`\"'“”‘’ .\n\t")
    if _APART.fullmatch(text):
        return frozenset(c for c in text if c.isupper() and c.isascii())
    if _TOGETHER.fullmatch(text):  # "AC", but no word
        return frozenset(text) if list(text) == sorted(set(text)) else None
    found = _SINGLE.fullmatch(text)
    if found is None or not found[1].isascii():
        return None
    rest = found["rest"] or found["apart"]
    if rest and (len(rest) > 600 or takes_back(rest)):
        return None
    if rest and in_mathematics and not (_WORDS if found["rest"] else _WORDS_APART).fullmatch(rest):
        return None
    return frozenset({found[1].upper()})


def takes_back(rest: str) -> bool:
    """Whether what follows an option's letter offers another one, or denies this one."""
    plain = rest.strip(" ()[]\"'*")
    return _BUT.search(plain) is not None or _ANOTHER.search(_BOTH.sub(" ", plain)) is not None
