"""Kind ``composite``: several graders, one reward.

``weighted_sum``  Σ wᵢ·rᵢ, with the weights as given (not normalised).
``product``       Π rᵢ.
``gate``          the last part's reward if every part before it reaches its ``threshold``, else 0.
                  All parts are graded either way, so that ``components`` always tells the whole story.

Then the costs of length, in tokens T as the trainer counted them:

``length_cost``   R = R_task − λ·T/1000.
``overlong``      the soft overlong punishment of DAPO (arXiv:2503.14476, eq. 13): 0 up to
                  ``max_tokens − buffer_tokens``, then falling linearly to −1 at ``max_tokens``, −1 beyond;
                  times ``weight``.

A part that ends at a limit (CPU, memory, a crash) leaves ``task`` at 0 or below, so a completion cannot
dodge a penalty, or open a gate, by exhausting the part that would have caught it. For that to hold, parts
should reward within [0, 1].

Every number that entered the reward stands in ``components``: each part under its name, ``task``,
``length_cost`` and ``overlong`` (the two as they were added, so never above 0). A part that is unscored
leaves the whole unscored: half a reward would be a wrong one.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field as ModelField, StringConstraints, model_validator

from reward_server.graders.base import Context, Field, Grader, View
from reward_server.outcome import Basis, FailureKind, Outcome, Scored, Unscored

MAX_PARTS = 32
_MAX_RAW_CHARS = 256 << 10
RESERVED = frozenset({"task", "length_cost", "overlong"})

PartName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_\-]{0,63}$")]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    name: PartName
    """Its name in ``components``."""
    grader: Annotated[str, StringConstraints(min_length=1, max_length=160)]
    """``name``, ``name@3`` or ``name@sha256:…``. Unpinned: the composite gets a new version whenever
    that grader does."""
    weight: float = ModelField(1.0, allow_inf_nan=False)
    """weighted_sum only."""
    threshold: float = ModelField(1.0, allow_inf_nan=False)
    """gate only: the least reward that lets the last part count."""
    reference_key: str | None = None
    """The part's reference is this key of the item's reference (an object); by default, all of it."""


class LengthCost(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    per_1000_tokens: float = ModelField(gt=0, allow_inf_nan=False)
    """λ: reward taken off per thousand generated tokens."""


class Overlong(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    max_tokens: int = ModelField(gt=0, le=2**53)
    buffer_tokens: int = ModelField(gt=0, le=2**53)
    """The last tokens before ``max_tokens``, over which the penalty grows."""
    weight: float = ModelField(1.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _fits(self) -> Overlong:
        if self.buffer_tokens > self.max_tokens:
            raise ValueError("buffer_tokens is larger than max_tokens")
        return self


class CompositeConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    combine: Literal["weighted_sum", "product", "gate"] = "weighted_sum"
    parts: list[Part] = ModelField(min_length=1, max_length=MAX_PARTS)
    length_cost: LengthCost | None = None
    overlong: Overlong | None = None

    @model_validator(mode="after")
    def _names_are_distinct(self) -> CompositeConfig:
        names = [p.name for p in self.parts]
        if len(set(names)) != len(names):
            raise ValueError("two parts have the same name")
        if taken := RESERVED.intersection(names):
            raise ValueError(f"{sorted(taken)} are names of the composite's own components")
        return self


class CompositeGrader:
    """``members`` are the parts' own graders, by part name: they say what the parts read."""

    def __init__(self, config: CompositeConfig, members: Mapping[str, Grader]) -> None:
        self._config = config
        self._members = members
        reads = frozenset[Field]().union(*(m.reads for m in members.values()))
        requires = frozenset[Field]().union(*(m.requires for m in members.values()))
        if config.length_cost or config.overlong:
            reads |= {Field.TOKENS}
            requires |= {Field.TOKENS}
        self.reads = reads
        self.requires = requires
        self.deterministic = all(getattr(m, "deterministic", True) for m in members.values())

    def reference_problem(self, reference: Any) -> str | None:
        for part in self._config.parts:
            member = self._members[part.name]
            if Field.REFERENCE not in member.reads:
                continue
            own = reference
            if part.reference_key is not None:
                if not isinstance(reference, dict) or part.reference_key not in reference:
                    return f"an object with the key {part.reference_key!r} (for part {part.name!r})"
                own = reference[part.reference_key]
            if problem := member.reference_problem(own):
                return f"part {part.name!r}: {problem}"
        return None

    async def grade_live(self, view: View, ctx: Context) -> Outcome:
        parts = self._config.parts
        graded = await asyncio.gather(*(ctx.part(p.name, self._view_of(p, view)) for p in parts))
        outcomes = dict(zip((p.name for p in parts), graded, strict=True))
        for name, outcome in outcomes.items():
            if isinstance(outcome, Unscored):
                return Unscored(outcome.kind, f"part {name!r}: {outcome.detail}", _raws(outcomes))
        scored = {n: o for n, o in outcomes.items() if isinstance(o, Scored)}
        return self.combine(scored, view.tokens)

    def combine(self, scored: Mapping[str, Scored], tokens: int | None) -> Outcome:
        """The reward of a whole from the verdicts on its parts. Pure."""
        config = self._config
        # A part at a limit may have hidden the worst: then the task is never better than nothing.
        certain = all(s.basis is Basis.VERDICT for s in scored.values())
        task = self._task(scored) if certain else min(0.0, self._task(scored))
        components = {name: s.reward for name, s in scored.items()} | {"task": task}
        reward = task
        if config.length_cost is not None:
            components["length_cost"] = length_cost(tokens or 0, config.length_cost.per_1000_tokens)
            reward += components["length_cost"]
        if config.overlong is not None:
            components["overlong"] = overlong_penalty(tokens or 0, config.overlong)
            reward += components["overlong"]
        if not math.isfinite(reward):
            return Unscored(
                FailureKind.GRADER_ERROR, "the reward overflows: check the weights", _raws(scored)
            )
        # A part that hit a limit may decide otherwise next time, so the whole is not reused either.
        bases = {s.basis for s in scored.values()}
        basis = next((b for b in (Basis.LIMIT, Basis.UNDECIDED) if b in bases), Basis.VERDICT)
        return Scored(reward, components, raw=_raws(scored), basis=basis)

    def _task(self, scored: Mapping[str, Scored]) -> float:
        parts = self._config.parts
        rewards = {name: s.reward for name, s in scored.items()}
        match self._config.combine:
            case "weighted_sum":
                return math.fsum(p.weight * _counted(p, scored[p.name]) for p in parts)
            case "product":
                return math.prod(rewards[p.name] for p in parts)
            case "gate":
                *gates, last = parts
                open_ = all(
                    rewards[g.name] >= g.threshold and scored[g.name].basis is Basis.VERDICT
                    for g in gates
                )
                return rewards[last.name] if open_ else 0.0

    def _view_of(self, part: Part, view: View) -> View:
        if part.reference_key is None or Field.REFERENCE not in self._members[part.name].reads:
            return view
        return replace(view, reference=view.reference[part.reference_key])


def _counted(part: Part, scored: Scored) -> float:
    # A penalty (negative weight) must not be dodged by exhausting the part that would find it.
    dodged = part.weight < 0 and scored.basis is not Basis.VERDICT
    return max(1.0, scored.reward) if dodged else scored.reward


def length_cost(tokens: int, per_1000_tokens: float) -> float:
    """−λ·T/1000."""
    return 0.0 - per_1000_tokens * tokens / 1000  # never −0.0


def overlong_penalty(tokens: int, overlong: Overlong) -> float:
    """DAPO's soft overlong punishment times its weight: 0 … −weight."""
    over = tokens - (overlong.max_tokens - overlong.buffer_tokens)
    return 0.0 - overlong.weight * min(1.0, max(0.0, over / overlong.buffer_tokens))


def _raws(outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    raws = {name: dict(o.raw) for name, o in outcomes.items()}
    if len(json.dumps(raws)) > _MAX_RAW_CHARS:
        raws = {n: {"outcome": r.get("outcome"), "note": "raw dropped"} for n, r in raws.items()}
    return {"parts": raws}
