"""Control groups, where this process may make some: version 2, version 1, or both at once.

They count the memory and CPU time of a whole box, and let the kernel say that memory ran out. Without them
the limits of single processes hold (address space, number of processes, sized disks), which is weaker: see
``sandboxes.doctor``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_V1 = ("memory", "pids", "cpuacct")
_V2 = ("memory", "pids")
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Parents:
    """Where groups can be made: the folder of each controller, or one folder for all of version 2."""

    v1: dict[str, Path] = field(default_factory=dict)
    v2: Path | None = None

    @property
    def memory(self) -> bool:
        return self.v2 is not None or "memory" in self.v1

    @property
    def pids(self) -> bool:
        return self.v2 is not None or "pids" in self.v1


def find() -> Parents:
    """What this process can use; empty where it may make no groups."""
    mounts: dict[str, Path] = {}
    unified: Path | None = None
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            kind, _, options = after.split(" ", 2)
            where = Path(before.split(" ")[4])
            if kind == "cgroup2":
                unified = where
            elif kind == "cgroup":
                for name in options.rpartition(" ")[2].split(","):
                    if name in _V1:
                        mounts.setdefault(name, where)
    own = dict(_own())
    v1 = {}
    for name, where in mounts.items():
        parent = where / own.get(name, "/").lstrip("/")
        if not parent.is_dir():  # seen from inside a container, the path is the host's
            parent = where
        if _can_make(parent):
            v1[name] = parent
    if "memory" in v1:
        return Parents(v1)
    if unified is not None:
        mine = unified / own.get("", "/").lstrip("/")
        for parent in (
            mine,
            mine.parent,
        ):  # the second for a service in a subgroup of what it was delegated
            if parent.is_relative_to(unified) and _can_delegate(parent):
                return Parents(v2=parent)
    return Parents(v1)


def _own() -> Iterator[tuple[str, str]]:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            yield name, path


def _can_make(parent: Path) -> bool:
    trial = parent / f"sandbox-trial-{os.getpid()}-{next(_numbers)}"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError:
        return False
    return True


def _can_delegate(parent: Path) -> bool:
    """Whether groups below this one can limit memory: only if no process is in it itself."""
    try:
        available = (parent / "cgroup.controllers").read_text().split()
        enabled = (parent / "cgroup.subtree_control").read_text().split()
        wanted = [name for name in _V2 if name not in enabled]
        if any(name not in available for name in wanted):
            return False
        if wanted:
            _write(parent / "cgroup.subtree_control", " ".join(f"+{n}" for n in wanted))
    except OSError:
        return False
    return _can_make(parent)


class Group:
    """One box's group, in every controller."""

    def __init__(self, parents: Parents) -> None:
        name = f"sandbox-{os.getpid()}-{next(_numbers)}"
        self._v2 = None if parents.v2 is None else parents.v2 / name
        self._v1 = {controller: parent / name for controller, parent in parents.v1.items()}
        for folder in self._folders():
            folder.mkdir()
        self._limited = (0, 0)
        self._reads: dict[str, int] = {}

    def _folders(self) -> list[Path]:
        return ([] if self._v2 is None else [self._v2]) + list(self._v1.values())

    def opened(self) -> list[int]:
        """Descriptors that a process writes ``0`` to in order to enter."""
        return [os.open(f / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for f in self._folders()]

    def limit(self, memory_bytes: int, pids: int) -> None:
        """Raises OSError."""
        if self._limited == (memory_bytes, pids):
            return
        self._limited = (memory_bytes, pids)
        if self._v2 is not None:
            _write(self._v2 / "memory.max", str(memory_bytes))
            with contextlib.suppress(OSError):
                _write(self._v2 / "memory.swap.max", "0")
            _write(self._v2 / "pids.max", str(pids))
        if (memory := self._v1.get("memory")) is not None:
            # The kernel refuses a plain limit above that of memory and swap together: when it rises, that first.
            both = memory / "memory.memsw.limit_in_bytes"
            try:
                _write(memory / "memory.limit_in_bytes", str(memory_bytes))
            except OSError:
                _write(both, str(memory_bytes))
                _write(memory / "memory.limit_in_bytes", str(memory_bytes))
            with contextlib.suppress(OSError):
                _write(both, str(memory_bytes))
        if (folder := self._v1.get("pids")) is not None:
            _write(folder / "pids.max", str(pids))

    def out_of_memory(self) -> int:
        """How many processes the kernel has killed because the group's memory ran out."""
        with contextlib.suppress(OSError):
            if self._v2 is not None:
                return _field(self._read(self._v2, "memory.events"), "oom_kill")
            if (memory := self._v1.get("memory")) is not None:
                return _field(self._read(memory, "memory.oom_control"), "oom_kill")
        return 0

    def cpu_s(self) -> float | None:
        """CPU seconds of everything that ever ran in it; None where nothing counts them.

        What a parent's rusage leaves out is in it: children that nobody waited for.
        """
        with contextlib.suppress(OSError, ValueError):
            if self._v2 is not None:
                return _field(self._read(self._v2, "cpu.stat"), "usage_usec") / 1e6
            if (folder := self._v1.get("cpuacct")) is not None:
                return int(self._read(folder, "cpuacct.usage")) / 1e9
        return None

    def _read(self, folder: Path, name: str) -> str:
        fd = self._reads.get(name)
        if fd is None:
            fd = self._reads[name] = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(fd, 4096, 0).decode()

    def kill(self) -> None:
        """Kills all that is in it, where the kernel does that in one step (version 2)."""
        if self._v2 is not None:
            with contextlib.suppress(OSError):
                _write(self._v2 / "cgroup.kill", "1")

    def remove(self) -> bool:
        """Whether it is gone; a group with processes in it stays."""
        while self._reads:
            os.close(self._reads.popitem()[1])
        gone = True
        for folder in self._folders():
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                gone = False
        return gone


def sweep(parents: Parents, alive: Callable[[int], bool]) -> None:
    """Removes groups that a keeper left behind when it was killed, with what may still be in them: a box that was
    only just being started does not notice that its keeper is gone.
    """
    for parent in [*parents.v1.values(), *([parents.v2] if parents.v2 else [])]:
        for folder in parent.glob("sandbox-*-*"):
            pid = folder.name.split("-")[-2]
            if pid.isdecimal() and not alive(int(pid)):
                with contextlib.suppress(OSError, ValueError):
                    for member in (folder / "cgroup.procs").read_text().split():
                        os.kill(int(member), signal.SIGKILL)
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _write(path: Path, text: str) -> None:
    # Not open().write(): the kernel's refusal would come when the file is closed, and be lost.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _field(text: str, name: str) -> int:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
