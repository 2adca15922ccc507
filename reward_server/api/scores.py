"""``GET /scores``: what was scored, by which version, page by page or all at once as NDJSON."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from reward_server.api.access import require
from reward_server.api.state import host_of
from reward_server.problems import Invalid, NotFound
from reward_server.schema import GraderRef, Label, Problem, ScorePage, Status, StoredScore
from reward_server.store import scores
from reward_server.store.ids import MAX_ID
from reward_server.store.keys import Scope
from reward_server.store.scores import ScoreFilter

router = APIRouter(tags=["scores"])

NDJSON = "application/x-ndjson"
_MAX_WITH_ITEMS = 50
Count = Annotated[int, Field(ge=0, le=2**53 - 1)]


@router.get(
    "/scores", response_model=None, responses={200: {"model": ScorePage}, 422: {"model": Problem}}
)
async def list_scores(
    request: Request,
    run: Annotated[Label | None, Query()] = None,
    grader: Annotated[GraderRef | None, Query(description="name, name@3 or name@sha256:…")] = None,
    status: Annotated[Status | None, Query()] = None,
    policy_version: Annotated[Count | None, Query()] = None,
    group: Annotated[Label | None, Query()] = None,
    step: Annotated[Count | None, Query()] = None,
    since: Annotated[str | None, Query(description="ISO 8601; UTC where no zone is given")] = None,
    cursor: Annotated[str | None, Query(description="next_cursor of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    items: Annotated[
        bool, Query(description="with what was submitted; then at most 50 a page")
    ] = False,
) -> Response:
    """Scores in the order they were made. `Accept: application/x-ndjson` gives all, one a line."""
    require(request, Scope.READ)
    database = host_of(request).database
    if grader is not None:
        host_of(request).registry.find(
            grader
        )  # a name that is misspelt is a 404, not an empty page
    wanted = ScoreFilter(run, grader, status, policy_version, group, step, since_ms(since))
    if NDJSON in request.headers.get("accept", ""):

        def lines() -> Iterator[bytes]:
            for chunk in scores.every(database, wanted, with_items=items):
                yield b"".join(s.model_dump_json().encode() + b"\n" for s in chunk)

        return StreamingResponse(lines(), media_type=NDJSON)
    after = _cursor_id(cursor)
    if items:
        limit = min(limit, _MAX_WITH_ITEMS)  # completions may be megabytes each
    found = await asyncio.to_thread(
        scores.page, database, wanted, after=after, limit=limit + 1, with_items=items
    )
    more = len(found) > limit
    page = ScorePage(scores=found[:limit], next_cursor=found[limit - 1].score_id if more else None)
    return Response(page.model_dump_json(), media_type="application/json")


@router.get("/scores/{score_id}", response_model=StoredScore, responses={404: {"model": Problem}})
async def show_score(request: Request, score_id: str) -> StoredScore:
    """One score in full, with the item that was submitted."""
    require(request, Scope.READ)
    number = _id(score_id)
    found = None
    if number is not None:
        found = await asyncio.to_thread(scores.one, host_of(request).database, number)
    if found is None:
        raise NotFound("there is no score with this id")
    return found


def _cursor_id(cursor: str | None) -> int:
    if cursor is None:
        return 0
    number = _id(cursor)
    if number is None:
        raise Invalid.field("cursor", "not a cursor of this server")
    return number


def _id(text: str) -> int | None:
    if len(text) > 19 or not text.isascii() or not text.isdigit():
        return None
    number = int(text)
    return number if number <= MAX_ID else None


def since_ms(since: str | None) -> int | None:
    if since is None:
        return None
    try:
        at = datetime.fromisoformat(since)
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return int(at.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise Invalid.field("since", "not an ISO 8601 time, like 2026-05-01T12:00:00Z") from None
