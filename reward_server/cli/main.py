"""``reward-server …``: the commands.

Exit codes: 0 fine, 1 some items unscored (or a check failed), 2 usage or bad input.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reward_server import logs
from reward_server.cli.graders import graders
from reward_server.cli.shared import BAD_INPUT, Fail, open_or_fail, settings_or_fail
from reward_server.store.keys import KeyRing, Scope

app = typer.Typer(
    name="reward-server",
    help="Versioned graders for reinforcement learning of language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
keys = typer.Typer(help="API keys: make, list, revoke.", no_args_is_help=True)
app.add_typer(keys, name="keys")
app.add_typer(graders, name="graders")

out = Console()


class ExportFormat(StrEnum):
    NDJSON = "ndjson"
    PARQUET = "parquet"


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to bind. [REWARD_HOST]")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 picks one. [REWARD_PORT]")] = None,
    workers: Annotated[int | None, typer.Option(help="Grading processes.")] = None,
    database_url: Annotated[str | None, typer.Option(help="SQLAlchemy URL.")] = None,
) -> None:
    """Start the server. Without API keys it binds to loopback only."""
    from reward_server.cli.serve import serve as run  # noqa: PLC0415

    run(settings_or_fail(host=host, port=port, workers=workers, database_url=database_url))


@app.command()
def score(
    file: Annotated[Path, typer.Argument(help="Items, one JSON object a line.")],
    grader: Annotated[str | None, typer.Option(help="For items that name none.")] = None,
    out_file: Annotated[
        Path | None, typer.Option("--out", "-o", help="Scores, a line each [FILE.scores.jsonl].")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Label; pins grader versions.")] = None,
    server: Annotated[str | None, typer.Option(help="URL; without one, grades here.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="REWARD_API_KEY")] = None,
    batch: Annotated[int, typer.Option(min=1, max=8192)] = 256,
    restart: Annotated[bool, typer.Option(help="Ignore scores already in the out file.")] = False,
) -> None:
    """Score a file of completions. Stopped halfway, it resumes where it was."""
    from reward_server.cli.score import score_file  # noqa: PLC0415

    target = out_file or file.with_name(file.stem + ".scores.jsonl")
    unscored = score_file(
        file, target, grader=grader, run=run, server=server, api_key=api_key, batch=batch,
        restart=restart,
    )  # fmt: skip
    raise typer.Exit(1 if unscored else 0)


@app.command()
def export(
    out_file: Annotated[Path, typer.Option("--out", "-o", help="File to write; - for stdout.")],
    format: Annotated[ExportFormat, typer.Option()] = ExportFormat.NDJSON,
    run: Annotated[str | None, typer.Option()] = None,
    grader: Annotated[str | None, typer.Option(help="name or name@3")] = None,
    status: Annotated[str | None, typer.Option(help="scored or unscored")] = None,
    since: Annotated[str | None, typer.Option(help="ISO 8601 time")] = None,
    items: Annotated[bool, typer.Option(help="With prompts, completions, references.")] = True,
) -> None:
    """Write stored scores to a file, with their verifier versions."""
    from reward_server.cli.export import export_scores  # noqa: PLC0415

    count = export_scores(
        settings_or_fail(), out_file, format.value, run=run, grader=grader, status=status,
        since=since, with_items=items,
    )  # fmt: skip
    Console(stderr=True).print(f"{count} scores")


@app.command()
def doctor() -> None:
    """Tell what can run on this machine, and what to install for the rest."""
    from reward_server.cli.doctor import examine  # noqa: PLC0415

    findings = examine(settings_or_fail())
    table = Table("check", "state", "what", box=None)
    marks = {True: "[green]ok[/green]", False: "[red]no[/red]", None: "[yellow]note[/yellow]"}
    for finding in findings:
        table.add_row(finding.check, marks[finding.ok], escape(finding.detail))
    out.print(table)
    raise typer.Exit(0 if all(f.ok is not False for f in findings) else 1)


@app.command()
def migrate() -> None:
    """Bring the database to this release's schema (`serve` does it too)."""
    from reward_server.store import migrate as migrations  # noqa: PLC0415
    from reward_server.store.database import Database, StoreUnavailable  # noqa: PLC0415

    settings = settings_or_fail()
    if settings.database_url is None:
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        database = Database(settings.resolved_database_url)
        before, after = migrations.upgrade(database)
    except (ValueError, StoreUnavailable, migrations.UnknownRevision) as error:
        raise Fail(str(error)) from None
    out.print(f"{before or 'empty'} -> {after}" if before != after else f"already at {after}")


@keys.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="Whose, or what for.")],
    scope: Annotated[
        list[Scope] | None, typer.Option(help="Repeatable; default score, read.")
    ] = None,
    expires_days: Annotated[float | None, typer.Option(min=0, max=36500)] = None,
) -> None:
    """Make a key and print its token, once."""
    ring = KeyRing(open_or_fail())
    expires_ms = None
    if expires_days is not None:
        expires_ms = int(datetime.now(UTC).timestamp() * 1000 + expires_days * 86_400_000)
    _, token = ring.create(name, scope or [Scope.SCORE, Scope.READ], expires_ms)
    print(token)


@keys.command("list")
def list_keys() -> None:
    """Show keys (never their secrets)."""
    ring = KeyRing(open_or_fail())
    ring.load()
    table = Table("id", "name", "scopes", "created", "expires", "revoked", box=None)
    for key in ring.keys:
        table.add_row(
            key.id, escape(key.name), " ".join(sorted(key.scopes)), _day(key.created_ms),
            _day(key.expires_ms), _day(key.revoked_ms),
        )  # fmt: skip
    out.print(table)


@keys.command("revoke")
def revoke_key(key_id: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """End a key; a running server notices within seconds."""
    if not KeyRing(open_or_fail()).revoke(key_id):
        raise Fail(f"no live key has the id {key_id}")


def _day(ms: int | None) -> str:
    return (
        "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="minutes")
    )


def main(arguments: list[str] | None = None) -> None:
    """Entry of the ``reward-server`` script."""
    logs.configure("warning", "console")
    try:
        code = app(arguments, standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except Fail as error:
        Console(stderr=True).print(f"[red]error:[/red] {error.text}", highlight=False)
        sys.exit(BAD_INPUT)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except Exception as error:
        if hasattr(error, "exit_code") and hasattr(error, "show"):  # click's usage errors
            error.show()
            sys.exit(BAD_INPUT)
        raise
