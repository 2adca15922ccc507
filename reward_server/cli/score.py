"""``reward-server score FILE.jsonl``: a file of completions, scored here or by a server.

The out file has a line for each item, written in batches; a line that is there and scored is not graded
again, so a stopped run resumes. Unscored lines are tried again, and the file is rewritten when done.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from reward_server import logs
from reward_server.api.body import field_error, invalid
from reward_server.cli.shared import Fail, settings_or_fail
from reward_server.host import running
from reward_server.problems import Refused
from reward_server.schema import Item, ScoreRequest
from reward_server.store.database import StoreUnavailable
from reward_server.store.migrate import UnknownRevision

_TRIES = 8


@dataclass(frozen=True, slots=True)
class Options:
    grader: str | None
    run: str | None


@dataclass(frozen=True, slots=True)
class _Job:
    """One call of the command: what is to be scored, what already is, and where it goes."""

    options: Options
    items: list[dict[str, Any]]
    stamps: list[str]
    done: dict[int, dict[str, Any]]
    target: Path
    batch: int
    progress: _Bar


class Scorer(Protocol):
    async def score(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]: ...


def score_file(
    file: Path,
    target: Path,
    *,
    grader: str | None,
    run: str | None,
    server: str | None,
    api_key: str | None,
    batch: int,
    restart: bool,
) -> int:
    """Scores a file; returns how many items are unscored. Raises Fail."""
    items = read_items(file, grader)
    if file.resolve() == target.resolve():
        raise Fail("the out file is the input file")
    options = Options(grader, run)
    stamps = [_stamp(options, item) for item in items]
    started = time.monotonic()
    try:
        done = {} if restart else _finished(target, stamps)
        with _progress(len(items), len(done)) as progress:
            job = _Job(options, items, stamps, done, target, batch, progress)
            asyncio.run(_through_server(server, api_key, job) if server else _here(job))
        return _conclude(target, stamps, done, time.monotonic() - started)
    except Refused as refused:
        raise Fail(refused.detail) from None
    except ValidationError as error:
        raise Fail(invalid(error).detail) from None
    except (StoreUnavailable, UnknownRevision, OSError, ValueError) as error:
        raise Fail(str(error)) from None


def read_items(file: Path, grader: str | None) -> list[dict[str, Any]]:
    """The items of a file, each checked. Raises Fail with the line at fault."""
    items = []
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    item = json.loads(line.decode("utf-8-sig"))
                    Item.model_validate_json(line.removeprefix(codecs.BOM_UTF8))
                except json.JSONDecodeError as error:
                    raise Fail(f"{file}:{number}: not JSON: {error}") from None
                except UnicodeDecodeError:
                    raise Fail(f"{file}:{number}: not UTF-8") from None
                except ValidationError as error:
                    first = error.errors(include_url=False, include_context=False)[0]
                    problem = field_error(first["loc"], first["msg"])
                    raise Fail(f"{file}:{number}: {problem.field}: {problem.detail}") from None
                if grader is None and "grader" not in item:
                    raise Fail(f"{file}:{number}: names no grader, and there is no --grader")
                items.append(item)
    except OSError as error:
        raise Fail(f"{file}: {error.strerror}") from None
    if not items:
        raise Fail(f"{file}: no items")
    return items


async def _here(job: _Job) -> None:
    settings = settings_or_fail()
    logs.configure("warning", settings.log_format)
    async with running(settings) as host:

        class Local:
            async def score(self, some: list[dict[str, Any]]) -> list[dict[str, Any]]:
                body = _body(job.options, some)
                request = ScoreRequest.model_validate_json(json.dumps(body))
                return await host.service.score(request)

        await _all(Local(), job)


async def _through_server(server: str, api_key: str | None, job: _Job) -> None:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    async with httpx.AsyncClient(
        base_url=server.rstrip("/"), headers=headers, timeout=httpx.Timeout(600, connect=10)
    ) as client:

        class Remote:
            async def score(self, some: list[dict[str, Any]]) -> list[dict[str, Any]]:
                # A key, so that a resend after a lost answer does not grade or store twice.
                body = _body(job.options, some) | {"idempotency_key": f"cli-{os.urandom(12).hex()}"}
                return await _post(client, body)

        await _all(Remote(), job)


async def _post(client: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    problem = "no answer"
    for attempt in range(_TRIES):
        wait_s = float(2**attempt) / 4
        try:
            response = await client.post("/score", json=body)
        except httpx.InvalidURL as error:
            raise Fail(str(error)) from None
        except httpx.HTTPError as error:
            problem = f"{type(error).__name__}: {error}"
        else:
            if response.is_success:
                scores: list[dict[str, Any]] = response.json()["scores"]
                return scores
            with contextlib.suppress(ValueError):
                problem = f"{response.status_code} {response.json().get('detail')}"
            if response.status_code != 503:
                raise Fail(problem)
            wait_s = float(response.headers.get("retry-after", wait_s))
        await asyncio.sleep(min(wait_s, 30))
    raise Fail(f"gave up after {_TRIES} tries: {problem}")


async def _all(scorer: Scorer, job: _Job) -> None:
    todo = [i for i in range(len(job.items)) if i not in job.done]
    if not todo:
        return
    first = await scorer.score(
        [job.items[i] for i in todo[: job.batch]]
    )  # before the file is touched
    with job.target.open("a" if job.done else "w", encoding="utf-8") as lines:
        lines.write("\n")  # the last line of a run that was killed may be cut off
        for start in range(0, len(todo), job.batch):
            numbers = todo[start : start + job.batch]
            scores = first if start == 0 else await scorer.score([job.items[i] for i in numbers])
            for number, one in zip(numbers, scores, strict=True):
                one |= {"index": number, "input": job.stamps[number]}
                if one["status"] == "scored":
                    job.done[number] = one
                lines.write(json.dumps(one, ensure_ascii=False) + "\n")
            lines.flush()
            job.progress.advance(len(numbers))


def _body(options: Options, items: list[dict[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {"items": items}
    if options.grader:
        body["grader"] = options.grader
    if options.run is not None:
        body["run"] = options.run
    return body


def _stamp(options: Options, item: dict[str, Any]) -> str:
    """Says what a line of the out file is the score of: another grader or run is another score."""
    content = json.dumps([options.grader, options.run, item], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _finished(target: Path, stamps: list[str]) -> dict[int, dict[str, Any]]:
    """The lines of an earlier run that score these very items; one cut off by a crash is none."""
    done: dict[int, dict[str, Any]] = {}
    if not target.exists():
        return done
    for line in target.read_bytes().split(b"\n"):  # not splitlines: U+2028 may stand in a string
        with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):
            one = json.loads(line)
            if one["status"] == "scored" and one["input"] == stamps[one["index"]]:
                done[one["index"]] = one
    return done


def _rewrite(target: Path, lines: dict[int, dict[str, Any]]) -> None:
    """The out file anew, in item order, by a rename: never half a file."""
    fresh = target.with_name(target.name + ".new")
    with fresh.open("w", encoding="utf-8") as out:
        for _, one in sorted(lines.items()):
            out.write(json.dumps(one, ensure_ascii=False) + "\n")
    fresh.replace(target)


def _conclude(
    target: Path, stamps: list[str], done: dict[int, dict[str, Any]], seconds: float
) -> int:
    last: dict[int, dict[str, Any]] = {}
    for line in target.read_bytes().split(b"\n"):
        with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):
            one = json.loads(line)
            if one["input"] == stamps[one["index"]]:
                last[one["index"]] = one
    last |= done
    _rewrite(target, last)
    unscored = len(stamps) - len(done)
    rewards = [one["reward"] for one in done.values()]
    mean = f"{sum(rewards) / len(rewards):.4f}" if rewards else "none"
    console = Console(stderr=True)
    console.print(
        f"{len(done)} scored, {unscored} unscored, mean reward {mean}, {seconds:.1f} s -> {target}",
        highlight=False, markup=False,
    )  # fmt: skip
    kinds: dict[str, int] = {}
    for one in last.values():
        if one["failure"]:
            kinds[one["failure"]["kind"]] = kinds.get(one["failure"]["kind"], 0) + 1
    for kind, count in sorted(kinds.items()):
        console.print(f"  {kind}: {count}", highlight=False)
    return unscored


class _Bar:
    def __init__(self, progress: Progress, total: int, completed: int) -> None:
        self._progress = progress
        self._task = progress.add_task("scoring", total=total, completed=completed)

    def advance(self, count: int) -> None:
        self._progress.advance(self._task, count)


def _progress(total: int, completed: int) -> AbstractContextManager[_Bar]:
    @contextlib.contextmanager
    def shown() -> Iterator[_Bar]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                   TimeRemainingColumn())  # fmt: skip
        console = Console(stderr=True)
        quiet = not console.is_terminal
        with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
            yield _Bar(progress, total, completed)

    return shown()
