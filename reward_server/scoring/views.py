"""From a submitted item to what a grader sees of it.

A view holds only the fields that the grader reads; its canonical bytes are what is sent to a worker and
what is hashed into the identity of a grading. Of chat messages only the assistant's words are graded:
tool output that the policy did not write must not be able to answer for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from reward_server.graders.base import Field, View, canonical_json
from reward_server.schema import Item, Message


def text_of(message: Message) -> str:
    """The text of a message; parts that are not text are left out."""
    if isinstance(message.content, str):
        return message.content
    return "".join(p.text or "" for p in message.content or () if p.type in ("text", "output_text"))


def completion_text(completion: str | list[Message]) -> str | None:
    """The assistant's words: a string as it is; messages joined by newlines. None without any."""
    if isinstance(completion, str):
        return completion
    spoken = [text_of(m) for m in completion if m.role == "assistant"]
    return "\n".join(spoken) if spoken else None


def names_of(reads: Iterable[Field]) -> tuple[str, ...]:
    """The names of fields, for the functions below (looking up an enum's value is slow)."""
    return tuple(sorted(f.value for f in reads))


def view_of(item: Item, names: Iterable[str]) -> View:
    """The named fields of an item. The completion must have been checked."""
    seen: dict[str, Any] = {}
    for name in names:
        if name == "completion":
            seen[name] = completion_text(item.completion) or ""
        elif name == "prompt":
            seen[name] = _prompt(item.prompt)
        else:
            seen[name] = getattr(item, name)
    return View(**seen)


def narrowed(view: View, names: Iterable[str]) -> View:
    """What a part of a composite sees of the composite's own view."""
    return View(**{name: getattr(view, name) for name in names})


def view_bytes(view: View, names: Iterable[str]) -> bytes:
    """Canonical bytes of a view. Raises ValueError for a number that is not finite."""
    return canonical_json({name: getattr(view, name) for name in names})


def view_hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def payload(item: Item) -> bytes:
    """The item as submitted, for the store. Raises ValueError for a number that is not finite."""
    if isinstance(item.completion, str) and not isinstance(item.prompt, list):
        stored: dict[str, Any] = {"completion": item.completion}
        if item.prompt is not None:
            stored["prompt"] = item.prompt
    else:
        stored = item.model_dump(mode="json", include={"prompt", "completion"}, exclude_none=True)
    if item.reference is not None:
        stored["reference"] = item.reference
    if item.metadata:
        stored["metadata"] = item.metadata
    return canonical_json(stored)


def _prompt(prompt: str | list[Message] | None) -> Any:
    if isinstance(prompt, list):
        return [{"role": m.role, "content": text_of(m)} for m in prompt]
    return prompt
