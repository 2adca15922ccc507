"""API keys: made once, stored as a hash, with scopes and an end.

A token is ``rsk_<id>_<secret>``. The secret has 256 random bits, so its SHA-256 is enough: there is
nothing to guess that a slow hash would protect. Comparison takes constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import insert, select, update

from reward_server.store.database import Database
from reward_server.store.ids import now_ms
from reward_server.store.models import api_keys

_TOKEN = re.compile(r"rsk_(?P<id>[0-9a-f]{12})_(?P<secret>[A-Za-z0-9_\-]{43})")
_NO_HASH = bytes(32)


class Scope(StrEnum):
    SCORE = "score"
    """POST /score, and make runs."""
    REGISTER = "register"
    """POST /graders."""
    READ = "read"
    """Every GET."""
    ADMIN = "admin"
    """All of it."""


@dataclass(frozen=True, slots=True)
class Key:
    id: str
    name: str
    secret_hash: bytes
    scopes: frozenset[Scope]
    created_ms: int
    expires_ms: int | None
    revoked_ms: int | None

    def live(self, now: int) -> bool:
        return self.revoked_ms is None and (self.expires_ms is None or now < self.expires_ms)


class KeyRing:
    """The keys of a database, as last loaded."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys: dict[str, Key] = {}

    def load(self) -> None:
        with self._database.read() as connection:
            rows = connection.execute(select(api_keys)).all()
        self._keys = {
            r.id: Key(
                r.id,
                r.name,
                bytes(r.secret_hash),
                frozenset(Scope(s) for s in r.scopes.split()),
                r.created_ms,
                r.expires_ms,
                r.revoked_ms,
            )
            for r in rows
        }

    @property
    def required(self) -> bool:
        """Once a key was ever made, requests need one; revoking the last does not open the door."""
        return bool(self._keys)

    @property
    def keys(self) -> list[Key]:
        return sorted(self._keys.values(), key=lambda k: k.created_ms)

    def check(self, token: str) -> Key | None:
        """The live key of a token, or None."""
        match = _TOKEN.fullmatch(token)
        key = self._keys.get(match["id"]) if match else None
        given = hashlib.sha256(match["secret"].encode() if match else b"").digest()
        same = hmac.compare_digest(given, key.secret_hash if key else _NO_HASH)
        return key if key is not None and same and key.live(now_ms()) else None

    def create(
        self, name: str, scopes: Iterable[Scope], expires_ms: int | None = None
    ) -> tuple[Key, str]:
        """A new key and its token, which is not stored and cannot be shown again."""
        secret = secrets.token_urlsafe(32)
        key_id = secrets.token_hex(6)
        wanted = frozenset(scopes)
        with self._database.write() as connection:
            connection.execute(
                insert(api_keys).values(
                    id=key_id,
                    name=name,
                    secret_hash=hashlib.sha256(secret.encode()).digest(),
                    scopes=" ".join(sorted(wanted)),
                    created_ms=now_ms(),
                    expires_ms=expires_ms,
                )
            )
        self.load()
        return self._keys[key_id], f"rsk_{key_id}_{secret}"

    def revoke(self, key_id: str) -> bool:
        """Whether there was a live key to revoke."""
        with self._database.write() as connection:
            changed = connection.execute(
                update(api_keys)
                .where(api_keys.c.id == key_id, api_keys.c.revoked_ms.is_(None))
                .values(revoked_ms=now_ms())
            ).rowcount
        self.load()
        return bool(changed)
