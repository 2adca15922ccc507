"""A minute of hostile and honest programs leaves nothing behind: the soak of ``make bench``, shorter."""

from __future__ import annotations

import asyncio
import os

import pytest

from benchmarks.sandbox_soak import grown, soak
from tests.sandboxes.needs import needs_bubblewrap


@needs_bubblewrap
@pytest.mark.timeout(200)
def test_nothing_grows_in_a_minute_of_submissions() -> None:
    seconds = 60.0 if os.environ.get("CI") == "true" else 10.0
    before, after, done = asyncio.run(soak(seconds, 1))
    assert done > seconds / 2
    assert grown(before, after, 1) == {}
