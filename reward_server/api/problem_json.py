"""Every error as problem+json (RFC 9457), with the item and field at fault."""

from __future__ import annotations

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from reward_server.api.body import field_error
from reward_server.problems import Invalid, Refused, Unavailable
from reward_server.store.database import StoreUnavailable

log = structlog.get_logger(__name__)


def install(app: FastAPI) -> None:
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(StoreUnavailable, _store_unavailable)
    app.add_exception_handler(RequestValidationError, _parameters)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def problem(refused: Refused) -> Response:
    body = {
        "type": f"urn:reward-server:problem:{refused.slug}",
        "title": refused.title,
        "status": refused.status,
        "detail": refused.detail,
        "errors": [{"item": e.item, "field": e.field, "detail": e.detail} for e in refused.errors],
    }
    return JSONResponse(
        body, refused.status, refused.headers, media_type="application/problem+json"
    )


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return problem(error)


async def _store_unavailable(request: Request, error: Exception) -> Response:
    log.error("the store is unavailable", error=str(error), path=request.url.path)
    return problem(Unavailable(f"the store is unavailable ({error})", 2))


async def _parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # Without "query" or "path" in front: the names are the caller's own.
    return problem(Invalid.of([field_error(tuple(e["loc"])[1:], e["msg"]) for e in error.errors()]))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    refused = Refused(str(error.detail))
    refused.status, refused.title = error.status_code, str(error.detail)
    refused.slug = str(error.detail).lower().replace(" ", "-")
    refused.headers.update(error.headers or {})
    return problem(refused)


def response_to(request: Request, error: Exception) -> Response:
    """The problem that an exception is, for a caller outside of FastAPI's own handling."""
    return problem(error) if isinstance(error, Refused) else _internal(request, error)


async def _unexpected(request: Request, error: Exception) -> Response:
    return _internal(request, error)


def _internal(request: Request, error: Exception) -> Response:
    log.exception("unexpected error", path=request.url.path, exc_info=error)
    refused = Refused("an unexpected error; the server's log has it")
    refused.status, refused.slug, refused.title = 500, "internal-error", "Internal error"
    return problem(refused)
