"""What tests of the sandboxes need from the machine."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

_MISSING = not Path("/usr/bin/bwrap").exists()
_CI = os.environ.get("CI") == "true"

needs_bubblewrap = pytest.mark.skipif(
    _MISSING and not _CI, reason="bubblewrap is missing: apt-get install bubblewrap"
)


IMAGE = os.environ.get("REWARD_TEST_IMAGE", "reward-sandbox")


@cache
def _docker_missing() -> str | None:
    """Why the tests of the Docker backend cannot run."""
    try:
        found = subprocess.run(
            ["docker", "image", "inspect", IMAGE], capture_output=True, check=False, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no docker: {error}"
    if found.returncode:
        return f"docker has no image {IMAGE} (make sandbox-image): {found.stderr.decode()[-200:]}"
    return None


needs_docker = pytest.mark.skipif(
    not _CI and _docker_missing() is not None, reason=_docker_missing() or ""
)


def backends() -> list[ParameterSet]:
    """Both ways of making boxes, each with what it needs."""
    return [
        pytest.param("bubblewrap", marks=needs_bubblewrap),
        pytest.param("docker", marks=needs_docker),
    ]


def uid_of_worker() -> int:
    """A host user for the boxes of this pytest worker alone."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return 62_000 + 1000 * int(worker)
