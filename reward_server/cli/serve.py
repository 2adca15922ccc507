"""``reward-server serve``."""

from __future__ import annotations

import gc
import ipaddress
import signal
import socket
import sys

import structlog
import uvicorn

from reward_server import logs
from reward_server.app import create_app
from reward_server.cli.shared import Fail, open_or_fail
from reward_server.settings import Settings
from reward_server.store.keys import KeyRing

log = structlog.get_logger(__name__)

_KEEP_ALIVE_S = 75


def serve(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, then finishes what it accepted."""
    logs.configure(settings.log_level, settings.log_format)
    database = open_or_fail(settings)
    ring = KeyRing(database)
    ring.load()
    database.close()
    if not is_loopback(settings.host) and not ring.required:
        raise Fail(
            f"refusing to bind to {settings.host} without API keys: anyone who reaches it could "
            "score and register. Make one with 'reward-server keys create NAME --scope admin', or "
            "bind to 127.0.0.1"
        )
    try:
        sock = _bind(settings.host, settings.port)
    except OSError as error:
        raise Fail(f"cannot bind to {settings.host}:{settings.port}: {error.strerror}") from None
    port = sock.getsockname()[1]
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    config = uvicorn.Config(
        create_app(settings),
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        loop="uvloop",
        http="httptools",
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_grace_s)),
        limit_concurrency=None,
    )
    log.info(
        "serving",
        url=f"http://{shown}:{port}",
        docs=f"http://{shown}:{port}/docs",
        database=database.engine.url.render_as_string(hide_password=True),
        workers=settings.workers,
        keys="required" if ring.required else "none (loopback only)",
    )
    server = _Server(config)
    for which in (signal.SIGTERM, signal.SIGINT):
        # uvicorn stops gracefully, then raises the signal again: that is the end, and a good one.
        signal.signal(which, lambda *_: sys.exit(0))
    try:
        with sock:
            server.run(sockets=[sock])
    finally:
        if not server.started:
            raise Fail("the server did not start; see the log above") from None


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What exists now stays; and cyclic garbage is rare here, while requests make many objects
        # that live for milliseconds. With the default thresholds collections cost a third of the time.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 100)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        waiting = len(self.server_state.tasks)
        if waiting:
            log.info("finishing what was accepted", requests=waiting)
        await super().shutdown(sockets)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock
