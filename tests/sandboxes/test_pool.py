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
from sandboxes.box import house
from sandboxes.keeper import Keeper
from sandboxes.program import (
    Call,
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
def test_an_execution_says_how_it_ended(live: Live) -> None:
    done = one(live, "import sys\nprint('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (done.verdict, done.exit_code, done.signal) == (Verdict.RUNTIME_ERROR, 3, None)
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
    killed = one(live, "import os\nos.kill(os.getpid(), 15)")
    assert (killed.exit_code, killed.signal) == (None, signal.SIGTERM)


@needs_bubblewrap
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("exit()", 0),
        ("quit(4)", 4),
        ("raise SystemExit('no')", 1),
        ("import sys\nsys.exit(256 + 7)", 7),
        ("import os\nos._exit(9)", 9),
        ("import threading\nthreading.Thread(target=lambda: print(1)).start()", 0),
        ("import atexit\natexit.register(print, 1)", 0),
        ("if __name__ == '__main__': raise SystemExit(5)", 5),
        ("import multiprocessing as m\nwith m.Pool(2) as p: print(sum(p.map(abs, [1, -2])))", 0),
        ("import asyncio\nasyncio.run(asyncio.sleep(0))", 0),
        ("import subprocess\nsubprocess.run(['/bin/echo', 'hi'], check=True)", 0),
        ("import tempfile\ntempfile.TemporaryFile().write(b'x')", 0),
        ("print(open('/dev/stdin').read())", 0),
        ("import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and f(n - 1)\nf(20000)", 0),
        ("import dataclasses\n@dataclasses.dataclass\nclass A: x: int\nprint(A(1))", 0),
        (
            "import random, decimal, json, re, heapq, bisect, fractions, itertools, functools, string",
            0,
        ),
        ("print('\\u4e2d\\u6587')", 0),
    ],
)
def test_python_behaves_as_the_interpreter_does(live: Live, source: str, expected: int) -> None:
    done = one(live, source, Run(stdin=b"x"))
    assert done.exit_code == expected, done


_STREAMS = [
    (
        "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')\nprint('x')",
        b"x\n",
    ),
    (
        "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8')\nprint('x')",
        b"x\n",
    ),
    ("import sys\nsys.stdout.reconfigure(line_buffering=True)\nprint('x')", b"x\n"),
    ("f = open(1, 'w')\nf.write('x')", b"x"),
    ("import io, sys\nprint('x')\nsys.stdout = io.StringIO()", b"x\n"),
    ("import os\nprint('x', file=os.fdopen(os.dup(1), 'w'))", b"x\n"),
    ("import sys\nsys.stdout.buffer.write(b'\\xff')", b"\xff"),
    ("import sys\nsys.stdout.write(sys.stdin.buffer.read().decode())", b"in"),
    (
        "import os\nr, w = os.pipe()\nos.close(r)\ntry: os.write(w, b'x')\nexcept BrokenPipeError: print('x')",
        b"x\n",
    ),
    ("open('/dev/stdout', 'w').write('x')", b"x"),
    ("x: int = 1\nprint(__annotations__)", b"{'x': <class 'int'>}\n"),
    (
        "from concurrent.futures import ThreadPoolExecutor as P\nwith P(20) as p: print(sum(p.map(abs, range(20))))",
        b"190\n",
    ),
    (
        "import threading as t\nt.stack_size(1 << 27)\na = t.Thread(target=print, args=(1,)); a.start(); a.join()",
        b"1\n",
    ),
]


@needs_bubblewrap
@pytest.mark.parametrize(("source", "printed"), _STREAMS)
def test_what_a_program_writes_arrives(live: Live, source: str, printed: bytes) -> None:
    done = one(live, source, Run(stdin=b"in"))
    assert done.stdout == printed, done


@needs_bubblewrap
@pytest.mark.parametrize(("language", "source"), [
    ("cpp", "#include <thread>\n#include <vector>\n#include <cstdio>\nint main(){std::vector<std::thread> v;"
            "for(int i=0;i<8;i++)v.emplace_back([]{});for(auto&t:v)t.join();puts(\"ok\");}"),
    ("cpp", "#include <cstdio>\nint f(int n){volatile int a[20];a[0]=n;return n?f(n-1)+a[0]*0:0;}"
            "int main(){f(500000);puts(\"ok\");}"),
    ("javascript", "require('fs').readFile('main.js', () => console.log('ok'))"),
    ("bash", "cat /dev/stdin > /dev/null; echo ok > /dev/stdout"),
    ("java", "class Main{public static void main(String[] a)throws Exception{Thread t=new Thread(null,()->f(100000),"
             "\"\",1<<26);t.start();t.join();System.out.println(\"ok\");}static int f(int n){return n==0?0:f(n-1);}}"),
])  # fmt: skip
def test_programs_of_other_languages_behave(live: Live, language: str, source: str) -> None:
    if languages.installed(language) is None:
        pytest.skip(f"{language} is not installed")
    report = run(live, source, Run(b"x"), language=language, limits=Limits(cpu_s=5.0))
    assert report.runs[0].stdout == b"ok\n", report


@needs_bubblewrap
def test_arguments_of_a_call_may_be_large(live: Live) -> None:
    call = Call("f", (list(range(300_000)),))
    assert one(live, "def f(x): return len(x)", Run(call=call)).result == b"300000\n"


@needs_bubblewrap
def test_node_reads_dev_stdin(live: Live) -> None:
    if languages.installed("javascript") is None:
        pytest.skip("node is not installed")
    done = run(
        live,
        "process.stdout.write(require('fs').readFileSync('/dev/stdin'))",
        Run(b"x"),
        language="javascript",
    )
    assert done.runs[0].stdout == b"x"


@needs_bubblewrap
def test_a_traceback_shows_the_program_alone(live: Live) -> None:
    done = one(live, "def f():\n    return 1 / 0\nf()")
    assert b"ZeroDivisionError" in done.stderr
    assert b"main.py" in done.stderr
    assert b"<init>" not in done.stderr


@needs_bubblewrap
def test_megabytes_go_in_and_out(live: Live) -> None:
    data = os.urandom(3 << 20).hex().encode()
    source = "import sys\nsys.stdout.write(sys.stdin.read())"
    assert one(live, source, Run(stdin=data), Limits(output_kb=8192)).stdout == data
    cut = one(live, source, Run(stdin=data), Limits(output_kb=64))
    assert (cut.verdict, len(cut.stdout), cut.stdout_truncated) == (
        Verdict.OUTPUT_LIMIT,
        64 << 10,
        True,
    )


@needs_bubblewrap
def test_a_program_that_does_not_read_its_input_is_not_held_up(live: Live) -> None:
    assert one(live, "print(1)", Run(stdin=b"x" * (8 << 20))).stdout == b"1\n"


@needs_bubblewrap
def test_cpu_time_and_memory_are_measured(live: Live) -> None:
    done = one(live, "import time\nx = bytearray(60 << 20)\nwhile time.process_time() < 0.3: pass")
    assert 0.25 < done.cpu_s < 1.0
    assert 60 < done.memory_mb < 120


@needs_bubblewrap
def test_a_run_has_files_and_arguments_of_its_own(live: Live) -> None:
    source = "import os, sys\nprint(sorted(os.listdir()), sys.argv[1:])"
    first, second = run(live, source, Run(argv=("a",), files={"x/y.txt": b"1"}), Run()).runs
    assert first.stdout == b"['main.py', 'x'] ['a']\n"
    assert second.stdout == b"['main.py'] []\n"


@needs_bubblewrap
def test_a_compiled_program_is_kept_for_the_next_time(live: Live) -> None:
    source = '#include <stdio.h>\nint main(void){puts("kept");return 0;}'
    first, second = (run(live, source, language="c") for _ in range(2))
    assert first.compilation is not None
    assert second.compilation is not None
    assert (first.compilation.detail, second.compilation.detail) == ("", "cached")
    assert second.runs[0].stdout == b"kept\n"


@needs_bubblewrap
def test_a_program_cannot_change_what_was_compiled(live: Live) -> None:
    source = '#include <stdio.h>\nint main(void){FILE*f=fopen("/build/main","w");puts(f?"HOLE":"ok");return 0;}'
    assert [e.stdout for e in run(live, source, Run(), Run(), language="c").runs] == [b"ok\n"] * 2


@needs_bubblewrap
def test_runs_stop_at_a_failure_where_that_is_asked_for(live: Live) -> None:
    submission = Submission("python", "raise ValueError", (Run(),) * 3, stop_on_failure=True)
    assert len(live.wait(live.pool.run(submission)).runs) == 1


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
    keeper = Keeper(house(uid_of_worker() + 300), None)
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
