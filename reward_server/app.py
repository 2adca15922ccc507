"""Builds the FastAPI app: routes, error format, and the host behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from reward_server.api import graders, health, problem_json, runs, score, scores
from reward_server.host import CATALOG, running
from reward_server.registry.digest import library_version
from reward_server.schema import GraderRegistration, RunRequest, ScoreRequest
from reward_server.settings import Settings

_BODIES: dict[str, type[BaseModel]] = {
    "/score": ScoreRequest,
    "/graders": GraderRegistration,
    "/runs": RunRequest,
}
"""Bodies that routes read themselves (for speed, and for one error format)."""


def create_app(settings: Settings | None = None, *, catalog: str = CATALOG) -> FastAPI:
    """The application. Its host starts and stops with the ASGI lifespan."""
    settings = settings or Settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with running(settings, catalog=catalog) as host:
            app.state.host = host
            yield

    app = FastAPI(
        title="reward-server",
        version=library_version("reward-server"),
        summary="Versioned graders for reinforcement learning of language models.",
        lifespan=lifespan,
        redoc_url=None,
    )
    for module in (score, graders, scores, runs, health):
        app.include_router(module.router)
    problem_json.install(app)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with the bodies that routes read themselves."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, summary=app.summary, routes=app.routes
        )
        _, definitions = models_json_schema(
            [(m, "validation") for m in _BODIES.values()],
            ref_template="#/components/schemas/{model}",
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for name, schema in definitions["$defs"].items():
            schemas.setdefault(name, schema)
        for path, model in _BODIES.items():
            reference = {"$ref": f"#/components/schemas/{model.__name__}"}
            document["paths"][path]["post"]["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": reference}},
            }
        app.openapi_schema = document
    return app.openapi_schema
