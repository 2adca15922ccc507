"""The zygote: a small process that has everything preloaded and forks grading workers.

Theory of operation. The server starts one zygote with an empty environment and one socket. The zygote
imports the kinds once, then forks a worker for each request that carries the worker's own socket and
progress page; a fork takes a few milliseconds and shares memory. It is its workers' parent, so it alone
reaps them: it reports each one's exit status to the server, and kills a worker when told to, without
the race of a recycled pid. It never reads what a worker writes.

When the server goes, the socket closes and the zygote ends; when the zygote ends, its workers are killed
by the kernel (PR_SET_PDEATHSIG).

``python -m multiprocessing``'s own forkserver is not used because it inherits the server's environment
(database URL, keys) and hides exit statuses.
"""

from __future__ import annotations

import array
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any

MAX_MESSAGE = 1 << 16


def send(sock: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """One message on a SEQPACKET socket, with file descriptors."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([json.dumps(message).encode()], ancillary)


def main(control_fd: int) -> None:
    control = socket.socket(fileno=control_fd)
    control.setblocking(True)
    setup = json.loads(control.recv(MAX_MESSAGE))
    try:
        sys.path[:] = setup["path"]
        module, _, attribute = setup["catalog"].partition(":")
        catalog = getattr(importlib.import_module(module), attribute)
        for name in {name for kind in catalog.kinds.values() for name in kind.preload}:
            importlib.import_module(name)
        from reward_server.engine.worker import WorkerLimits  # noqa: PLC0415

        limits = WorkerLimits(**setup["limits"])
    except BaseException:
        send(control, {"event": "failed", "detail": traceback.format_exc()[-4000:]})
        return
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, the shared pages
    send(control, {"event": "ready"})
    _serve(control, catalog, limits)


def _serve(control: socket.socket, catalog: Any, limits: Any) -> None:
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C reaches the group; the server decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    children: dict[int, int] = {}  # pid -> token
    while True:
        sources: list[Any] = [control, wake_read]
        readable, _, _ = select.select(sources, [], [])
        if wake_read in readable:
            _drain(wake_read)
        for token, pid, status in _reaped(children):
            send(control, {"event": "exit", "token": token, "pid": pid, "status": status})
        if control not in readable:
            continue
        data, fds, _, _ = socket.recv_fds(control, MAX_MESSAGE, 2)
        if not data:
            return  # the server is gone
        message = json.loads(data)
        if message["do"] == "fork":
            try:
                pid = _fork(control, tuple(fds), (wake_read, wake_write), catalog, limits)
            except OSError as error:  # EAGAIN, ENOMEM: the server tries again later
                reply = {"event": "fork_failed", "token": message["token"], "detail": str(error)}
            else:
                children[pid] = message["token"]
                reply = {"event": "forked", "token": message["token"], "pid": pid}
            finally:
                for fd in fds:
                    os.close(fd)
            send(control, reply)
        elif message["do"] == "kill":
            for pid, token in children.items():
                if token == message["token"]:
                    os.kill(pid, signal.SIGKILL)


def _fork(
    control: socket.socket, fds: tuple[int, ...], wake: tuple[int, int], catalog: Any, limits: Any
) -> int:
    sock_fd, page_fd = fds
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        for which in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(which, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(0)
        control.close()
        for fd in wake:
            os.close(fd)
        from reward_server.engine import worker  # noqa: PLC0415

        worker.main(socket.socket(fileno=sock_fd), page_fd, catalog, limits)
    return pid


def _reaped(children: dict[int, int]) -> list[tuple[int, int, int]]:
    gone = []
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            break
        gone.append((children.pop(pid, -1), pid, status))
    return gone


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]))
