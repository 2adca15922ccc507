"""A keeper: the process behind one slot of the pool. It makes boxes and runs submissions in them.

One keeper runs one submission at a time, in a box of its own that is thrown away afterwards, and keeps one
more box started, so that a submission waits for none. It is a process apart from the server because it
forks, may be root, and measures time: a busy event loop would disturb all three. It reads nothing of what a
program writes but its outputs, as bytes.

A program that brings its box down is not to look like a failure of ours, or it could choose between being
wrong and not being counted. So after a box died under a program, a harmless program is run on the same
slot: if that works, the death is the program's.
"""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgpack

from sandboxes import cgroups, languages, wire
from sandboxes.box import Box, BoxFailed, house
from sandboxes.house import House
from sandboxes.languages import Language
from sandboxes.program import Execution, Limits, Run, SandboxUnavailable, Submission, Verdict

_BUILD_MB = 256
_CACHE_BYTES = 512 << 20
_MAX_COMPILED = 64 << 20
_MAX_BUILT = 1500
_CANARY = Limits(cpu_s=5.0, wall_s=20.0, memory_mb=128)

Tell = Callable[[dict[str, Any]], None]


class Keeper:
    def __init__(self, made: House, cache: Path | None) -> None:
        self.house = made
        self._cache = cache
        self._spare: Box | None = None
        self._leaving: list[Box] = []
        self._working: dict[str, bool] = {}

    def fill(self) -> None:
        """Starts the next box, in the background."""
        if self._spare is not None and not self._spare.alive():
            self.throw_away(self._spare)
            self._spare = None
        if self._spare is None:
            self._spare = Box(self.house, languages.LANGUAGES["python"])

    def close(self) -> None:
        """Ends every box, and waits until nothing of them is left."""
        if self._spare is not None:
            self.throw_away(self._spare)
            self._spare = None
        for box in self._leaving:
            box.wait_until_gone()

    def sweep(self) -> None:
        """Reaps boxes that were thrown away."""
        self._leaving = [box for box in self._leaving if not box.gone()]

    def submit(self, submission: Submission, tell: Tell, stop: socket.socket) -> None:
        """Runs a submission; ``tell`` hears of the compilation and of each run as it ends."""
        _Work(self, submission, tell, stop).run()
        self.sweep()

    def take(self, language: Language) -> Box:
        """A box that is ready. Raises BoxFailed."""
        self.fill()
        box, self._spare = self._spare, None
        assert box is not None
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

    def toolchain_works(self, language: Language) -> bool:
        """Whether a language's compiler takes a program without fault; asked once."""
        if language.name not in self._working:
            told: list[dict[str, Any]] = []
            ours, theirs = socket.socketpair()
            try:
                # Itself it must not ask, so it is taken to work meanwhile.
                self._working[language.name] = True
                _Work(
                    self, Submission(language.name, language.hello, ()), told.append, theirs
                ).run()
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


class _Work:
    """One submission on its way through a box, or several where one dies."""

    def __init__(
        self, keeper: Keeper, submission: Submission, tell: Tell, stop: socket.socket
    ) -> None:
        self._keeper = keeper
        self._submission = submission
        language = languages.language_named(submission.language)
        assert language is not None
        self._language = language
        self._tell = tell
        self._stop = stop
        self._compiled: dict[str, bytes] | None = None
        self._box: Box | None = None

    def run(self) -> None:
        try:
            if self._language.compile is not None and not self._compile():
                return
            self._keeper.fill()  # it starts while this one works
            for number, run in enumerate(self._submission.runs):
                if number and _readable(self._stop):
                    return
                done = self._attempt(partial(self._once, run))
                self._tell({"run": number, "execution": wire.execution_out(done)})
                if done.killed_by == "cancelled" or (
                    self._submission.stop_on_failure and not done.ok
                ):
                    return
        finally:
            if self._box is not None:
                self._keeper.throw_away(self._box)

    def _once(self, run: Run, box: Box) -> Execution:
        return box.run(
            self._argv(run.argv),
            self._submission.limits,
            stdin=run.stdin,
            arguments=run.argv,
            call=run.call,
            files=run.files,
            fetch=run.fetch,
            stop=self._stop,
        )

    def _argv(self, arguments: tuple[str, ...]) -> list[str] | None:
        if not self._language.run:
            return None
        memory = str(self._submission.limits.memory_mb)
        run = [
            a.replace("{build}", "/build").replace("{memory}", memory) for a in self._language.run
        ]
        return [*run, *arguments]

    def _compile(self) -> bool:
        """Whether there is a program to run now."""
        submission, language = self._submission, self._language
        key = self._key()
        self._compiled = self._keeper.compiled(key)
        if self._compiled is not None:
            self._tell(
                {"compilation": wire.execution_out(Execution(Verdict.OK, 0, detail="cached"))}
            )
            return True
        command = list(language.compile or ())
        command[0] = languages.installed(language.name) or command[0]
        limits = submission.compile_limits or language.compile_limits
        done = self._attempt(lambda box: box.run(command, limits, fetch=None, stop=self._stop))
        if done.verdict is Verdict.OK and not done.files:
            done = done.but(verdict=Verdict.COMPILE_ERROR, detail="the compiler left no program")
        elif done.verdict is Verdict.OK and (done.detail or len(done.files) > _MAX_BUILT):
            done = done.but(
                verdict=Verdict.COMPILE_ERROR, detail=f"too much was compiled: {done.detail}"
            )
        elif done.verdict is Verdict.RUNTIME_ERROR:
            done = done.but(verdict=Verdict.COMPILE_ERROR)
        if done.ok:
            files = done.files
            installed = self._attempt(partial(_install, files), blame=True)
            if installed.ok:
                self._compiled = files
                self._keeper.keep(key, files)
            elif installed.verdict is not Verdict.SANDBOX_FAILED:
                done = done.but(
                    verdict=Verdict.COMPILE_ERROR, detail="what was compiled cannot be installed"
                )
            else:
                done = installed
        if (
            done.verdict is not Verdict.SANDBOX_FAILED
            and not done.ok
            and done.killed_by != "cancelled"
        ):
            if not self._keeper.toolchain_works(language):
                text = f"{language.name} cannot compile a test program; is it all there? {language.install}"
                done = done.but(verdict=Verdict.SANDBOX_FAILED, detail=text)
        self._tell({"compilation": wire.execution_out(done.but(files={}))})
        return done.ok

    def _key(self) -> str:
        submission, language = self._submission, self._language
        parts = [language.name, languages.version(language.name), language.compile, submission.source,
                 sorted(submission.files.items())]  # fmt: skip
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()

    def _attempt(self, work: Callable[[Box], Execution], *, blame: bool = False) -> Execution:
        """Runs something in the submission's box, in a new one where that failed before it began.

        ``blame``: whether what fails twice before it began can be the submission's doing. Then it is, if a
        harmless program runs on the same slot.
        """
        problem = ""
        for _ in range(2):
            try:
                box = self._ready()
                done = work(box)
            except (BoxFailed, OSError, ValueError, EOFError) as error:
                problem = f"{type(error).__name__}: {error}"
                self._drop()
                continue
            if done.verdict is not Verdict.SANDBOX_FAILED and done.killed_by != "memory":
                return done
            self._drop()  # its process 1 is dead, or what the kernel killed was more than the program
            if done.verdict is Verdict.SANDBOX_FAILED and self._canary_lives():
                return replace(
                    done,
                    verdict=Verdict.RUNTIME_ERROR,
                    detail=f"it brought its box down: {done.detail}",
                )
            return done
        if blame and self._canary_lives():
            return Execution(Verdict.RUNTIME_ERROR, 126, detail=problem)
        return Execution(Verdict.SANDBOX_FAILED, detail=problem)

    def _ready(self) -> Box:
        """The submission's box, with its files in it. Raises BoxFailed."""
        if self._box is None:
            self._box = self._keeper.take(self._language)
            submission = self._submission
            imports = (
                languages.imports_of(submission.source) if self._language.name == "python" else []
            )
            self._box.setup(submission.source, submission.files, imports, _BUILD_MB)
            if self._compiled is not None:
                self._box.install(self._compiled)
        return self._box

    def _drop(self) -> None:
        if self._box is not None:
            self._keeper.throw_away(self._box)
            self._box = None

    def _canary_lives(self) -> bool:
        python = languages.LANGUAGES["python"]
        try:
            box = self._keeper.take(python)
            try:
                box.setup("print('alive')", {}, [], _BUILD_MB)
                return box.run(None, _CANARY).stdout == b"alive\n"
            finally:
                self._keeper.throw_away(box)
        except BoxFailed:
            return False


def _install(files: dict[str, bytes], box: Box) -> Execution:
    box.install(files)
    return Execution(Verdict.OK)


def _readable(sock: socket.socket) -> bool:
    import select  # noqa: PLC0415

    return bool(select.select([sock], [], [], 0)[0])


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
        made = house(setup["uid"], tuple(setup["packages"]))
    except SandboxUnavailable as error:
        tell({"unavailable": str(error)})
        return
    cgroups.sweep(made.groups, lambda pid: Path(f"/proc/{pid}").exists())
    cache = Path(setup["cache"]) if setup["cache"] else None
    keeper = Keeper(made, cache)
    keeper.fill()
    tell({"protections": list(made.protections), "interpreter": made.interpreter})
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
