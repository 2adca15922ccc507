"""Liveness, readiness and metrics."""

from __future__ import annotations

import asyncio

import structlog
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from reward_server.api.access import require
from reward_server.api.state import host_of
from reward_server.host import Host
from reward_server.store.database import StoreUnavailable
from reward_server.store.keys import Scope

log = structlog.get_logger(__name__)

router = APIRouter(tags=["operations"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz", response_model=None)
async def readyz(request: Request) -> Response:
    """Whether it can score: workers alive, database reachable."""
    host = host_of(request)
    checks = {
        "engine": "ok" if host.service.engine.ready else "no grading worker is alive",
        "store": await asyncio.to_thread(_store, host),
    }
    ready = all(v == "ok" for v in checks.values())
    body = {"status": "ready" if ready else "not ready", "checks": checks}
    return JSONResponse(body, 200 if ready else 503)


@router.get("/metrics", response_model=None)
async def metrics(request: Request) -> Response:
    """Prometheus text format. Needs the scope `read` where keys are in use."""
    require(request, Scope.READ)
    service = host_of(request).service
    service.metrics.queued.set(service.admission.items)
    service.metrics.workers.set(service.engine.workers_alive)
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _store(host: Host) -> str:
    try:
        host.registry.stale()
    except StoreUnavailable as error:
        log.warning("not ready: the store is unavailable", error=str(error))
        return "unavailable; the server's log says why"  # this route needs no key
    return "ok"
