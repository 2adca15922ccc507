"""What boxes are made with: interpreter, filter, groups, and the call of bubblewrap with all its reasons."""

from __future__ import annotations

import marshal
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxes import cgroups, languages
from sandboxes.languages import Language
from sandboxes.program import Limits, Mount

if TYPE_CHECKING:  # read as files, but they decide verdicts, so they belong into the digest
    from sandboxes.inside import container, main  # noqa: F401

INIT_PIDS = 4
"""Processes of a box that are not the program's."""
_UID_IN_BOX = 1000
_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_SETPCAP", "CAP_SYS_RESOURCE", "CAP_DAC_OVERRIDE")
_STACKS = 2
_INSIDE = Path(__file__).parent / "inside"
_MODULES = ("kernel", "disk", "processes", "codec", "python")
_COMPILE = """
import marshal, sys
sources = marshal.loads(sys.stdin.buffer.read())
sys.stdout.buffer.write(marshal.dumps([(n, compile(s, "<" + n + ">", "exec")) for n, s in sources]))
"""
_TOOLS = "/packages/pytest"
_BOOT = """
import marshal, posix, sys
for n, c in marshal.loads(posix.pread(4, 1 << 22, 0)):
    m = sys.modules[n] = type(sys)(n)
    exec(c, m.__dict__)
m.main()
"""


@dataclass(frozen=True, slots=True)
class House:
    """What every box of a keeper is made with."""

    interpreter: str
    init: bytes
    """The modules of ``sandboxes.inside`` that a box needs, compiled by that interpreter: see :func:`compiled`."""
    path: tuple[str, ...]
    """``sys.path`` of Python programs after their own folder."""
    filter: bytes
    """The system call filter; empty where there can be none."""
    groups: cgroups.Parents
    uid: int | None
    """Host user of the boxes, where this process may change it."""
    proc: bool = True
    """Whether a new /proc can be mounted here; not in a container that masks its own."""
    packages: tuple[str, ...] = ()
    """Further folders that Python programs may import from, read-only."""
    mounts: tuple[Mount, ...] = ()
    """Further folders that programs see."""
    tools: tuple[str, ...] = ()
    """The packages of pytest, for tests that are written for it; none where the server has none."""

    @property
    def package_paths(self) -> tuple[str, ...]:
        """Where boxes see the packages: not at their own paths, which may lie under what boxes have themselves."""
        found = tuple(f"/packages/{number}" for number in range(len(self.packages)))
        return (*found, _TOOLS) if self.tools else found

    @property
    def protections(self) -> tuple[str, ...]:
        active = ["namespaces", "rlimits"]
        if self.filter:
            active.append("seccomp")
        if self.groups.memory:
            active.append("memory")
        if self.groups.pids:
            active.append("pids")
        if self.uid is not None or os.geteuid() != 0:
            active.append("unprivileged")
        if self.proc:
            active.append("proc")
        return tuple(active)


def command(house: House) -> list[str]:
    """The call of bubblewrap. Every line has its reason."""
    argv = [
        "/usr/bin/bwrap",
        "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
        "--uid", str(_UID_IN_BOX), "--gid", str(_UID_IN_BOX), "--hostname", "box",
        "--as-pid-1",  # our own process 1, which is not dumpable; bubblewrap's own can be read and attached to
        "--die-with-parent",  # without it a box outlives a keeper that was killed
        "--new-session",  # no terminal to push characters into
    ]  # fmt: skip
    for capability in _CAPABILITIES:  # in the box's own user namespace, for process 1 alone
        argv += ["--cap-add", capability]
    for path in languages.read_only_paths():
        argv += ["--ro-bind", path, path]
    for path, inside in zip(house.packages, house.package_paths, strict=False):
        argv += ["--ro-bind", path, inside]
    for mount in house.mounts:
        argv += ["--ro-bind", mount.path, mount.inside]
    for path in house.tools:
        argv += ["--ro-bind", path, f"{_TOOLS}/{os.path.basename(path)}"]
    for link in ("bin", "sbin", "lib", "lib32", "lib64"):  # links into /usr on merged systems
        if os.path.islink("/" + link):
            argv += ["--symlink", os.readlink("/" + link), "/" + link]
        elif os.path.isdir("/" + link):
            argv += ["--ro-bind", "/" + link, "/" + link]
    # Not --dev: it mounts an unlimited tmpfs, and makes another user namespace around process 1.
    for device in ("null", "zero", "full", "random", "urandom"):
        argv += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"),
                         ("stderr", "/proc/self/fd/2"), ("shm", "/scratch/shm")):  # fmt: skip
        argv += ["--symlink", target, f"/dev/{name}"]
    argv += ["--symlink", "/scratch/tmp", "/tmp", "--dir", "/scratch", "--dir", "/build"]
    argv += ["--proc", "/proc"] if house.proc else ["--dir", "/proc"]
    argv += ["--remount-ro", "/", "--chdir", "/"]
    argv += ["--", house.interpreter, "-I", "-S", "-B", "-X", "utf8", "-c", _BOOT]
    return argv


def sources(last: str) -> list[tuple[str, str]]:
    """Names and text of the modules that process 1 is made of, in the order of their imports, ``last`` being its
    main program."""
    names = (*_MODULES, last)
    return [(f"sandboxes.inside.{n}", (_INSIDE / f"{n}.py").read_text("utf-8")) for n in names]


def compiled(interpreter: str, last: str) -> bytes:
    """The same, as code of one interpreter, which is asked to compile it."""
    done = subprocess.run(
        [interpreter, "-I", "-S", "-c", _COMPILE],
        input=marshal.dumps(sources(last), 2), capture_output=True, check=True, env={},
    )  # fmt: skip
    return done.stdout


def environment() -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": "/scratch/work",
        "TMPDIR": "/scratch/tmp",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
        "GOCACHE": "/scratch/tmp/go",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=mod",
    }


def rlimits(
    limits: Limits, language: Language, *, counted: bool
) -> dict[str, int | tuple[int, int]]:
    """``counted``: whether a control group counts the memory, so that these need not."""
    memory = (limits.memory_mb + language.memory_mb) << 20
    cpu = int(limits.cpu_s) + 1
    found: dict[str, int | tuple[int, int]] = {
        "RLIMIT_CPU": (cpu, cpu + 1),  # whole seconds, of each process; process 1 adds up the tree
        "RLIMIT_NPROC": limits.pids + language.pids + INIT_PIDS,
        "RLIMIT_FSIZE": limits.disk_mb << 20,
        "RLIMIT_NOFILE": 256 if not language.pids else 4096,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_STACK": min(language.stack_mb, max(8, limits.memory_mb)) << 20,
    }
    if not counted and language.memory_counted:
        # Both count what is mapped, not what is used: stacks of threads, arenas, libraries. So there is some room.
        found["RLIMIT_DATA"] = memory + _STACKS * (language.stack_mb << 20)
        if language.address_space:
            found["RLIMIT_AS"] = memory + _STACKS * (language.stack_mb << 20) + (64 << 20)
    return found
