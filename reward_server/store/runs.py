"""Runs and the grader versions that they pin."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select

from reward_server.store import models
from reward_server.store.codec import to_json
from reward_server.store.database import Database, retrying
from reward_server.store.ids import now_ms


@dataclass(frozen=True, slots=True)
class Run:
    id: int
    name: str
    config: dict[str, Any]
    train_grader: str | None
    heldout_grader: str | None
    declared: bool
    created_ms: int
    pins: dict[str, int]
    """Grader name -> version id."""


class RunExists(Exception):
    """The run was declared before, with other contents."""


def pin(database: Database, run: str, active: Mapping[str, int]) -> Run:
    """Pins names at their first use; ``active`` is what each would be pinned to now.

    Makes the run where there is none. Of two servers that pin a name at once, the first wins.
    """

    def transaction() -> Run:
        with database.write() as connection:
            row = _get_or_make(connection, run)
            pins = _pins(connection, row.id)
            missing = {n: v for n, v in active.items() if n not in pins}
            for name, version_id in missing.items():
                connection.execute(
                    insert(models.run_pins).values(run_id=row.id, name=name, version_id=version_id)
                )
            return _run(row, pins | missing)

    return retrying(transaction)


def declare(
    database: Database,
    name: str,
    *,
    config: Mapping[str, Any],
    train_grader: str | None,
    heldout_grader: str | None,
    pins: Mapping[str, int],
) -> tuple[Run, bool]:
    """(run, whether it was made). Raises RunExists for a run declared with other contents."""

    def transaction() -> tuple[Run, bool]:
        with database.write() as connection:
            row = connection.execute(select(models.runs).where(models.runs.c.name == name)).first()
            if row is not None and row.declared:
                known = _run(row, _pins(connection, row.id))
                same = (
                    known.config == dict(config)
                    and known.train_grader == train_grader
                    and known.heldout_grader == heldout_grader
                    and all(known.pins.get(n) == v for n, v in pins.items())
                )
                if not same:
                    raise RunExists
                return known, False
            row = row or _get_or_make(connection, name)
            known_pins = _pins(connection, row.id)
            if any(known_pins.get(n, v) != v for n, v in pins.items()):
                raise RunExists
            connection.execute(
                models.runs.update()
                .where(models.runs.c.id == row.id)
                .values(
                    config=to_json(config),
                    train_grader=train_grader,
                    heldout_grader=heldout_grader,
                    declared=1,
                )
            )
            for grader, version_id in pins.items():
                if grader not in known_pins:
                    connection.execute(
                        insert(models.run_pins).values(
                            run_id=row.id, name=grader, version_id=version_id
                        )
                    )
            fresh = connection.execute(select(models.runs).where(models.runs.c.id == row.id)).one()
            return _run(fresh, known_pins | dict(pins)), True

    return retrying(transaction)


def get(database: Database, name: str) -> Run | None:
    with database.read() as connection:
        row = connection.execute(select(models.runs).where(models.runs.c.name == name)).first()
        return None if row is None else _run(row, _pins(connection, row.id))


def page(database: Database, after_id: int, limit: int) -> list[Run]:
    """Runs by id, those after ``after_id``."""
    with database.read() as connection:
        rows: Iterable[Any] = connection.execute(
            select(models.runs)
            .where(models.runs.c.id > after_id)
            .order_by(models.runs.c.id)
            .limit(limit)
        ).all()
        return [_run(row, _pins(connection, row.id)) for row in rows]


def _get_or_make(connection: Connection, name: str) -> Any:
    query = select(models.runs).where(models.runs.c.name == name)
    row = connection.execute(query).first()
    if row is None:
        connection.execute(
            insert(models.runs).values(
                name=name, config=to_json({}), declared=0, created_ms=now_ms()
            )
        )
        row = connection.execute(query).one()
    return row


def _pins(connection: Connection, run_id: int) -> dict[str, int]:
    p = models.run_pins
    rows = connection.execute(select(p.c.name, p.c.version_id).where(p.c.run_id == run_id))
    return {row.name: row.version_id for row in rows}


def _run(row: Any, pins: dict[str, int]) -> Run:
    return Run(
        id=row.id,
        name=row.name,
        config=json.loads(row.config),
        train_grader=row.train_grader,
        heldout_grader=row.heldout_grader,
        declared=bool(row.declared),
        created_ms=row.created_ms,
        pins=pins,
    )
