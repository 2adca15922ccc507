"""The pool: what the server asks to run submissions. One keeper process a slot, each with a box ahead.

>>> pool = SandboxPool(PoolSettings(slots=2))
>>> await pool.start()
>>> report = await pool.run(Submission("python", "print(input())", (Run(b"hello"),)))
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sandboxes import languages, wire
from sandboxes.budget import MemoryBudget
from sandboxes.container import DockerSettings
from sandboxes.program import (
    Execution,
    Mount,
    NoSlotInTime,
    OnRun,
    Report,
    SandboxLost,
    SandboxUnavailable,
    Submission,
)

_BOOT = (
    "import json,sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from sandboxes.keeper import main; main(int(sys.argv[1]))"
)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    slots: int = 2
    """How many submissions run at once."""
    first_uid: int = 61_000
    """Host users of the boxes where the server is root, one for each slot from here on."""
    cache: Path | None = None
    """Where compiled programs are kept; None: nowhere."""
    docker: DockerSettings | None = None
    """Where the boxes are containers."""
    packages: tuple[str, ...] = ()
    """Folders that Python programs may import from, such as one with numpy in it."""
    memory_mb: int | None = None
    """What all submissions may use together; None: four fifths of what the machine has."""
    mounts: tuple[Mount, ...] = ()
    """Folders that every box sees, read-only."""


@dataclass(slots=True, eq=False)
class _Slot:
    number: int
    process: asyncio.subprocess.Process | None = None
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None
    last_kept: int = 0
    """Hash of the last program whose box was to stay."""


class SandboxPool:
    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._idle: deque[_Slot] = deque(_Slot(n) for n in range(settings.slots))
        self._waiting: deque[asyncio.Future[_Slot]] = deque()
        self._slots = list(self._idle)
        self._numbers = 0
        self._memory = MemoryBudget(settings.memory_mb or _memory_mb() * 4 // 5)
        self.protections: tuple[str, ...] = ()
        """Those active; known once a keeper has started."""
        self.interpreter = ""
        self.runtime = ""
        """``bubblewrap``, or the id of the image; known once a keeper has started."""
        self.languages: frozenset[str] = frozenset()
        self.problem: str | None = None
        """Why nothing can run here."""

    @property
    def slots(self) -> int:
        return self._settings.slots

    @property
    def mounts(self) -> tuple[Mount, ...]:
        return self._settings.mounts

    @property
    def idle(self) -> int:
        """Slots that wait for a submission."""
        return len(self._idle)

    @property
    def keepers(self) -> list[int]:
        """Process ids of the keepers that are running."""
        return [slot.process.pid for slot in self._slots if slot.process is not None]

    async def start(self) -> None:
        """Starts the keepers. Where there can be none, ``problem`` says why and every run fails with it."""
        try:
            await asyncio.gather(*(self._ensure(slot) for slot in self._slots))
        except SandboxUnavailable as error:
            self.problem = str(error)

    async def active(self) -> tuple[str, ...]:
        """The protections of its boxes; starts a keeper to know. Raises SandboxUnavailable."""
        if not self.protections:
            slot = await self._take(None)
            try:
                await self._ensure(slot)
            finally:
                self._give(slot)
        return self.protections

    async def stop(self) -> None:
        for slot in self._slots:
            await self._end(slot)

    async def run(
        self, submission: Submission, on_run: OnRun | None = None, start_by: float | None = None
    ) -> Report:
        """Runs a submission, waiting for a slot until ``start_by`` (of the loop's clock). Where ``on_run`` is
        given, only that gets the outputs.

        A cancellation kills what runs. Raises SandboxUnavailable, SandboxLost, NoSlotInTime.
        """
        language = languages.language_named(submission.language)
        if language is None:
            known = ", ".join(languages.LANGUAGES)
            raise SandboxUnavailable(f"no language {submission.language!r}; there are {known}")
        async with self._memory.holding(_needs_mb(submission), start_by):
            return await self._run(language, submission, on_run, start_by)

    async def _run(
        self,
        language: languages.Language,
        submission: Submission,
        on_run: OnRun | None,
        start_by: float | None,
    ) -> Report:
        kept = hash(
            (
                submission.source,
                submission.command[:1],
                *submission.files.items(),
                *submission.env.items(),
            )
        )
        kept = kept if submission.keep else 0
        slot = await self._take(start_by, kept)
        healthy = False
        try:
            slot.last_kept = kept or slot.last_kept
            await self._ensure(slot)
            if language.name not in self.languages and language is not languages.COMMAND:
                healthy = True
                where = "the image" if self._settings.docker else "this machine"
                raise SandboxUnavailable(f"{language.name} is not on {where}: {language.install}")
            report = await self._converse(slot, submission, on_run)
            healthy = True
            return report
        finally:
            if not healthy:
                await self._end(slot)
            self._give(slot)

    # ── slots ────────────────────────────────────────────────────────────────────────────────────

    async def _take(self, start_by: float | None, kept: int = 0) -> _Slot:
        if start_by is not None and asyncio.get_running_loop().time() > start_by:
            raise NoSlotInTime("too little time is left for the limits of the submission")
        if self._idle:
            slot = next((s for s in self._idle if kept and s.last_kept == kept), self._idle[0])
            self._idle.remove(slot)
            return slot
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Slot] = loop.create_future()
        self._waiting.append(future)
        try:
            if start_by is None:
                return await future
            async with asyncio.timeout_at(start_by):
                return await future
        except (TimeoutError, asyncio.CancelledError) as error:
            if future.done() and not future.cancelled():
                self._give(future.result())
            elif future in self._waiting:
                self._waiting.remove(future)
            if isinstance(error, TimeoutError):
                raise NoSlotInTime(f"{self.slots} sandboxes were busy") from None
            raise

    def _give(self, slot: _Slot) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(slot)
                return
        self._idle.append(slot)

    async def _ensure(self, slot: _Slot) -> None:
        """Starts a slot's keeper where it has none. Raises SandboxUnavailable."""
        if slot.writer is not None:
            return
        ours, theirs = socket.socketpair()
        package_root = str(Path(__file__).resolve().parent.parent)
        path = [package_root, *(p for p in sys.path if p and p != package_root)]
        try:
            slot.process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-c", _BOOT, str(theirs.fileno()), json.dumps(path),
                pass_fds=[theirs.fileno()], env={}, stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        finally:
            theirs.close()
        slot.reader, slot.writer = await asyncio.open_connection(sock=ours)
        settings = self._settings
        docker = settings.docker
        setup = {
            "uid": settings.first_uid + slot.number if os.geteuid() == 0 or docker else None,
            "docker": docker and asdict(docker),
            "cache": str(settings.cache) if settings.cache else None,
            "packages": list(settings.packages),
            "mounts": [asdict(mount) for mount in settings.mounts],
        }
        try:
            slot.writer.write(wire.frame(setup))
            answer = await self._read(slot)
        except (SandboxLost, ConnectionError):
            await self._end(slot)
            raise SandboxUnavailable(
                "the sandbox's keeper does not start: see the server's standard error"
            ) from None
        if "unavailable" in answer:
            await self._end(slot)
            raise SandboxUnavailable(answer["unavailable"])
        self.protections = tuple(answer["protections"])
        self.interpreter = answer["interpreter"]
        self.runtime = answer["runtime"]
        self.languages = frozenset(answer["languages"])
        self.problem = None

    async def _end(self, slot: _Slot) -> None:
        process, writer = slot.process, slot.writer
        slot.process = slot.reader = slot.writer = None
        if writer is not None:
            writer.close()  # the keeper kills its boxes and ends
            with suppress(ConnectionError):
                await writer.wait_closed()
        if process is not None:
            try:
                async with asyncio.timeout(5):
                    await process.wait()
            except TimeoutError:
                with suppress(ProcessLookupError):
                    process.kill()  # its boxes die with it
                await process.wait()

    # ── a submission ─────────────────────────────────────────────────────────────────────────────

    async def _converse(self, slot: _Slot, submission: Submission, on_run: OnRun | None) -> Report:
        self._numbers += 1
        number = self._numbers
        assert slot.writer is not None
        try:
            slot.writer.write(
                wire.frame({"number": number, "submission": wire.submission_out(submission)})
            )
            await slot.writer.drain()
        except ConnectionError as error:
            raise SandboxLost(str(error)) from None
        compilation: Execution | None = None
        runs: list[Execution] = []
        stopped = False
        while True:
            message = await self._read(slot)
            if "done" in message:
                if message["done"] == number:
                    if message["problem"]:
                        raise SandboxLost(message["problem"])
                    return Report(compilation, tuple(runs), self.protections)
            elif "compilation" in message:
                compilation = wire.execution_in(message["compilation"])
            elif not stopped:
                runs.append(wire.execution_in(message["execution"]))
                last = len(runs) == len(submission.runs)
                stop = False if on_run is None else on_run(len(runs) - 1, runs[-1])
                if not isinstance(stop, bool):
                    stop = await stop
                if (
                    on_run is not None
                ):  # who heard of it has the output, and many large ones are too many
                    runs[-1] = runs[-1].but(stdout=b"", result=None, files={})
                if stop and not last:
                    stopped = True
                    slot.writer.write(wire.frame({"stop": number}))

    async def _read(self, slot: _Slot) -> dict[str, Any]:
        assert slot.reader is not None
        try:
            (size,) = wire.HEADER.unpack(await slot.reader.readexactly(wire.HEADER.size))
            found: dict[str, Any] = wire.unpack(await slot.reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise SandboxLost(f"the keeper of slot {slot.number} died: {error}") from None
        return found


def _needs_mb(submission: Submission) -> int:
    limits = [submission.limits]
    if submission.peer is not None:
        limits.append(submission.peer.limits)
    return sum(one.memory_mb + one.disk_mb for one in limits)


def _memory_mb() -> int:
    """Of this machine, or of the container that this is."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            found.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return min(found) >> 20
