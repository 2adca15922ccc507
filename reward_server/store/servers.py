"""Starts of servers, the environments they observed, and drift between them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, update

from reward_server.store import models
from reward_server.store.codec import to_json
from reward_server.store.database import (
    Database,
    StoreUnavailable,
    one_at_a_time,
    retrying,
)
from reward_server.store.ids import NODES, now_ms

_HELD_MS = 600_000


@dataclass(frozen=True, slots=True)
class Started:
    """A start, recorded. ``drift`` says what this host observed differently the last time."""

    server_id: int
    node: int
    environment_id: int
    drift: dict[str, list[Any]] | None


def record_start(
    database: Database, *, host: str, release: str, observed: Mapping[str, Any], digest: str
) -> Started:
    """Records that a server starts, and a drift event if its host's environment has changed."""

    def transaction() -> Started:
        with database.write() as connection:
            one_at_a_time(connection)
            node = _free_node(connection)
            environment_id = _environment_id(connection, observed, digest)
            drift = _drift(connection, host, environment_id, observed)
            server_id = connection.execute(
                insert(models.servers).values(
                    started_ms=now_ms(),
                    host=host,
                    release=release,
                    environment_id=environment_id,
                    node=node,
                    seen_ms=now_ms(),
                )
            ).inserted_primary_key[0]  # type: ignore[index]
            if drift:
                connection.execute(
                    insert(models.events).values(
                        at_ms=now_ms(),
                        kind="drift",
                        detail=to_json({"host": host, "changed": drift}),
                    )
                )
            return Started(server_id, node, environment_id, drift)

    return retrying(transaction)


def still_here(database: Database, server_id: int, *, ended: bool = False) -> None:
    """Keeps hold of the server's node number, or lets go of it."""
    s = models.servers
    with database.write() as connection:
        connection.execute(
            update(s).where(s.c.id == server_id).values(seen_ms=0 if ended else now_ms())
        )


def _free_node(connection: Connection) -> int:
    """A node number that no server has held within the last ten minutes."""
    s = models.servers
    held = set(connection.scalars(select(s.c.node).where(s.c.seen_ms > now_ms() - _HELD_MS)))
    free = [n for n in range(NODES) if n not in held]
    if not free:
        raise StoreUnavailable(f"{NODES} servers are running on this database")
    return random.choice(free)


def recent_events(
    database: Database, kind: str, limit: int = 20
) -> list[tuple[int, dict[str, Any]]]:
    """(time in ms, detail) of the last events of a kind, newest first."""
    e = models.events
    with database.read() as connection:
        rows = connection.execute(
            select(e.c.at_ms, e.c.detail)
            .where(e.c.kind == kind)
            .order_by(e.c.id.desc())
            .limit(limit)
        ).all()
    return [(at_ms, json.loads(detail)) for at_ms, detail in rows]


def _environment_id(connection: Connection, observed: Mapping[str, Any], digest: str) -> int:
    e = models.environments
    found = connection.execute(select(e.c.id).where(e.c.hash == digest)).scalar()
    if found is not None:
        return int(found)
    made = connection.execute(insert(e).values(hash=digest, observed=to_json(observed)))
    return int(made.inserted_primary_key[0])  # type: ignore[index]


def _drift(
    connection: Connection, host: str, environment_id: int, observed: Mapping[str, Any]
) -> dict[str, list[Any]] | None:
    s, e = models.servers, models.environments
    last = connection.execute(
        select(s.c.environment_id, e.c.observed)
        .join(e, s.c.environment_id == e.c.id)
        .where(s.c.host == host)
        .order_by(s.c.id.desc())
        .limit(1)
    ).first()
    if last is None or last.environment_id == environment_id:
        return None
    before = json.loads(last.observed)
    keys = sorted({*before, *observed})
    return {k: [before.get(k), observed.get(k)] for k in keys if before.get(k) != observed.get(k)}
