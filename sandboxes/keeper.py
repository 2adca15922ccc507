"""A keeper: the process behind one slot of the pool. It makes boxes and runs submissions in them.

One keeper runs one submission at a time, in a box of its own that is thrown away afterwards, and keeps one
more box started, so that a submission waits for none. It is a process apart from the server because it
forks, may be root, and measures time: a busy event loop would disturb all three. It reads nothing of what a
program writes but its outputs, as bytes.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections import OrderedDict, deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack

from sandboxes import languages, wire
from sandboxes.backend import Backend, Box, BoxFailed
from sandboxes.box import BubblewrapBackend, house
from sandboxes.languages import Language
from sandboxes.program import Mount, SandboxUnavailable, Submission
from sandboxes.work import Seat, Tell, Work

_CACHE_BYTES = 512 << 20
_MOST_KEPT = 4
"""Boxes that stay for later submissions: one interpreter each."""
_MAX_COMPILED = 64 << 20


class Keeper:
    def __init__(self, backend: Backend, cache: Path | None) -> None:
        self.backend = backend
        self._cache = cache
        self._spares: deque[Box] = deque()
        self._ahead = 1
        self._leaving: list[Box] = []
        self._working: dict[str, bool] = {}
        self._kept: OrderedDict[str, Seat] = OrderedDict()

    def fill(self) -> None:
        """Starts the next boxes, in the background: as many as the last submission took."""
        for box in [box for box in self._spares if not box.alive()]:
            self._spares.remove(box)
            self.throw_away(box)
        while len(self._spares) < self._ahead:
            self._spares.append(self.backend.box(languages.LANGUAGES["python"]))

    def close(self) -> None:
        """Ends every box, and waits until nothing of them is left."""
        while self._kept:
            self._kept.popitem()[1].drop()
        while self._spares:
            self.throw_away(self._spares.pop())
        for box in self._leaving:
            box.wait_until_gone()

    def sweep(self) -> None:
        """Reaps boxes that were thrown away."""
        self._leaving = [box for box in self._leaving if not box.gone()]

    def submit(self, submission: Submission, tell: Tell, stop: socket.socket) -> None:
        """Runs a submission; ``tell`` hears of the compilation and of each run as it ends."""
        self._ahead = 1 if submission.peer is None else 2
        Work(self, submission, tell, stop).run()
        self.sweep()

    def take(self, language: Language) -> Box:
        """A box that is ready. Raises BoxFailed."""
        self.fill()
        box = self._spares.popleft()
        box.language = language
        try:
            box.wait_ready()
        except BoxFailed:
            self.throw_away(box)
            raise
        return box

    def throw_away(self, box: Box) -> None:
        box.close()
        self._leaving.append(box)

    # ── boxes that stay ──────────────────────────────────────────────────────────────────────────

    def kept(self, key: str) -> Seat | None:
        """The box that an earlier submission of the same program left; it is the caller's now."""
        seat = self._kept.pop(key, None)
        if seat is not None and not seat.whole:
            seat.drop()
            return None
        return seat

    def keep_seat(self, key: str, seat: Seat) -> None:
        self._kept[key] = seat
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)[1].drop()

    def toolchain_works(self, language: Language) -> bool:
        """Whether a language's compiler takes a program without fault; asked once."""
        if language.name not in self._working:
            told: list[dict[str, Any]] = []
            ours, theirs = socket.socketpair()
            try:
                # Itself it must not ask, so it is taken to work meanwhile.
                self._working[language.name] = True
                Work(self, Submission(language.name, language.hello, ()), told.append, theirs).run()
            finally:
                ours.close()
                theirs.close()
            compiled = [wire.execution_in(m["compilation"]) for m in told if "compilation" in m]
            self._working[language.name] = bool(compiled) and compiled[0].ok
        return self._working[language.name]

    # ── compiled programs ────────────────────────────────────────────────────────────────────────

    def compiled(self, key: str) -> dict[str, bytes] | None:
        if self._cache is None:
            return None
        path = self._cache / key
        try:
            found: dict[str, bytes] = msgpack.unpackb(path.read_bytes(), raw=False)
            os.utime(path)
        except (OSError, ValueError, msgpack.UnpackException):
            return None
        return found

    def keep(self, key: str, files: dict[str, bytes]) -> None:
        if self._cache is None or sum(map(len, files.values())) > _MAX_COMPILED:
            return
        with suppress(OSError):  # a cache that cannot be written is a slow one
            self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = self._cache / f".{key}.{os.getpid()}"
            new.write_bytes(msgpack.packb(files))
            new.rename(self._cache / key)
            self._trim()

    def _trim(self) -> None:
        assert self._cache is not None
        files = [(p, p.stat()) for p in self._cache.iterdir()]
        total = sum(s.st_size for _, s in files)
        for path, status in sorted(files, key=lambda f: f[1].st_mtime):
            if total <= _CACHE_BYTES:
                break
            path.unlink(missing_ok=True)
            total -= status.st_size


def _backend(setup: dict[str, Any]) -> Backend:
    """Raises SandboxUnavailable."""
    mounts = tuple(Mount(**mount) for mount in setup["mounts"])
    if setup["docker"] is not None:
        from sandboxes.container import DockerSettings, docker_backend  # noqa: PLC0415

        return docker_backend(DockerSettings(**setup["docker"]), setup["uid"], mounts)
    return BubblewrapBackend(house(setup["uid"], tuple(setup["packages"]), mounts))


def main(fd: int) -> None:
    """The keeper's process: submissions in, executions out, until the server closes the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the server's to handle
    server = socket.socket(fileno=fd)

    def tell(message: dict[str, Any]) -> None:
        server.sendall(wire.frame(message))

    setup = _receive(server)
    if setup is None:
        return
    try:
        backend = _backend(setup)
    except SandboxUnavailable as error:
        tell({"unavailable": str(error)})
        return
    backend.sweep()
    cache = Path(setup["cache"]) if setup["cache"] else None
    keeper = Keeper(backend, cache)
    keeper.fill()
    tell(
        {
            "protections": list(backend.protections),
            "interpreter": backend.interpreter,
            "runtime": backend.runtime,
            "languages": [name for name in languages.LANGUAGES if backend.installed(name)],
        }
    )
    gc.freeze()
    try:
        while (message := _receive(server)) is not None:
            if "submission" not in message:
                continue  # a word to stop what has ended meanwhile
            problem = ""
            try:
                keeper.submit(wire.submission_in(message["submission"]), tell, server)
            except BoxFailed as error:
                problem = str(error)
            tell({"done": message["number"], "problem": problem})
            keeper.fill()
            keeper.sweep()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the server is gone
    finally:
        keeper.close()


def _receive(sock: socket.socket) -> dict[str, Any] | None:
    header = _exactly(sock, wire.HEADER.size)
    if header is None:
        return None
    body = _exactly(sock, wire.HEADER.unpack(header)[0])
    return None if body is None else wire.unpack(body)


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        piece = sock.recv(min(1 << 20, size - len(found)))
        if not piece:
            return None
        found += piece
    return bytes(found)


if __name__ == "__main__":
    main(int(sys.argv[1]))
