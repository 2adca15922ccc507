"""Registering a grader: its config is checked, its golden cases must pass, then it gets a version."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from reward_server.graders.base import repeats
from reward_server.problems import FieldError, Invalid
from reward_server.registry.lifecycle import RunCases, follow_parts
from reward_server.registry.registry import Registry
from reward_server.registry.versions import Draft, Version
from reward_server.schema import (
    Case,
    CaseResult,
    GraderRegistered,
    GraderRegistration,
    Repeatability,
)


async def register(
    registry: Registry,
    run_cases: RunCases,
    wanted: GraderRegistration,
    *,
    max_cases: int,
    mounts: tuple[Any, ...] = (),
) -> tuple[GraderRegistered, bool]:
    """(what was registered, whether it is new). ``mounts``: of this host's sandboxes, by which a kind may pin what its
    config names. Raises Invalid, and then nothing was registered."""
    if len(wanted.cases) > max_cases:
        raise Invalid.field("cases", f"{len(wanted.cases)} cases; the limit is {max_cases}")
    for index, case in enumerate(wanted.cases):
        if not case.expect.model_dump(exclude_none=True):
            raise Invalid.field(f"cases.{index}.expect", "expects nothing", index)
    draft = registry.draft(wanted.kind, wanted.config, name=wanted.name)
    config = draft.kind.validate_config(wanted.config)
    pinned = await asyncio.to_thread(draft.kind.pinned, config, mounts)
    if pinned != config:
        stated = json.loads(draft.kind.canonical_config(pinned))
        draft = registry.draft(wanted.kind, stated, name=wanted.name)
    results = await run_cases(draft, wanted.cases)
    if any(not r.passed for r in results):
        raise Invalid.of([_failed(r) for r in results if not r.passed])
    measured = await _measured(run_cases, draft, wanted.cases, results)
    if measured and measured.differing and repeats(draft.kind, registry.catalog.build(draft.spec)):
        text = (
            f"is stated, and {measured.differing} golden cases gave other rewards when graded again"
        )
        raise Invalid.field("config.deterministic", text)
    version, made = await asyncio.to_thread(
        registry.mint,
        wanted.name,
        draft,
        description=wanted.description,
        cases=[c.model_dump(mode="json", exclude_unset=True) for c in wanted.cases],
        activate=wanted.activate,
        repeatability=None if measured is None else measured.model_dump(),
    )
    await follow_parts(registry, run_cases)
    active = registry.active(wanted.name)
    registered = GraderRegistered(
        name=version.name,
        version=version.number,
        digest=version.spec.digest,
        active=active is not None and active.id == version.id,
        cases=results,
        repeatability=measured,
    )
    return registered, made


async def _measured(
    run_cases: RunCases, draft: Draft, cases: list[Case], first: list[CaseResult]
) -> Repeatability | None:
    """Grades the cases again, every other time in reverse: what one item leaves behind may show in the next."""
    if draft.kind.measured < 2 or not cases:
        return None
    seen = [[r] for r in first]
    for number in range(1, draft.kind.measured):
        backwards = number % 2 == 1
        again = await run_cases(draft, cases[::-1] if backwards else cases)
        for results, result in zip(seen, again[::-1] if backwards else again, strict=True):
            results.append(result)
    spread = [_spread(results) for results in seen]
    return Repeatability(
        runs=draft.kind.measured,
        cases=len(cases),
        differing=sum(s is None or s > 0 for s in spread),
        largest_difference=max((s for s in spread if s is not None), default=0.0),
    )


def _spread(results: list[CaseResult]) -> float | None:
    """Between the rewards of one case; None where it was not always scored, or never."""
    rewards = [r.reward for r in results if r.reward is not None]
    if len(rewards) != len(results):
        return None if rewards else 0.0
    return max(rewards) - min(rewards)


async def activate(registry: Registry, run_cases: RunCases, version: Version) -> None:
    """Makes a bare name mean this version, and composites with it as an unpinned part follow."""
    await asyncio.to_thread(registry.activate, version)
    await follow_parts(registry, run_cases)


def _failed(result: CaseResult) -> FieldError:
    return FieldError(f"cases.{result.index}", result.detail or "failed", result.index)
