"""``reward-server graders …``: list, show, register, import, test, activate.

They work on the database directly, or through a server with ``--server URL``. On the database, a running
server notices within seconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import httpx
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reward_server.api.body import invalid
from reward_server.api.graders import summary_of, version_out
from reward_server.cli.importing import config_of
from reward_server.cli.shared import Fail, open_or_fail, settings_or_fail
from reward_server.host import CATALOG, Host, load_catalog, running
from reward_server.problems import Refused
from reward_server.registry import registration
from reward_server.registry.registry import Registry
from reward_server.schema import (
    GraderList,
    GraderRegistered,
    GraderRegistration,
    GraderVersions,
)
from reward_server.store.database import StoreUnavailable

T = TypeVar("T")


class Signature(StrEnum):
    grade = "grade"
    trl = "trl"
    verl = "verl"
    openrlhf = "openrlhf"


graders = typer.Typer(
    help="Graders: list, show, register, import, test, activate.", no_args_is_help=True
)
out = Console()

Server = Annotated[str | None, typer.Option(help="URL of a server; without one, the database.")]
ApiKey = Annotated[str | None, typer.Option(envvar="REWARD_API_KEY")]


@graders.command("list")
def list_graders(server: Server = None, api_key: ApiKey = None) -> None:
    """All graders, with the version that each bare name means."""
    if server:
        found = GraderList.model_validate(_ask(server, api_key, "GET", "/graders"))
    else:
        found = _reading(_list)
    table = Table("name", "kind", "active", "versions", "runs here", "description", box=None)
    for g in found.graders:
        active = f"@{g.active_version}" if g.active_version else "none"
        table.add_row(
            g.name, g.kind, active, str(g.versions), "yes" if g.runnable else "no",
            escape((g.description or "").split("\n")[0]),
        )  # fmt: skip
    out.print(table)


@graders.command()
def show(ref: str, server: Server = None, api_key: ApiKey = None) -> None:
    """One version in full, as JSON. NAME shows the active one, NAME@3 the third."""
    name, _, number = ref.partition("@")
    if server:
        body = _ask(server, api_key, "GET", f"/graders/{name}")
        versions = GraderVersions.model_validate(body).versions
        wanted = [
            v for v in versions if (number in (str(v.version), v.digest) if number else v.active)
        ]
        if not wanted:
            raise Fail(f"no such version: {ref}")
        version = wanted[0]
    else:
        version = _reading(lambda registry: version_out(registry, registry.find(ref)))
    out.print_json(version.model_dump_json())


@graders.command()
def register(
    file: Annotated[Path, typer.Argument(help="JSON: name, kind, config, description, cases.")],
    server: Server = None,
    api_key: ApiKey = None,
) -> None:
    """Register a grader from a file; its golden cases must pass."""
    _register(_read(file), server, api_key)


@graders.command("import")
def import_function(
    target: Annotated[str, typer.Argument(help="module:function, or path.py:function")],
    signature: Annotated[
        Signature, typer.Option(help="How the function is called.")
    ] = Signature.grade,
    name: Annotated[str | None, typer.Option(help="Of the grader; else the function's.")] = None,
    cases: Annotated[Path | None, typer.Option(help="JSON lines of golden cases.")] = None,
    reference_as: Annotated[
        str | None, typer.Option(help="With trl: the column that is the reference.")
    ] = None,
    lowest: Annotated[float, typer.Option(help="The lowest reward that it gives.")] = 0.0,
    save: Annotated[
        Path | None, typer.Option(help="Write the registration to this file instead.")
    ] = None,
    server: Server = None,
    api_key: ApiKey = None,
) -> None:
    """Register a reward function that exists, of TRL's, verl's or OpenRLHF's shape, as a grader of kind python.

    Its module's source is taken as it is, and runs in the sandbox: what it imports must be there too
    (REWARD_SANDBOX__PACKAGES).
    """
    config = config_of(target, signature.value)
    if reference_as is not None:
        config["reference_as"] = reference_as
    if lowest:
        config["lowest"] = lowest
    body = {
        "name": name or target.rpartition(":")[2],
        "kind": "python",
        "config": config,
        "cases": _cases(cases),
    }
    try:
        wanted = GraderRegistration.model_validate(body)
    except ValidationError as error:
        raise Fail(invalid(error).detail) from None
    if save is None:
        _register(wanted, server, api_key)
        return
    try:
        save.write_text(wanted.model_dump_json(exclude_unset=True, indent=2) + "\n")
    except OSError as error:
        raise Fail(f"{save}: {error.strerror}") from None
    out.print(
        f"written to {save}; `reward-server graders register {save}` registers it", soft_wrap=True
    )


def _cases(file: Path | None) -> list[Any]:
    if file is None:
        return []
    try:
        return [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise Fail(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise Fail(f"{file}: {error}") from None


def _register(wanted: GraderRegistration, server: str | None, api_key: str | None) -> None:
    if server:
        body = wanted.model_dump(mode="json", exclude_unset=True)
        answer = _ask(server, api_key, "POST", "/graders", body)
        registered = GraderRegistered.model_validate(answer)
        new = True
    else:
        registered, new = _here(
            lambda host: registration.register(
                host.registry,
                host.service.run_cases,
                wanted,
                max_cases=host.settings.max_cases,
                mounts=host.service.sandbox.mounts,
            )
        )
    state = "active" if registered.active else "not active"
    known = "" if new or server else " (was registered already)"
    out.print(
        f"{registered.name}@{registered.version} {state}{known}, "
        f"{len(registered.cases)} cases pass, {registered.digest}"
    )
    if (repeats := registered.repeatability) is not None:
        out.print(
            f"graded {repeats.runs} times: {repeats.differing} of {repeats.cases} cases differ, "
            f"by {repeats.largest_difference:g} at most"
        )


@graders.command()
def test(file: Annotated[Path, typer.Argument(help="As for register.")]) -> None:
    """Run a grader file's golden cases without registering anything."""
    wanted = _read(file)

    async def cases(host: Host) -> Any:
        draft = host.registry.draft(wanted.kind, wanted.config, name=wanted.name)
        return await host.service.run_cases(draft, wanted.cases)

    results = _here(cases)
    table = Table("case", "result", "reward", "why", box=None)
    for r in results:
        mark = "[green]pass[/green]" if r.passed else "[red]FAIL[/red]"
        table.add_row(
            str(r.index), mark, "-" if r.reward is None else f"{r.reward:g}", escape(r.detail or "")
        )
    out.print(table)
    raise typer.Exit(0 if all(r.passed for r in results) else 1)


@graders.command()
def activate(ref: Annotated[str, typer.Argument(help="NAME@3")]) -> None:
    """Make a bare name mean this version again (after a rollback, say)."""

    async def switch(host: Host) -> str:
        version = host.registry.find(ref)
        await registration.activate(host.registry, host.service.run_cases, version)
        return version.label

    out.print(f"{_here(switch)} is active")


def _list(registry: Registry) -> GraderList:
    return GraderList(graders=[summary_of(registry, n) for n in registry.names])


def _reading(look: Callable[[Registry], T]) -> T:
    """Looks at the database as it is: unlike a start of the server, that mints nothing."""
    database = open_or_fail()
    try:
        registry = Registry(database, load_catalog(CATALOG))
        registry.load()
        return look(registry)
    except (Refused, StoreUnavailable) as error:
        raise Fail(str(error)) from None
    finally:
        database.close()


def _here(do: Callable[[Host], Awaitable[T]]) -> T:
    """Does something with a host on the settings' database."""

    async def main() -> T:
        async with running(settings_or_fail(workers=1)) as host:
            return await do(host)

    try:
        return asyncio.run(main())
    except Refused as refused:
        lines = [refused.detail, *(f"  {e.field}: {e.detail}" for e in refused.errors[1:])]
        raise Fail("\n".join(lines)) from None
    except (StoreUnavailable, ValueError, OSError) as error:
        raise Fail(str(error)) from None


def _ask(server: str, api_key: str | None, method: str, path: str, body: Any = None) -> Any:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        response = httpx.request(
            method, server.rstrip("/") + path, json=body, headers=headers, timeout=120
        )
        answer = response.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise Fail(f"{server}: {error}") from None
    if response.is_error:
        raise Fail(f"{response.status_code} {answer.get('detail', response.reason_phrase)}")
    return answer


def _read(file: Path) -> GraderRegistration:
    try:
        return GraderRegistration.model_validate_json(file.read_bytes())
    except OSError as error:
        raise Fail(f"{file}: {error.strerror}") from None
    except ValidationError as error:
        raise Fail(f"{file}: {invalid(error).detail}") from None
