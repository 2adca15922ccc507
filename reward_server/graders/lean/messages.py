"""What Lean says: one JSON object a line on standard output. A program that Lean runs can write there too, so these
only ever speak against a proof, or to whoever reads them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_MOST = 50
_MOST_TEXT = 2000


@dataclass(frozen=True, slots=True)
class Message:
    severity: str
    kind: str
    text: str
    line: int
    column: int
    end_line: int | None
    end_column: int | None

    def data(self) -> dict[str, Any]:
        return {
            "severity": self.severity,
            "kind": self.kind,
            "line": self.line,
            "column": self.column,
            "text": self.text,
        }


@dataclass(frozen=True, slots=True)
class Messages:
    found: tuple[Message, ...]
    errors: int
    sorries: int
    others: int
    """Lines that are no message of Lean's."""

    def data(self) -> list[dict[str, Any]]:
        """For ``raw``: errors first, and not more than can be read."""
        ordered = sorted(self.found, key=lambda m: m.severity != "error")
        return [m.data() for m in ordered[:_MOST]]


def parsed(stdout: bytes) -> Messages:
    found, others = [], 0
    for line in stdout.splitlines():
        if not line.strip():
            continue
        message = _message(line)
        if message is None:
            others += 1
        else:
            found.append(message)
    return Messages(
        tuple(found),
        sum(m.severity == "error" for m in found),
        sum(m.kind == "hasSorry" for m in found),
        others,
    )


def _message(line: bytes) -> Message | None:
    try:
        said = json.loads(line)
        position, end = said["pos"], said.get("endPos") or {}
        return Message(
            str(said["severity"]),
            str(said.get("kind", "")),
            str(said["data"])[:_MOST_TEXT],
            int(position["line"]),
            int(position["column"]),
            int(end["line"]) if "line" in end else None,
            int(end["column"]) if "column" in end else None,
        )
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None
