"""The Docker backend: one container a submission, spoken to over the streams it was attached with.

``docker exec`` takes 50 ms, and what it started survives its client. So each container has our own process 1
(:mod:`sandboxes.inside.container`) that is told over its standard input what to run; a round trip takes a tenth of a
millisecond. A container is made ahead, in a thread, and removed after one submission. When its keeper goes away
its standard input ends, process 1 with it, and the daemon removes the container; what outlives even that is found
by its labels.
"""

from __future__ import annotations

import marshal
import os
import platform
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandboxes import languages, seccomp
from sandboxes.backend import BoxFailed, BoxLost
from sandboxes.house import environment, rlimits, sources
from sandboxes.languages import Language
from sandboxes.program import Call, Execution, Limits, Mount, SandboxUnavailable, Verdict
from sandboxes.verdicts import verdict_on

if TYPE_CHECKING:
    from docker.api import APIClient

_START_S = 60.0
_TIMEOUT_S = 30
_LABEL = "reward-server.sandbox"
_OWNER = "reward-server.owner"
_PIDS = 1024
_SHM = "64m"
_BUILD = "256m"
_INIT_MB = 96
"""Memory of process 1, of compiled files and of the kernel's own, beside the program's."""
_STDERR_CAP = 64 << 10
_CHUNK = 1 << 16
_MOST_PENDING = 64 << 20
_MOST_STARVED = 3.0
_BOOT = """
import marshal, posix, sys
def r(n):
    b = b""
    while len(b) < n:
        p = posix.read(0, n - len(b))
        if not p: posix._exit(0)
        b += p
    return b
for n, c in marshal.loads(r(int.from_bytes(r(4), "little"))):
    m = sys.modules[n] = type(sys)(n)
    exec(c, m.__dict__)
m.main()
"""


@dataclass(frozen=True, slots=True)
class DockerSettings:
    image: str = "reward-sandbox"
    """Name or id of an image made from the Dockerfile in ``sandboxes/image``."""
    runtime: str | None = None
    """Another OCI runtime than the daemon's own, such as ``runsc`` (gVisor)."""
    url: str | None = None
    """Of the daemon; None: the usual socket, or ``DOCKER_HOST``."""
    memory_mb: int = 2048
    """Of a container; submissions that may use more cannot run."""
    disk_mb: int = 512
    """Of a container's scratch disk."""


@dataclass(frozen=True, slots=True)
class DockerBackend:
    settings: DockerSettings
    uid: int
    image: str
    """The image's id."""
    looked: dict[str, Any] = field(default_factory=dict)
    """What process 1 sees in the image."""
    mounts: tuple[Mount, ...] = ()
    code: bytes = b""
    """The modules of process 1, compiled by the image's interpreter."""

    @property
    def interpreter(self) -> str:
        return str(self.looked["python"])

    @property
    def runtime(self) -> str:
        return self.image

    @property
    def protections(self) -> tuple[str, ...]:
        active = ["container", "namespaces", "rlimits", "unprivileged", "pids", "memory"]
        if not seccomp.unavailable():
            active.append("seccomp")
        if self.looked.get("proc"):
            active.append("proc")
        return tuple(active)

    def box(self, language: Language) -> ContainerBox:
        return ContainerBox(self, language)

    def installed(self, name: str) -> str | None:
        if name == "python":
            return self.interpreter
        program = languages.LANGUAGES[name].program
        return f"/usr/bin/{program}" if program in self.looked["programs"] else None

    def version(self, name: str) -> str | None:
        return f"{self.image} {name}" if self.installed(name) else None

    def sweep(self) -> None:
        client = connected(self.settings)
        for found in client.containers(all=True, filters={"label": _LABEL}):
            host, _, process = found["Labels"].get(_OWNER, "").partition(" ")
            if host == platform.node() and process != owner(int(process.partition(":")[0] or 0)):
                with suppress(Exception):  # another server is removing it as well
                    client.remove_container(found["Id"], force=True, v=True)


def owner(pid: int) -> str:
    """A process, told apart from a later one of the same number; empty where it is gone."""
    try:
        return f"{pid}:{Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        return ""


def connected(settings: DockerSettings) -> APIClient:
    """Raises SandboxUnavailable."""
    try:
        from docker import APIClient  # noqa: PLC0415
    except ImportError:
        raise SandboxUnavailable("the docker SDK is missing: pip install docker") from None
    url = settings.url or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    try:
        client = APIClient(base_url=url, version="1.41", timeout=_TIMEOUT_S)
        client.ping()
        return client
    except Exception as error:
        raise SandboxUnavailable(f"no Docker daemon at {url}: {error}") from None


def image_id(settings: DockerSettings) -> str:
    """The id of the image, which names what programs run on; empty where the daemon cannot say."""
    try:
        return str(connected(settings).inspect_image(settings.image)["Id"])  # type: ignore[no-untyped-call]
    except Exception:
        return ""


def docker_backend(
    settings: DockerSettings, uid: int, mounts: tuple[Mount, ...] = ()
) -> DockerBackend:
    """Looks at the daemon and at the image. Raises SandboxUnavailable."""
    client = connected(settings)
    try:
        image = str(client.inspect_image(settings.image)["Id"])  # type: ignore[no-untyped-call]
    except Exception as error:
        raise SandboxUnavailable(
            f"Docker cannot give the image {settings.image!r} ({error}): see docs/how-to/sandboxes.md"
        ) from None
    draft = DockerBackend(
        settings, uid, image, mounts=mounts, code=marshal.dumps(sources("container"), 2)
    )
    box = ContainerBox(draft, languages.LANGUAGES["python"])
    try:
        box.wait_ready()
        looked = marshal.loads(box.asked({"op": "look"}))
        code = box.asked({"op": "compile", "sources": sources("container")})
    except BoxFailed as error:
        raise SandboxUnavailable(
            f"containers of {settings.image!r} do not start: {error}"
        ) from None
    finally:
        box.close()
        box.wait_until_gone()
    return replace(draft, looked=looked, code=code)


class ContainerBox:
    """One container, seen from outside. Starts at once, in a thread. Not for use by several threads."""

    def __init__(self, backend: DockerBackend, language: Language) -> None:
        self.backend = backend
        self.language = language
        self._id: str | None = None
        self._client: APIClient | None = None
        self._socket: socket.socket | None = None
        self._raw = bytearray()
        """From the daemon: its own frames of stdout and stderr."""
        self._frames = bytearray()
        """What process 1 wrote."""
        self._errors = bytearray()
        self._problem: str | None = None
        self._ready = False
        self._closed = False
        self._leaving: threading.Thread | None = None
        self._memory_mb = backend.settings.memory_mb
        self._starting = threading.Thread(target=self._start, daemon=True)
        self._starting.start()

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def id(self) -> str | None:
        """Of the container, once it was created."""
        return self._id

    def _start(self) -> None:
        settings, uid = self.backend.settings, self.backend.uid
        try:
            from docker.types import LogConfig  # noqa: PLC0415

            client = self._client = connected(settings)
            mine = f"uid={uid},gid={uid}"
            config = client.create_host_config(
                network_mode="none",
                read_only=True,
                cap_drop=["ALL"],
                security_opt=["no-new-privileges:true"],
                pids_limit=_PIDS,
                mem_limit=self._memory_mb << 20,
                memswap_limit=self._memory_mb << 20,
                ipc_mode="private",
                log_config=LogConfig(type="none"),
                auto_remove=True,
                init=False,
                oom_kill_disable=False,
                runtime=settings.runtime,
                binds=[f"{m.path}:{m.inside}:ro" for m in self.backend.mounts],
                tmpfs={
                    "/scratch": f"rw,exec,nosuid,nodev,size={settings.disk_mb}m,nr_inodes=200000,mode=755,{mine}",
                    "/build": f"rw,exec,nosuid,nodev,size={_BUILD},nr_inodes=5000,mode=755,{mine}",
                    "/dev/shm": f"rw,noexec,nosuid,nodev,size={_SHM},nr_inodes=10000,mode=700,{mine}",
                },
            )
            self._id = client.create_container(
                self.backend.image,
                ["python3", "-I", "-S", "-B", "-X", "utf8", "-c", _BOOT],
                entrypoint=[],
                host_config=config,
                user=f"{uid}:{uid}",
                environment=[],
                working_dir="/",
                stdin_open=True,
                tty=False,
                hostname="box",
                labels={_LABEL: "1", _OWNER: f"{platform.node()} {owner(os.getpid())}"},
            )["Id"]
            attached = client.attach_socket(
                self._id, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            )
            self._socket = getattr(attached, "_sock", attached)
            self._kept = attached  # its destructor would close the socket
            client.start(self._id)
            self._socket.settimeout(None)
            code = self.backend.code
            self._socket.sendall(struct.pack("<I", len(code)) + code)
        except Exception as error:
            self._problem = f"{type(error).__name__}: {error}"[:500]

    def wait_ready(self) -> None:
        if self._ready:
            return
        self._starting.join(_START_S)
        if self._problem is not None or self._socket is None:
            raise BoxFailed(self._problem or "the container does not start in time")
        if self._hear(_START_S) != ["ready"]:
            raise BoxFailed("process 1 of the container is not ready")
        self._ready = True

    def alive(self) -> bool:
        if self._starting.is_alive():
            return True
        if self._problem is not None or self._closed or self._socket is None:
            return False
        if not select.select([self._socket], [], [], 0)[0]:
            return True
        with suppress(OSError):
            return self._socket.recv(1, socket.MSG_PEEK) != b""
        return False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._leaving = threading.Thread(target=self._remove, daemon=True)
            self._leaving.start()

    def _remove(self) -> None:
        self._starting.join()
        if self._socket is not None:
            self._socket.close()
        if self._id is not None and self._client is not None:
            with suppress(Exception):  # the daemon may have removed it already, or be away
                self._client.remove_container(self._id, force=True, v=True)
        if self._client is not None:
            self._client.close()

    def gone(self) -> bool:
        return self._leaving is not None and not self._leaving.is_alive()

    def wait_until_gone(self, seconds: float = 10.0) -> None:
        if self._leaving is not None:
            self._leaving.join(seconds)

    # ── work ─────────────────────────────────────────────────────────────────────────────────────

    def asked(self, message: dict[str, Any]) -> bytes:
        """What process 1 answers with a blob. Raises BoxFailed."""
        self._tell(message)
        kind, content = self._frame(_START_S)
        if kind != b"B":
            raise BoxFailed(f"unexpected: {content[:200]!r}")
        return content

    def setup(
        self,
        source: str,
        files: dict[str, bytes],
        imports: list[str],
        build_mb: int,
        env: dict[str, str],
        warm: tuple[str, ...] = (),
    ) -> None:
        self.wait_ready()
        given = {self.language.source: source.encode("utf-8", "surrogatepass"), **files}
        self._tell(
            {
                "op": "setup",
                "files": _together(given),
                "seccomp": b"" if seccomp.unavailable() else seccomp.program(),
                "imports": imports,
                "warm": list(warm),
                "env": environment() | env,
                "path": self.backend.looked["path"],
            }
        )

    def install(self, files: dict[str, bytes]) -> None:
        self._tell({"op": "install", "files": _together(files)})
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
        language, disk = self.language, min(limits.disk_mb, self.backend.settings.disk_mb)
        self._make_room(limits, language)
        output = limits.output_kb << 10
        self._tell(
            {
                "op": "run",
                "argv": argv,
                "python": language.source,
                "arguments": list(arguments),
                "call": call and {"entry_point": call.entry_point, "args": call.args, "kwargs": call.kwargs},
                "serve": serve,
                "limits": rlimits(limits, language, counted="memory" in self.backend.looked["counters"]),
                "cpu_s": limits.cpu_s,
                "memory": (limits.memory_mb + language.memory_mb + disk) << 20,
                "disk": disk << 20,
                "inodes": limits.files + 8,
                "files": _together(files) if files else None,
                "fetch": None if fetch is None else list(fetch),
                "cap": disk << 20,
                "stdin": stdin,
                "output": output,
                "errors": min(output, _STDERR_CAP),
                "reports": call is not None or reports or channel is not None,
                "channel": channel is not None,
            }
        )  # fmt: skip
        talk = None if channel is None else _Talk(socket.socket(fileno=channel.detach()))
        try:
            return _Following(self, limits, stop, talk, compiled=_is_compiled(argv)).follow()
        finally:
            if talk is not None:
                talk.close()

    def _make_room(self, limits: Limits, language: Language) -> None:
        needed = limits.memory_mb + language.memory_mb + limits.disk_mb + _INIT_MB
        if needed <= self._memory_mb:
            return
        assert self._client is not None
        assert self._id is not None
        try:
            self._client.update_container(
                self._id, mem_limit=needed << 20, memswap_limit=needed << 20
            )
        except Exception as error:
            raise BoxFailed(f"no more memory for the container: {error}") from None
        self._memory_mb = needed

    # ── messages ─────────────────────────────────────────────────────────────────────────────────

    def _tell(self, message: dict[str, Any]) -> None:
        self.write(b"M", marshal.dumps(message, 2))

    def write(self, kind: bytes, content: bytes) -> None:
        """Raises BoxFailed."""
        assert self._socket is not None
        try:
            self._socket.sendall(struct.pack("<I", len(content)) + kind + content)
        except OSError as error:
            raise BoxFailed(f"{self.why()} ({error})") from None

    @property
    def socket(self) -> socket.socket:
        assert self._socket is not None
        return self._socket

    def read(self) -> None:
        """Takes in what has come. Raises BoxFailed at its end."""
        try:
            data = self.socket.recv(1 << 20)
        except OSError as error:
            raise BoxFailed(str(error)) from None
        if not data:
            raise BoxFailed(self.why())
        self._raw += data
        while len(self._raw) >= 8:
            size = int.from_bytes(self._raw[4:8], "big")
            if len(self._raw) < 8 + size:
                return
            into = self._frames if self._raw[0] == 1 else self._errors
            into += self._raw[8 : 8 + size]
            del self._raw[: 8 + size]

    def take(self) -> tuple[bytes, bytes] | None:
        """(kind, content) of the next whole frame of process 1, or None."""
        if len(self._frames) < 5:
            return None
        size = int.from_bytes(self._frames[:4], "little")
        if len(self._frames) < 5 + size:
            return None
        found = bytes(self._frames[4:5]), bytes(self._frames[5 : 5 + size])
        del self._frames[: 5 + size]
        return found

    def _frame(self, timeout_s: float) -> tuple[bytes, bytes]:
        until = time.monotonic() + timeout_s
        while (found := self.take()) is None:
            if not select.select([self.socket], [], [], max(0.0, until - time.monotonic()))[0]:
                raise BoxFailed("the container does not answer in time")
            self.read()
        return found

    def _hear(self, timeout_s: float) -> list[str]:
        kind, content = self._frame(timeout_s)
        if kind != b"W":
            raise BoxFailed(f"unexpected: {content[:200]!r}")
        return content.decode().split(" ")

    def why(self) -> str:
        return self._errors[-400:].decode("utf-8", "replace").strip() or "the container ended"


class _Talk:
    """The channel between a program in a container and its partner: bytes both ways, no more than the other takes."""

    def __init__(self, partner: socket.socket) -> None:
        self.partner = partner
        partner.setblocking(False)
        self.pending = bytearray()
        self.ending = False
        self.heard_all = False

    def hear(self) -> bytes | None:
        """What the partner says; empty at its end, None where it says nothing now."""
        try:
            data = self.partner.recv(_CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        self.heard_all = not data
        return data

    def say(self, data: bytes) -> None:
        if data:
            self.pending += data
        else:
            self.ending = True
        self.flush()

    def flush(self) -> None:
        try:
            while self.pending:
                del self.pending[: self.partner.send(self.pending[:_CHUNK])]
        except BlockingIOError:
            return
        except OSError:
            self.pending.clear()
        if self.ending:
            with suppress(OSError):
                self.partner.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.partner.close()


class _Following:
    """One run, from the word to start until process 1 says that nothing of it is left."""

    def __init__(
        self,
        box: ContainerBox,
        limits: Limits,
        stop: socket.socket | None,
        talk: _Talk | None,
        *,
        compiled: bool,
    ) -> None:
        self._box = box
        self._limits = limits
        self._stop = stop
        self._talk = talk
        self._compiled = compiled
        self._out = {b"1": bytearray(), b"2": bytearray(), b"3": bytearray()}
        cap = limits.output_kb << 10
        self._caps = {b"1": cap, b"2": min(cap, _STDERR_CAP), b"3": cap}
        self._files: dict[str, bytes] = {}
        self._started = False
        self._killed = ""
        self._starved = False
        self._began = time.monotonic()
        self._deadline = self._began + _START_S
        self._ended: list[str] | None = None
        self._outcome: Execution | None = None

    def follow(self) -> Execution:
        """Raises BoxFailed; BoxLost once the program runs."""
        try:
            while self._ended is None and self._outcome is None:
                while self._ended is None and self._outcome is None:
                    frame = self._box.take()
                    if frame is None:
                        break
                    self._hear(*frame)
                if self._ended is None and self._outcome is None:
                    self._wait()
        except BoxFailed as error:
            raise (BoxLost if self._started else BoxFailed)(str(error)) from None
        return self._outcome or self._execution()

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._box.socket, select.POLLIN)
        if self._stop is not None and self._killed != "cancelled":
            poll.register(self._stop, select.POLLIN)
        talk = self._talk
        if talk is not None:
            wanted = (0 if talk.heard_all else select.POLLIN) | (
                select.POLLOUT if talk.pending else 0
            )
            if wanted:
                poll.register(talk.partner, wanted)
        left = self._deadline - time.monotonic()
        for fd, _events in poll.poll(max(0.0, left) * 1e3):
            if fd == self._box.socket.fileno():
                self._box.read()
            elif self._stop is not None and fd == self._stop.fileno():
                self._kill("cancelled")
            elif talk is not None:
                talk.flush()
                if not talk.heard_all and (data := talk.hear()) is not None:
                    self._box.write(b"C", data)
        if time.monotonic() >= self._deadline:
            if not self._started or self._killed:
                raise BoxFailed("process 1 of the container does not answer")
            self._box._tell({"op": "waited"})
            self._deadline = time.monotonic() + _START_S

    def _kill(self, why: str) -> None:
        self._killed = self._killed or why
        self._box._tell({"op": "kill", "why": why})
        self._deadline = time.monotonic() + _START_S

    def _hear(self, kind: bytes, content: bytes) -> None:
        if kind in self._out:
            self._out[kind] += content
        elif kind == b"4":
            if self._talk is not None:
                self._talk.say(content)
                if len(self._talk.pending) > _MOST_PENDING and not self._killed:
                    self._kill("output")
        elif kind == b"F":
            self._files = dict(marshal.loads(content))
        elif kind == b"W":
            self._listen(content.decode("utf-8", "replace").split(" "))

    def _listen(self, words: list[str]) -> None:
        limits = self._limits
        match words[0]:
            case "started":
                self._started, self._began = True, time.monotonic()
                self._deadline = self._began + limits.wall_s
            case "waited" if not self._killed:
                waited = int(words[1]) / 1e6
                self._starved = waited > 0.1 * limits.wall_s
                until = self._began + min(limits.wall_s + waited, limits.wall_s * _MOST_STARVED)
                if until - time.monotonic() > 0.05:
                    self._deadline = until  # our load is not the program's
                else:
                    self._kill("wall")
            case "ended":
                self._ended = words
            case "unexecutable" if self._compiled:
                detail = " ".join(words[1:])
                self._outcome = Execution(Verdict.RUNTIME_ERROR, 126, detail=detail)
            case "refused" | "unexecutable":
                raise BoxFailed("the program could not be started: " + " ".join(words[1:]))

    def _execution(self) -> Execution:
        assert self._ended is not None
        _, by_init, status, used_us, took_us, peak_kb, full, left_out = self._ended
        killed = self._killed or ("" if by_init == "-" else by_init)
        code, cpu_s = int(status), int(used_us) / 1e6
        number = os.WTERMSIG(code) if os.WIFSIGNALED(code) else None
        over = {k: len(v) > self._caps[k] for k, v in self._out.items()}
        stdout, stderr, result = (bytes(v[: self._caps[k]]) for k, v in self._out.items())
        verdict = verdict_on(
            self._limits, self._box.language, killed, code, number, cpu_s, int(peak_kb), full == "1", stderr,
        )  # fmt: skip
        if verdict is Verdict.TIME_LIMIT and not killed:
            killed = "cpu"
        return Execution(
            verdict,
            None if number is not None else os.WEXITSTATUS(code),
            number,
            stdout,
            stderr,
            over[b"1"],
            over[b"2"],
            None if over[b"3"] else result,
            cpu_s,
            int(took_us) / 1e6,
            int(peak_kb) / 1024,
            killed,
            self._starved and killed == "wall" and cpu_s < self._limits.cpu_s,
            self._files,
            f"{left_out} files did not fit" if left_out != "0" else "",
        )


def _is_compiled(argv: list[str] | None) -> bool:
    """Whether what runs is the submission's own file: if the kernel does not take it, that is not our fault."""
    return argv is not None and argv[0].startswith("/build/")


def _together(files: dict[str, bytes]) -> tuple[list[tuple[str, int, int]], bytes]:
    """Files one behind the other, and (name, offset, size) of each."""
    index, offset = [], 0
    for name, content in files.items():
        index.append((name, offset, len(content)))
        offset += len(content)
    return index, b"".join(files.values())
