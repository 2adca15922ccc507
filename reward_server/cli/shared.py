"""What the commands have in common: settings, the database, and failing with a clear message."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from rich.markup import escape

from reward_server.host import open_database
from reward_server.settings import Settings
from reward_server.store.database import Database, StoreUnavailable
from reward_server.store.migrate import UnknownRevision

BAD_INPUT = 2


class Fail(Exception):
    """Ends the command with exit code 2 and this message."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = escape(text)


def settings_or_fail(**given: Any) -> Settings:
    """Settings from the environment, and what the command line gave."""
    try:
        return Settings(**{k: v for k, v in given.items() if v is not None})
    except ValidationError as error:
        problems = [
            f"REWARD_{'__'.join(str(p) for p in e['loc']).upper()}: {e['msg']}"
            for e in error.errors()
        ]
        raise Fail("; ".join(problems)) from None


def open_or_fail(settings: Settings | None = None) -> Database:
    """The settings' database, migrated."""
    try:
        return open_database(settings or settings_or_fail())
    except (ValueError, StoreUnavailable, UnknownRevision, OSError) as error:
        raise Fail(str(error)) from None
