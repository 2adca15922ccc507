"""Lean as it is installed on this machine: toolchains, and projects with compiled libraries.

The server's host finds them (:func:`mounts_of`) and gives them to the sandboxes as mounts, whose names say what they
are; graders read them back from there (:func:`installed`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sandboxes import languages
from sandboxes.program import Mount

_TOOLCHAIN, _PROJECT = "lean-toolchain-", "lean-project-"
_VERSION = re.compile(r"version (\d+\.\d+\.\d+[^,\s)]*)")
_CHUNK = 1 << 20


class ToolchainMissing(Exception):
    """What a grader needs is not on this machine; the message says what to install."""


@dataclass(frozen=True, slots=True)
class Content:
    """Files whose bytes tell one installation from another."""

    root: Path
    files: tuple[Path, ...]
    more: str

    @property
    def digest(self) -> str:
        """Raises OSError."""
        stamps = tuple(p.stat().st_mtime_ns for p in self.files)
        return _digest(self.root, self.files, self.more, stamps)


@dataclass(frozen=True, slots=True)
class Toolchain:
    name: str
    inside: str
    """Where boxes see it."""
    version: str
    content: Content
    setup: bool
    """Whether it has ``--setup``, with which the header of a file is the server's alone."""
    leanchecker: bool

    @property
    def digest(self) -> str:
        """Of its programs. Reads them all, once."""
        return self.content.digest

    @property
    def lean(self) -> str:
        return f"{self.inside}/bin/lean"


@dataclass(frozen=True, slots=True)
class Project:
    name: str
    paths: tuple[str, ...]
    """Folders of compiled modules, as boxes see them."""
    content: Content
    toolchain: str | None
    """The version that it was compiled with, where it says so."""
    programs: Mapping[str, str]
    """``lean4checker`` and ``safe_verify``, where they are compiled."""

    @property
    def digest(self) -> str:
        """Of its manifest and what else says which libraries these are."""
        return self.content.digest


@dataclass(frozen=True, slots=True)
class Workshop:
    """What one grader works with."""

    toolchain: Toolchain
    project: Project | None

    @property
    def paths(self) -> tuple[str, ...]:
        return self.project.paths if self.project else ()

    @property
    def identity(self) -> str:
        return f"{self.toolchain.digest} {self.project.digest if self.project else ''}"

    @property
    def replayer(self) -> tuple[str, str] | None:
        """(name, path in a box) of what replays a compiled module in a kernel of its own."""
        programs = dict(self.project.programs) if self.project else {}
        if "safe_verify" in programs:
            return "safe_verify", programs["safe_verify"]
        if self.toolchain.leanchecker:
            return "leanchecker", f"{self.toolchain.inside}/bin/leanchecker"
        if "lean4checker" in programs:
            return "lean4checker", programs["lean4checker"]
        return None

    def described(self) -> dict[str, str]:
        found = {
            "toolchain": self.toolchain.version,
            "toolchain_hash": self.toolchain.digest,
        }
        if self.project:
            found |= {"project": self.project.name, "project_hash": self.project.digest}
        return found


@dataclass(frozen=True, slots=True)
class Installed:
    toolchains: tuple[Toolchain, ...]
    projects: tuple[Project, ...]
    problems: tuple[str, ...] = ()

    def observed(self) -> dict[str, str]:
        """For the environment of gradings: cheap, and changes when they do."""
        found = {t.name: f"{t.version} {_stamp(t.content.root)[0]}" for t in self.toolchains}
        return found | {p.name: str(_stamp(p.content.root)[1:4]) for p in self.projects}

    def workshop(
        self,
        toolchain: str | None,
        toolchain_hash: str | None,
        project: str | None,
        project_hash: str | None,
    ) -> Workshop:
        """Raises ToolchainMissing."""
        chosen = None if project is None else self._project(project)
        if chosen is not None and project_hash not in (None, chosen.digest):
            raise ToolchainMissing(
                f"the project {project} has changed here: it is {chosen.digest}, and this version of the grader was "
                f"registered with {project_hash}; register the grader again"
            )
        wanted = toolchain or (chosen.toolchain if chosen else None)
        found = self._toolchain(wanted)
        if toolchain_hash not in (None, found.digest):
            raise ToolchainMissing(
                f"the toolchain {found.name} has changed here: it is {found.digest}, and this version of the grader "
                f"was registered with {toolchain_hash}; register the grader again"
            )
        return Workshop(found, chosen)

    def _project(self, name: str) -> Project:
        for project in self.projects:
            if project.name == _safe(name):
                return project
        raise ToolchainMissing(
            f"no Lean project {name!r} here; there are: {_names(p.name for p in self.projects)}. Set "
            'REWARD_LEAN__PROJECTS=\'{"name": "/path"}\''
        )

    def _toolchain(self, wanted: str | None) -> Toolchain:
        if not self.toolchains:
            raise ToolchainMissing(
                "no Lean toolchain here: install one with elan, or set REWARD_LEAN__TOOLCHAINS="
                '\'{"name": "/path/of/the/prefix"}\'' + "".join(f"; {p}" for p in self.problems)
            )
        if wanted is None:
            return max(self.toolchains, key=lambda t: _ordered(t.version))
        short = wanted.rpartition(":")[2].removeprefix("v")
        for toolchain in self.toolchains:
            if _safe(wanted) == toolchain.name or short == toolchain.version:
                return toolchain
        raise ToolchainMissing(
            f"no Lean toolchain {wanted!r} here; there are: {_names(t.name for t in self.toolchains)}"
        )


def mounts_of(
    toolchains: Mapping[str, Path], projects: Mapping[str, Path], *, look: bool = True
) -> tuple[Mount, ...]:
    """Those that the settings name, and (``look``) those of elan and on the PATH."""
    found = {name: Path(path) for name, path in toolchains.items()}
    if look:
        known = {p.resolve() for p in found.values()}
        for name, path in _of_elan() | _on_path():
            if path.resolve() not in known:
                found.setdefault(name, path)
    wanted = [(_TOOLCHAIN, n, p) for n, p in sorted(found.items())]
    wanted += [(_PROJECT, n, Path(p)) for n, p in sorted(projects.items())]
    return tuple(Mount(kind + _safe(n), str(p.resolve())) for kind, n, p in wanted)


def usable(mounts: tuple[Mount, ...]) -> tuple[tuple[Mount, ...], list[str]]:
    """(those that boxes can have, what is wrong with the others): one that cannot be mounted lets no box start."""
    fine, problems = [], []
    for mount in mounts:
        path = Path(mount.path)
        if not path.is_dir():
            problems.append(f"{path}: no such folder")
        elif os.geteuid() == 0 and not languages.readable_by_all(path):
            problems.append(
                f"{path}: closed to the unprivileged users of the sandboxes; move it to /opt, or run the server as "
                "its owner"
            )
        else:
            fine.append(mount)
    return tuple(fine), problems


def installed(mounts: tuple[Mount, ...]) -> Installed:
    """Looks at the mounts, once. Blocks; raises nothing."""
    stamps = tuple((m, _stamp(Path(m.path))) for m in mounts)
    return _installed(stamps)


@lru_cache(maxsize=16)
def _installed(stamps: tuple[tuple[Mount, tuple[int, ...]], ...]) -> Installed:
    toolchains, projects, problems = [], [], []
    for mount, _ in stamps:
        try:
            if mount.name.startswith(_TOOLCHAIN):
                toolchains.append(_toolchain(mount))
            elif mount.name.startswith(_PROJECT):
                projects.append(_project(mount))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            problems.append(f"{mount.path}: {error}")
    return Installed(tuple(toolchains), tuple(projects), tuple(problems))


def _stamp(path: Path) -> tuple[int, ...]:
    """Changes when what lies there does."""
    found = []
    for part in ("bin/lean", "lake-manifest.json", "lean-toolchain", ".lake/build/lib/lean", "."):
        try:
            found.append((path / part).stat().st_mtime_ns)
        except OSError:
            found.append(0)
    return tuple(found)


def _toolchain(mount: Mount) -> Toolchain:
    prefix = Path(mount.path)
    lean = prefix / "bin" / "lean"
    told = subprocess.run(
        [lean, "--version"], capture_output=True, check=True, text=True, timeout=20, env={}
    ).stdout
    version = _VERSION.search(told)
    if version is None:
        raise ValueError(f"lean --version says {told[:100]!r}")
    options = subprocess.run(
        [lean, "--help"], capture_output=True, check=False, text=True, timeout=20, env={}
    )
    programs = [lean, prefix / "bin" / "leanchecker", *sorted(prefix.glob("bin/*.so*"))]
    programs += sorted(prefix.glob("lib/lean/*.so*"))
    return Toolchain(
        mount.name.removeprefix(_TOOLCHAIN),
        mount.inside,
        version[1],
        Content(prefix, tuple(p for p in programs if p.exists()), told),
        "--setup" in options.stdout + options.stderr,
        (prefix / "bin" / "leanchecker").exists(),
    )


def _project(mount: Mount) -> Project:
    root = Path(mount.path)
    if not root.is_dir():
        raise ValueError("is no folder")
    manifest = root / "lake-manifest.json"
    packages = ".lake/packages"
    if manifest.exists():
        packages = json.loads(manifest.read_text()).get("packagesDir", packages)
    built = (".lake/build/lib/lean", ".lake/build/lib", "build/lib")
    folders = [root, *sorted(p for p in (root / packages).glob("*") if p.is_dir())]
    paths = []
    for folder in folders:
        found = next((folder / b for b in built if (folder / b).is_dir()), None)
        if found is not None:
            paths.append(found)
    if not paths and any(root.glob("*.olean")):
        paths = [root]  # a folder of compiled modules
    if not paths:
        raise ValueError("has no compiled modules: run `lake build` there")
    programs = {
        name: f"{mount.inside}/{path.relative_to(root)}"
        for folder in folders
        for name in ("lean4checker", "safe_verify")
        if (path := folder / ".lake" / "build" / "bin" / name).exists()
    }
    toolchain = root / "lean-toolchain"
    decide = [manifest, toolchain, root / "lakefile.lean", root / "lakefile.toml"]
    own = sorted(paths[0].rglob("*.olean")) if paths[0].is_relative_to(root) else []
    listing = "\n".join(f"{p.relative_to(root)} {p.stat().st_size}" for p in own)
    if len(own) <= 100:  # a small project of one's own: by content
        decide += own
    return Project(
        mount.name.removeprefix(_PROJECT),
        tuple(f"{mount.inside}/{p.relative_to(root)}".removesuffix("/.") for p in paths),
        Content(root, tuple(p for p in decide if p.exists()), listing),
        toolchain.read_text().strip() if toolchain.exists() else None,
        programs,
    )


@lru_cache(maxsize=64)
def _digest(root: Path, files: tuple[Path, ...], more: str, stamps: tuple[int, ...]) -> str:
    total = hashlib.sha256(more.encode())
    for path in files:
        total.update(f"\0{path.relative_to(root)}\0".encode())
        with path.open("rb") as file:
            while piece := file.read(_CHUNK):
                total.update(piece)
    return "sha256:" + total.hexdigest()


def _of_elan() -> set[tuple[str, Path]]:
    home = Path(os.environ.get("ELAN_HOME") or Path.home() / ".elan")
    try:
        folders = [p for p in (home / "toolchains").iterdir() if (p / "bin" / "lean").exists()]
    except OSError:
        return set()
    return {(p.name.replace("---", ":").replace("--", "/"), p) for p in folders}


def _on_path() -> set[tuple[str, Path]]:
    found = shutil.which("lean")
    if found is None:
        return set()
    real = Path(found).resolve()
    if real.name != "lean":  # elan's own, which chooses among its toolchains
        return set()
    return {("lean", real.parent.parent)}


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _ordered(version: str) -> tuple[list[int], bool]:
    number, _, rest = version.partition("-")
    return [int(n) for n in number.split(".") if n.isdigit()], not rest
