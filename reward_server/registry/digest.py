"""What a version's digest is computed from, and what was observed where it runs.

The digest states the *intent* and is the same on every host: kind, config, our source, and, for kinds
decided by a library, the versions of Python, of its Unicode tables and of that library. What was
*observed* (kernel, Python patch, …) is the environment: stored with each grading, not in the digest.
"""

from __future__ import annotations

import hashlib
import platform
import sys
import unicodedata
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from reward_server.graders.base import Digest, Kind, canonical_json
from reward_server.registry.closure import source_hash
from sandboxes import doctor


def ingredients(kind: Kind, config: bytes, parts: Mapping[str, Digest]) -> dict[str, Any]:
    """Everything that decides a verdict of this kind with this config, JSON-able."""
    made_of: dict[str, Any] = {
        "kind": kind.name,
        "config": config.decode(),
        "source": source_hash(kind.module),
    }
    if parts:
        made_of["parts"] = dict(parts)
    if kind.pure:
        made_of["python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
        made_of["unicode"] = unicodedata.unidata_version
        made_of["libraries"] = {name: library_version(name) for name in kind.decided_by}
    return made_of


def digest_of(made_of: Mapping[str, Any]) -> Digest:
    return Digest("sha256:" + hashlib.sha256(canonical_json(made_of)).hexdigest())


def what_changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """A sentence for people: how the ingredients of two versions differ."""
    notes = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if key in ("libraries", "parts"):
            before, after = before or {}, after or {}
            notes += [
                f"{name} {_short(before.get(name))} -> {_short(after.get(name))}"
                for name in sorted({*before, *after})
                if before.get(name) != after.get(name)
            ]
        elif key in ("python", "unicode"):
            notes.append(f"{key} {before} -> {after}")
        elif key == "source":
            notes.append("source of the grader")
        else:
            notes.append(key)
    return "changed: " + ", ".join(notes) if notes else "nothing changed"


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text[:19] if text.startswith("sha256:") else text


def library_version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "absent"


def release() -> str:
    """This package's release, as stored with the versions that it mints."""
    return f"reward-server {library_version('reward-server')}"


def observe() -> dict[str, Any]:
    """What gradings on this host run on. Its hash is the environment of a grading."""
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "os": platform.system(),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "libc": "-".join(platform.libc_ver()),
        "sandbox": doctor.describe(),
    }


def environment_hash(observed: Mapping[str, Any]) -> str:
    return "sha256:" + hashlib.sha256(canonical_json(observed)).hexdigest()
