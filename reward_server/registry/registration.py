"""Registering a grader: its config is checked, its golden cases must pass, then it gets a version."""

from __future__ import annotations

import asyncio

from reward_server.problems import FieldError, Invalid
from reward_server.registry.lifecycle import RunCases, follow_parts
from reward_server.registry.registry import Registry
from reward_server.registry.versions import Version
from reward_server.schema import CaseResult, GraderRegistered, GraderRegistration


async def register(
    registry: Registry, run_cases: RunCases, wanted: GraderRegistration, *, max_cases: int
) -> tuple[GraderRegistered, bool]:
    """(what was registered, whether it is new). Raises Invalid, and then nothing was registered."""
    if len(wanted.cases) > max_cases:
        raise Invalid.field("cases", f"{len(wanted.cases)} cases; the limit is {max_cases}")
    for index, case in enumerate(wanted.cases):
        if not case.expect.model_dump(exclude_none=True):
            raise Invalid.field(f"cases.{index}.expect", "expects nothing", index)
    draft = registry.draft(wanted.kind, wanted.config, name=wanted.name)
    results = await run_cases(draft, wanted.cases)
    if any(not r.passed for r in results):
        raise Invalid.of([_failed(r) for r in results if not r.passed])
    version, made = await asyncio.to_thread(
        registry.mint,
        wanted.name,
        draft,
        description=wanted.description,
        cases=[c.model_dump(mode="json", exclude_unset=True) for c in wanted.cases],
        activate=wanted.activate,
    )
    await follow_parts(registry, run_cases)
    active = registry.active(wanted.name)
    registered = GraderRegistered(
        name=version.name,
        version=version.number,
        digest=version.spec.digest,
        active=active is not None and active.id == version.id,
        cases=results,
    )
    return registered, made


async def activate(registry: Registry, run_cases: RunCases, version: Version) -> None:
    """Makes a bare name mean this version, and composites with it as an unpinned part follow."""
    await asyncio.to_thread(registry.activate, version)
    await follow_parts(registry, run_cases)


def _failed(result: CaseResult) -> FieldError:
    return FieldError(f"cases.{result.index}", result.detail or "failed", result.index)
