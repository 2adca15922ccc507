"""What only the Docker backend has: how its containers are closed in, and what becomes of them when something dies."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from reward_server.outcome import FailureKind, Scored, Unscored
from sandboxes import languages
from sandboxes.container import ContainerBox, DockerSettings, connected, docker_backend
from sandboxes.pool import PoolSettings, SandboxPool
from sandboxes.program import Limits, Run, SandboxLost, SandboxUnavailable, Submission, Verdict
from tests.sandboxes.live import Live, live_pool
from tests.sandboxes.needs import IMAGE, needs_docker, uid_of_worker

pytestmark = needs_docker
SUMS = {"cases": [{"stdin": "1 2", "stdout": "3"}]}
ADD = "```python\nprint(sum(map(int, input().split())))\n```"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_pool(backend="docker") as found:
        yield found


def _until(true: Callable[[], bool], seconds: float = 20) -> bool:
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _labelled(settings: DockerSettings, owner: str) -> list[dict[str, Any]]:
    found = connected(settings).containers(
        all=True, filters={"label": [f"reward-server.owner={owner}"]}
    )
    return list(found)


def test_a_container_is_closed_in_on_all_sides() -> None:
    settings = DockerSettings(IMAGE)
    backend = docker_backend(settings, uid_of_worker() + 700)
    box = ContainerBox(backend, languages.LANGUAGES["python"])
    try:
        box.wait_ready()
        assert box.id is not None
        found: dict[str, Any] = connected(settings).inspect_container(box.id)
        host = found["HostConfig"]
        assert host["NetworkMode"] == "none"
        assert host["ReadonlyRootfs"] is True
        assert host["CapDrop"] == ["ALL"]
        assert not host["CapAdd"]
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
        assert host["Privileged"] is False
        assert host["PidsLimit"] == 1024
        assert host["Memory"] == host["MemorySwap"] == settings.memory_mb << 20
        assert host["LogConfig"]["Type"] == "none"
        assert host["IpcMode"] == "private"
        assert not host["Binds"]
        assert set(host["Tmpfs"]) == {"/scratch", "/build", "/dev/shm"}
        user = f"{uid_of_worker() + 700}:{uid_of_worker() + 700}"
        assert found["Config"]["User"] == user
        assert found["Image"] == backend.runtime
        assert found["Config"]["Labels"]["reward-server.sandbox"] == "1"
        assert all(e.startswith("PATH=") for e in found["Config"]["Env"] or [])
    finally:
        box.close()
        box.wait_until_gone()
    assert not _labelled(settings, found["Config"]["Labels"]["reward-server.owner"])


def test_containers_end_with_a_keeper_that_was_killed(live: Live) -> None:
    assert live.reward(ADD, SUMS) == 1.0
    (pid,) = live.pool.keepers
    start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    owner = f"{os.uname().nodename} {pid}:{start}"
    assert _until(lambda: len(_labelled(DockerSettings(IMAGE), owner)) >= 1)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        live.wait(live.pool.run(Submission("python", "", (Run(),))))
    # Those that ran end with their standard input; one that was not started yet is swept away by the next keeper.
    assert live.reward(ADD, SUMS) == 1.0
    assert _until(lambda: not _labelled(DockerSettings(IMAGE), owner))


def test_orphans_of_a_crashed_server_are_removed_at_start() -> None:
    client = connected(DockerSettings(IMAGE))
    labels = {
        "reward-server.sandbox": "1",
        "reward-server.owner": f"{os.uname().nodename} 4000000:1",
    }
    made = client.create_container(IMAGE, ["sleep", "1000"], labels=labels)["Id"]
    client.start(made)
    with live_pool(backend="docker") as live:
        assert live.reward(ADD, SUMS) == 1.0
    assert not client.containers(all=True, filters={"id": made})


def test_the_image_names_the_runtime(live: Live) -> None:
    image = str(connected(DockerSettings(IMAGE)).inspect_image(IMAGE)["Id"])  # type: ignore[no-untyped-call]
    assert live.reward(ADD, SUMS, runtime=image) == 1.0
    assert live.pool.runtime == image
    outcome = live.grade(ADD, SUMS, runtime="bubblewrap")
    assert isinstance(outcome, Unscored)
    assert outcome.kind is FailureKind.SANDBOX_UNAVAILABLE


def test_what_is_missing_is_said() -> None:
    async def said(settings: DockerSettings) -> str:
        pool = SandboxPool(PoolSettings(slots=1, docker=settings))
        with pytest.raises(SandboxUnavailable) as raised:
            await pool.run(Submission("python", "", (Run(),)))
        await pool.stop()
        return str(raised.value)

    assert "no-such-image" in asyncio.run(said(DockerSettings("no-such-image")))
    assert "/no/docker.sock" in asyncio.run(said(DockerSettings(url="unix:///no/docker.sock")))
    assert "runsc" in asyncio.run(said(DockerSettings(IMAGE, runtime="runsc"))) or shutil.which(
        "runsc"
    )


class _Daemon:
    """A Docker daemon of this test alone, to be killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"unix://{folder}/d.sock"
        self.start()

    def start(self) -> None:
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(
            [
                "dockerd", "--iptables=false", "--bridge=none", "--exec-opt", "native.cgroupdriver=cgroupfs",
                "--data-root", f"{self.folder}/data", "--exec-root", f"{self.folder}/exec",
                "--pidfile", f"{self.folder}/pid", "--host", self.url,
            ],
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        log.close()
        up = _until(lambda: self.call("info").returncode == 0, 60)
        assert up, (self.folder / "log").read_text()[-3000:]

    def call(self, *words: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["docker", "--host", self.url, *words], capture_output=True, check=False, **more
        )

    def kill(self) -> None:
        """It and its containerd."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._kill_all(b"containerd\0")
        # Where nobody reaps it, its process id looks alive to the next daemon, which would then start none.
        shutil.rmtree(self.folder / "exec" / "containerd")

    def end(self) -> None:
        """It, and the containers that a daemon before it left behind."""
        ids = self.call("ps", "--all", "--quiet").stdout.decode().split()
        if ids:
            self.call("rm", "--force", *ids)
        self.process.terminate()
        self.process.wait(30)
        self._kill_all(b"")

    def _kill_all(self, start: bytes) -> None:
        """Every process that names this daemon's folder, and what such a process started."""
        for name in filter(str.isdecimal, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes()
                children = Path(f"/proc/{name}/task/{name}/children").read_text().split()
            except OSError:
                continue
            if words.startswith(start) and str(self.folder).encode() in words:
                for pid in (*(children if not start else ()), name):
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)


@pytest.fixture
def daemon() -> Iterator[_Daemon]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = _Daemon(Path(folder))
        saved = subprocess.run(["docker", "save", IMAGE], capture_output=True, check=True)
        assert made.call("load", input=saved.stdout).returncode == 0
        yield made
        made.end()


@pytest.mark.timeout(240)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Docker daemon")
def test_a_daemon_that_is_killed_leaves_items_unscored_and_the_next_one_grades(
    daemon: _Daemon,
) -> None:
    with live_pool(docker=DockerSettings(IMAGE, url=daemon.url)) as live:
        assert live.reward(ADD, SUMS) == 1.0

        async def interrupted() -> list[Verdict]:
            begun = asyncio.Event()
            runs = (Run(stdin=b"0"), Run(stdin=b"20"))
            source = "import time\ntime.sleep(int(input()))"

            def hear(number: int, execution: Any) -> bool:
                begun.set()
                return False

            task = asyncio.ensure_future(
                live.pool.run(Submission("python", source, runs, Limits(wall_s=30.0)), hear)
            )
            await begun.wait()
            await asyncio.to_thread(daemon.kill)
            return [e.verdict for e in (await task).runs]

        assert live.wait(interrupted(), 120) == [Verdict.OK, Verdict.SANDBOX_FAILED]
        outcome = live.grade(ADD, SUMS)
        assert isinstance(outcome, Unscored)
        assert outcome.kind is FailureKind.SANDBOX_UNAVAILABLE
        daemon.start()
        again = live.grade(ADD, SUMS)
        assert isinstance(again, Scored), again
        assert again.reward == 1.0
