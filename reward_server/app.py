"""Builds the FastAPI app: routes, error format, and the host behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from reward_server.api import graders, health, problem_json, runs, sandbox_fusion, score, scores
from reward_server.api.leaving import Leavers
from reward_server.host import CATALOG, running
from reward_server.protocols.sandbox_fusion import RunCodeRequest
from reward_server.registry.digest import library_version
from reward_server.schema import GraderRegistration, RunRequest, ScoreRequest
from reward_server.settings import Settings

_BODIES: dict[str, type[BaseModel]] = {
    "/score": ScoreRequest,
    "/graders": GraderRegistration,
    "/runs": RunRequest,
    "/adapters/sandbox-fusion/run_code": RunCodeRequest,
}
"""Bodies that routes read themselves (for speed, and for one error format)."""


class RewardApp(FastAPI):
    """FastAPI, with a short way for ``POST /score``.

    Middleware, routing and exit stacks cost as much as all that scoring one item does itself, so that
    one request is answered before them. The same function is a route as well: so it stands in the
    OpenAPI document and in ``/docs``.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/score" or scope["method"] != "POST":
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        request = Request(scope, receive, send)
        try:
            response = await score.score(request)
        except Exception as error:
            response = problem_json.response_to(request, error)
        await response(scope, receive, send)


def create_app(settings: Settings | None = None, *, catalog: str = CATALOG) -> FastAPI:
    """The application. Its host starts and stops with the ASGI lifespan."""
    settings = settings or Settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with running(settings, catalog=catalog) as host:
            app.state.host = host
            app.state.leavers = Leavers()
            yield

    app = RewardApp(
        title="reward-server",
        version=library_version("reward-server"),
        summary="Versioned graders for reinforcement learning of language models.",
        lifespan=lifespan,
        redoc_url=None,
    )
    for module in (score, graders, scores, runs, health, sandbox_fusion):
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
