"""Cheats of Lean proofs, with real Lean: none is paid, and none ends unscored."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks.lean.cheats import CHEATS
from tests.graders.lean_proofs import Proof
from tests.graders.test_lean import grade, scored
from tests.lean.toolchain import mounts, needs_lean
from tests.sandboxes.live import Live, live_pool

pytestmark = needs_lean


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_pool(mounts=mounts()) as found:
        yield found


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda c: c.name)
def test_the_cheat_is_refused(live: Live, cheat: Proof) -> None:
    found = scored(grade(live, cheat.completion, cheat.reference, mode=cheat.mode))
    assert found.reward == 0.0
    assert found.raw["outcome"] in cheat.outcome.split(), found.raw


def test_the_corpus_is_not_shrinking() -> None:
    assert len(CHEATS) >= 60
