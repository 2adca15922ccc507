"""The command line, as a user calls it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.faults.server import live

GRADER: dict[str, Any] = {
    "name": "number",
    "kind": "exact",
    "config": {"compare": "number", "extract": {"regex": "A: *(.*)"}},
    "cases": [{"completion": "A: 3", "reference": "3", "expect": {"reward": 1}}],
}


class Cli:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {k: v for k, v in os.environ.items() if not k.startswith("REWARD_")}
        self.env = kept | {"REWARD_DATA_DIR": str(folder / "data"), "COLUMNS": "200"}

    def __call__(self, *arguments: str, expect: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "reward_server", *arguments],
            cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == expect, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout if expect == 0 else done.stdout + done.stderr

    def file(self, name: str, *lines: Any) -> str:
        path = self.folder / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(path)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def items(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [
        {"completion": f"\u2028 A: {n}", "reference": str(n // 2 * 2)} | fields
        for n in range(count)
    ]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def test_a_grader_is_tested_registered_listed_and_shown(cli: Cli) -> None:
    good = cli.file("g.json", GRADER)
    bad = cli.file("b.json", GRADER | {"cases": [GRADER["cases"][0] | {"completion": "A: 4"}]})
    assert "pass" in cli("graders", "test", good)
    assert "FAIL" in cli("graders", "test", bad, expect=1)
    assert "number@1 active" in cli("graders", "register", good)
    assert "registered already" in cli("graders", "register", good)
    assert "cases.0" in cli("graders", "register", bad, expect=2)
    assert "number" in cli("graders", "list")
    assert json.loads(cli("graders", "show", "number@1"))["config"] == GRADER["config"]
    assert "has no version" in cli("graders", "show", "number@2", expect=2)
    cli("graders", "activate", "number@1")


def test_a_file_is_scored_resumed_and_exported(cli: Cli) -> None:
    cli("graders", "register", cli.file("g.json", GRADER))
    path = cli.file("in.jsonl", *items(50))
    cli("score", path, "--grader", "number", "--run", "r", "--batch", "8")
    out = cli.folder / "in.scores.jsonl"
    scores = lines(out)
    assert [s["index"] for s in scores] == list(range(50))
    assert sum(s["reward"] for s in scores) == 25
    # A crash in the middle: half of the lines, the last one cut.
    kept = out.read_bytes().split(b"\n")[:20]
    out.write_bytes(b"\n".join(kept) + b'\n{"index": 20, "sta')
    cli("score", path, "--grader", "number", "--run", "r")
    resumed = lines(out)
    assert [s["index"] for s in resumed] == list(range(50))
    assert [s["score_id"] for s in resumed[:20]] == [s["score_id"] for s in scores[:20]]
    exported = cli("export", "-o", "-", "--run", "r").split("\n")
    assert len([line for line in exported if line]) == 80
    cli("export", "-o", "x.parquet", "--format", "parquet", "--grader", "number@1")
    table = pq.read_table(cli.folder / "x.parquet")
    assert table.num_rows == 80
    assert set(table.column("grader_version").to_pylist()) == {1}
    assert json.loads(table.column("item")[0].as_py())["reference"] == "0"


def test_unscored_items_are_exit_code_1(cli: Cli) -> None:
    path = cli.file(
        "in.jsonl",
        *items(2, grader="exact"),
        {"completion": "x", "grader": "exact", "reference": " "},
    )
    assert "1 unscored" in cli("score", path, expect=1)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"completion": 3}, "in.jsonl:1: completion"),
        ({"completion": "x", "refrence": 1}, "in.jsonl:1: refrence"),
        ({"completion": "x"}, "names no grader"),
        ({"completion": "x", "grader": "nobody"}, "no grader is named"),
        ({"completion": "x", "grader": "exact"}, "needs reference"),
    ],
)
def test_bad_input_is_exit_code_2_and_says_where(cli: Cli, line: Any, problem: str) -> None:
    assert problem in cli("score", cli.file("in.jsonl", line), expect=2).replace("\n", " ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["score", "missing.jsonl", "--grader", "exact"],
        ["export", "-o", "x", "--status", "good"],
        ["export", "-o", "x", "--grader", "a@b"],
        ["export", "-o", "x", "--grader", "exact@99999999999999999999"],
        ["export", "-o", "x", "--grader", "nobody"],
        ["keys", "create", "x", "--expires-days", "1e300"],
        ["export", "-o", "x", "--since", "then"],
        ["keys", "revoke", "0"],
        ["graders", "show", "nobody"],
        ["nothing"],
        ["serve", "--port", "99999"],
        ["serve", "--database-url", "mysql://x"],
        ["serve", "--host", "0.0.0.0", "--port", "0"],
        ["score", "x", "--server", "http://127.0.0.1:1"],
    ],
)
def test_usage_errors_are_exit_code_2(cli: Cli, arguments: list[str]) -> None:
    assert cli(*arguments, expect=2).strip()


def test_a_mistake_does_not_wipe_what_was_scored(cli: Cli) -> None:
    path = cli.file("in.jsonl", *items(3))
    cli("score", path, "--grader", "exact")
    before = (cli.folder / "in.scores.jsonl").read_bytes()
    for wrong in ("nosuch", "a b", "exact@0"):
        cli("score", path, "--grader", wrong, expect=2)
        assert (cli.folder / "in.scores.jsonl").read_bytes() == before
    cli("score", path, "--grader", "exact", "--out", str(cli.folder), expect=2)


def test_another_grader_is_another_score(cli: Cli) -> None:
    cli("graders", "register", cli.file("g.json", GRADER))
    path = cli.file("in.jsonl", *items(4))
    cli("score", path, "--grader", "exact")
    cli("score", path, "--grader", "number")
    scores = lines(cli.folder / "in.scores.jsonl")
    assert [s["grader"]["name"] for s in scores] == ["number"] * 4


def test_markup_in_a_users_text_is_text(cli: Cli) -> None:
    cli("graders", "register", cli.file("g.json", GRADER | {"description": "a [/b] [red]c"}))
    assert "a [/b] [red]c" in cli("graders", "list")
    cli("keys", "create", "[/red]")
    assert "[/red]" in cli("keys", "list")


def test_doctor_says_what_runs(cli: Cli) -> None:
    report = cli("doctor")
    for check in ("python", "database", "grading workers", "kind exact", "api keys"):
        assert check in report


def test_keys_are_made_listed_and_revoked(cli: Cli) -> None:
    token = cli("keys", "create", "trainer", "--scope", "score", "--expires-days", "1").strip()
    assert token.startswith("rsk_")
    listed = cli("keys", "list")
    assert "trainer" in listed
    assert token not in listed
    cli("keys", "revoke", token.split("_")[1])
    cli("keys", "revoke", token.split("_")[1], expect=2)


def test_the_same_commands_through_a_server(cli: Cli) -> None:
    token = cli("keys", "create", "all", "--scope", "admin").strip()
    with live(cli.folder / "data") as server:
        to = ("--server", server.url, "--api-key", token)
        cli("graders", "register", cli.file("g.json", GRADER), *to)
        assert "number" in cli("graders", "list", *to)
        assert json.loads(cli("graders", "show", "number", *to))["version"] == 1
        cli("score", cli.file("in.jsonl", *items(10)), "--grader", "number", *to)
        assert len(lines(cli.folder / "in.scores.jsonl")) == 10
        wrong = ("--server", server.url, "--api-key", "rsk_x")
        assert "401" in cli("graders", "list", *wrong, expect=2)


def test_migrate(cli: Cli) -> None:
    assert re.search(r"empty -> \d{4}", cli("migrate").replace("\n", " "))
    assert "already at" in cli("migrate")
