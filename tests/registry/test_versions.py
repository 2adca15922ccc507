"""Versions: minted once, immutable, replaced only in the open."""

from __future__ import annotations

import asyncio
import json
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from reward_server.graders.catalog import CATALOG
from reward_server.host import running
from reward_server.problems import Conflict, Invalid, NotFound
from reward_server.registry import digest, lifecycle
from reward_server.registry.builtins import BuiltIn
from reward_server.registry.registry import Registry
from reward_server.registry.versions import Draft, Version
from reward_server.schema import Case, CaseResult, Expectation
from reward_server.settings import Settings
from reward_server.store import migrate, servers
from reward_server.store.database import Database


async def all_pass(draft: Draft, cases: list[Case]) -> list[CaseResult]:
    return [CaseResult(index=i, passed=True, status="scored", reward=1) for i in range(len(cases))]


async def all_fail(draft: Draft, cases: list[Case]) -> list[CaseResult]:
    return [
        CaseResult(index=i, passed=False, status="scored", reward=0, detail="expected 1")
        for i in range(len(cases))
    ]


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url)
    migrate.upgrade(made)
    yield made
    made.close()


def a_host(database: Database, cases: lifecycle.RunCases = all_pass) -> Registry:
    """A registry as a starting server has it."""
    registry = Registry(database, CATALOG)
    asyncio.run(lifecycle.bring_up_to_date(registry, cases))
    return registry


def mint(registry: Registry, name: str, kind: str = "exact", **config: Any) -> tuple[Version, bool]:
    return registry.mint(name, registry.draft(kind, config, name=name), activate=True)


@contextmanager
def library(monkeypatch: pytest.MonkeyPatch, version: str) -> Iterator[None]:
    """Another version of the library that decides ``exact``."""
    with monkeypatch.context() as patch:
        real = digest.library_version
        patch.setattr(
            digest, "library_version", lambda n: version if n == "google-re2" else real(n)
        )
        yield


def test_a_fresh_database_has_the_built_ins(database: Database) -> None:
    registry = a_host(database)
    assert registry.names == [
        "code",
        "exact",
        "format_think",
        "gsm8k",
        "lean",
        "math",
        "multiple_choice",
    ]
    assert registry.resolve("exact").number == 1
    assert registry.resolve("exact@1").origin == "builtin"


def test_the_same_content_is_the_same_version(database: Database) -> None:
    registry = a_host(database)
    first, made = mint(registry, "g", compare="number")
    assert made
    again, made = mint(registry, "g", compare="number", strip=True)  # a default, stated
    assert not made
    assert again is registry.by_id(first.id)
    other, made = mint(registry, "g", compare="json")
    assert made
    assert other.number == 2
    assert registry.resolve("g") is other
    back, made = mint(registry, "g", compare="number")
    assert not made
    assert registry.resolve("g").number == back.number == 1


def test_pins_by_number_and_by_digest(database: Database) -> None:
    registry = a_host(database)
    first, _ = mint(registry, "g", compare="number")
    mint(registry, "g", compare="json")
    assert registry.resolve("g@1").id == first.id
    assert registry.resolve(f"g@{first.spec.digest}").id == first.id
    for missing in ("g@3", f"g@sha256:{'0' * 64}", "nobody", "g@0", "g@", "@", "g@x"):
        with pytest.raises(NotFound):
            registry.resolve(missing)


def test_a_restart_mints_nothing(database: Database) -> None:
    a_host(database)
    registry = a_host(database)
    assert [len(registry.versions(n)) for n in registry.names] == [1] * 7


def test_a_changed_library_mints_a_version_that_says_so(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = a_host(database).resolve("exact")
    with library(monkeypatch, "9.9"):
        registry = a_host(database)
        after = registry.resolve("exact")
        assert after.number == 2
        assert after.note is not None
        assert "google-re2" in after.note
        assert "9.9" in after.note
        assert after.cases == before.cases
        with pytest.raises(Conflict, match="minted by reward-server"):
            registry.resolve("exact@1")


def test_a_rolled_back_release_does_not_silently_change_the_active_version(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_host(database)
    with library(monkeypatch, "9.9"):
        a_host(database)
    registry = a_host(database)  # the old library again
    with pytest.raises(Conflict):
        registry.resolve("exact")
    assert registry.resolve("exact@1").runnable
    registry.activate(registry.find("exact@1"))
    assert registry.resolve("exact").number == 1


def test_a_new_version_that_fails_its_golden_cases_is_not_active(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_host(database)
    with library(monkeypatch, "9.9"):
        registry = a_host(database, all_fail)
        with pytest.raises(Conflict):
            registry.resolve("exact")
        candidate = registry.find("exact@2")
        assert candidate.note is not None
        assert "golden cases fail" in candidate.note


def test_a_faked_kernel_changes_the_environment_and_no_version(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> servers.Started:
        observed = digest.observe()
        hashed = digest.environment_hash(observed)
        return servers.record_start(
            database, host="h", release="r", observed=observed, digest=hashed
        )

    version = a_host(database).resolve("exact")
    first = start()
    monkeypatch.setattr(platform, "release", lambda: "99.0-faked")
    second = start()
    assert a_host(database).resolve("exact").spec.digest == version.spec.digest
    assert second.environment_id != first.environment_id
    assert second.drift is not None
    assert second.drift["kernel"][1] == "99.0-faked"
    ((_, event),) = servers.recent_events(database, "drift")
    assert event["host"] == "h"


def test_hosts_that_race_mint_one_version(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_host(database)
    with library(monkeypatch, "9.9"):
        start = threading.Barrier(4)
        found: list[tuple[int, str]] = []
        errors: list[BaseException] = []

        def race() -> None:
            own = Database(database_url)
            try:
                registry = Registry(own, CATALOG)
                start.wait()
                asyncio.run(lifecycle.bring_up_to_date(registry, all_pass))
                mine, _ = mint(registry, "raced", compare="json")
                version = registry.resolve("exact")
                found.append((version.number * 100 + mine.number, version.spec.digest))
            except BaseException as error:
                errors.append(error)
            finally:
                own.close()

        threads = [threading.Thread(target=race) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(set(found)) == 1
        assert found[0][0] == 201


def test_a_composite_follows_its_unpinned_parts_and_not_its_pinned_ones(
    database: Database,
) -> None:
    registry = a_host(database)
    mint(registry, "part", compare="number")
    loose = {"parts": [{"name": "a", "grader": "part"}]}
    tight = {"parts": [{"name": "a", "grader": "part@1"}]}
    mint(registry, "loose", "composite", **loose)
    mint(registry, "tight", "composite", **tight)
    mint(registry, "outer", "composite", parts=[{"name": "b", "grader": "loose"}])
    mint(registry, "part", compare="json")
    asyncio.run(lifecycle.bring_up_to_date(registry, all_pass))
    assert registry.resolve("loose").number == 2
    assert registry.resolve("outer").number == 2
    assert registry.resolve("tight").number == 1
    # Back to the old part: back to the old composites, with no new version.
    mint(registry, "part", compare="number")
    asyncio.run(lifecycle.bring_up_to_date(registry, all_pass))
    assert registry.resolve("loose").number == 1
    assert registry.resolve("outer").number == 1
    assert len(registry.versions("outer")) == 2


def test_a_composite_cannot_be_part_of_itself(database: Database) -> None:
    registry = a_host(database)
    mint(registry, "a", "composite", parts=[{"name": "x", "grader": "exact"}])
    mint(registry, "b", "composite", parts=[{"name": "x", "grader": "a"}])
    for part in ("a", "b"):
        with pytest.raises(Invalid, match="part of itself"):
            mint(registry, "a", "composite", parts=[{"name": "x", "grader": part}])


def test_a_composite_whose_cases_no_longer_fit_stays_as_it_was(
    database: Database,
) -> None:
    async def refuse(draft: Draft, cases: list[Case]) -> list[CaseResult]:
        raise Invalid.field("cases.0.tokens", "the grader needs tokens", 0)

    registry = a_host(database)
    mint(registry, "part", compare="number")
    mint(registry, "whole", "composite", parts=[{"name": "a", "grader": "part"}])
    mint(registry, "part", compare="json")
    assert asyncio.run(lifecycle.follow_parts(registry, refuse)) == []
    assert registry.resolve("whole").number == 1


def test_activating_an_old_version_cannot_make_a_cycle(database: Database) -> None:
    registry = a_host(database)
    mint(registry, "a", compare="json")
    first, _ = mint(registry, "b", compare="json")
    looped, _ = mint(registry, "b", "composite", parts=[{"name": "x", "grader": "a"}])
    registry.activate(first)
    mint(registry, "a", "composite", parts=[{"name": "x", "grader": "b"}])
    with pytest.raises(Invalid, match="part of itself"):
        registry.activate(looped)
    assert registry.resolve("b").id == first.id


def test_composites_nest_only_so_deep(database: Database) -> None:
    registry = a_host(database)
    mint(registry, "c0", "composite", parts=[{"name": "x", "grader": "exact"}])

    def nest(depth: int) -> None:
        for n in range(1, depth):
            mint(registry, f"c{n}", "composite", parts=[{"name": "x", "grader": f"c{n - 1}"}])

    with pytest.raises(Invalid, match="deep"):
        nest(12)


@pytest.mark.parametrize(
    ("kind", "config", "field"),
    [
        ("nothing", {}, "kind"),
        ("exact", {"compare": "words"}, "config.compare"),
        ("exact", {"typo": 1}, "config.typo"),
        ("exact", {"extract": {"regex": "("}}, "config.extract"),
        ("composite", {"parts": [{"name": "a", "grader": "nobody"}]}, "config.parts"),
    ],
)
def test_a_bad_draft_names_the_field(
    database: Database, kind: str, config: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as caught:
        a_host(database).draft(kind, config)
    assert caught.value.errors[0].field == field


def test_a_built_in_whose_config_changed_is_minted_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_host(database)
    case = Case(completion="a", reference="A", expect=Expectation(reward=1))
    changed = BuiltIn("exact", "exact", "Case no longer counts.", {"ignore_case": True}, (case,))
    monkeypatch.setattr(lifecycle, "BUILT_INS", (changed,))
    version = a_host(database).resolve("exact")
    assert version.number == 2
    assert json.loads(version.spec.config) == {"ignore_case": True}


def test_a_name_that_a_user_took_over_stays_the_users(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = a_host(database)
    mint(registry, "exact", ignore_case=True)
    assert a_host(database).resolve("exact").number == 2


def test_the_events_tell_other_servers_to_look_again(database: Database) -> None:
    one, other = a_host(database), a_host(database)
    assert not other.stale()
    mint(one, "fresh", compare="json")
    assert other.stale()
    other.load()
    assert other.resolve("fresh").number == 1


def test_the_registry_has_a_size(database: Database) -> None:
    registry = Registry(database, CATALOG, max_versions=7)
    asyncio.run(lifecycle.bring_up_to_date(registry, all_pass))
    with pytest.raises(Conflict, match="full"):
        mint(registry, "one_more", compare="json")


def test_golden_cases_really_run_on_upgrade(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start() -> tuple[int, bool]:
        async with running(settings) as host:
            version = host.registry.resolve("exact")
            return version.number, version.runnable

    assert asyncio.run(start()) == (1, True)
    with library(monkeypatch, "9.9"):
        assert asyncio.run(start()) == (2, True)
