"""``reward-server export``: stored scores as NDJSON or Parquet."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from reward_server.api.scores import since_ms
from reward_server.cli.shared import Fail, open_or_fail
from reward_server.host import CATALOG, load_catalog
from reward_server.problems import Refused
from reward_server.registry.registry import Registry
from reward_server.schema import StoredScore
from reward_server.settings import Settings
from reward_server.store import scores
from reward_server.store.scores import ScoreFilter

_JSON = {"components", "step_rewards", "raw", "item"}
"""Columns whose shape depends on the grader: JSON text in Parquet."""

PARQUET = pa.schema(
    [
        ("score_id", pa.string()),
        ("created_at", pa.string()),
        ("run", pa.string()),
        ("step", pa.int64()),
        ("id", pa.string()),
        ("group", pa.string()),
        ("group_size", pa.int32()),
        ("policy_version", pa.int64()),
        ("finish_reason", pa.string()),
        ("tokens", pa.int64()),
        ("status", pa.string()),
        ("reward", pa.float64()),
        ("components", pa.string()),
        ("step_rewards", pa.string()),
        ("grader", pa.string()),
        ("grader_version", pa.int32()),
        ("grader_digest", pa.string()),
        ("environment", pa.string()),
        ("raw", pa.string()),
        ("failure", pa.string()),
        ("failure_detail", pa.string()),
        ("basis", pa.string()),
        ("grading_id", pa.string()),
        ("cached", pa.bool_()),
        ("elapsed_ms", pa.float64()),
        ("item", pa.string()),
    ]
)


def export_scores(
    settings: Settings,
    target: Path,
    format: str,
    *,
    run: str | None,
    grader: str | None,
    status: str | None,
    since: str | None,
    with_items: bool,
) -> int:
    """Writes the scores of a filter; returns how many. Raises Fail."""
    if status not in (None, "scored", "unscored"):
        raise Fail("--status is scored or unscored")
    try:
        wanted = ScoreFilter(run=run, grader=grader, status=status, since_ms=since_ms(since))  # type: ignore[arg-type]
    except Refused as refused:
        raise Fail(refused.detail) from None
    database = open_or_fail(settings)
    if grader is not None:
        registry = Registry(database, load_catalog(CATALOG))
        registry.load()
        try:
            registry.find(grader)
        except Refused as refused:
            raise Fail(refused.detail) from None
    chunks = scores.every(database, wanted, with_items=with_items)
    try:
        if format == "parquet":
            if str(target) == "-":
                raise Fail("Parquet goes to a file, not to stdout")
            return _parquet(target, chunks)
        return _ndjson(target, chunks)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # who read has enough
        return 0
    except OSError as error:
        raise Fail(f"{target}: {error.strerror}") from None
    finally:
        database.close()


def _ndjson(target: Path, chunks: Iterator[list[StoredScore]]) -> int:
    count = 0
    with _opened(target) as out:
        for chunk in chunks:
            out.writelines(s.model_dump_json() + "\n" for s in chunk)
            count += len(chunk)
    return count


def _parquet(target: Path, chunks: Iterator[list[StoredScore]]) -> int:
    count = 0
    with pq.ParquetWriter(target, PARQUET, compression="zstd") as writer:
        for chunk in chunks:
            writer.write_table(pa.Table.from_pylist([_flat(s) for s in chunk], schema=PARQUET))
            count += len(chunk)
    return count


def _flat(score: StoredScore) -> dict[str, Any]:
    row = score.model_dump(mode="json")
    grader, failure = row.pop("grader"), row.pop("failure")
    row |= {
        "grader": grader["name"],
        "grader_version": grader["version"],
        "grader_digest": grader["digest"],
        "failure": failure and failure["kind"],
        "failure_detail": failure and failure["detail"],
    }
    return row | {
        name: None if row[name] is None else json.dumps(row[name], ensure_ascii=False)
        for name in _JSON
    }


@contextmanager
def _opened(target: Path) -> Iterator[IO[str]]:
    if str(target) == "-":
        yield sys.stdout
        return
    with target.open("w", encoding="utf-8") as out:
        yield out
