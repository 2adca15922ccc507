"""What is wrong with an item before it is graded: a 422 that names it, not a verdict."""

from __future__ import annotations

from reward_server.graders.base import Field
from reward_server.problems import FieldError
from reward_server.registry.versions import Version
from reward_server.schema import Item
from reward_server.scoring.views import completion_text
from reward_server.store.codec import to_json


def problem_with(item: Item, index: int, where: str, max_chars: int) -> FieldError | None:
    """What is wrong with an item whichever grader it goes to, or None."""
    at = f"{where}.{index}"
    text = completion_text(item.completion)
    if text is None:
        return FieldError(f"{at}.completion", "there is no assistant message to grade", index)
    if len(text) > max_chars:
        problem = f"{len(text)} characters; the limit is {max_chars} (REWARD_MAX_COMPLETION_CHARS)"
        return FieldError(f"{at}.completion", problem, index)
    if item.group_size is not None and item.group is None:
        return FieldError(f"{at}.group_size", "needs a group", index)
    return None


def problem_for(version: Version, item: Item, index: int, where: str) -> FieldError | None:
    """What the item lacks for its grader, or None."""
    grader = version.grader
    assert grader is not None
    for needed in grader.requires:
        if getattr(item, needed.value) is None and not (
            needed is Field.REFERENCE and "reference" in item.model_fields_set
        ):
            who = f"grader {version.label}" if version.name else "the grader"
            problem = f"{who} needs {needed.value}"
            return FieldError(f"{where}.{index}.{needed.value}", problem, index)
    if Field.REFERENCE in grader.reads and (wrong := grader.reference_problem(item.reference)):
        return FieldError(f"{where}.{index}.reference", f"must be {wrong}", index)
    return None


def field_not_finite(item: Item) -> str:
    """Which field of an item is not JSON."""
    for name in ("reference", "metadata"):
        try:
            to_json(getattr(item, name))
        except (ValueError, RecursionError):
            return name
    return "completion"
