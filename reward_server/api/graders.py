"""``/graders`` and ``/kinds``: registering graders, and seeing what there is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from reward_server.api.access import require
from reward_server.api.body import read_json
from reward_server.api.state import host_of
from reward_server.problems import NotFound
from reward_server.registry import registration
from reward_server.registry.registry import Registry
from reward_server.registry.versions import Version
from reward_server.schema import (
    GraderList,
    GraderRegistered,
    GraderRegistration,
    GraderSummary,
    GraderVersionOut,
    GraderVersions,
    KindList,
    KindOut,
    Problem,
    Repeatability,
)
from reward_server.store.keys import Scope
from reward_server.store.scores import iso

router = APIRouter(tags=["graders"])


@router.post(
    "/graders",
    response_model=None,
    status_code=201,
    responses={
        200: {"model": GraderRegistered, "description": "This content is registered already."},
        201: {"model": GraderRegistered},
        422: {"model": Problem, "description": "A wrong config, or a golden case that fails."},
    },
)
async def register(request: Request) -> Response:
    """Registers a version of a grader. Its golden cases must pass, or nothing is registered."""
    require(request, Scope.REGISTER)
    host = host_of(request)
    wanted, _ = await read_json(request, GraderRegistration, host.settings.max_body_mb << 20)
    registered, made = await registration.register(
        host.registry,
        host.service.run_cases,
        wanted,
        max_cases=host.settings.max_cases,
        mounts=host.service.sandbox.mounts,
    )
    return JSONResponse(registered.model_dump(mode="json"), 201 if made else 200)


@router.get("/graders", response_model=GraderList)
async def list_graders(request: Request) -> GraderList:
    """All graders, with the version that each bare name means."""
    require(request, Scope.READ)
    registry = host_of(request).registry
    return GraderList(graders=[summary_of(registry, name) for name in registry.names])


@router.get("/graders/{name}", response_model=GraderVersions)
async def list_versions(request: Request, name: str) -> GraderVersions:
    """Every version of one grader, oldest first."""
    require(request, Scope.READ)
    registry = host_of(request).registry
    versions = [version_out(registry, v) for v in registry.versions(name)]
    return GraderVersions(name=name, versions=versions)


@router.get("/graders/{name}/versions/{number}", response_model=GraderVersionOut)
async def show_version(request: Request, name: str, number: int) -> GraderVersionOut:
    """One version in full: config, golden cases, and what its digest was computed from."""
    require(request, Scope.READ)
    registry = host_of(request).registry
    if number < 1 or number > 999_999_999:
        raise NotFound(f"grader {name[:64]!r} has no version {number}")
    return version_out(registry, registry.find(f"{name}@{number}"))


@router.get("/kinds", response_model=KindList)
async def list_kinds(request: Request) -> KindList:
    """The kinds of grader, their schemas, and whether each can run here."""
    require(request, Scope.READ)
    catalog = host_of(request).registry.catalog
    return KindList(
        kinds=await asyncio.to_thread(
            lambda: [_kind_out(catalog[k]) for k in sorted(catalog.kinds)]
        )
    )


def summary_of(registry: Registry, name: str) -> GraderSummary:
    versions = registry.versions(name)
    active = registry.active(name)
    newest = active or versions[-1]
    return GraderSummary(
        name=name,
        kind=newest.spec.kind,
        active_version=active.number if active else None,
        digest=active.spec.digest if active else None,
        versions=len(versions),
        runnable=active.runnable if active else False,
        description=newest.description,
    )


def version_out(registry: Registry, version: Version) -> GraderVersionOut:
    active = registry.active(version.name)
    return GraderVersionOut(
        name=version.name,
        version=version.number,
        digest=version.spec.digest,
        kind=version.spec.kind,
        config=json.loads(version.spec.config),
        parts={n: p.digest for n, p in version.spec.parts.items()},
        description=version.description,
        cases=version.cases,
        ingredients=dict(version.ingredients),
        release=version.release,
        note=version.note,
        repeatability=version.repeatability and Repeatability.model_validate(version.repeatability),
        created_at=iso(version.created_ms),
        active=active is not None and active.id == version.id,
        runnable=version.runnable,
    )


def _kind_out(kind: Any) -> KindOut:
    reason = kind.unavailable()
    return KindOut(
        kind=kind.name,
        summary=kind.summary,
        available=reason is None,
        reason=reason,
        deterministic=kind.deterministic,
        config_schema=kind.config.model_json_schema(),
        reference_schema=kind.reference_schema,
    )
