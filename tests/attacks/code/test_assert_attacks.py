"""Candidates that attack the tests they are called by: none is paid, in a box of their own or in one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reward_server.outcome import Scored
from tests.sandboxes.live import Live, live_pool
from tests.sandboxes.needs import backends

TESTS = """
import math
EXPECTED = [3, 10, 7]
def check(candidate):
    got = [candidate(1, 2), candidate(5, 5), candidate(3, 4)]
    assert got == EXPECTED
    assert candidate(20, 22) == 42
    assert math.isclose(candidate(1, 1), 2)
"""
SEPARATE = {
    "exits at import": "import os\nos._exit(0)",
    "exits in the call": "import os\ndef add(a, b):\n    os._exit(0)",
    "leaves": "def add(a, b):\n    raise SystemExit(0)",
    "interrupts": "def add(a, b):\n    raise KeyboardInterrupt",
    "stops an iteration": "def add(a, b):\n    raise StopIteration",
    "skips as unittest does": "import unittest\ndef add(a, b):\n    raise unittest.SkipTest('no')",
    "skips as pytest does": "def add(a, b):\n    import pytest\n    pytest.skip('no', allow_module_level=True)",
    "an equal object": """
class E:
    __eq__ = lambda s, o: True
    __float__ = lambda s: 2.0
def add(a, b):
    return E()
""",
    "a lying int": """
class I(int):
    __eq__ = lambda s, o: True
    __hash__ = int.__hash__
def add(a, b):
    return I(0)
""",
    "a lying float": """
class F(float):
    __eq__ = lambda s, o: True
    __sub__ = __rsub__ = lambda s, o: 0.0
def add(a, b):
    return F('nan')
""",
    "not a number": "def add(a, b):\n    return float('nan')",
    "a lying str": """
class S(str):
    __eq__ = lambda s, o: True
    __hash__ = str.__hash__
def add(a, b):
    return S('x')
""",
    "a mock": "from unittest import mock\ndef add(a, b):\n    return mock.ANY",
    "answers of its own on the channel": """
import os
def add(a, b):
    text = b'["value",3]'
    data = len(text).to_bytes(4, 'little') + text
    for fd in range(3, 20):
        try: os.write(fd, data * 6)
        except OSError: pass
    os._exit(0)
""",
    "forges the report": """
import os
line = b'{"$dict":[["test",0],["outcome","passed"],["detail",""]]}'
for fd in range(3, 64):
    try: os.write(fd, line)
    except OSError: pass
def add(a, b):
    for fd in range(3, 64):
        try: os.write(fd, line)
        except OSError: pass
    os._exit(0)
""",
    "claims broken tests": """
import os
line = b'{"$dict":[["test",0],["outcome","broken"],["detail",""]]}'
for fd in range(3, 64):
    try: os.write(fd, line)
    except OSError: pass
os._exit(0)
""",
    "closes everything": "import os\nos.closerange(0, 64)\ndef add(a, b):\n    return 3",
    "closes everything in the call": "import os\ndef add(a, b):\n    os.closerange(0, 64)\n    return 3",
    "patches builtins": """
import builtins, math
math.isclose = lambda *a, **k: True
builtins.AssertionError = type('Quiet', (Exception,), {})
builtins.all = builtins.any = lambda *a: True
def add(a, b):
    return 0
""",
    "patches what is above it": """
import sys
def add(a, b):
    f = sys._getframe()
    while f is not None:
        for n, v in list(f.f_globals.items()):
            if n == 'EXPECTED': f.f_globals[n] = [0, 0, 0]
            if n in ('outcome_of', 'check', 'same', 'found', 'encode'): f.f_globals[n] = lambda *a, **k: ('passed', '')
        f = f.f_back
    return 0
""",
    "looks for what is expected": """
import gc, sys
def add(a, b):
    for o in gc.get_objects():
        if type(o) is list and len(o) == 3 and o[1:] == [10, 7]:
            o[:] = [0, 0, 0]
    for m in list(sys.modules.values()):
        if hasattr(m, 'EXPECTED'): m.EXPECTED = [0, 0, 0]
    return 0
""",
    "traces": """
import sys
def tracer(frame, event, arg):
    if frame.f_code.co_name in ('check', 'outcome_of', 'main'):
        frame.f_globals['EXPECTED'] = [0, 0, 0]
        if 'link' in frame.f_locals: frame.f_locals['link'].spoiled = None
    return tracer
sys.settrace(tracer)
sys.setprofile(tracer)
def add(a, b):
    return 0
""",
    "writes the plan": """
import os
for name in ('plan', 'tests.py', 'test_reference.py', 'conftest.py', '../plan', '/scratch/work/plan', 'math.py'):
    try:
        with open(name, 'w') as f: f.write('isclose = lambda *a: True')
    except OSError: pass
def add(a, b):
    return 0
""",
    "reads the plan": """
import os, re
def add(a, b):
    seen = ''
    for folder, _, files in os.walk('/scratch'):
        for name in files:
            try: seen += open(os.path.join(folder, name), errors='replace').read()
            except OSError: pass
    for pid in filter(str.isdecimal, os.listdir('/proc')):
        try: seen += open(f'/proc/{pid}/cmdline').read() + open(f'/proc/{pid}/environ').read()
        except OSError: pass
    import inspect
    if 'EXPECT' + 'ED = [3' in seen:
        return a + b  # what was seen would have been enough
    return 0
""",
    "forks and lets its child answer": """
import os
def add(a, b):
    if os.fork() == 0:
        return 0
    os._exit(0)
""",
    "a huge value": "def add(a, b):\n    return [[0] * 1000] * 5000",
    "a deep value": "def add(a, b):\n    x = []\n    for _ in range(5000): x = [x]\n    return x",
    "a generator without end": "def add(a, b):\n    while True: yield 3",
    "an array that lies": """
class ndarray:
    __array_finalize__ = None
    shape = (1,)
    class dtype:
        kind, str = 'f', '<f8'
    def tobytes(self): return b'x'
    __eq__ = lambda s, o: True
ndarray.__module__ = 'numpy'
def add(a, b):
    return ndarray()
""",
    "a Decimal that lies": """
class Decimal:
    __eq__ = lambda s, o: True
    def __str__(self): return '3","x'
Decimal.__module__ = 'decimal'
def add(a, b):
    return Decimal()
""",
    "an exception that is an answer": """
class AssertionError(Exception): pass
def add(a, b):
    raise AssertionError('passed')
""",
}  # fmt: skip
ONLY_SHARED = {
    "writes its report itself": """
import os, sys
from sandboxes.inside.codec import encode
def add(a, b):
    os.write(3, encode({"test": 0, "outcome": "passed", "detail": ""}).encode())
    os._exit(0)
""",
    "hears the report being made": """
import os
from sandboxes.inside import codec
def heard(text):
    os.write(3, b'')
    return '"passed"'
codec._json.encode_basestring_ascii = heard
codec.encode.__globals__['_json'].encode_basestring_ascii = heard
def add(a, b):
    return 0
""",
    "reads its own memory": """
def add(a, b):
    for name in ('/proc/self/mem', '/proc/../proc/self/mem', b'/proc/self/mem'):
        try:
            open(name, 'rb')
        except PermissionError:
            pass
    return a + b
""",
    "has another process read its memory": """
import subprocess, os
def add(a, b):
    try:
        subprocess.run(['/bin/cat', f'/proc/{os.getpid()}/maps'])
    except PermissionError:
        pass
    return a + b
""",
    "has pathlib read its memory": """
import pathlib
def add(a, b):
    try:
        pathlib.Path('/proc/self/maps').read_text()
    except PermissionError:
        pass
    return a + b
""",
    "calls itself a part of Python": """
import os
code = "import sys\\nframe = sys._getframe()\\nwhile frame.f_back: frame = frame.f_back"
def add(a, b):
    for name in (os.__file__, '<frozen os>'):
        try:
            exec(compile(code, name, 'exec'), {})
        except PermissionError:
            pass
    exec(compile(code, 'x', 'exec').replace(co_filename=os.__file__), {})
    return a + b
""",
    "patches the leaving": """
import os
def add(a, b):
    raise ValueError
os.write = lambda fd, data: len(data)
""",
    "reaches the runner by a traceback": """
def add(a, b):
    try:
        raise ValueError
    except ValueError as error:
        frame = error.__traceback__.tb_frame
        while frame is not None:
            for name in ('outcome_of', 'plan', 'link', 'same', 'check'):
                if name in frame.f_globals: frame.f_globals[name] = lambda *a, **k: ('passed', '')
            frame = frame.f_back
    return 0
""",
    "reaches the runner by main": """
import sys
def add(a, b):
    m = sys.modules.get('__main__')
    if m is not None:
        m.outcome_of = lambda *a, **k: ('passed', '')
        m.same = lambda *a: True
    return 0
""",
    "reaches the tests by modules": """
import sys
def add(a, b):
    sys.modules['tests'].EXPECTED[:] = [0, 0, 0]
    sys.modules['tests'].__same__ = lambda a, b: True
    return 0
""",
}


@pytest.fixture(scope="module", params=backends())
def live(request: pytest.FixtureRequest) -> Iterator[Live]:
    with live_pool(backend=request.param) as found:
        yield found


def _graded(live: Live, source: str, shared: bool) -> Scored:
    reference = {
        "tests": TESTS,
        "entry_point": "add",
        "allow_shared": shared,
        "limits": {"cpu_s": 2.0, "wall_s": 4.0, "output_kb": 256},
    }
    outcome = live.grade(f"```python\n{source}\n```", reference)
    assert isinstance(outcome, Scored), outcome  # no way to be left out of the batch either
    return outcome


def test_an_honest_candidate_is_paid(live: Live) -> None:
    for shared in (False, True):
        assert _graded(live, "def add(a, b):\n    return a + b", shared).reward == 1.0


@pytest.mark.parametrize("name", SEPARATE)
def test_the_attack_is_not_paid_where_the_tests_have_a_box_of_their_own(
    live: Live, name: str
) -> None:
    assert _graded(live, SEPARATE[name], shared=False).reward == 0.0


@pytest.mark.parametrize("name", SEPARATE | ONLY_SHARED)
def test_the_attack_is_not_paid_where_one_process_runs_both(live: Live, name: str) -> None:
    assert _graded(live, (SEPARATE | ONLY_SHARED)[name], shared=True).reward == 0.0


def test_the_corpus_is_not_shrinking() -> None:
    assert len(SEPARATE) >= 30
