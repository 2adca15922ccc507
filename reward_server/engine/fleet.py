"""The fleet: the zygote and the workers it forks, as the server sees them.

Starts and replaces processes, passes bytes and ends on; knows nothing of what they grade. A worker's end
is reported once both are known: that its last bytes were read, and the exit status that the zygote reaped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import structlog

from reward_server.engine import zygote
from reward_server.engine.base import Work
from reward_server.engine.wire import MAX_FRAME
from reward_server.engine.worker import PROGRESS_BYTES
from reward_server.frames import FrameBuffer

log = structlog.get_logger(__name__)

_START_WITHIN_S = 60
_FORK_AGAIN_S = 0.5
_SCRUBBED_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # so that an order of iteration can never make two workers differ
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(eq=False, slots=True)
class Slot:
    """A worker as the server sees it."""

    token: int
    page: memoryview
    transport: asyncio.Transport | None = None
    pid: int = 0
    frames: FrameBuffer = field(default_factory=lambda: FrameBuffer(MAX_FRAME))
    chunk_number: int = 0
    chunk: list[Work | None] | None = None
    """The works in hand; one that is settled becomes None."""
    served: int = 0
    leaving: bool = False
    killed_for: str | None = None
    status: int | None = None
    """Wait status, once the zygote has reaped it."""
    hung_up: bool = False
    seen: tuple[int, int] = (0, -1)
    seen_at: float = 0.0
    given_at: float = 0.0
    killed_at: float = -math.inf

    def hang_up(self) -> None:
        """Closes the connection; a worker that hears it ends."""
        if self.transport is not None:
            self.transport.abort()

    @property
    def idle(self) -> bool:
        return self.pid != 0 and self.chunk is None and not self.leaving and not self.hung_up


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the engine wants to hear."""

    changed: Callable[[], None]
    """A worker may have become free."""
    data: Callable[[Slot, bytes], None]
    ended: Callable[[Slot], None]
    """A worker is gone; its ``status`` is known."""


class _Link(asyncio.Protocol):
    """Bytes from one worker."""

    def __init__(self, fleet: Fleet, slot: Slot) -> None:
        self._fleet = fleet
        self._slot = slot

    def data_received(self, data: bytes) -> None:
        self._fleet.hooks.data(self._slot, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._slot.hung_up = True
        self._fleet._settle(self._slot)


class Fleet:
    """Keeps ``workers`` processes alive. ``setup`` is the zygote's first message."""

    def __init__(self, workers: int, setup: dict[str, Any], hooks: Hooks) -> None:
        self.hooks = hooks
        self.slots: dict[int, Slot] = {}
        self.zygote: subprocess.Popen[bytes] | None = None
        self._wanted = workers
        self._setup = setup
        self._tokens = 0
        self._closing = False
        self._control: socket.socket | None = None
        self._ready: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Raises RuntimeError with the reason where workers cannot start."""
        self._loop = asyncio.get_running_loop()
        await self._start_zygote()

    async def close(self) -> None:
        self._closing = True
        for task in self._tasks:
            task.cancel()
        for slot in self.slots.values():
            slot.hang_up()
        self._drop_control()
        if self.zygote is not None:
            # Its control socket is closed, so it ends; the kernel then kills the workers.
            try:
                await asyncio.to_thread(self.zygote.wait, 5)
            except subprocess.TimeoutExpired:
                self.zygote.kill()
                await asyncio.to_thread(self.zygote.wait)

    @property
    def pids(self) -> list[int]:
        """Of the workers that are alive."""
        return [s.pid for s in self.slots.values() if s.pid and not s.hung_up]

    def kill(self, slot: Slot, reason: str) -> None:
        slot.killed_for = reason
        slot.killed_at = time.monotonic()
        if self._control is not None:
            with contextlib.suppress(OSError):
                zygote.send(self._control, {"do": "kill", "token": slot.token})

    async def _start_zygote(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.zygote = subprocess.Popen(
                [sys.executable, "-I", zygote.__file__, str(theirs.fileno())],
                env=_SCRUBBED_ENVIRONMENT,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._control = ours
        zygote.send(ours, self._setup)
        ours.setblocking(False)
        self._ready = self._loop.create_future()
        self._loop.add_reader(ours, self._on_control)
        try:
            await asyncio.wait_for(self._ready, _START_WITHIN_S)
        except BaseException:
            self._drop_control()
            self.zygote.kill()
            await asyncio.to_thread(self.zygote.wait)
            raise
        for _ in range(self._wanted):
            self._spawn()

    def _spawn(self) -> None:
        if self._closing or self._control is None or len(self.slots) >= self._wanted:
            return
        self._tokens += 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        page_fd = os.memfd_create("progress")
        os.ftruncate(page_fd, PROGRESS_BYTES)
        page = memoryview(mmap.mmap(page_fd, PROGRESS_BYTES)).cast("q")
        page[1] = -1
        slot = Slot(self._tokens, page)
        self.slots[slot.token] = slot
        try:
            fds = (theirs.fileno(), page_fd)
            zygote.send(self._control, {"do": "fork", "token": slot.token}, fds)
        except OSError:
            del self.slots[slot.token]
            ours.close()
            return  # the control socket's own end is handled by _on_control
        finally:
            theirs.close()
            os.close(page_fd)
        ours.setblocking(False)
        self._background(self._connect(slot, ours))

    async def _connect(self, slot: Slot, sock: socket.socket) -> None:
        transport, _ = await self._loop.create_unix_connection(lambda: _Link(self, slot), sock=sock)
        slot.transport = transport
        self.hooks.changed()

    def _on_control(self) -> None:
        assert self._control is not None
        while True:
            try:
                data = self._control.recv(zygote.MAX_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._on_zygote_lost()
                return
            self._on_event(json.loads(data))

    def _on_event(self, message: dict[str, Any]) -> None:
        match message["event"]:
            case "ready":
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(None)
            case "failed":
                if self._ready is not None and not self._ready.done():
                    error = RuntimeError(f"grading workers cannot start:\n{message['detail']}")
                    self._ready.set_exception(error)
            case "forked":
                if slot := self.slots.get(message["token"]):
                    slot.pid = message["pid"]
                    self.hooks.changed()
            case "fork_failed":
                log.warning("fork failed", detail=message["detail"])
                if slot := self.slots.pop(message["token"], None):
                    slot.hang_up()
                self._loop.call_later(_FORK_AGAIN_S, self._spawn)
            case "exit":
                if slot := self.slots.get(message["token"]):
                    slot.status = message["status"]
                    self._settle(slot)

    def _on_zygote_lost(self) -> None:
        self._drop_control()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(RuntimeError("the zygote ended before it was ready"))
            return
        if self._closing:
            return
        log.error("zygote lost; starting another")
        if self.zygote is not None:
            self.zygote.kill()
            self._background(asyncio.to_thread(self.zygote.wait))
        for slot in list(self.slots.values()):  # its workers die with it, unreaped by us
            slot.status = slot.status if slot.status is not None else signal.SIGKILL
            slot.hang_up()
            self._settle(slot)
        self._background(self._restart_zygote())

    def _drop_control(self) -> None:
        if self._control is not None:
            self._loop.remove_reader(self._control)
            self._control.close()
            self._control = None

    async def _restart_zygote(self) -> None:
        delay = 0.1
        while not self._closing:
            try:
                await self._start_zygote()
                return
            except (RuntimeError, OSError, TimeoutError) as error:
                log.error("zygote does not start", error=str(error)[:2000], retry_in_s=delay)
                await asyncio.sleep(delay)
                delay = min(delay * 2, 10)

    def _settle(self, slot: Slot) -> None:
        if slot.status is None or not slot.hung_up or self.slots.pop(slot.token, None) is None:
            return
        if not self._closing:
            self.hooks.ended(slot)
            self._spawn()

    def _background(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
