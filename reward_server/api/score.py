"""``POST /score``: the one route that trainers live on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import orjson
import structlog
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from reward_server.api.access import require
from reward_server.api.body import read_json
from reward_server.api.problem_json import problem
from reward_server.api.state import host_of
from reward_server.problems import NotAcceptable, Refused
from reward_server.schema import Problem, ScoreRequest, ScoreResponse
from reward_server.scoring.record import Reply, summary
from reward_server.scoring.service import Service
from reward_server.store.keys import Scope

T = TypeVar("T")

log = structlog.get_logger(__name__)

NDJSON = "application/x-ndjson"
_WATCH_AFTER_S = 0.25
"""A request that takes longer is watched for its client leaving."""
_LEFT = 499

router = APIRouter(tags=["scoring"])


@router.post(
    "/score",
    response_model=None,
    responses={
        200: {
            "model": ScoreResponse,
            "description": "The scores, in request order. With `Accept: application/x-ndjson`: one "
            "score a line as each is ready, then the summary.",
        },
        422: {"model": Problem},
        503: {"model": Problem, "description": "Nothing was admitted; see Retry-After."},
    },
)
async def score(request: Request) -> Response:
    """Grades completions and stores each score with its verifier version."""
    started = time.monotonic()
    host = host_of(request)
    service = host.service
    status = 500
    try:
        require(request, Scope.SCORE)
        wants_lines = _wants_lines(request)
        asked, size = await read_json(request, ScoreRequest, host.settings.max_body_mb << 20)
        if wants_lines:
            response = await _lines(service, asked, size)
        else:
            replies = await _unless_left(request, service.score(asked, size))
            body = {"scores": replies, "summary": summary(replies)}
            response = Response(_json(body), media_type="application/json")
        status = response.status_code
        return response
    except Refused as refused:
        status = refused.status
        raise
    except (_ClientLeft, ClientDisconnect):
        status = _LEFT
        return Response(status_code=_LEFT)
    finally:
        service.metrics.answered(status, time.monotonic() - started)


async def _lines(service: Service, asked: ScoreRequest, size: int) -> Response:
    """Streams a score a line. What is refused before the first line still gets its own status."""
    stream = service.stream(asked, size)
    first = await anext(stream)

    async def lines() -> AsyncIterator[bytes]:
        rewards: list[Reply] = []
        chunk: list[Reply] | None = first
        try:
            while chunk is not None:
                rewards += [{"reward": r["reward"]} for r in chunk]
                yield b"".join(_json(r) + b"\n" for r in chunk)
                chunk = await anext(stream, None)
            yield _json({"summary": summary(rewards)}) + b"\n"
        except Refused as refused:
            # The status line is out: the problem becomes the last line, in the summary's place.
            yield _json({"problem": json.loads(bytes(problem(refused).body))}) + b"\n"
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    return StreamingResponse(lines(), media_type=NDJSON)


class _ClientLeft(Exception):
    pass


async def _unless_left(request: Request, work: Awaitable[T]) -> T:
    """The work's result; cancels it when the client leaves. Costs nothing for a quick answer."""
    loop = asyncio.get_running_loop()
    own = asyncio.current_task()
    assert own is not None
    watcher: asyncio.Task[None] | None = None
    left = False

    async def watch() -> None:
        nonlocal left
        while True:
            if (await request.receive())["type"] == "http.disconnect":
                left = True
                own.cancel()
                return

    def begin() -> None:
        nonlocal watcher
        watcher = loop.create_task(watch())

    timer = loop.call_later(_WATCH_AFTER_S, begin)
    try:
        return await work
    except asyncio.CancelledError:
        if left:
            own.uncancel()
            log.debug("the client left before its scores were ready")
            raise _ClientLeft from None
        raise
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()


def _wants_lines(request: Request) -> bool:
    accept = request.headers.get("accept", "*/*")
    types = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    if NDJSON in types:
        return True
    if types & {"", "*/*", "application/*", "application/json"}:
        return False
    raise NotAcceptable(f"scores come as application/json or {NDJSON}")


def _json(value: Any) -> bytes:
    return orjson.dumps(value)
