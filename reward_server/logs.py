"""Logging: structlog at one sink, which strips control characters.

A completion, a grader's name or a header may hold terminal escapes or forged lines; whatever a caller of
the log passes, one event is one line of printable text. Completions are not logged at info level.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, WrappedLogger

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_MAX_TEXT = 8000


def configure(level: str, style: str, stream: TextIO | None = None) -> None:
    """Sets up structlog and routes the standard library's loggers (uvicorn, alembic) into it."""
    out = stream or sys.stderr
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        strip_control_characters,
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.dev.ConsoleRenderer(colors=out.isatty(), pad_event_to=0)
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_ToStructlog()]
    root.setLevel(max(_LEVELS[level], logging.INFO))
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "alembic"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.getLogger("alembic").setLevel(logging.WARNING)


def strip_control_characters(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """The last processor before rendering: every string, at any depth, made printable."""
    return {
        printable(str(k)): printable(str(v), "\n") if k == "exception" else _clean(v)
        for k, v in event.items()
    }


def printable(text: str, allowed: str = "") -> str:
    """The text with U+FFFD for what is not printable; a line break could forge a log line."""
    shown = text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
    return "".join(c if c.isprintable() or c in allowed else "\ufffd" for c in shown)


def _clean(value: Any, depth: int = 4) -> Any:
    if isinstance(value, bool | int | float | None):
        return value
    if depth and isinstance(value, dict):
        return {printable(str(k)): _clean(v, depth - 1) for k, v in value.items()}
    if depth and isinstance(value, list | tuple):
        return [_clean(v, depth - 1) for v in value]
    return printable(str(value))


class _ToStructlog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        error = record.exc_info if record.exc_info and record.exc_info[0] else None
        log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=error)
