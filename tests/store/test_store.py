"""The store on SQLite and on PostgreSQL: migrations, commits, look-ups, pages, forgetting, keys."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import event, func, insert, select, text

from reward_server.store import migrate, models, scores
from reward_server.store.codec import to_json
from reward_server.store.database import Database, StoreUnavailable
from reward_server.store.hot import GradingKey, HotStore, Submission
from reward_server.store.ids import IdMaker, first_id_at, now_ms
from reward_server.store.keys import KeyRing, Scope
from reward_server.store.scores import ScoreFilter


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url)
    migrate.upgrade(made)
    with made.write() as connection:
        connection.execute(
            insert(models.specs).values(
                id=1, digest="sha256:d", kind="exact", config=b"{}", ingredients=b"{}",
                parts=b"{}", release="r", created_ms=0,
            )
        )  # fmt: skip
        connection.execute(
            insert(models.versions).values(
                id=1, name="g", version=1, spec_id=1, cases=b"[]", origin="user", created_ms=0
            )
        )
        connection.execute(insert(models.environments).values(id=1, hash="e", observed=b"{}"))
        connection.execute(
            insert(models.runs).values(id=1, name="r", config=b"{}", declared=0, created_ms=0)
        )
    yield made
    made.close()


def hot(url: str, timeout_s: float = 5.0) -> HotStore:
    return HotStore(url, synchronous="full", timeout_s=timeout_s)


def grading(number: int, view: bytes, reward: float | None = 1.0) -> tuple[Any, ...]:
    failed = reward is None
    result = to_json(
        {"components": {"correct": reward}, "step_rewards": None, "raw": {"n": number}}
    )
    return (
        number, 1, 1, view.ljust(32, b"."), int(not failed), reward, None if failed else "verdict",
        "worker_lost" if failed else None, b"lost" if failed else None, result, 0.5, 1, now_ms(),
    )  # fmt: skip


def score(number: int, of: int, **columns: Any) -> tuple[Any, ...]:
    row = {c.name: None for c in models.scores.columns} | {
        "id": number, "grading_id": of, "version_id": 1, "run_id": 1, "cached": 0,
        "created_ms": now_ms(),
    } | columns  # fmt: skip
    return tuple(row.values())


def submission(ids: IdMaker, count: int = 3, **columns: Any) -> Submission:
    made = Submission()
    for n in range(count):
        of, number = ids.next(), ids.next()
        made.gradings.append(grading(of, os.urandom(8)))
        made.scores.append(score(number, of, **columns))
        made.items.append((number, to_json({"completion": f"{n} \0 \u2028 é"})))
    return made


def stored(url: str, *submissions: Submission) -> None:
    async def main() -> None:
        store = hot(url)
        await store.start()
        await asyncio.gather(*(store.store(s) for s in submissions))
        await store.close()

    asyncio.run(main())


def test_the_migrations_make_what_the_models_say(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, models.metadata) == []


def test_migrating_again_changes_nothing(database: Database) -> None:
    before, after = migrate.upgrade(database)
    assert before == after


def test_a_database_of_a_newer_release_is_refused(database: Database) -> None:
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(migrate.UnknownRevision, match="newer"):
        migrate.upgrade(database)


def test_what_is_stored_is_read_back_whole(database: Database, database_url: str) -> None:
    ids = IdMaker(1)
    made = submission(ids, policy_version=2**53 - 1, group_name="q", group_size=8, step=7)
    stored(database_url, made)
    found = scores.page(database, ScoreFilter(run="r"), after=0, limit=10, with_items=True)
    assert [int(s.score_id) for s in found] == [r[0] for r in made.scores]
    assert found[0].item == {"completion": "0 \0 \u2028 é"}
    assert found[0].policy_version == 2**53 - 1
    assert found[0].grader.name == "g"
    assert found[0].reward == 1.0
    assert found[0].basis == "verdict"


def test_submissions_that_arrive_together_share_commits_and_all_arrive(
    database: Database, database_url: str
) -> None:
    ids = IdMaker(1)
    stored(database_url, *(submission(ids) for _ in range(200)))
    assert scores.count(database, ScoreFilter()) == 600


def test_a_submission_that_is_refused_fails_alone(database: Database, database_url: str) -> None:
    ids = IdMaker(1)
    good, bad = submission(ids), submission(ids)
    bad.scores[0] = score(ids.next(), 12345)  # points at no grading, and none can be supplied

    async def main() -> list[Any]:
        store = hot(database_url)
        await store.start()
        try:
            both = (store.store(good), store.store(bad))
            return list(await asyncio.gather(*both, return_exceptions=True))
        finally:
            await store.close()

    fine, refused = asyncio.run(main())
    assert fine == {}
    assert isinstance(refused, Exception)
    assert scores.count(database, ScoreFilter()) == 3


def test_a_reused_grading_that_was_forgotten_is_stored_again(
    database: Database, database_url: str
) -> None:
    ids = IdMaker(1)
    row = grading(ids.next(), b"v")
    late = Submission(scores=[score(ids.next(), row[0])], all_gradings=lambda: [row])
    stored(database_url, late)
    assert scores.count(database, ScoreFilter()) == 1


def test_a_look_up_finds_reusable_gradings_only(database: Database, database_url: str) -> None:
    ids = IdMaker(1)
    made = Submission(gradings=[grading(ids.next(), b"yes", 0.5), grading(ids.next(), b"no", None)])
    stored(database_url, made)

    async def main() -> dict[GradingKey, Any]:
        store = hot(database_url)
        await store.start()
        keys = [
            GradingKey(1, 1, b"yes".ljust(32, b".")),
            GradingKey(1, 1, b"no".ljust(32, b".")),
            GradingKey(1, 2, b"yes".ljust(32, b".")),
            GradingKey(2, 1, b"yes".ljust(32, b".")),
        ]
        try:
            return await store.find(keys)
        finally:
            await store.close()

    found = asyncio.run(main())
    assert list(found) == [GradingKey(1, 1, b"yes".ljust(32, b"."))]
    assert next(iter(found.values())).outcome.reward == 0.5


def test_a_killed_store_process_is_replaced(database: Database, database_url: str) -> None:
    ids = IdMaker(1)

    async def main() -> None:
        store = hot(database_url)
        await store.start()
        await store.store(submission(ids))
        assert store.pid is not None
        os.kill(store.pid, signal.SIGKILL)
        lost = 0
        for _ in range(200):
            try:
                await store.store(submission(ids))
                break
            except StoreUnavailable:
                lost += 1
                await asyncio.sleep(0.05)
        else:
            pytest.fail("the store process did not come back")
        await store.close()

    asyncio.run(main())
    assert scores.count(database, ScoreFilter()) == 6


def test_what_was_acknowledged_survives_kill_9(database: Database, database_url: str) -> None:
    ids = IdMaker(1)

    async def main() -> int:
        store = hot(database_url)
        await store.start()
        acknowledged = 0
        for _ in range(20):
            await store.store(submission(ids))
            acknowledged += 3
        assert store.pid is not None
        os.kill(store.pid, signal.SIGKILL)
        await store.close()
        return acknowledged

    assert asyncio.run(main()) == scores.count(database, ScoreFilter()) == 60


def test_a_locked_database_is_an_error_that_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'locked.db'}"
    database = Database(url)
    migrate.upgrade(database)
    holder = sqlite3.connect(tmp_path / "locked.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")

    async def main() -> None:
        store = hot(url, timeout_s=0.2)
        await store.start()
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.store(Submission(gradings=[grading(1, b"v")]))
        await store.close()

    asyncio.run(main())
    holder.execute("ROLLBACK")
    holder.close()
    database.close()


def test_a_full_disk_is_an_error_that_says_so_and_ends_when_there_is_room(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'full.db'}"
    database = Database(url)
    migrate.upgrade(database)

    def limit(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # clamps to the present size

    event.listen(database.engine, "connect", limit)
    database.engine.dispose()
    with pytest.raises(StoreUnavailable, match="full"), database.write() as connection:
        connection.execute(
            insert(models.events).values(at_ms=0, kind="big", detail=b"x" * 5_000_000)
        )
    event.remove(database.engine, "connect", limit)
    database.engine.dispose()
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(models.events)).scalar() == 0
    database.close()


def test_pages_follow_each_other_without_gap_or_repeat(
    database: Database, database_url: str
) -> None:
    ids = IdMaker(1)
    stored(database_url, *(submission(ids, count=10) for _ in range(5)))
    seen: list[str] = []
    after = 0
    while page := scores.page(database, ScoreFilter(), after=after, limit=7, with_items=False):
        seen += [s.score_id for s in page]
        after = int(page[-1].score_id)
    assert len(seen) == len(set(seen)) == 50
    assert seen == sorted(seen, key=int)


def test_filters(database: Database, database_url: str) -> None:
    ids = IdMaker(1)
    failed = Submission(gradings=[grading(ids.next(), b"f", None)])
    failed.scores.append(score(ids.next(), failed.gradings[0][0], run_id=None))
    stored(database_url, submission(ids, policy_version=1), submission(ids, step=5), failed)
    for wanted, expected in (
        (ScoreFilter(), 7),
        (ScoreFilter(run="r"), 6),
        (ScoreFilter(run="nobody"), 0),
        (ScoreFilter(status="unscored"), 1),
        (ScoreFilter(status="scored"), 6),
        (ScoreFilter(policy_version=1), 3),
        (ScoreFilter(step=5), 3),
        (ScoreFilter(grader="g"), 7),
        (ScoreFilter(grader="g@1"), 7),
        (ScoreFilter(grader="g@2"), 0),
        (ScoreFilter(grader="g@sha256:d"), 7),
        (ScoreFilter(since_ms=now_ms() + 1000), 0),
        (ScoreFilter(since_ms=now_ms() - 60_000), 7),
    ):
        assert scores.count(database, wanted) == expected, wanted


def test_forgetting_keeps_gradings_that_newer_scores_need(
    database: Database, database_url: str
) -> None:
    ids = IdMaker(1)
    old_ms = now_ms() - 1_000_000
    old_ids = [first_id_at(old_ms) + n for n in range(4)]
    kept, dropped = grading(old_ids[0], b"kept"), grading(old_ids[1], b"dropped")
    old = Submission(
        gradings=[kept, dropped],
        scores=[score(old_ids[2], old_ids[0]), score(old_ids[3], old_ids[1])],
        items=[(old_ids[2], b"{}"), (old_ids[3], b"{}")],
        idempotency=("k", b"h" * 32, b"[]", old_ms),
    )
    new = Submission(scores=[score(ids.next(), old_ids[0])])
    stored(database_url, old)
    stored(database_url, new)
    assert scores.forget_before(database, now_ms() - 500_000, chunk=1) == 2
    with database.read() as connection:
        left = connection.scalars(select(models.gradings.c.id)).all()
        assert list(left) == [old_ids[0]]
        for table in (models.score_items, models.idempotency):
            assert connection.execute(select(func.count()).select_from(table)).scalar() == 0
    assert scores.count(database, ScoreFilter()) == 1


def test_ids_grow_and_never_repeat_even_in_a_burst() -> None:
    ids = IdMaker(5)
    made = [ids.next() for _ in range(20_000)]
    assert made == sorted(set(made))
    assert made[0] >= first_id_at(now_ms() - 60_000)
    assert not set(made) & {IdMaker(6).next() for _ in range(100)}


def test_keys_are_checked_expire_and_are_revoked(database: Database) -> None:
    ring = KeyRing(database)
    ring.load()
    before = ring.required
    key, token = ring.create("a", [Scope.SCORE])
    _, expired = ring.create("b", [Scope.READ], expires_ms=now_ms() - 1)
    assert (before, ring.required) == (False, True)
    assert ring.check(token) == key
    for wrong in (expired, token[:-1], token + "x", "rsk_", "", "x" * 1000, token.upper()):
        assert ring.check(wrong) is None
    with database.read() as connection:
        assert (
            token.split("_")[2].encode()
            not in connection.execute(select(models.api_keys.c.secret_hash)).scalars().all()
        )
    assert ring.revoke(key.id)
    assert not ring.revoke(key.id)
    assert ring.check(token) is None
    assert ring.required  # revoking the last key does not open the door


@pytest.mark.parametrize(
    "url", ["mysql://x/y", "nonsense", "sqlite://", "sqlite:///:memory:", "nodb://x"]
)
def test_urls_that_cannot_work_are_refused_with_a_reason(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Database(url)


def test_a_database_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    database = Database(f"postgresql://nobody@/x?host={tmp_path}", timeout_s=1)
    with pytest.raises(StoreUnavailable):
        scores.count(database, ScoreFilter())
