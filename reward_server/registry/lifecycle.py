"""What happens to versions over time: built-ins at start, new versions after an upgrade.

``bring_up_to_date`` drafts every active version again with the code at hand. Where the digest differs,
our source, a library, Python or an unpinned part has changed, and a new version is minted with a note of
what changed. It becomes the active one if its golden cases still pass; otherwise the name keeps pointing
at the old version, whose code is gone, and asking for it is a 409: never silently another rule.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from reward_server.problems import Conflict, Invalid, Unavailable
from reward_server.registry.builtins import BUILT_INS, BuiltIn
from reward_server.registry.digest import what_changed
from reward_server.registry.registry import Registry
from reward_server.registry.versions import MAX_DEPTH, Draft, Version
from reward_server.schema import Case, CaseResult

log = structlog.get_logger(__name__)

RunCases = Callable[[Draft, list[Case]], Awaitable[list[CaseResult]]]


async def bring_up_to_date(registry: Registry, run_cases: RunCases) -> list[Version]:
    """Mints what an upgrade or a changed part makes necessary; returns the new versions.

    Every server on the database may do this at the same time.
    """
    await asyncio.to_thread(registry.load)
    minted = await _built_ins(registry, run_cases)
    return minted + await _until_settled(registry, run_cases, composites_only=False)


async def follow_parts(registry: Registry, run_cases: RunCases) -> list[Version]:
    """Mints what a newly active version makes necessary: composites with it as an unpinned part."""
    return await _until_settled(registry, run_cases, composites_only=True)


async def _built_ins(registry: Registry, run_cases: RunCases) -> list[Version]:
    known = set(registry.names)
    return [await _mint_built_in(registry, b, run_cases) for b in BUILT_INS if b.name not in known]


async def _until_settled(
    registry: Registry, run_cases: RunCases, *, composites_only: bool
) -> list[Version]:
    minted: list[Version] = []
    for _ in range(MAX_DEPTH + 1):  # a composite follows its parts, one level a round
        new = []
        for name in registry.names:
            active = registry.active(name)
            if active is None or (composites_only and not active.spec.parts):
                continue
            if (version := await _refresh(registry, name, run_cases)) is not None:
                new.append(version)
        if not new:
            break
        minted += new
    return minted


async def _mint_built_in(registry: Registry, built_in: BuiltIn, run_cases: RunCases) -> Version:
    draft = registry.draft(built_in.kind, built_in.config, name=built_in.name)
    if (reason := registry.catalog[built_in.kind].unavailable()) is not None:
        # The version states the same on every host; this one will leave its items unscored.
        log.warning("a built-in grader cannot run here", grader=built_in.name, reason=reason)
    else:
        try:
            failed = [r for r in await run_cases(draft, list(built_in.cases)) if not r.passed]
        except Unavailable as error:
            if registry.catalog[built_in.kind].pure:
                raise
            log.warning("golden cases could not run", grader=built_in.name, error=error.detail)
            failed = []
        if failed:
            raise RuntimeError(f"built-in {built_in.name!r} fails its own cases: {failed}")
    version, _ = await asyncio.to_thread(
        registry.mint,
        built_in.name,
        draft,
        description=built_in.description,
        cases=[c.model_dump(mode="json", exclude_unset=True) for c in built_in.cases],
        activate=True,
        origin="builtin",
    )
    return version


async def _refresh(registry: Registry, name: str, run_cases: RunCases) -> Version | None:
    """A new version of ``name`` if its active one no longer states what would run."""
    old = registry.active(name)
    if old is None:
        return None
    built_in = next((b for b in BUILT_INS if b.name == name and old.origin == "builtin"), None)
    config: dict[str, Any] = dict(built_in.config) if built_in else json.loads(old.spec.config)
    try:
        draft = registry.draft(built_in.kind if built_in else old.spec.kind, config, name=name)
    except Invalid as error:
        log.error("an active grader cannot be built by this release", grader=old.label,
                  detail=error.detail)  # fmt: skip
        return None
    if draft.spec.digest == old.spec.digest:
        return None
    known = next((v for v in registry.versions(name) if v.spec.digest == draft.spec.digest), None)
    if known is not None and not _only_parts_differ(draft, old):
        # Another server runs a newer release on this database, or this one was rolled back.
        log.warning(
            "the active version was minted by another release; this server has an older one",
            active=old.label, here=known.label, minted_by=old.release,
            hint=f"reward-server graders activate {known.label}",
        )  # fmt: skip
        return None
    stored_cases = [Case.model_validate(c) for c in old.cases]
    cases = list(built_in.cases) if built_in else stored_cases
    try:
        failed = [r for r in await run_cases(draft, cases) if not r.passed]
    except Unavailable as error:
        # Our own trouble says nothing about the version: it is tried again at the next start.
        log.error("golden cases could not run", grader=name, error=error.detail)
        return None
    except Invalid as error:
        # A part now asks for what the cases do not have. The old version stays, with its old parts.
        log.error("golden cases no longer fit", grader=name, error=error.detail)
        return None
    note = what_changed(old.ingredients, draft.ingredients)
    if failed:
        note += f"; not active: {len(failed)} golden cases fail, the first: {failed[0].detail}"
        log.error("a new version fails its golden cases and is not active", grader=name,
                  failed=[r.index for r in failed], detail=failed[0].detail)  # fmt: skip
        if known is not None:
            return None
    try:
        version, made = await asyncio.to_thread(
            registry.mint,
            name,
            draft,
            description=built_in.description if built_in else old.description,
            cases=[c.model_dump(mode="json", exclude_unset=True) for c in cases],
            activate=not failed,
            origin=old.origin,
            note=note,
        )
    except Conflict as error:
        log.error("a new version cannot be minted", grader=name, error=error.detail)
        return None
    if made:
        log.info("minted", grader=version.label, note=note)
    return None if failed else version


def _only_parts_differ(draft: Draft, old: Version) -> bool:
    now = {**draft.ingredients, "parts": None}
    before = {**old.ingredients, "parts": None}
    return now == before


def result_of_case(case: Case, result: CaseResult) -> CaseResult:
    """Judges what a case gave against what it expects."""
    expect = case.expect
    problems = []
    status = expect.status or "scored"
    if result.status != status:
        problems.append(f"expected {status}, got {result.status}")
    elif result.reward is not None:
        reward = result.reward
        if expect.reward is not None and abs(reward - expect.reward) > 1e-9:
            problems.append(f"expected reward {expect.reward:g}, got {reward:g}")
        if expect.min_reward is not None and reward < expect.min_reward:
            problems.append(f"expected at least {expect.min_reward:g}, got {reward:g}")
        if expect.max_reward is not None and reward > expect.max_reward:
            problems.append(f"expected at most {expect.max_reward:g}, got {reward:g}")
    if not problems:
        return result.model_copy(update={"passed": True, "detail": None})
    detail = "; ".join(problems) + (f" ({result.detail})" if result.detail else "")
    return result.model_copy(update={"passed": False, "detail": detail})
