"""One box, seen from outside: starts bubblewrap with ``sandboxes.inside`` in it, and runs programs there.

The keeper (a process that runs nothing of a submission) holds the other ends of a program's pipes: it
counts and cuts what comes out, measures time by its own monotonic clock, and says when to kill.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import resource
import select
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandboxes import cgroups, languages, seccomp
from sandboxes.backend import BoxFailed
from sandboxes.house import INIT_PIDS, House, command, compiled, environment, rlimits
from sandboxes.languages import Language
from sandboxes.program import Call, Execution, Limits, Mount, SandboxUnavailable, Verdict
from sandboxes.verdicts import verdict_on

_START_S = 20.0
_INIT_MB = 48
"""Memory of process 1 and the kernel's own, which the group of a box is allowed beyond the program's."""
_BOX_STACK = 8 << 20
"""What threads of the box's interpreter get by default; the stack of a program itself may grow to its own limit."""
_INSTALLING_MB = 128
_INIT_CPU_S = 0.02
_INIT_SHARE = 0.01
"""CPU time of process 1 in a run, which the group counts too: at its ends, and for each second between."""
_TICK_MS = 100.0
_BY_FILE = b"@"
_MOST_IN_A_MESSAGE = 60_000
_STDERR_CAP = 64 << 10
_CHUNK = 1 << 16
_PIPE = 1 << 20
_CLOSING_S = 2.0
_MOST_STARVED = 3.0
"""A starved program gets at most this many times its wall limit."""
_F_SETPIPE_SZ = 1031


def house(uid: int | None, packages: tuple[str, ...] = (), mounts: tuple[Mount, ...] = ()) -> House:
    """Looks at this machine. Raises SandboxUnavailable."""
    if not Path("/usr/bin/bwrap").exists():
        raise SandboxUnavailable("bubblewrap is missing: apt-get install bubblewrap")
    interpreter = languages.python()
    if interpreter is None:
        raise SandboxUnavailable(
            "no Python that an unprivileged process can run: apt-get install python3"
        )
    made = House(
        interpreter,
        compiled(interpreter, "main"),
        tuple(languages.python_path(interpreter)),
        b"" if seccomp.unavailable() else seccomp.program(),
        cgroups.find(),
        uid if os.geteuid() == 0 else None,
        packages=packages,
        mounts=mounts,
        tools=languages.pytest_packages(),
    )
    for proc in (True, False):
        trial = House(**{**{n: getattr(made, n) for n in made.__slots__}, "proc": proc})
        box = Box(trial, languages.LANGUAGES["python"])
        try:
            box.wait_ready()
            return trial
        except BoxFailed as error:
            problem = str(error)
        finally:
            box.close()
            box.wait_until_gone()
    raise SandboxUnavailable(
        f"bubblewrap does not start here: {problem}. See docs/how-to/sandboxes.md"
    )


@dataclass(frozen=True, slots=True)
class BubblewrapBackend:
    """Boxes of bubblewrap, with the interpreter and the compilers of this machine."""

    house: House

    @property
    def interpreter(self) -> str:
        return self.house.interpreter

    @property
    def protections(self) -> tuple[str, ...]:
        return self.house.protections

    @property
    def runtime(self) -> str:
        return "bubblewrap"

    def box(self, language: Language) -> Box:
        return Box(self.house, language)

    def installed(self, name: str) -> str | None:
        return languages.installed(name)

    def version(self, name: str) -> str | None:
        return languages.version(name)

    def sweep(self) -> None:
        cgroups.sweep(self.house.groups, lambda pid: Path(f"/proc/{pid}").exists())


@dataclass(slots=True)
class _Pipe:
    """A program's output on its way out."""

    fd: int
    cap: int
    data: bytearray = field(default_factory=bytearray)
    over: bool = False

    def read(self) -> bool:
        """Whether there may be more."""
        piece = os.read(self.fd, _CHUNK)
        if not piece:
            return False
        room = self.cap - len(self.data)
        self.data += piece[: max(0, room)]
        self.over = self.over or len(piece) > room
        return True


class Box:
    """Starts at once, in the background; everything else waits for it. Not for use by several threads."""

    def __init__(self, house: House, language: Language) -> None:
        self.house = house
        self.language = language
        self._group = cgroups.Group(house.groups) if house.groups != cgroups.Parents() else None
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors, errors = os.pipe()
        code = os.memfd_create("init", os.MFD_CLOEXEC)
        os.write(code, house.init)
        entries = self._group.opened() if self._group else []
        argv = command(house)
        self._pid = os.fork()
        if self._pid == 0:
            _become(argv, theirs.fileno(), code, errors, entries, house.uid)
        for fd in (code, errors, *entries):
            os.close(fd)
        theirs.close()
        self._ready = False
        self._ended = False
        self._closed_at: float | None = None
        self._oom = 0
        self._held_mb = 0
        self._given_bytes = self._given_files = 0
        self._cpu_before: float | None = None
        self._began = 0.0

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    def wait_ready(self) -> None:
        """Raises BoxFailed."""
        if not self._ready:
            words = self._hear(_START_S)
            if words[0] != "ready":
                raise BoxFailed(f"unexpected: {words[0]}")
            self._ready = True

    def alive(self) -> bool:
        if not self._ended:
            try:
                self._ended = os.waitpid(self._pid, os.WNOHANG)[0] != 0
            except ChildProcessError:
                self._ended = True
        return not self._ended

    def close(self) -> None:
        """Ends everything in the box: process 1 sees that its keeper is gone, and the rest dies with it.

        :meth:`gone` tells when that is so. Bubblewrap is not killed at once: it reaps process 1, which would
        otherwise be left to whatever is process 1 of the machine, and in a container that may not reap.
        """
        if self._closed_at is None:
            self._closed_at = time.monotonic()
            self._control.close()
            os.close(self._errors)

    def gone(self) -> bool:
        """Whether nothing of it is left, process or group. To be asked again until it is so."""
        if self.alive():
            if self._closed_at is not None and time.monotonic() > self._closed_at + _CLOSING_S:
                if self._group is not None:
                    self._group.kill()
                for pid in (*_children(self._pid), self._pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            return False
        return self._group is None or self._group.remove()

    def wait_until_gone(self, seconds: float = 2 * _CLOSING_S) -> None:
        until = time.monotonic() + seconds
        while not self.gone() and time.monotonic() < until:
            time.sleep(0.002)

    # ── work ─────────────────────────────────────────────────────────────────────────────────────

    def setup(
        self,
        source: str,
        files: dict[str, bytes],
        imports: list[str],
        build_mb: int,
        env: dict[str, str],
        warm: tuple[str, ...] = (),
    ) -> None:
        """Gives the submission's files to process 1. Raises BoxFailed."""
        self.wait_ready()
        given = {self.language.source: source.encode("utf-8", "surrogatepass"), **files}
        self._given_bytes, self._given_files = _pages(given), _names(given)
        index, blob = _blob(given)
        self._build = f"size={build_mb << 20},nr_inodes=5000,mode=755".encode()
        self._tell(
            {
                "op": "setup",
                "files": index,
                "seccomp": self.house.filter,
                "imports": imports,
                "warm": list(warm),
                "build": self._build,
                "env": environment() | env,
                "path": [*self.house.package_paths, *self.house.path],
            },
            [blob],
        )
        os.close(blob)

    def install(self, files: dict[str, bytes]) -> None:
        """Puts compiled files where programs can read and run them, and not write. Raises BoxFailed."""
        index, blob = _blob(files)
        self._held_mb = (_pages(files) >> 20) + 1
        if self._group is not None:
            with suppress(OSError):  # room for them: the limit of the last run may be a small one
                self._group.limit((_INSTALLING_MB + self._held_mb) << 20, 64)
        self._tell({"op": "install", "files": index, "build": self._build}, [blob])
        os.close(blob)
        self._hear(_START_S)

    def run(
        self,
        argv: list[str] | None,
        limits: Limits,
        *,
        stdin: bytes = b"",
        arguments: tuple[str, ...] = (),
        call: Call | None = None,
        files: dict[str, bytes] | None = None,
        fetch: tuple[str, ...] | None = (),
        stop: socket.socket | None = None,
        reports: bool = False,
        channel: socket.socket | None = None,
        serve: bool = False,
    ) -> Execution:
        """See :class:`sandboxes.backend.Box`."""
        language = self.language
        self._began = time.monotonic()
        self._cpu_before = self._group.cpu_s() if self._group is not None else None
        if self._group is not None:
            pids = limits.pids + language.pids + INIT_PIDS
            memory = (
                limits.memory_mb + language.memory_mb + limits.disk_mb + self._held_mb + _INIT_MB
            )
            try:
                self._group.limit(memory << 20, pids)
            except OSError as error:
                raise BoxFailed(f"control group: {error}") from None
            self._oom = self._group.out_of_memory()
        with_result = call is not None or reports or channel is not None
        ours, theirs = _pipes(with_result=with_result)
        if channel is not None:
            theirs.append(channel.detach())
        if self.house.uid is not None:
            for fd in theirs:
                os.fchown(fd, self.house.uid, -1)  # or the program could not open /dev/stdin
        brought = os.memfd_create("fetched", os.MFD_CLOEXEC)
        message: dict[str, Any] = {
            "op": "run",
            "argv": argv,
            "python": language.source,
            "arguments": list(arguments),
            "call": call and {"entry_point": call.entry_point, "args": call.args, "kwargs": call.kwargs},
            "serve": serve,
            "limits": rlimits(limits, language, counted=self.house.groups.memory),
            "cpu_s": limits.cpu_s,
            # Where neither a control group nor the kernel's limits of a process can hold it.
            "memory": 0 if self.house.groups.memory or language.memory_counted else limits.memory_mb << 20,
            # What is put there for the program does not count against what it may write.
            "disk": (limits.disk_mb << 20) + self._given_bytes + _pages(files or {}),
            "inodes": limits.files + 8 + self._given_files + _names(files or {}),
            "files": [],
            "fetch": None if fetch is None else list(fetch),
            "cap": limits.disk_mb << 20,
        }  # fmt: skip
        extra: list[int] = []
        if files:
            message["files"], blob = _blob(files)
            extra.append(blob)
        compiled = argv is not None and argv[0].startswith("/build/")
        try:
            try:
                self._tell(message, [*extra, brought, *theirs])
            except BoxFailed:
                for fd in ours:
                    os.close(fd)
                raise
            finally:
                for fd in (*extra, *theirs):
                    os.close(fd)
            return self._follow(limits, stdin, ours, brought, stop, argv_of_program=compiled)
        finally:
            os.close(brought)

    def _follow(
        self,
        limits: Limits,
        stdin: bytes,
        ours: list[int],
        brought: int,
        stop: socket.socket | None,
        *,
        argv_of_program: bool,
    ) -> Execution:
        """Feeds and drains the program until process 1 says that nothing of it is left."""
        feed, *outputs = ours
        cap = limits.output_kb << 10
        pipes = [
            _Pipe(fd, min(cap, _STDERR_CAP) if n == 1 else cap) for n, fd in enumerate(outputs)
        ]
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if stop is not None:
            poll.register(stop, select.POLLIN)
        open_pipes = {p.fd: p for p in pipes}
        for fd in open_pipes:
            poll.register(fd, select.POLLIN)
        os.set_blocking(feed, False)
        unfed = memoryview(stdin)
        feeding = True
        poll.register(feed, select.POLLOUT)
        began = time.monotonic()
        deadline: float | None = began + _START_S
        started, killed, starved, ended = False, "", False, None
        tick = began + _TICK_MS / 1e3
        most = began + _START_S + limits.wall_s * _MOST_STARVED
        try:
            while ended is None or open_pipes:
                now = time.monotonic()
                wait = None if deadline is None else max(0.0, deadline - now) * 1e3
                if started and ended is None and not killed:
                    wait = min(_TICK_MS, wait or 0.0)
                    if now > tick:
                        tick = now + _TICK_MS / 1e3
                        if self._used_s() > limits.cpu_s:
                            killed = "cpu"
                            self._tell({"op": "kill", "why": killed})
                            deadline = now + _START_S
                for fd, events in poll.poll(wait):
                    if fd == feed:
                        with suppress(BlockingIOError, BrokenPipeError):
                            unfed = unfed[os.write(feed, unfed[:_CHUNK]) :] if len(unfed) else unfed
                        if not len(unfed) or events & (select.POLLERR | select.POLLHUP):
                            poll.unregister(feed)
                            os.close(feed)
                            feeding = False
                    elif fd in open_pipes:
                        pipe = open_pipes[fd]
                        if not pipe.read():
                            poll.unregister(fd)
                            del open_pipes[fd]
                        elif pipe.over and not killed and pipe is not pipes[1]:
                            killed = "output"
                            self._tell({"op": "kill", "why": killed})
                    elif stop is not None and fd == stop.fileno():
                        poll.unregister(fd)
                        killed = killed or "cancelled"
                        self._tell({"op": "kill", "why": killed})
                    else:
                        words = self._hear(0)
                        if words[0] == "started":
                            started, began = True, time.monotonic()
                            deadline = began + limits.wall_s
                            most = began + limits.wall_s * _MOST_STARVED
                        elif words[0] == "waited" and not killed:
                            waited = int(words[1]) / 1e6
                            starved = waited > 0.1 * limits.wall_s
                            until = min(began + limits.wall_s + waited, most)
                            if until - time.monotonic() > 0.05:
                                deadline = until  # our load is not the program's
                            else:
                                killed = "wall"
                                self._tell({"op": "kill", "why": killed})
                                deadline = time.monotonic() + _START_S
                        elif words[0] == "ended":
                            ended, deadline = words, time.monotonic() + 5.0
                        elif words[0] == "unexecutable" and argv_of_program:
                            # The program's own file is none that the kernel takes: its doing, not ours.
                            return Execution(Verdict.RUNTIME_ERROR, 126, detail=" ".join(words[1:]))
                        elif words[0] in ("refused", "unexecutable"):
                            raise BoxFailed(
                                "the program could not be started: " + " ".join(words[1:])
                            )
                if deadline is not None and time.monotonic() >= deadline:
                    if ended is not None:
                        break  # every writer is dead: what is still open belongs to nobody
                    if not started or killed:
                        raise BoxFailed("process 1 of the box does not answer")
                    self._tell({"op": "waited"})
                    deadline = time.monotonic() + _START_S
        except BoxFailed as error:
            if not started:
                raise
            return self._lost(limits, pipes, time.monotonic() - began, str(error))
        finally:
            if feeding:
                os.close(feed)
            for fd in outputs:
                os.close(fd)
        assert ended is not None
        return self._execution(limits, pipes, killed, starved, ended, brought)

    def _execution(
        self,
        limits: Limits,
        pipes: list[_Pipe],
        killed: str,
        starved: bool,
        words: list[str],
        brought: int,
    ) -> Execution:
        _, by_init, status, used_us, took_us, peak_kb, full, at, left_out = words
        killed = killed or ("" if by_init == "-" else by_init)
        code = int(status)
        number = os.WTERMSIG(code) if os.WIFSIGNALED(code) else None
        cpu_s = max(int(used_us) / 1e6, self._used_s())
        if self._group is not None and self._group.out_of_memory() > self._oom:
            killed = "memory"
        verdict = verdict_on(
            limits,
            self.language,
            killed,
            code,
            number,
            cpu_s,
            int(peak_kb),
            full == "1",
            bytes(pipes[1].data),
        )
        if verdict is Verdict.TIME_LIMIT and not killed:
            killed = "cpu"
        files, offset = {}, 0
        index = os.pread(brought, os.fstat(brought).st_size - int(at), int(at))
        for name, size in marshal.loads(index):  # written by process 1, not by the program
            files[name] = os.pread(brought, size, offset)
            offset += size
        return Execution(
            verdict,
            None if number is not None else os.WEXITSTATUS(code),
            number,
            bytes(pipes[0].data),
            bytes(pipes[1].data),
            pipes[0].over,
            pipes[1].over,
            bytes(pipes[2].data) if len(pipes) > 2 and not pipes[2].over else None,
            cpu_s,
            int(took_us) / 1e6,
            int(peak_kb) / 1024,
            killed,
            starved and killed == "wall" and cpu_s < limits.cpu_s,
            files,
            f"{left_out} files did not fit" if left_out != "0" else "",
        )

    def _used_s(self) -> float:
        """CPU seconds of this run by the group's count, less what process 1 may have used; 0 without one."""
        now = self._group.cpu_s() if self._group is not None else None
        if now is None or self._cpu_before is None:
            return 0.0
        own = _INIT_CPU_S + _INIT_SHARE * (time.monotonic() - self._began)
        return max(0.0, now - self._cpu_before - own)

    def _lost(self, limits: Limits, pipes: list[_Pipe], took_s: float, why: str) -> Execution:
        """The box died under the program: the kernel killed process 1, or something that should not be."""
        oom = self._group is not None and self._group.out_of_memory() > self._oom
        return Execution(
            Verdict.MEMORY_LIMIT if oom else Verdict.SANDBOX_FAILED,
            stdout=bytes(pipes[0].data),
            stderr=bytes(pipes[1].data),
            wall_s=took_s,
            killed_by="memory" if oom else "",
            detail=why,
        )

    # ── messages ─────────────────────────────────────────────────────────────────────────────────

    def _tell(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        try:
            body = marshal.dumps(message, 2)
            if len(body) <= _MOST_IN_A_MESSAGE:
                socket.send_fds(self._control, [body], fds or [])
                return
            fd = os.memfd_create("message", os.MFD_CLOEXEC)
            try:
                view = memoryview(body)
                while len(view):
                    view = view[os.write(fd, view) :]
                socket.send_fds(self._control, [_BY_FILE], [fd, *(fds or [])])
            finally:
                os.close(fd)
        except OSError as error:
            raise BoxFailed(f"{self._why()} ({error})") from None

    def _hear(self, timeout_s: float) -> list[str]:
        if timeout_s and not select.select([self._control], [], [], timeout_s)[0]:
            raise BoxFailed("the box does not start in time")
        try:
            data = self._control.recv(1 << 17)
        except OSError as error:
            raise BoxFailed(str(error)) from None
        if not data:
            raise BoxFailed(self._why())
        return data.decode().split(" ")

    def _why(self) -> str:
        os.set_blocking(self._errors, False)
        with suppress(OSError):
            return (
                os.read(self._errors, 2000).decode("utf-8", "replace").strip()[-400:]
                or "the box died"
            )
        return "the box died"


def _become(
    argv: list[str], control: int, code: int, errors: int, entries: list[int], uid: int | None
) -> None:
    """In the forked child: enters the groups, drops root, and becomes bubblewrap. Never returns."""
    try:
        for fd in entries:
            os.write(fd, b"0")
        os.setpgid(0, 0)
        null = os.open("/dev/null", os.O_RDWR)
        for source, target in ((control, 200), (code, 201), (null, 202), (errors, 203)):
            os.dup2(source, target)
        for source, target in ((202, 0), (202, 1), (203, 2), (200, 3), (201, 4)):
            os.dup2(source, target)
        os.closerange(5, 1024)
        _soft(resource.RLIMIT_STACK, _BOX_STACK)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if uid is not None:
            # As root, bubblewrap's box would be root to the files of /proc/sys (research: core_pattern).
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        os.execve(argv[0], argv, {})
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(127)


def _children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _soft(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _pipes(*, with_result: bool) -> tuple[list[int], list[int]]:
    """(our ends, the program's): stdin, stdout, stderr, and one for a function's result."""
    ours, theirs = [], []
    read, write = os.pipe()
    with suppress(OSError):
        _widen(write)
    theirs.append(read)
    ours.append(write)
    for _ in range(3 if with_result else 2):
        read, write = os.pipe()
        ours.append(read)
        theirs.append(write)
    return ours, theirs


def _widen(fd: int) -> None:
    fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE)


def _blob(files: dict[str, bytes]) -> tuple[list[tuple[str, int, int]], int]:
    """Files one behind the other in an anonymous file: (name, offset, size) of each, and its descriptor."""
    fd = os.memfd_create("files", os.MFD_CLOEXEC)
    index, offset = [], 0
    for name, content in files.items():
        index.append((name, offset, len(content)))
        offset += len(content)
        view = memoryview(content)
        while len(view):
            view = view[os.write(fd, view) :]
    return index, fd


def _pages(files: dict[str, bytes]) -> int:
    """Bytes that files take on a disk in memory."""
    return sum((len(content) + 4095) // 4096 * 4096 for content in files.values())


def _names(files: dict[str, bytes]) -> int:
    """Files and folders that they are, at most."""
    return sum(name.count("/") + 1 for name in files)
