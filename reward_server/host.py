"""A running reward service without its HTTP face: store, registry, engine and scoring, wired.

The server and the offline ``reward-server score`` are both made of this.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from reward_server.engine.local import LocalEngine
from reward_server.graders.catalog import Catalog
from reward_server.graders.lean.toolchains import installed, mounts_of, usable
from reward_server.registry.digest import environment_hash, observe, release
from reward_server.registry.lifecycle import bring_up_to_date
from reward_server.registry.registry import Registry
from reward_server.scoring.service import Environment, Service
from reward_server.settings import Settings
from reward_server.store import migrate, scores, servers
from reward_server.store.database import Database, StoreUnavailable
from reward_server.store.ids import now_ms
from reward_server.store.keys import KeyRing
from sandboxes.container import DockerSettings, image_id
from sandboxes.pool import PoolSettings, SandboxPool
from sandboxes.program import Mount

log = structlog.get_logger(__name__)

CATALOG = "reward_server.graders.catalog:CATALOG"

_REFRESH_EVERY_S = 2.0
_RETAIN_EVERY_S = 3600.0
_BEAT_EVERY_S = 60.0
_DAY_MS = 86_400_000


@dataclass(slots=True)
class Host:
    settings: Settings
    database: Database
    registry: Registry
    keys: KeyRing
    service: Service


def open_database(settings: Settings) -> Database:
    """The settings' database, migrated. Raises ValueError, StoreUnavailable, UnknownRevision."""
    if settings.database_url is None:
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = Database(
        settings.resolved_database_url,
        synchronous=settings.sqlite_synchronous,
        timeout_s=settings.store_timeout_s,
    )
    before, after = migrate.upgrade(database)
    if before != after:
        log.info("database migrated", from_revision=before, to_revision=after)
    return database


@asynccontextmanager
async def running(settings: Settings, *, catalog: str = CATALOG) -> AsyncIterator[Host]:
    """A host with its engine started, its graders up to date and its upkeep going on."""
    database = await asyncio.to_thread(open_database, settings)
    docker = docker_settings(settings)
    mounts, closed = lean_mounts(settings)
    for problem in closed:
        log.warning("not offered to the sandboxes", problem=problem)
    observed = observe() | {"packages": _packages(settings)}
    if mounts:
        observed |= {"lean": (await asyncio.to_thread(installed, mounts)).observed()}
    if docker is not None:
        observed |= {
            "image": await asyncio.to_thread(image_id, docker),
            "oci": docker.runtime or "",
        }
    digest = environment_hash(observed)
    started = await asyncio.to_thread(
        servers.record_start,
        database,
        host=platform.node(),
        release=release(),
        observed=observed,
        digest=digest,
    )
    if started.drift:
        log.warning("this host has changed since its last start", changed=started.drift)
    registry = Registry(database, load_catalog(catalog), max_versions=settings.max_graders)
    engine = LocalEngine(
        workers=settings.workers,
        memory_mb=settings.worker_memory_mb,
        max_items=settings.worker_max_items,
        catalog=catalog,
    )
    environment = Environment(started.environment_id, digest)
    sandbox = SandboxPool(
        PoolSettings(
            slots=settings.sandbox.slots,
            first_uid=settings.sandbox.first_uid,
            cache=settings.data_dir / "sandbox-cache",
            packages=tuple(str(p) for p in settings.sandbox.packages),
            docker=docker,
            mounts=mounts,
            memory_mb=settings.sandbox.memory_mb,
        )
    )
    service = Service(settings, database, registry, engine, environment, started.node, sandbox)
    keys = KeyRing(database)
    await asyncio.to_thread(keys.load)
    await service.start()
    host = Host(settings, database, registry, keys, service)
    upkeep: list[asyncio.Task[None]] = []
    try:
        await bring_up_to_date(registry, service.run_cases)
        upkeep.append(asyncio.create_task(_refresh(host, started.server_id)))
        if settings.retention_days is not None:
            upkeep.append(asyncio.create_task(_retain(host, settings.retention_days)))
        yield host
    finally:
        for task in upkeep:
            task.cancel()
        await asyncio.gather(*upkeep, return_exceptions=True)
        await service.close()
        with contextlib.suppress(StoreUnavailable):
            await asyncio.to_thread(servers.still_here, database, started.server_id, ended=True)
        database.close()


def lean_mounts(settings: Settings) -> tuple[tuple[Mount, ...], list[str]]:
    """Toolchains and projects of Lean that boxes can have, and what is wrong with others."""
    lean = settings.lean
    return usable(mounts_of(lean.toolchains, lean.projects, look=lean.look))


def docker_settings(settings: Settings) -> DockerSettings | None:
    """Of the sandboxes' containers, where they are containers."""
    if settings.sandbox.backend != "docker":
        return None
    return DockerSettings(**settings.sandbox.docker.model_dump())


def _packages(settings: Settings) -> list[str]:
    """What Python programs may import: it decides verdicts, so it is part of the environment."""
    found = []
    for folder in settings.sandbox.packages:
        found += [str(folder), *sorted(p.name for p in folder.glob("*.dist-info"))]
    return found


def load_catalog(path: str) -> Catalog:
    """The catalog at ``module:attribute``."""
    module, _, attribute = path.partition(":")
    catalog = getattr(importlib.import_module(module), attribute)
    assert isinstance(catalog, Catalog)
    return catalog


async def _refresh(host: Host, server_id: int) -> None:
    """Notices what other servers on the database have registered, and keys made or revoked."""
    loop = asyncio.get_running_loop()
    beat = loop.time() + _BEAT_EVERY_S
    while True:
        await asyncio.sleep(_REFRESH_EVERY_S)
        try:
            await asyncio.to_thread(host.keys.load)
            if loop.time() > beat:
                await asyncio.to_thread(servers.still_here, host.database, server_id)
                beat = loop.time() + _BEAT_EVERY_S
            if await asyncio.to_thread(host.registry.stale):
                await asyncio.to_thread(host.registry.load)
        except StoreUnavailable as error:
            log.warning("cannot refresh from the database", error=str(error))
        except Exception:  # an upkeep that ended would leave revoked keys alive
            log.exception("cannot refresh from the database")


async def _retain(host: Host, days: float) -> None:
    while True:
        try:
            limit = now_ms() - int(days * _DAY_MS)
            forgotten = await asyncio.to_thread(scores.forget_before, host.database, limit)
            if forgotten:
                log.info("retention", deleted_scores=forgotten, older_than_days=days)
            host.service.forget_recent()
        except StoreUnavailable as error:
            log.warning("retention failed; trying again later", error=str(error))
        except Exception:
            log.exception("retention failed; trying again later")
        await asyncio.sleep(_RETAIN_EVERY_S)
