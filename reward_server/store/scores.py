"""Reading stored scores: one, a page, or all of a filter; and forgetting old ones."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.exc import IntegrityError

from reward_server.outcome import Scored, Unscored
from reward_server.schema import FailureOut, GraderOut, StepRewardOut, StoredScore
from reward_server.store import models
from reward_server.store.codec import grading_of
from reward_server.store.database import Database
from reward_server.store.ids import first_id_at

_CHUNK = 1000
_CHUNK_WITH_ITEMS = 50


@dataclass(frozen=True, slots=True)
class ScoreFilter:
    """Which scores; every field that is set must match."""

    run: str | None = None
    grader: str | None = None
    """A name, or ``name@3``."""
    status: Literal["scored", "unscored"] | None = None
    policy_version: int | None = None
    group: str | None = None
    step: int | None = None
    since_ms: int | None = None


def by_ids(database: Database, ids: list[int]) -> dict[int, StoredScore]:
    """The scores among these ids."""
    found = {}
    with database.read() as connection:
        for start in range(0, len(ids), _CHUNK):
            wanted = models.scores.c.id.in_(ids[start : start + _CHUNK])
            for row in connection.execute(_query(with_items=False).where(wanted)):
                found[row.id] = _stored(row)
    return found


def one(database: Database, score_id: int) -> StoredScore | None:
    with database.read() as connection:
        query = _query(with_items=True).where(models.scores.c.id == score_id)
        row = connection.execute(query).first()
        return None if row is None else _stored(row)


def page(
    database: Database, wanted: ScoreFilter, *, after: int, limit: int, with_items: bool
) -> list[StoredScore]:
    """Scores by id (so by time), those after the id ``after``."""
    query = (
        _query(with_items=with_items)
        .where(models.scores.c.id > after, *_conditions(wanted))
        .order_by(models.scores.c.id)
        .limit(limit)
    )
    with database.read() as connection:
        return [_stored(row) for row in connection.execute(query)]


def every(
    database: Database, wanted: ScoreFilter, *, with_items: bool
) -> Iterator[list[StoredScore]]:
    """All scores of a filter in chunks, each read in a transaction of its own."""
    after = 0
    limit = _CHUNK_WITH_ITEMS if with_items else _CHUNK
    while chunk := page(database, wanted, after=after, limit=limit, with_items=with_items):
        yield chunk
        after = int(chunk[-1].score_id)


def forget_before(database: Database, ms: int, *, chunk: int = 5000) -> int:
    """Deletes scores made before a time, and gradings that no score needs; returns how many scores.

    In chunks, so that writers wait only briefly.
    """
    s, g = models.scores, models.gradings
    limit = first_id_at(ms)
    forgotten = 0
    while True:
        with database.write() as connection:
            old = list(connection.scalars(select(s.c.id).where(s.c.id < limit).limit(chunk)))
            connection.execute(
                delete(models.score_items).where(models.score_items.c.score_id.in_(old))
            )
            connection.execute(delete(s).where(s.c.id.in_(old)))
        forgotten += len(old)
        if len(old) < chunk:
            break
    after = 0
    while True:  # by keyset, because a grading that is still needed stays in the way
        with database.write() as connection:
            old = list(
                connection.scalars(
                    select(g.c.id)
                    .where(g.c.id < limit, g.c.id > after)
                    .order_by(g.c.id)
                    .limit(chunk)
                )
            )
            if not old:
                break
            after = old[-1]
            needed = select(s.c.grading_id).where(s.c.grading_id.in_(old))
            with contextlib.suppress(IntegrityError), connection.begin_nested():
                # Refused where a score has come to need one meanwhile: next time, then.
                connection.execute(delete(g).where(g.c.id.in_(old), g.c.id.not_in(needed)))
    with database.write() as connection:
        i = models.idempotency
        connection.execute(delete(i).where(i.c.created_ms < ms))
    return forgotten


def count(database: Database, wanted: ScoreFilter) -> int:
    query = select(func.count()).select_from(_joined()).where(*_conditions(wanted))
    with database.read() as connection:
        return int(connection.execute(query).scalar_one())


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def _joined() -> Any:
    m = models
    return (
        m.scores.join(m.gradings, m.scores.c.grading_id == m.gradings.c.id)
        .join(m.versions, m.scores.c.version_id == m.versions.c.id)
        .join(m.specs, m.versions.c.spec_id == m.specs.c.id)
        .join(m.environments, m.gradings.c.environment_id == m.environments.c.id)
        .outerjoin(m.runs, m.scores.c.run_id == m.runs.c.id)
    )


def _query(*, with_items: bool) -> Any:
    m = models
    columns: list[Any] = [
        *(c for c in m.scores.columns),
        m.gradings.c.reward,
        m.gradings.c.basis,
        m.gradings.c.failure,
        m.gradings.c.detail,
        m.gradings.c.result,
        m.gradings.c.elapsed_ms,
        m.versions.c.name.label("grader_name"),
        m.versions.c.version.label("grader_version"),
        m.specs.c.digest,
        m.environments.c.hash.label("environment"),
        m.runs.c.name.label("run"),
    ]
    source = _joined()
    if with_items:
        columns.append(m.score_items.c.payload)
        source = source.outerjoin(m.score_items, m.score_items.c.score_id == m.scores.c.id)
    return select(*columns).select_from(source)


def _conditions(wanted: ScoreFilter) -> list[ColumnElement[bool]]:
    m = models
    conditions: list[ColumnElement[bool]] = []
    if wanted.run is not None:
        run_id = select(m.runs.c.id).where(m.runs.c.name == wanted.run).scalar_subquery()
        conditions.append(m.scores.c.run_id == run_id)
    if wanted.grader is not None:
        name, _, version = wanted.grader.partition("@")
        versions = select(m.versions.c.id).where(m.versions.c.name == name)
        if version.startswith("sha256:"):
            spec = select(m.specs.c.id).where(m.specs.c.digest == version)
            versions = versions.where(m.versions.c.spec_id.in_(spec))
        elif version:
            versions = versions.where(m.versions.c.version == int(version))
        conditions.append(m.scores.c.version_id.in_(versions))
    if wanted.status is not None:
        scored = m.gradings.c.reward.is_not(None)
        conditions.append(scored if wanted.status == "scored" else ~scored)
    if wanted.policy_version is not None:
        conditions.append(m.scores.c.policy_version == wanted.policy_version)
    if wanted.group is not None:
        conditions.append(m.scores.c.group_name == wanted.group)
    if wanted.step is not None:
        conditions.append(m.scores.c.step == wanted.step)
    if wanted.since_ms is not None:
        conditions.append(m.scores.c.id >= first_id_at(wanted.since_ms))
    return conditions


def _stored(row: Any) -> StoredScore:
    # grading_of reads the grading's columns; of the two ids in the row, only the score's matters here.
    outcome = grading_of(row).outcome
    scored = outcome if isinstance(outcome, Scored) else None
    failed = outcome if isinstance(outcome, Unscored) else None
    steps = scored.step_rewards if scored else None
    payload = getattr(row, "payload", None)
    return StoredScore(
        score_id=str(row.id),
        created_at=iso(row.created_ms),
        run=row.run,
        step=row.step,
        id=row.item_id,
        group=row.group_name,
        group_size=row.group_size,
        policy_version=row.policy_version,
        finish_reason=row.finish_reason,
        tokens=row.tokens,
        status="scored" if scored else "unscored",
        reward=scored.reward if scored else None,
        components=dict(scored.components) if scored else {},
        step_rewards=None
        if steps is None
        else [StepRewardOut(start=s.start, end=s.end, reward=s.reward) for s in steps],
        grader=GraderOut(name=row.grader_name, version=row.grader_version, digest=row.digest),
        environment=row.environment,
        raw=dict(outcome.raw),
        failure=None
        if failed is None
        else FailureOut(kind=failed.kind.value, detail=failed.detail, retryable=failed.retryable),
        basis=scored.basis.value if scored else None,
        grading_id=str(row.grading_id),
        cached=bool(row.cached),
        elapsed_ms=row.elapsed_ms,
        item=None if payload is None else json.loads(payload),
    )
