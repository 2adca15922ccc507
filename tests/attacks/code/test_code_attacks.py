"""Programs that attack their box: none gets out, reads what it must not, or outlives its run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes import languages
from sandboxes.backend import Backend
from sandboxes.box import BubblewrapBackend, house
from sandboxes.container import DockerSettings, docker_backend
from sandboxes.keeper import Keeper
from sandboxes.program import Limits, Run, Submission, Verdict
from tests.attacks.code.attempt import alive_as, problem_with, submit
from tests.attacks.code.programs import ATTACKS, Attack
from tests.sandboxes.needs import IMAGE, backends, needs_bubblewrap, uid_of_worker

_REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module", params=backends())
def keeper(request: pytest.FixtureRequest) -> Iterator[Keeper]:
    os.environ["SECRET_OF_THE_SERVER"] = "SECRET"
    backend: Backend
    if request.param == "docker":
        backend = docker_backend(DockerSettings(IMAGE), uid_of_worker())
    else:
        backend = BubblewrapBackend(house(uid_of_worker()))
    made = Keeper(backend, None)
    yield made
    made.close()
    del os.environ["SECRET_OF_THE_SERVER"]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
def test_the_attack_gains_nothing_in_two_runs(keeper: Keeper, attack: Attack) -> None:
    if keeper.backend.installed(attack.language) is None:
        pytest.skip(f"{attack.language} is not installed")
    if not attack.image and not isinstance(keeper.backend, BubblewrapBackend):
        pytest.skip("a container's image has this of its own")
    assert problem_with(keeper, attack) is None
    _, (after,) = submit(keeper, Submission("python", "print('fine')", (Run(),)))
    assert after.verdict is Verdict.OK
    assert after.stdout == b"fine\n"


_HIDDEN_WORK = """
import ctypes, os, signal, time
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
read, write = os.pipe()
if os.fork() == 0:
    for _ in range(8):
        t = time.process_time()
        while time.process_time() - t < 0.25: pass
        if os.fork(): os._exit(0)
    os.write(write, b"answer"); os._exit(0)
os.close(write)
print(os.read(read, 100))
"""


def test_work_of_children_that_nobody_waited_for_counts(keeper: Keeper) -> None:
    backend = keeper.backend
    groups = backend.house.groups if isinstance(backend, BubblewrapBackend) else None
    if groups is not None and "cpuacct" not in groups.v1 and groups.v2 is None:
        pytest.skip("no control group counts CPU time here")
    _, (done,) = submit(
        keeper, Submission("python", _HIDDEN_WORK, (Run(),), Limits(cpu_s=0.6, wall_s=10.0))
    )
    assert done.verdict is Verdict.TIME_LIMIT
    assert done.cpu_s > 0.5


@needs_bubblewrap
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give boxes a user of their own")
def test_nothing_is_left_of_boxes_after_their_keeper_closed() -> None:
    uid = uid_of_worker() + 500
    made = Keeper(BubblewrapBackend(house(uid)), None)
    for attack in ATTACKS:
        if attack.name.startswith("leaves"):
            problem_with(made, attack)
    made.close()
    assert alive_as(uid) == []


@needs_bubblewrap
@pytest.mark.timeout(400)  # all of them one after the other, some to the end of their time
@pytest.mark.skipif(os.geteuid() != 0, reason="the tests run as a plain user already")
def test_the_attacks_gain_nothing_where_the_server_is_a_plain_user() -> None:
    interpreter = languages.python()
    assert interpreter is not None
    if languages.version("python") is None or sysconfig.get_python_version() not in interpreter:
        pytest.skip("the machine's own Python has another version than the packages of the tests")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        shutil.copytree(_REPOSITORY / "sandboxes", root / "sandboxes")
        shutil.copytree(
            _REPOSITORY / "tests" / "attacks" / "code", root / "tests" / "attacks" / "code"
        )
        site = Path(sysconfig.get_path("purelib"))
        shutil.copytree(site / "msgpack", root / "msgpack")
        shutil.copy(site / "pyseccomp.py", root) if (
            site / "pyseccomp.py"
        ).exists() else shutil.copytree(site / "pyseccomp", root / "pyseccomp")
        done = subprocess.run(
            [interpreter, "-m", "tests.attacks.code.attempt"],
            cwd=root, env={"PATH": "/usr/bin:/bin", "SECRET_OF_THE_SERVER": "SECRET"}, capture_output=True, text=True,
            user=uid_of_worker() + 501, group=uid_of_worker() + 501, extra_groups=[], check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["problems"] == {}
    assert found["uid"] != 0
    assert found["attacks"] == len(ATTACKS)


def test_the_corpus_is_not_shrinking() -> None:
    assert len(ATTACKS) >= 40
    assert sys.version_info >= (3, 11)
