"""``/adapters/sandbox-fusion/run_code``: SandboxFusion's endpoint, for clients that have its URL in their config."""

from __future__ import annotations

import time

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from reward_server.api.access import require
from reward_server.api.body import read_json
from reward_server.api.state import host_of
from reward_server.execution import (
    Executor,
    NoSlotInTime,
    SandboxLost,
    SandboxUnavailable,
    files_problem,
    name_problem,
)
from reward_server.problems import Invalid, Unavailable
from reward_server.protocols import sandbox_fusion
from reward_server.schema import Problem
from reward_server.store.keys import Scope

router = APIRouter(prefix="/adapters/sandbox-fusion", tags=["adapters"])

_PATIENCE_S = 8.0
"""How long a request waits for a slot. verl gives up ten seconds after the two timeouts it sent."""


@router.post(
    "/run_code",
    response_model=None,
    responses={
        200: {"model": sandbox_fusion.RunCodeResponse},
        422: {"model": Problem},
        504: {"description": "Every sandbox is busy: verl's client tries again on this status."},
    },
)
async def run_code(request: Request) -> Response:
    """Runs a program and says what it printed. `SandboxError` is our failure, never the program's."""
    require(request, Scope.SCORE)
    host = host_of(request)
    asked, size = await read_json(
        request, sandbox_fusion.RunCodeRequest, host.settings.max_body_mb << 20
    )
    if (answer := sandbox_fusion.unsupported(asked)) is None:
        submission = sandbox_fusion.submission(asked)
        if (problem := files_problem(submission.files, submission.limits)) is not None:
            raise Invalid.field("files", problem)
        for name in asked.fetch_files:
            if (problem := name_problem(name)) is not None:
                raise Invalid.field("fetch_files", problem)
        try:
            report = await Executor(host.service).run(
                submission, size, time.monotonic() + _PATIENCE_S
            )
            answer = sandbox_fusion.response(report)
        except (NoSlotInTime, Unavailable) as error:
            return JSONResponse({"detail": str(error)}, 504)
        except (SandboxUnavailable, SandboxLost) as error:
            answer = sandbox_fusion.failure(str(error))
    return JSONResponse(sandbox_fusion.as_json(answer))


@router.get("/v1/ping")
async def ping() -> JSONResponse:
    """Whether the server is there, as SandboxFusion says it."""
    return JSONResponse("pong")
