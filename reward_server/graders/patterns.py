"""Regular expressions that users give us, on text that a policy wrote.

RE2 matches in time linear in the text, whatever the pattern, so neither side can make it hang; the
price is that lookaround and backreferences do not exist.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import re2

MAX_PATTERN_CHARS = 2000
_MAX_MEMORY = 16 << 20
"""Bytes an automaton may take; RE2 falls back to a slower machine beyond, or fails to compile."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a pattern found: the text, and its span in characters."""

    text: str
    start: int
    end: int


class Pattern:
    """A compiled RE2 pattern with the group that is the answer.

    Raises ValueError, saying what RE2 refuses, or that the group does not exist.
    """

    def __init__(self, pattern: str, group: int | str | None = None) -> None:
        options = re2.Options()
        options.log_errors = False
        options.max_mem = _MAX_MEMORY
        try:
            self._regex = re2.compile(pattern, options)
        except re2.error as error:
            reason = error.args[0] if error.args else "not a regular expression"
            text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
            raise ValueError(
                f"{text} (RE2 syntax: no lookaround, no backreferences; "
                "see https://github.com/google/re2/wiki/Syntax)"
            ) from None
        except UnicodeEncodeError:
            raise ValueError("the pattern holds a lone surrogate") from None
        if group is None:
            group = 1 if self._regex.groups else 0
        names: dict[str, int] = self._regex.groupindex
        if isinstance(group, str) and group not in names:
            raise ValueError(f"the pattern has no group named {group!r}")
        number = names[group] if isinstance(group, str) else group
        if not 0 <= number <= self._regex.groups:
            raise ValueError(f"the pattern has {self._regex.groups} groups, not {number}")
        self._group = number

    def last(self, text: str) -> Found | None:
        """The group in the last non-overlapping match; None also where that match lacks it."""
        return self._found(deque(self._regex.finditer(text), maxlen=1))

    def first(self, text: str) -> Found | None:
        match = self._regex.search(text)
        return self._found(() if match is None else (match,))

    def covered(self, text: str) -> int:
        """How many characters its matches cover."""
        return sum(m.end() - m.start() for m in self._regex.finditer(text))

    def _found(self, matches: deque[re2._Match] | tuple[re2._Match, ...]) -> Found | None:
        for match in matches:
            start, end = match.span(self._group)
            if start >= 0:
                return Found(match.string[start:end], start, end)
        return None
