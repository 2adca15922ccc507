"""``POST /score``: the one route that trainers live on."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from reward_server.api.access import require
from reward_server.api.body import read_json
from reward_server.api.leaving import ClientLeft, Leavers
from reward_server.api.problem_json import problem
from reward_server.api.state import host_of
from reward_server.problems import NotAcceptable, Refused
from reward_server.schema import Problem, ScoreRequest, ScoreResponse
from reward_server.scoring.record import Reply, summary
from reward_server.scoring.service import Service
from reward_server.store.keys import Scope

NDJSON = "application/x-ndjson"
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
            response: Response = await _lines(service, asked, size)
        else:
            leavers: Leavers = request.app.state.leavers
            replies = await leavers.unless_left(request, service.score(asked, size))
            body = {"scores": replies, "summary": summary(replies)}
            response = _Answer(_json(body))
        status = response.status_code
        return response
    except Refused as refused:
        status = refused.status
        raise
    except (ClientLeft, ClientDisconnect):
        status = _LEFT
        return Response(status_code=_LEFT)
    finally:
        service.metrics.answered(status, time.monotonic() - started)


class _Answer(Response):
    """A JSON body that is final: no header is added later, so none need be prepared for it."""

    def __init__(self, body: bytes) -> None:
        self.status_code = 200
        self.body = body
        self.background = None
        self.raw_headers = [
            (b"content-length", str(len(body)).encode()),
            (b"content-type", b"application/json"),
        ]


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


def _wants_lines(request: Request) -> bool:
    accept = request.headers.get("accept", "*/*")
    if accept in ("*/*", "application/json"):
        return False
    types = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    if NDJSON in types:
        return True
    if types & {"", "*/*", "application/*", "application/json"}:
        return False
    raise NotAcceptable(f"scores come as application/json or {NDJSON}")


def _json(value: Any) -> bytes:
    return orjson.dumps(value)
