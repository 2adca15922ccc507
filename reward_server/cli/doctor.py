"""``reward-server doctor``: what can run on this machine, and what to do about the rest."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from reward_server.cli.serve import is_loopback
from reward_server.engine.local import LocalEngine
from reward_server.graders.lean.toolchains import installed
from reward_server.host import CATALOG, docker_settings, lean_mounts, load_catalog, open_database
from reward_server.settings import Settings
from reward_server.store.database import StoreUnavailable
from reward_server.store.keys import KeyRing
from reward_server.store.migrate import UnknownRevision
from reward_server.store.servers import recent_events
from sandboxes import doctor as sandbox_doctor, languages
from sandboxes.container import DockerSettings, docker_backend
from sandboxes.program import SandboxUnavailable


@dataclass(frozen=True, slots=True)
class Finding:
    """``ok`` is None for something to know that is neither right nor wrong."""

    check: str
    ok: bool | None
    detail: str


def examine(settings: Settings) -> list[Finding]:
    """Looks at everything that the server needs. Never raises."""
    return [
        _python(),
        _platform(),
        *_database(settings),
        asyncio.run(_workers()),
        *_sandboxes(settings),
        *_lean(settings),
        *_kinds(),
    ]


def _python() -> Finding:
    found = platform.python_version()
    wanted = sys.version_info >= (3, 11)
    return Finding("python", wanted, found if wanted else f"{found}: 3.11 or newer is needed")


def _platform() -> Finding:
    linux = sys.platform == "linux"
    cores = os.cpu_count() or 1
    detail = f"{platform.system()} {platform.release()}, {cores} cores"
    return Finding("platform", linux, detail if linux else f"{detail}: grading workers need Linux")


def _database(settings: Settings) -> list[Finding]:
    try:
        database = open_database(settings)
        ring = KeyRing(database)
        ring.load()
        drift = recent_events(database, "drift", 3)
    except (ValueError, StoreUnavailable, UnknownRevision, OSError) as error:
        return [Finding("database", False, str(error))]
    url = database.engine.url.render_as_string(hide_password=True)
    live = sum(k.live(int(time.time() * 1000)) for k in ring.keys)
    if ring.required:
        keys = Finding("api keys", live > 0, f"{live} live")
    else:
        bound = is_loopback(settings.host)
        detail = "none: the server answers on loopback only"
        keys = Finding("api keys", None if bound else False, detail)
    findings = [Finding("database", True, url), keys]
    for at_ms, detail_of in drift:
        when = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
        changes = ", ".join(f"{k} {a} -> {b}" for k, (a, b) in detail_of["changed"].items())
        findings.append(Finding("drift", None, f"{when} on {detail_of['host']}: {changes}"))
    database.close()
    return findings


async def _workers() -> Finding:
    engine = LocalEngine(workers=1)
    try:
        await engine.start()
    except (RuntimeError, OSError, TimeoutError) as error:
        return Finding("grading workers", False, str(error).strip().splitlines()[-1])
    await engine.close()
    return Finding("grading workers", True, "a worker process starts")


def _sandboxes(settings: Settings) -> list[Finding]:
    if (docker := docker_settings(settings)) is not None:
        return _containers(docker, settings.sandbox.first_uid)
    works, detail = sandbox_doctor.check()
    complete = works and detail.startswith("all ")
    found = [Finding("sandboxes", True if complete else None if works else False, detail)]
    if works:
        for name, language in languages.LANGUAGES.items():
            version = languages.version(name)
            if version and name == "python":
                version += f" ({languages.python()})"
            found.append(
                Finding(f"language {name}", True if version else None, version or language.install)
            )
    return found


def _lean(settings: Settings) -> list[Finding]:
    mounts, closed = lean_mounts(settings)
    here = installed(mounts)
    found = [Finding("lean", False, problem) for problem in (*closed, *here.problems)]
    for toolchain in here.toolchains:
        replayer = "leanchecker" if toolchain.leanchecker else "no leanchecker: Lean 4.28 has it"
        text = f"{toolchain.name}: {toolchain.version}, {replayer}, {toolchain.digest}"
        found.append(Finding("lean toolchain", True, text))
    for project in here.projects:
        programs = ", ".join(project.programs) or "no checker of its own"
        text = f"{project.name}: {len(project.paths)} folders, {programs}, {project.digest}"
        found.append(Finding("lean project", True, text))
    return found or [
        Finding("lean", None, "no toolchain: install elan, or set REWARD_LEAN__TOOLCHAINS")
    ]


def _containers(docker: DockerSettings, uid: int) -> list[Finding]:
    try:
        backend = docker_backend(docker, uid)
    except SandboxUnavailable as error:
        return [Finding("sandboxes", False, str(error))]
    active = ", ".join(backend.protections)
    found = [Finding("sandboxes", True, f"Docker, image {backend.image}: {active}")]
    for name, language in languages.LANGUAGES.items():
        path = backend.installed(name)
        detail = path or f"not in the image: {language.install}"
        found.append(Finding(f"language {name}", True if path else None, detail))
    return found


def _kinds() -> list[Finding]:
    findings = []
    for name, kind in sorted(load_catalog(CATALOG).kinds.items()):
        reason = kind.unavailable()
        findings.append(Finding(f"kind {name}", reason is None, reason or kind.summary))
    return findings
