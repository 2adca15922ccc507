"""What is run, under which limits, and what came of it: the vocabulary of this package.

A *submission* is one box: its files, at most one compilation, and any number of runs. The runs of one
submission start from the same state (fresh scratch disk, nothing alive), and the box is thrown away after
the last one.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

MAX_FILES = 200
MAX_NAME = 200
_MAX_PART_BYTES = 255

_NAME_PART = re.compile(r"[^/\0\n\r]{1,100}")
_REFUSED_NAMES = frozenset({"conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini"})


class Verdict(StrEnum):
    """How an execution ended."""

    OK = "ok"
    """Exit status 0 within all limits."""
    RUNTIME_ERROR = "runtime_error"
    """Another exit status, or a signal."""
    TIME_LIMIT = "time_limit"
    """CPU time or wall time; ``killed_by`` says which."""
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    DISK_LIMIT = "disk_limit"
    COMPILE_ERROR = "compile_error"
    SANDBOX_FAILED = "sandbox_failed"
    """Ours: the program never started, or its box died and a harmless program then fails there too."""


class SandboxUnavailable(Exception):
    """Nothing can be run here, or not in this language; the message says what to install."""


class SandboxLost(Exception):
    """The keeper died; what it was running has no verdict."""


class NoSlotInTime(Exception):
    """Every slot was busy until it was too late to start."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one execution may use. All of it is the program's own; our load is not charged to it."""

    cpu_s: float = 2.0
    """CPU seconds of the program and everything it starts."""
    wall_s: float = 10.0
    """Seconds by a monotonic clock, not counting time in which it was ready and found no free core."""
    memory_mb: int = 256
    pids: int = 32
    """Processes and threads at once."""
    output_kb: int = 4096
    """Of stdout; stderr and a function's result are each held to the same."""
    disk_mb: int = 64
    """Everything written: working directory, /tmp and /dev/shm together."""
    files: int = 2048
    """Files and directories written."""


@dataclass(frozen=True, slots=True)
class Call:
    """Calls a function that the program defines, in place of running it as a script. Python only."""

    entry_point: str
    """``name`` or ``Class.method`` (the class is made without arguments)."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Made of None, bool, int, float, str, bytes, list, tuple, dict, set."""


@dataclass(frozen=True, slots=True)
class Run:
    """One start of the submission's program."""

    stdin: bytes = b""
    argv: tuple[str, ...] = ()
    call: Call | None = None
    fetch: tuple[str, ...] = ()
    """Names of files to bring back from the working directory."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Further files of this run alone, put into its working directory."""
    reports: bool = False
    """Whether the program has a descriptor 3, and ``Execution.result`` is what it wrote there. A call has it anyway."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A second Python program, in a box of its own, that a submission's runs can call.

    It is started anew for each run, as a module. A run's descriptor 4 is connected with it: requests and
    answers are those of :mod:`sandboxes.inside.codec` and :func:`sandboxes.inside.python.answer_calls`.
    Neither sees anything else of the other.
    """

    source: str
    limits: Limits = Limits()
    files: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this machine that every box sees, read-only: a toolchain, a project."""

    name: str
    path: str

    @property
    def inside(self) -> str:
        """Where boxes see it."""
        return f"/tools/{self.name}"


@dataclass(frozen=True, slots=True)
class Submission:
    """A program and its runs."""

    language: str
    source: str
    runs: tuple[Run, ...]
    limits: Limits = Limits()
    compile_limits: Limits | None = None
    """None: those of the language."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Put into the working directory of the compilation and of every run."""
    stop_on_failure: bool = False
    """Whether the first run that does not end OK is the last."""
    peer: Peer | None = None
    preload: tuple[str, ...] = ()
    """Modules that process 1 imports once for all runs of a Python program: never what a hostile program chose."""
    warm: tuple[str, ...] = ()
    """Those of its files that process 1 imports once, as modules, for all runs: never of a hostile program."""
    keep: bool = False
    """Whether the box stays for later submissions of the same program and files, if no run spoils it. Each run still
    starts from the same state. Not for compiled languages, nor with a peer."""
    command: tuple[str, ...] = ()
    """Of language ``command``: what to run, by its path in the box."""
    env: dict[str, str] = field(default_factory=dict)
    """Added to the few environment variables that programs have."""


@dataclass(frozen=True, slots=True)
class Execution:
    """What came of a run or a compilation."""

    verdict: Verdict
    exit_code: int | None = None
    """None where a signal ended it."""
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    result: bytes | None = None
    """What a called function returned, in the JSON of :mod:`sandboxes.values`; not to be trusted."""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    memory_mb: float = 0.0
    """Peak of the largest process."""
    killed_by: str = ""
    """``cpu``, ``wall``, ``output``, ``memory``, ``disk`` or ``cancelled`` where we ended it."""
    starved: bool = False
    """Whether it lost a good part of its wall time waiting for a core: it deserves another try."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Those asked for that exist as regular files within the disk limit."""
    detail: str = ""
    peer: Execution | None = None
    """What came of the peer, which ends with the run."""

    @property
    def ok(self) -> bool:
        return self.verdict is Verdict.OK

    def but(self, **changes: Any) -> Execution:
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a submission."""

    compilation: Execution | None
    """None for languages that are not compiled."""
    runs: tuple[Execution, ...]
    """In order; shorter than what was asked for after a failed compilation or ``stop_on_failure``."""
    protections: tuple[str, ...] = ()
    """Those active while it ran."""


OnRun = Callable[[int, Execution], bool | Awaitable[bool]]
"""Hears of each run as it ends; whether to stop there."""


class Sandbox(Protocol):
    """Runs submissions: :class:`sandboxes.pool.SandboxPool`, as far as its users need it."""

    @property
    def runtime(self) -> str:
        """What programs run on: ``bubblewrap``, or the id of an image. Known after :meth:`active`."""
        ...

    @property
    def slots(self) -> int:
        """How many submissions run at once."""
        ...

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """Folders of this machine that its boxes see."""
        ...

    async def active(self) -> tuple[str, ...]:
        """The protections of its boxes. Raises SandboxUnavailable."""
        ...

    async def run(
        self,
        submission: Submission,
        on_run: OnRun | None = None,
        start_by: float | None = None,
    ) -> Report:
        """``on_run`` hears of each run as it ends, and says whether to stop there; ``start_by`` is a time of
        ``time.monotonic()``. Raises SandboxUnavailable, SandboxLost, NoSlotInTime."""
        ...


def name_problem(name: str) -> str | None:
    """Why a file may not have this name, or None.

    Names that Python or pytest run or read by themselves are refused: they would put code into a
    process that the submission is not meant to reach.
    """
    if not name or len(name) > MAX_NAME:
        return f"a file name has 1 to {MAX_NAME} characters"
    parts = name.split("/")
    if name.startswith("/") or any(p in ("", ".", "..") for p in parts):
        return f"{name!r}: give a relative name without '.', '..' or empty parts"
    if not all(_NAME_PART.fullmatch(p) for p in parts):
        return f"{name!r}: a part of a name has 1 to 100 characters and no line break or NUL"
    try:
        if any(len(p.encode()) > _MAX_PART_BYTES for p in parts):
            return f"{name!r}: a part of a name has at most {_MAX_PART_BYTES} bytes"
    except UnicodeEncodeError:
        return f"{name!r}: not valid Unicode"
    if parts[-1].lower() in _REFUSED_NAMES or parts[-1].lower().endswith((".pth", ".pyc", ".so")):
        return f"{name!r}: is loaded by an interpreter on its own and is refused"
    return None


def files_problem(files: dict[str, bytes], limits: Limits) -> str | None:
    """What is wrong with a submission's files, or None."""
    if len(files) > MAX_FILES:
        return f"{len(files)} files; the limit is {MAX_FILES}"
    if sum(len(content) for content in files.values()) > limits.disk_mb << 20:
        return f"the files are larger than the disk limit of {limits.disk_mb} MB"
    for name in files:
        if (problem := name_problem(name)) is not None:
            return problem
        if any(other.startswith(name + "/") for other in files):
            return f"{name!r} is both a file and a directory"
    return None
