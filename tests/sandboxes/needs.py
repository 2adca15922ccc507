"""What tests of the sandboxes need from the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_MISSING = not Path("/usr/bin/bwrap").exists()
_CI = os.environ.get("CI") == "true"

needs_bubblewrap = pytest.mark.skipif(
    _MISSING and not _CI, reason="bubblewrap is missing: apt-get install bubblewrap"
)


def uid_of_worker() -> int:
    """A host user for the boxes of this pytest worker alone."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return 62_000 + 1000 * int(worker)
