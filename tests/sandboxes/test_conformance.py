"""What a submission gets, whichever way its boxes are made: one suite for bubblewrap and Docker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from sandboxes.program import (
    Call,
    Execution,
    Limits,
    Report,
    Run,
    Submission,
    Verdict,
)
from tests.sandboxes.live import Live, live_pool
from tests.sandboxes.needs import backends


@pytest.fixture(scope="module", params=backends())
def live(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Live]:
    cache = tmp_path_factory.mktemp("cache")
    with live_pool(cache=cache, backend=request.param) as found:
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


def test_an_execution_says_how_it_ended(live: Live) -> None:
    done = one(live, "import sys\nprint('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (done.verdict, done.exit_code, done.signal) == (Verdict.RUNTIME_ERROR, 3, None)
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
    killed = one(live, "import os\nos.kill(os.getpid(), 15)")
    assert (killed.exit_code, killed.signal) == (None, signal.SIGTERM)


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


@pytest.mark.parametrize(("source", "printed"), _STREAMS)
def test_what_a_program_writes_arrives(live: Live, source: str, printed: bytes) -> None:
    done = one(live, source, Run(stdin=b"in"))
    assert done.stdout == printed, done


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
    live.wait(live.pool.active())
    if language not in live.pool.languages:
        pytest.skip(f"{language} is not installed")
    report = run(live, source, Run(b"x"), language=language, limits=Limits(cpu_s=5.0))
    assert report.runs[0].stdout == b"ok\n", report


def test_arguments_of_a_call_may_be_large(live: Live) -> None:
    call = Call("f", (list(range(300_000)),))
    assert one(live, "def f(x): return len(x)", Run(call=call)).result == b"300000\n"


def test_node_reads_dev_stdin(live: Live) -> None:
    live.wait(live.pool.active())
    if "javascript" not in live.pool.languages:
        pytest.skip("node is not installed")
    done = run(
        live,
        "process.stdout.write(require('fs').readFileSync('/dev/stdin'))",
        Run(b"x"),
        language="javascript",
    )
    assert done.runs[0].stdout == b"x"


def test_a_traceback_shows_the_program_alone(live: Live) -> None:
    done = one(live, "def f():\n    return 1 / 0\nf()")
    assert b"ZeroDivisionError" in done.stderr
    assert b"main.py" in done.stderr
    assert b"<init>" not in done.stderr


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


def test_a_program_that_does_not_read_its_input_is_not_held_up(live: Live) -> None:
    assert one(live, "print(1)", Run(stdin=b"x" * (8 << 20))).stdout == b"1\n"


def test_cpu_time_and_memory_are_measured(live: Live) -> None:
    done = one(live, "import time\nx = bytearray(60 << 20)\nwhile time.process_time() < 0.3: pass")
    assert 0.25 < done.cpu_s < 1.0
    assert 60 < done.memory_mb < 120


def test_a_run_has_files_and_arguments_of_its_own(live: Live) -> None:
    source = "import os, sys\nprint(sorted(os.listdir()), sys.argv[1:])"
    first, second = run(live, source, Run(argv=("a",), files={"x/y.txt": b"1"}), Run()).runs
    assert first.stdout == b"['main.py', 'x'] ['a']\n"
    assert second.stdout == b"['main.py'] []\n"


def test_a_compiled_program_is_kept_for_the_next_time(live: Live) -> None:
    source = '#include <stdio.h>\nint main(void){puts("kept");return 0;}'
    first, second = (run(live, source, language="c") for _ in range(2))
    assert first.compilation is not None
    assert second.compilation is not None
    assert (first.compilation.detail, second.compilation.detail) == ("", "cached")
    assert second.runs[0].stdout == b"kept\n"


def test_a_program_cannot_change_what_was_compiled(live: Live) -> None:
    source = '#include <stdio.h>\nint main(void){FILE*f=fopen("/build/main","w");puts(f?"HOLE":"ok");return 0;}'
    assert [e.stdout for e in run(live, source, Run(), Run(), language="c").runs] == [b"ok\n"] * 2
    source = """
#include <stdio.h>
int main(void){puts("ok");remove("/build/main");FILE*f=fopen("/build/main","w");
if(f){fputs("#!/bin/sh\\necho HOLE\\n",f);fclose(f);}return 0;}"""
    assert [e.stdout for e in run(live, source, Run(), Run(), language="c").runs] == [b"ok\n"] * 2


def test_runs_stop_at_a_failure_where_that_is_asked_for(live: Live) -> None:
    submission = Submission("python", "raise ValueError", (Run(),) * 3, stop_on_failure=True)
    assert len(live.wait(live.pool.run(submission)).runs) == 1
