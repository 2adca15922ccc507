"""The store process: takes messages from the server, answers look-ups, and commits in groups.

While one commit is on its way to the disk, the next messages gather in the socket; so at 64 clients one
fsync serves dozens of requests. Each submission is atomic and is acknowledged only after its commit. When
the server dies, the socket closes: what was received is still committed, then this process ends.
"""

from __future__ import annotations

import select
import signal
import socket
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError

from reward_server.frames import FrameBuffer, frame, unpack
from reward_server.store import models
from reward_server.store.database import Database, StoreUnavailable, bulk_insert, reason
from reward_server.store.hot import FIND, KEY_TAKEN, REUSED_GRADING_GONE, STORE

MAX_GROUP = 8192
"""Score rows of one transaction."""
_MAX_HASHES = 1000


class _Server:
    """The socket to the server: blocks for the first message, then takes all that is there."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._frames = FrameBuffer()
        self._open = True
        self._unread: list[bytes] = []

    def messages(self) -> list[Any]:
        """Messages received; an empty list once the server is gone and nothing is left."""
        found: list[Any] = []
        rows = 0
        while self._open and rows < MAX_GROUP:
            bodies, self._unread = self._unread, []
            if not bodies:
                if found and not select.select([self._sock], [], [], 0)[0]:
                    break
                data = self._sock.recv(1 << 20)
                if not data:
                    self._open = False
                    break
                bodies = self._frames.feed(data)
            for body in bodies:
                message = unpack(body)
                found.append(message)
                rows += len(message[2][1]) if message[1] == STORE else 1
        return found

    def setup(self) -> list[Any]:
        while not (found := self._frames.feed(self._sock.recv(1 << 16))):
            pass
        first, *self._unread = found  # the server may have asked something already
        setup: list[Any] = unpack(first)
        return setup

    def answer(self, answers: list[list[Any]]) -> None:
        self._sock.sendall(b"".join(frame(a) for a in answers))


def serve(server: _Server, database: Database) -> None:
    while messages := server.messages():
        finds = [(n, keys) for n, what, keys in messages if what == FIND]
        if finds:
            server.answer(_find(database, finds))
        stores = [(n, rows) for n, what, rows in messages if what == STORE]
        if stores:
            answers = _commit(database, [rows for _, rows in stores])
            numbered = zip((n for n, _ in stores), answers, strict=True)
            server.answer([[n, error, known] for n, (error, known) in numbered])


def _find(database: Database, finds: list[tuple[int, list[Any]]]) -> list[list[Any]]:
    wanted: dict[tuple[int, int], set[bytes]] = {}
    for _, keys in finds:
        for spec_id, environment_id, view_hash in keys:
            wanted.setdefault((spec_id, environment_id), set()).add(view_hash)
    try:
        with database.read() as connection:
            rows = {
                (r[1], r[2], r[3]): r
                for (spec_id, environment_id), hashes in wanted.items()
                for r in _reusable(connection, spec_id, environment_id, list(hashes))
            }
    except StoreUnavailable as error:
        return [[number, str(error), None] for number, _ in finds]
    return [[n, None, [rows[tuple(k)] for k in keys if tuple(k) in rows]] for n, keys in finds]


def _reusable(
    connection: Connection, spec_id: int, environment_id: int, hashes: list[bytes]
) -> list[tuple[Any, ...]]:
    """Rows as :class:`reward_server.store.hot.GradingRow` has them."""
    found: list[tuple[Any, ...]] = []
    mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
    for start in range(0, len(hashes), _MAX_HASHES):
        some = hashes[start : start + _MAX_HASHES]
        # Written out, because compiling and expanding the expression costs more than the query.
        marks = ", ".join([mark] * len(some))
        result = connection.exec_driver_sql(
            "SELECT id, spec_id, environment_id, view_hash, reward, basis, failure, detail, result,"
            f" elapsed_ms FROM gradings WHERE view_hash IN ({marks}) AND spec_id = {mark}"
            f" AND environment_id = {mark} AND reusable = 1",
            (*some, spec_id, environment_id),
        )
        found += [tuple(bytes(v) if isinstance(v, memoryview) else v for v in r) for r in result]
    return found


_Answer = tuple[str | None, list[tuple[int, tuple[Any, ...]]]]
"""Why a submission failed, or None; and which of its gradings existed already."""


def _commit(database: Database, submissions: list[Any]) -> list[_Answer]:
    """Stores submissions in one transaction."""
    try:
        known = _write(database, submissions)
        return [(None, [(n, known[n]) for n in s[4] if n in known]) for s in submissions]
    except StoreUnavailable as error:
        return [(str(error), [])] * len(submissions)
    except (DBAPIError, _OtherBody):
        # One of them holds something that the database refuses: find it, so that it fails alone.
        return [_alone(database, s) for s in submissions]


def _alone(database: Database, submission: Any) -> _Answer:
    try:
        return None, list(_write(database, [submission]).items())
    except StoreUnavailable as error:
        return str(error), []
    except _OtherBody:
        return KEY_TAKEN, []
    except IntegrityError:
        return REUSED_GRADING_GONE, []
    except DBAPIError as error:
        return f"the database refuses the rows: {reason(error)}", []


def _write(database: Database, submissions: list[Any]) -> dict[int, tuple[Any, ...]]:
    """Stores submissions; gives the gradings that existed already, by the id each was submitted with."""
    with database.write() as connection:
        # Two requests may share a grading that neither has stored yet.
        gradings = {row[0]: row for s in submissions for row in s[0]}
        unchecked = {n for s in submissions for n in s[4]} & gradings.keys()
        known = _known(connection, [gradings[n] for n in unchecked])
        fresh = [row for n, row in gradings.items() if n not in known]
        scores = [row for s in submissions for row in s[1]]
        if known:
            scores = [_pointed_at(row, known) for row in scores]
        bulk_insert(connection, models.gradings, fresh, or_ignore=True)
        bulk_insert(connection, models.scores, scores)
        bulk_insert(connection, models.score_items, [row for s in submissions for row in s[2]])
        for submission in submissions:
            if submission[3] is not None:
                _remember(connection, submission[3])
    return known


def _known(connection: Connection, rows: list[Any]) -> dict[int, tuple[Any, ...]]:
    wanted: dict[tuple[int, int], dict[bytes, int]] = {}
    for number, spec_id, environment_id, view_hash, *_ in rows:
        wanted.setdefault((spec_id, environment_id), {})[view_hash] = number
    return {
        numbers[found[3]]: found
        for (spec_id, environment_id), numbers in wanted.items()
        for found in _reusable(connection, spec_id, environment_id, list(numbers))
        if found[0] != numbers[found[3]]
    }


def _pointed_at(score: list[Any], known: dict[int, tuple[Any, ...]]) -> list[Any]:
    """A score that points at the earlier grading, where there is one."""
    if (earlier := known.get(score[_GRADING_ID])) is None:
        return score
    score = list(score)
    score[_GRADING_ID], score[_CACHED] = earlier[0], 1
    return score


_COLUMNS = [c.name for c in models.scores.columns]
_GRADING_ID, _CACHED = _COLUMNS.index("grading_id"), _COLUMNS.index("cached")


class _OtherBody(Exception):
    """An idempotency key that another server has stored with another body."""


def _remember(connection: Connection, row: tuple[Any, ...]) -> None:
    values = dict(zip((c.name for c in models.idempotency.columns), row, strict=True))
    # Graded again because items were unscored: the newer scores are the request's scores.
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement = insert(models.idempotency).values(values)
    stored = connection.execute(
        statement.on_conflict_do_update(
            index_elements=["key"],
            set_={"score_ids": statement.excluded.score_ids},
            where=models.idempotency.c.body_hash == statement.excluded.body_hash,
        )
    )
    if stored.rowcount == 0:
        raise _OtherBody


def main(fd: int) -> None:
    """Serves the socket until the server closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = _Server(socket.socket(fileno=fd))
    url, synchronous, timeout_s = server.setup()
    database = Database(url, synchronous=synchronous, timeout_s=timeout_s)
    try:
        serve(server, database)
    except ConnectionError:
        pass  # the server died before it could hear the answer
    finally:
        database.close()
