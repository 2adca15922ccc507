"""What can run on this machine, and how well protected; starts nothing but, where asked, one box."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from sandboxes import cgroups, languages, seccomp
from sandboxes.program import SandboxUnavailable

PROTECTIONS = {
    "namespaces": "own users, processes, mounts, network, IPC and host name",
    "rlimits": "limits of each process: CPU, memory, processes, files",
    "seccomp": "system calls that reach beyond the box are refused",
    "unprivileged": "the box's host user is not root",
    "memory": "the kernel counts the memory of the whole box (a control group)",
    "pids": "the kernel counts the processes of the whole box (a control group)",
    "proc": "an own /proc: CPU time is counted over all processes of a run while it runs",
}
"""What each protection means."""


@cache
def unavailable() -> str | None:
    """Why nothing can run here and what to install, or None. A quick look, without starting a box."""
    if sys.platform != "linux":
        return "sandboxes need Linux"
    if not Path("/usr/bin/bwrap").exists():
        if Path("/var/run/docker.sock").exists() or "DOCKER_HOST" in os.environ:
            return None  # the backend `docker` needs nothing else
        return "bubblewrap is missing: apt-get install bubblewrap"
    if languages.python() is None:
        return "no Python that an unprivileged process can run: apt-get install python3"
    return None


def missing_protections() -> dict[str, str]:
    """Protections that this machine lacks, each with what to do. Starts a box."""
    from sandboxes.box import house  # noqa: PLC0415

    made = house(61_000 if os.geteuid() == 0 else None)
    advice = {
        "seccomp": seccomp.unavailable() or "",
        "memory": "make the control groups writable: run as root, or as a systemd service with Delegate=yes",
        "pids": "make the control groups writable: run as root, or as a systemd service with Delegate=yes",
        "proc": "do not mask /proc (docker: --security-opt systempaths=unconfined)",
    }
    return {name: advice.get(name, "") for name in PROTECTIONS if name not in made.protections}


def check() -> tuple[bool, str]:
    """(whether boxes start here, what to know about it)."""
    if (reason := unavailable()) is not None:
        return False, reason
    try:
        missing = missing_protections()
    except SandboxUnavailable as error:
        return False, str(error)
    if not missing:
        return True, "all protections are active"
    return True, "without " + "; ".join(
        f"{n} ({PROTECTIONS[n]}): {how}" for n, how in missing.items()
    )


def describe() -> dict[str, str]:
    """What gradings depend on: interpreter, compilers, control groups. Cheap, and changes when they do."""
    if unavailable() is not None:
        return {}
    found = {}
    if Path("/usr/bin/bwrap").exists():
        found["bubblewrap"] = _identity("/usr/bin/bwrap")
    for name in languages.LANGUAGES:
        if (path := languages.installed(name)) is not None:
            found[name] = _identity(path)
    if languages.pytest_packages():
        found["pytest"] = metadata.version("pytest")
    groups = cgroups.find()
    found["groups"] = "v2" if groups.v2 else "v1" if groups.v1 else "none"
    found["seccomp"] = "none" if seccomp.unavailable() else "active"
    found["user"] = "root" if os.geteuid() == 0 else "plain"
    return found


def _identity(path: str) -> str:
    real = Path(path).resolve()
    return f"{real.name}:{real.stat().st_size}"
