"""The pool and its keepers: what a submission gets, and what becomes of it when something dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from sandboxes import cgroups, languages
from sandboxes.box import BubblewrapBackend, house
from sandboxes.keeper import Keeper
from sandboxes.program import (
    Execution,
    Limits,
    Report,
    Run,
    SandboxLost,
    SandboxUnavailable,
    Submission,
    Verdict,
    files_problem,
    name_problem,
)
from tests.attacks.code.attempt import alive_as, submit
from tests.sandboxes.live import Live, live_pool
from tests.sandboxes.needs import needs_bubblewrap, uid_of_worker


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_pool(cache=tmp_path_factory.mktemp("cache")) as found:
        yield found


def run(
    live: Live, source: str, *runs: Run, language: str = "python", limits: Limits | None = None
) -> Report:
    return live.wait(
        live.pool.run(Submission(language, source, runs or (Run(),), limits or Limits()))
    )


def one(
    live: Live, source: str, run_: Run | None = None, limits: Limits | None = None
) -> Execution:
    return run(live, source, run_ or Run(), limits=limits).runs[0]


@needs_bubblewrap
def test_who_hears_of_the_runs_can_stop_them(live: Live) -> None:
    submission = Submission(
        "python", "print(input())", tuple(Run(stdin=b"%d" % n) for n in range(5))
    )
    heard: list[bytes] = []

    def listen(number: int, execution: Execution) -> bool:
        heard.append(execution.stdout)
        return number == 1

    report = live.wait(live.pool.run(submission, listen))
    assert len(report.runs) == 2
    assert heard == [b"0\n", b"1\n"]
    assert one(live, "print(1)").stdout == b"1\n"


@needs_bubblewrap
def test_a_cancelled_submission_leaves_nothing_and_the_slot_goes_on(live: Live) -> None:
    async def cancelled() -> bool:
        task = asyncio.ensure_future(
            live.pool.run(Submission("python", "while True: pass", (Run(),), Limits(60, 60)))
        )
        while live.pool.idle:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    assert live.wait(cancelled())
    assert one(live, "print(1)").stdout == b"1\n"


@needs_bubblewrap
def test_a_keeper_that_dies_is_replaced(live: Live) -> None:
    one(live, "print(1)")
    (pid,) = live.pool.keepers
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        one(live, "print(1)")
    assert one(live, "print(2)").stdout == b"2\n"
    assert live.pool.keepers != [pid]


@needs_bubblewrap
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give boxes a user of their own")
def test_boxes_die_with_a_keeper_that_was_killed(live: Live) -> None:
    async def killed() -> None:
        task = asyncio.ensure_future(
            live.pool.run(Submission("python", "while True: pass", (Run(),), Limits(60, 60)))
        )
        while live.pool.idle or not alive_as(uid_of_worker() + 100):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        os.kill(live.pool.keepers[0], signal.SIGKILL)
        with pytest.raises(SandboxLost):
            await task
        for _ in range(500):
            if not [name for name in alive_as(uid_of_worker() + 100) if name]:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(alive_as(uid_of_worker() + 100))

    live.wait(killed())


@needs_bubblewrap
def test_programs_can_import_from_folders_that_are_offered() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        Path(folder, "offered.py").write_text("value = 7")
        with live_pool(packages=(folder,)) as live:
            source = "import offered\nprint(offered.value)\nopen(offered.__file__, 'w')"
            done = one(live, source)
    assert done.stdout == b"7\n"
    assert b"Read-only file system" in done.stderr


@needs_bubblewrap
def test_a_broken_toolchain_is_no_compile_error(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Keeper(BubblewrapBackend(house(uid_of_worker() + 300)), None)
    good = Submission("c", "int main(void){return 0;}", (Run(),))
    bad = Submission("c", "int main(void){return x;}", (Run(),))
    try:
        compilation, _ = submit(keeper, bad)
        assert compilation is not None
        assert compilation.verdict is Verdict.COMPILE_ERROR
        broken = replace(languages.LANGUAGES["c"], compile=("gcc", "--no-such-option", "main.c"))
        monkeypatch.setitem(languages.LANGUAGES, "c", broken)
        keeper._working.clear()
        compilation, _ = submit(keeper, good)
        assert compilation is not None
        assert compilation.verdict is Verdict.SANDBOX_FAILED
        assert "apt-get install" in compilation.detail
    finally:
        keeper.close()


def test_what_a_dead_keeper_left_in_its_groups_is_swept_away() -> None:
    parents = cgroups.find()
    if not parents.v1 and parents.v2 is None:
        pytest.skip("no control groups can be made here")
    for parent in [*parents.v1.values(), *([parents.v2] if parents.v2 else [])]:
        (parent / "sandbox-4000000-1").mkdir()
    left = subprocess.Popen(["sleep", "1000"])
    folder = next(iter(parents.v1.values()), parents.v2)
    assert folder is not None
    (folder / "sandbox-4000000-1" / "cgroup.procs").write_text(str(left.pid))
    cgroups.sweep(parents, lambda pid: Path(f"/proc/{pid}").exists())
    assert left.wait(10) == -signal.SIGKILL
    cgroups.sweep(parents, lambda pid: Path(f"/proc/{pid}").exists())
    assert not list(folder.glob("sandbox-4000000-*"))


@needs_bubblewrap
def test_an_unknown_language_is_unavailable(live: Live) -> None:
    with pytest.raises(SandboxUnavailable, match="there are python"):
        run(live, "x", language="cobol")


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../x", "a/../b", "./a", "a//b", "a\0b", "a\nb", "conftest.py", "d/Conftest.py", "x.pth",
     "sitecustomize.py", "x" * 201, "a.so"],
)  # fmt: skip
def test_a_bad_name_is_refused(name: str) -> None:
    assert name_problem(name)


@given(st.text(max_size=40))
def test_a_name_that_is_taken_stays_below_its_folder(name: str) -> None:
    if name_problem(name) is None:
        assert not os.path.isabs(name)
        assert Path("/w").joinpath(name).resolve().is_relative_to("/w")


def test_files_are_capped_and_do_not_overlap() -> None:
    assert files_problem({"a": b"", "a/b": b""}, Limits())
    assert files_problem({"a": bytes(2 << 20)}, Limits(disk_mb=1))
    assert files_problem({str(n): b"" for n in range(300)}, Limits())
    assert files_problem({"a": b"1", "b/c": b"2"}, Limits()) is None
