"""The log: one event is one line of printable text, whatever was put into it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from reward_server import logs


@pytest.fixture
def sink() -> Iterator[io.StringIO]:
    out = io.StringIO()
    logs.configure("info", "json", out)
    yield out
    structlog.reset_defaults()
    logging.getLogger().handlers.clear()


HOSTILE = "a\x1b[31m\r\nforged\x00\u202e\x9b"


def test_control_characters_are_stripped_at_any_depth(sink: io.StringIO) -> None:
    log = structlog.get_logger("x")
    log.info("event", text=HOSTILE, nested={"k": [HOSTILE, {HOSTILE: HOSTILE}]})
    (line,) = sink.getvalue().splitlines()
    for character in ("\x1b", "\r", "\x00", "\u202e", "\x9b"):
        assert character not in line
        assert json.dumps(character)[1:-1] not in line


def test_no_text_forges_a_line_on_a_console() -> None:
    out = io.StringIO()
    logs.configure("info", "console", out)
    structlog.get_logger("x").info(HOSTILE, text=HOSTILE)
    structlog.reset_defaults()
    assert len(out.getvalue().splitlines()) == 1


def test_the_standard_librarys_loggers_end_in_the_same_sink(sink: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").error("bad %s", HOSTILE)
    entry = json.loads(sink.getvalue())
    assert entry["level"] == "error"
    assert "\x1b" not in entry["event"]


def test_a_long_text_is_cut(sink: io.StringIO) -> None:
    structlog.get_logger("x").info("event", text="x" * 1_000_000)
    assert len(sink.getvalue()) < 20_000


def test_exceptions_are_logged_with_their_traceback_on_one_line(sink: io.StringIO) -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        structlog.get_logger("x").exception("failed")
    (line,) = sink.getvalue().splitlines()
    assert "ValueError" in json.loads(line)["exception"]
    assert "\\u001b" not in line


def test_below_the_level_nothing_is_written(sink: io.StringIO) -> None:
    structlog.get_logger("x").debug("event")
    assert sink.getvalue() == ""
