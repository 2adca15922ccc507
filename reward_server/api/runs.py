"""``/runs``: a training run, and the grader versions that it pins."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from reward_server.api.access import require
from reward_server.api.body import read_json
from reward_server.api.state import host_of
from reward_server.problems import Conflict, Invalid, NotFound
from reward_server.registry.registry import Registry
from reward_server.schema import GraderOut, Problem, RunList, RunOut, RunRequest
from reward_server.store import runs
from reward_server.store.codec import to_json
from reward_server.store.keys import Scope
from reward_server.store.scores import iso

router = APIRouter(tags=["runs"])


@router.post(
    "/runs",
    response_model=None,
    status_code=201,
    responses={
        200: {
            "model": RunOut,
            "description": "The run was declared before, with the same contents.",
        },
        201: {"model": RunOut},
        409: {"model": Problem, "description": "The run exists with other contents."},
    },
)
async def declare(request: Request) -> Response:
    """Declares a run and pins its graders. `POST /score` with a new run name makes one too."""
    require(request, Scope.SCORE)
    host = host_of(request)
    wanted, _ = await read_json(request, RunRequest, host.settings.max_body_mb << 20)
    try:
        to_json(wanted.config)
    except ValueError as error:
        raise Invalid.field("config", f"not JSON: {error}") from None
    pins: dict[str, int] = {}
    for ref in [*wanted.graders, *filter(None, (wanted.train_grader, wanted.heldout_grader))]:
        version = host.registry.resolve(ref)
        if pins.setdefault(version.name, version.id) != version.id:
            raise Invalid.field("graders", f"{version.name!r} is named with two versions")
    try:
        run, made = await asyncio.to_thread(
            runs.declare,
            host.database,
            wanted.name,
            config=wanted.config,
            train_grader=wanted.train_grader,
            heldout_grader=wanted.heldout_grader,
            pins=pins,
        )
    except runs.RunExists:
        raise Conflict(
            f"run {wanted.name!r} exists with other contents or pins: use another name"
        ) from None
    host.service.remember_run(run)
    body = _run_out(host.registry, run).model_dump(mode="json")
    return JSONResponse(body, 201 if made else 200)


@router.get("/runs", response_model=RunList)
async def list_runs(
    request: Request,
    cursor: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> RunList:
    """Runs in the order they were made."""
    require(request, Scope.READ)
    host = host_of(request)
    found = await asyncio.to_thread(runs.page, host.database, cursor, limit + 1)
    more = str(found[limit - 1].id) if len(found) > limit else None
    return RunList(runs=[_run_out(host.registry, r) for r in found[:limit]], next_cursor=more)


@router.get("/runs/{name:path}", response_model=RunOut, responses={404: {"model": Problem}})
async def show_run(request: Request, name: str) -> RunOut:
    """One run with the versions that it pins."""
    require(request, Scope.READ)
    host = host_of(request)
    run = None
    if "\0" not in name and len(name) <= 256:
        run = await asyncio.to_thread(runs.get, host.database, name)
    if run is None:
        raise NotFound("there is no run with this name")
    return _run_out(host.registry, run)


def _run_out(registry: Registry, run: runs.Run) -> RunOut:
    pinned = {}
    for name, version_id in sorted(run.pins.items()):
        if (version := registry.by_id(version_id)) is not None:
            pinned[name] = GraderOut(name=name, version=version.number, digest=version.spec.digest)
    return RunOut(
        name=run.name,
        config=run.config,
        graders=pinned,
        train_grader=run.train_grader,
        heldout_grader=run.heldout_grader,
        created_at=iso(run.created_ms),
    )
