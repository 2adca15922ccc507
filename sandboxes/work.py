"""One submission on its way through a box, or two, or more where one dies.

A program that brings its box down is not to look like a failure of ours, or it could choose between being
wrong and not being counted. So after a box died under a program, a harmless program is run on the same
slot: if that works, the death is the program's.
"""

from __future__ import annotations

import hashlib
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sandboxes import languages, wire
from sandboxes.backend import Box, BoxFailed, BoxLost
from sandboxes.languages import Language
from sandboxes.program import Execution, Limits, Run, Submission, Verdict

if TYPE_CHECKING:
    from sandboxes.keeper import Keeper

_BUILD_MB = 256
_MAX_BUILT = 1500
_CANARY = Limits(cpu_s=5.0, wall_s=20.0, memory_mb=128)
_PEER_LEAVES_S = 0.1
_TIMES = 2

Tell = Callable[[dict[str, Any]], None]


class Seat:
    """One program of a submission and the box that it runs in: another one, where that dies."""

    def __init__(
        self,
        keeper: Keeper,
        language: Language,
        source: str,
        files: dict[str, bytes],
        preload: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        warm: tuple[str, ...] = (),
    ) -> None:
        self._keeper = keeper
        self._language = language
        self._source = source
        self._files = files
        self._preload = preload
        self._env = env or {}
        self._warm = warm
        self.compiled: dict[str, bytes] | None = None
        self._box: Box | None = None

    def ready(self) -> Box:
        """A box with the program's files in it. Raises BoxFailed."""
        if self._box is None:
            self._box = self._keeper.take(self._language)
            imports = languages.imports_of(self._source) if self._language.name == "python" else []
            self._box.setup(
                self._source,
                self._files,
                [*imports, *self._preload],
                _BUILD_MB,
                self._env,
                self._warm,
            )
            if self.compiled is not None:
                self._box.install(self.compiled)
        return self._box

    @property
    def whole(self) -> bool:
        """Whether its box can run more."""
        return self._box is not None and self._box.alive()

    def drop(self) -> None:
        if self._box is not None:
            self._keeper.throw_away(self._box)
            self._box = None

    def settled(self, done: Execution) -> Execution:
        """What an execution means when it is known whether its box, or only the program, is to blame."""
        if done.verdict is not Verdict.SANDBOX_FAILED and done.killed_by != "memory":
            return done
        self.drop()  # its process 1 is dead, or what the kernel killed was more than the program
        if done.verdict is Verdict.SANDBOX_FAILED and self.canary_lives():
            return replace(
                done,
                verdict=Verdict.RUNTIME_ERROR,
                detail=f"it brought its box down: {done.detail}",
            )
        return done

    def canary_lives(self) -> bool:
        python = languages.LANGUAGES["python"]
        try:
            box = self._keeper.take(python)
            try:
                box.setup("print('alive')", {}, [], _BUILD_MB, {})
                return box.run(None, _CANARY).stdout == b"alive\n"
            finally:
                self._keeper.throw_away(box)
        except BoxFailed:
            return False


class Work:
    """One submission on its way through its boxes."""

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
        kept = keeper.kept(self._key()) if submission.keep else None
        self._seat = kept or Seat(
            keeper,
            language,
            submission.source,
            submission.files,
            submission.preload,
            submission.env,
            submission.warm,
        )
        peer = submission.peer
        self._peer: Seat | None = None
        if peer is not None:
            python = languages.LANGUAGES["python"]
            self._peer = Seat(keeper, python, peer.source, peer.files)

    def run(self) -> None:
        try:
            if self._language.compile is not None and not self._compile():
                return
            self._keeper.fill()  # it starts while this one works
            for number, run in enumerate(self._submission.runs):
                if number and _readable(self._stop):
                    return
                if self._peer is None:
                    done = self._attempt(partial(self._once, run))
                else:
                    done = self._together(run, self._peer)
                self._tell({"run": number, "execution": wire.execution_out(done)})
                if done.killed_by == "cancelled" or (
                    self._submission.stop_on_failure and not done.ok
                ):
                    return
        finally:
            if self._submission.keep and self._seat.whole:
                self._keeper.keep_seat(self._key(), self._seat)
            else:
                self._seat.drop()
            if self._peer is not None:
                self._peer.drop()

    def _together(self, run: Run, peer: Seat) -> Execution:
        """Runs the program, and beside it the peer that it calls."""
        problem, lost = "", 0
        for _ in range(_TIMES):
            try:
                return self._once_together(run, peer)
            except (BoxFailed, OSError, ValueError, EOFError) as error:
                problem = f"{type(error).__name__}: {error}"
                lost += isinstance(error, BoxLost)
                self._seat.drop()
                peer.drop()
        if lost == _TIMES and peer.canary_lives():
            fell = Execution(Verdict.RUNTIME_ERROR, 126, detail=problem)
            return replace(fell, peer=fell)
        return Execution(Verdict.SANDBOX_FAILED, detail=problem)

    def _once_together(self, run: Run, peer: Seat) -> Execution:
        assert self._submission.peer is not None
        limits = self._submission.peer.limits
        box, beside = self._seat.ready(), peer.ready()
        ended: list[Execution | Exception] = []

        def follow(channel: socket.socket, stop: socket.socket) -> None:
            try:
                ended.append(beside.run(None, limits, channel=channel, serve=True, stop=stop))
            except Exception as error:
                ended.append(error)
            finally:
                channel.close()

        mine, theirs = socket.socketpair()
        halt, halted = socket.socketpair()
        thread = threading.Thread(target=follow, args=(theirs, halted), daemon=True)
        thread.start()
        with mine, halt, halted:
            try:
                done = self._once(run, box, channel=mine)
            finally:
                mine.close()
                thread.join(_PEER_LEAVES_S)  # its channel is closed, so it ends by itself
                if thread.is_alive():
                    halt.sendall(b"!")
                    thread.join()
        (other,) = ended
        if isinstance(other, Exception):
            raise other
        return replace(self._seat.settled(done), peer=peer.settled(other))

    def _once(self, run: Run, box: Box, channel: socket.socket | None = None) -> Execution:
        return box.run(
            self._argv(run.argv),
            self._submission.limits,
            stdin=run.stdin,
            arguments=run.argv,
            call=run.call,
            files=run.files,
            fetch=run.fetch,
            stop=self._stop,
            reports=run.reports,
            channel=channel,
        )

    def _argv(self, arguments: tuple[str, ...]) -> list[str] | None:
        if self._submission.command:
            return [*self._submission.command, *arguments]
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
        self._seat.compiled = self._keeper.compiled(key)
        if self._seat.compiled is not None:
            self._tell(
                {"compilation": wire.execution_out(Execution(Verdict.OK, 0, detail="cached"))}
            )
            return True
        command = list(language.compile or ())
        command[0] = self._keeper.backend.installed(language.name) or command[0]
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
                self._seat.compiled = files
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
        version = (
            "" if language is languages.COMMAND else self._keeper.backend.version(language.name)
        )
        parts = [language.name, version, language.compile, submission.source, sorted(submission.files.items()),
                 sorted(submission.env.items())]  # fmt: skip
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()

    def _attempt(self, work: Callable[[Box], Execution], *, blame: bool = False) -> Execution:
        """Runs something in the submission's box, in a new one where that failed before it began.

        ``blame``: whether what fails twice before it began can be the submission's doing. Then it is, if a
        harmless program runs on the same slot; and so is a box that was lost under the program twice.
        """
        problem, lost = "", 0
        for _ in range(_TIMES):
            try:
                return self._seat.settled(work(self._seat.ready()))
            except (BoxFailed, OSError, ValueError, EOFError) as error:
                problem = f"{type(error).__name__}: {error}"
                lost += isinstance(error, BoxLost)
                self._seat.drop()
        if (blame or lost == _TIMES) and self._seat.canary_lives():
            return Execution(Verdict.RUNTIME_ERROR, 126, detail=problem)
        return Execution(Verdict.SANDBOX_FAILED, detail=problem)


def _install(files: dict[str, bytes], box: Box) -> Execution:
    box.install(files)
    return Execution(Verdict.OK)


def _readable(sock: socket.socket) -> bool:
    return bool(select.select([sock], [], [], 0)[0])
