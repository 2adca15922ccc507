"""Hostile sources of graders of kind ``python``: nothing of the server is harmed, and no other grader's verdicts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from reward_server.graders.base import Digest, LiveGrader, Spec, View, canonical_json
from reward_server.graders.catalog import CATALOG
from reward_server.outcome import CannotScore, Outcome, Scored, Unscored
from tests.attacks.code.programs import ATTACKS, Attack
from tests.sandboxes.live import Live, live_context, live_pool
from tests.sandboxes.needs import backends

HONEST = "def grade(completion, reference):\n    return float(completion == reference)\n"
_AS_GRADER = """
import contextlib, io
def grade(completion):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(CODE, {"__name__": "__main__"})
    return {"reward": 1, "raw": {"said": said.getvalue()[:1000]}}
"""
LIMITS = {"cpu_s": 1.0, "wall_s": 3.0, "memory_mb": 128}


class Graders:
    """Graders of kind ``python``, each made once, as a server does."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._made: dict[bytes, LiveGrader] = {}

    def grade(self, source: str, *views: View, **config: Any) -> list[Outcome]:
        text = canonical_json({"source": source, **config})
        if text not in self._made:
            made = CATALOG.build(Spec("python", text, Digest("sha256:test")))
            assert isinstance(made, LiveGrader)
            self._made[text] = made
        grader = self._made[text]

        async def one(view: View) -> Outcome:
            try:
                return await grader.grade_live(view, live_context(self._live.pool, 60))
            except CannotScore as error:
                return Unscored(error.kind, error.detail)

        async def everything() -> list[Outcome]:
            return list(await asyncio.gather(*map(one, views)))

        return self._live.wait(everything())

    def honest(self) -> list[float | None]:
        found = self.grade(HONEST, *(View(completion=str(n), reference="1") for n in range(3)))
        return [o.reward if isinstance(o, Scored) else None for o in found]


@pytest.fixture(scope="module", params=backends())
def graders(request: pytest.FixtureRequest) -> Iterator[Graders]:
    os.environ["SECRET_OF_THE_SERVER"] = "SECRET"
    with live_pool(backend=request.param) as live:
        yield Graders(live)
    del os.environ["SECRET_OF_THE_SERVER"]


_NOT_FOR_GRADERS = {
    "finds what others left",  # it finds the files of its own process
    "is larger than its disk",  # no source of a grader may be that long
}
OF_PYTHON = [
    a for a in ATTACKS if a.language == "python" and a.image and a.name not in _NOT_FOR_GRADERS
]


@pytest.mark.parametrize("attack", OF_PYTHON, ids=lambda a: a.name)
def test_an_attack_on_the_box_gains_nothing_as_a_grader(graders: Graders, attack: Attack) -> None:
    (outcome,) = graders.grade(
        f"CODE = {attack.source!r}\n{_AS_GRADER}", View(completion="x"), limits=LIMITS
    )
    assert "HOLE" not in str(outcome)
    assert graders.honest() == [0.0, 1.0, 0.0]


AT_IMPORT = {
    "ends": "import os\nos._exit(0)",
    "leaves": "raise SystemExit(0)",
    "kills all": "import os\nos.kill(-1, 9)",
    "loops": "while True: pass",
    "takes the memory": "x = [0] * 10**10",
    "floods its result": "import os\nwhile True: os.write(3, b'x' * 65536)",
    "says that it is loaded, and a result": """
import os
os.write(3, b'{"loaded": true}\\n{"returned": 1}\\n')
os._exit(0)
""",
    "patches the interpreter": "import builtins, json, os\njson.dumps = json.loads = os._exit = builtins.len = None",
    "fills the disk": "open('x', 'wb').write(bytes(10**9))",
}  # fmt: skip


@pytest.mark.parametrize("name", AT_IMPORT)
def test_a_source_that_attacks_as_it_loads_harms_nothing_but_itself(
    graders: Graders, name: str
) -> None:
    source = AT_IMPORT[name] + "\ndef grade(completion):\n    return 1\n"
    found = graders.grade(source, View(completion="x"), View(completion="y"), limits=LIMITS)
    assert len(found) == 2
    assert graders.honest() == [0.0, 1.0, 0.0]


def test_what_a_grader_leaves_behind_no_other_grader_finds(graders: Graders) -> None:
    leaves = """
import os, sys, builtins
def grade(completion):
    for folder in ("/tmp", "/dev/shm", "/scratch/work", ".", "/packages", os.path.dirname(os.__file__)):
        for name in ("json.py", "sitecustomize.py", "left"):
            try:
                open(os.path.join(folder, name), "w").write("raise SystemExit")
            except OSError:
                pass
    builtins.left = True
    if os.fork() == 0:
        os.setsid()
        while True: pass
    return 1
"""
    looks = """
import builtins, json, os
def grade(completion):
    return float(hasattr(builtins, "left") or any(
        os.path.exists(os.path.join(f, "left")) for f in ("/tmp", "/dev/shm", "/scratch/work", ".", "/packages")))
"""
    for _ in range(3):
        graders.grade(leaves, View(completion="x"), limits=LIMITS)
        (seen,) = graders.grade(looks, View(completion="x"))
        assert isinstance(seen, Scored)
        assert seen.reward == 0.0
        (again,) = graders.grade(leaves + "\nimport json\n", View(completion="x"), limits=LIMITS)
        assert isinstance(again, Scored)
    assert graders.honest() == [0.0, 1.0, 0.0]
