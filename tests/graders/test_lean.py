"""Kind ``lean``, with real Lean: what is proved, and what is not."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from reward_server.graders.base import Digest, LiveGrader, Spec, View, canonical_json
from reward_server.graders.catalog import CATALOG
from reward_server.graders.lean.kind import LeanConfig, pinned
from reward_server.graders.lean.reference import LeanReference
from reward_server.graders.lean.sources import challenge, split_header
from reward_server.graders.lean.toolchains import installed, mounts_of
from reward_server.outcome import Basis, FailureKind, Outcome, Scored, Unscored
from sandboxes.program import Mount
from tests.graders.lean_proofs import PROOFS, Proof
from tests.lean.toolchain import mounts, needs_lean, prefix
from tests.sandboxes.live import Live, live_context, live_pool

pytestmark = needs_lean
CONFIG: dict[str, Any] = {"project": "mini", "prelude": True, "min_level": "axioms_audited"}


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_pool(mounts=mounts()) as found:
        yield found


def grade(live: Live, completion: str, reference: Any, **config: Any) -> Outcome:
    return live.grade(completion, reference, kind="lean", **(CONFIG | config))


def scored(outcome: Outcome) -> Scored:
    assert isinstance(outcome, Scored), outcome
    return outcome


@pytest.mark.parametrize("proof", PROOFS, ids=lambda p: p.name)
def test_proofs(live: Live, proof: Proof) -> None:
    found = scored(grade(live, proof.completion, proof.reference, mode=proof.mode, **proof.config))
    assert found.raw["outcome"] == proof.outcome, found.raw
    assert found.reward == float(proof.outcome == "proved")
    if found.reward:
        assert found.raw["level"] == "axioms_audited"


# ── what a proof does to itself ──────────────────────────────────────────────────────────────────

TRUE: dict[str, Any] = {"statement": "theorem target : True", "imports": ["Ax"]}
SLOW = (
    "inductive N where\n  | z : N\n  | s (n : N) : N\n"
    "def two (n : N) : N := N.rec (N.s (N.s N.z)) (fun _ m => N.s (N.s m)) n\n"
    "def big (n : N) : N := N.rec N.z (fun _ m => two (two m)) n\n"
    "def ten : N := N.s (N.s (N.s (N.s (N.s (N.s (N.s (N.s (N.s (N.s N.z)))))))))\n"
    "theorem loop : Eq (big (big (big (big ten)))) (big (big (big (two ten)))) := Eq.refl _\n"
)


def test_a_proof_that_does_not_end_is_ended(live: Live) -> None:
    options = {"maxHeartbeats": 0, "maxRecDepth": 1_000_000}
    limits = {"cpu_s": 1.0, "wall_s": 5.0, "memory_mb": 8192}
    completion = SLOW + "theorem target : True := True.intro"
    found = scored(grade(live, completion, TRUE, options=options, limits=limits))
    assert found.reward == 0.0
    assert found.raw["outcome"] in ("time_limit", "memory_limit", "crash")
    assert found.basis is Basis.LIMIT


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_panic_pays_nothing(live: Live, where: str) -> None:
    """``init_quot`` panics with this prelude, which lacks what it looks for."""
    proof = "theorem target : True := True.intro"
    text = f"init_quot\n{proof}" if where == "before" else f"{proof}\ninit_quot"
    found = scored(grade(live, text, TRUE))
    assert found.reward == 0.0
    assert (found.raw["outcome"], found.raw["signal"]) == ("crash", 6)
    assert "PANIC" in found.raw["stderr"]


def test_heartbeats_end_it_earlier(live: Live) -> None:
    options = {"maxHeartbeats": 100}
    found = scored(grade(live, SLOW + "theorem target : True := True.intro", TRUE, options=options))
    assert found.raw["outcome"] == "lean_error"
    again = "set_option maxHeartbeats 100 in\n"
    assert scored(grade(live, again + "theorem target : True := True.intro", TRUE)).reward == 1.0


LONG = "".join(f"theorem l{n} : True := True.intro\n" for n in range(3000))


@pytest.mark.parametrize(
    ("completion", "outcome"),
    [
        ("theorem target : True := " + "(" * 100_000, "lean_error crash"),
        (
            "theorem target : True := " + "id (" * 20_000 + "True.intro" + ")" * 20_000,
            "lean_error crash proved",
        ),
        ("-- " + "x" * 1_000_000 + "\ntheorem target : True := True.intro", "proved"),
        (
            "theorem target : True := True.intro\n" + "theorem l : True := True.intro\n" * 3,
            "lean_error",
        ),
        ("theorem target : True := True.intro \ud800", "lean_error"),
        ("theorem target : True :=\x00 True.intro", "lean_error"),
        ("\ufefftheorem target : True := True.intro", "lean_error proved"),
        ("theorem tаrget : True := True.intro", "statement_differs lean_error"),  # а of Cyrillic
        (
            "\n".join(f"theorem l{n} : True := True.intro" for n in range(3000))
            + "\ntheorem target : True := l2999",
            "proved",
        ),
    ],
    ids=["deep", "nested", "1 MB", "several", "surrogate", "NUL", "BOM", "look-alike", "long"],
)
def test_odd_files(live: Live, completion: str, outcome: str) -> None:
    found = scored(grade(live, completion, TRUE, mode="theorem"))
    assert found.raw["outcome"] in outcome.split(), found.raw


# ── references ───────────────────────────────────────────────────────────────────────────────────


def test_a_file_as_reference(live: Live) -> None:
    file = (
        "prelude\nimport Ax -- the library\n\ndef Claim : Prop := True\n"
        "/- what is asked -/\ntheorem target : Claim := sorry\n"
    )
    right = file.replace("sorry", "True.intro")
    assert scored(grade(live, right, {"file": file})).reward == 1.0
    wrong = right.replace("Prop := True", "Prop := Not False")
    assert scored(grade(live, wrong, {"file": file})).raw["outcome"] in (
        "statement_differs",
        "lean_error",
    )
    two = file + "theorem other : True := True.intro\n"
    unnamed = grade(live, right, {"file": two})
    assert isinstance(unnamed, Unscored)
    assert "name one" in unnamed.detail
    assert scored(grade(live, right, {"file": two, "theorem": "target"})).reward == 1.0


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ({"statement": "theorem target : Tru", "imports": ["Ax"]}, "Tru"),
        ({"statement": "theorem target : True", "imports": ["Nowhere"]}, "Nowhere"),
        ({"statement": "def target : Nat", "imports": ["Ax"]}, "name the theorem"),
        (
            {"file": "theorem a : True := sorry", "theorem": "b", "imports": ["Ax"]},
            "does not declare b",
        ),
        (
            {"file": "def target : True := True.intro", "theorem": "target", "imports": ["Ax"]},
            "no theorem",
        ),
        ({"statement": "theorem target : (", "imports": ["Ax"]}, "line 1"),
    ],
)
def test_a_broken_reference_leaves_the_item_unscored(
    live: Live, reference: Any, words: str
) -> None:
    outcome = grade(live, "theorem target : True := True.intro", reference)
    assert isinstance(outcome, Unscored)
    assert outcome.kind is FailureKind.INVALID_REFERENCE
    assert words in outcome.detail


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("theorem a.b.c : True", ("a", "b", "c")),
        ("lemma «odd name».x (n : Nat) : True := by sorry", ("odd name", "x")),
        ("/-- says theorem x -/\n@[simp] theorem t.{u} {α : Type u} : True := sorry", ("t",)),
        ("protected theorem t: True := by", ("t",)),
        ("theorem t(h : True):True", ("t",)),
    ],
)
def test_the_name_that_a_statement_declares(statement: str, name: tuple[str, ...]) -> None:
    found = challenge(LeanReference(statement=statement), LeanConfig())
    assert found.theorem == name
    assert found.text.count("sorry") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import A\nimport B.C\ntheorem", (False, ["A", "B.C"])),
        ("-- import X\n/- import Y -/ prelude import A theorem", (True, ["A"])),
        ("module\npublic import A\nmeta import B\nimport all C\n", (False, ["A", "B", "C"])),
        ("/-! doc -/\nimport A", (False, ["A"])),
        ("theorem t : True", (False, [])),
    ],
)
def test_the_header_of_a_file(text: str, expected: tuple[bool, list[str]]) -> None:
    prelude, imports, rest = split_header(text)
    assert (prelude, imports) == expected
    assert len(rest.split("\n")) == len(text.split("\n"))
    assert "import A" not in rest


# ── levels, toolchains ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that boxes can read; pytest's own are closed."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def stand_in(folder: Path, **programs: str) -> tuple[Mount, ...]:
    """A toolchain whose programs are these scripts, and the real Lean for what is missing."""
    real = prefix()
    (folder / "bin").mkdir(mode=0o755)
    (folder / "lib" / "lean").mkdir(parents=True)
    for name in ("lean", "libleanshared.so"):
        if name not in programs:
            shutil.copy(real / "bin" / name, folder / "bin" / name)
    for name, text in programs.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    return mounts_of({"test": folder}, {"mini": real / "prelude"}, look=False)


CHECKER = """#!/bin/bash
# Stands in for leanchecker, which comes with toolchains and not with the wheel: called as that is.
[ "$#" = 1 ] || exit 2
[ -f "$1.olean" ] || { echo "no $1.olean" >&2; exit 2; }
echo "$LEAN_PATH" | grep -q "/tools/lean-project-mini" || { echo "LEAN_PATH: $LEAN_PATH" >&2; exit 2; }
if grep -q forged "$1.olean"; then echo "found a problem in $1: forged" >&2; exit 1; fi
"""


def test_nothing_is_paid_below_the_least_level(live: Live) -> None:
    outcome = grade(live, "theorem target : True := True.intro", TRUE, min_level="kernel_replayed")
    assert isinstance(outcome, Unscored)
    assert outcome.kind is FailureKind.TOOLCHAIN_UNAVAILABLE
    assert "leanchecker" in outcome.detail
    outcome = grade(live, "theorem target : True := True.intro", TRUE, min_level="comparator")
    assert isinstance(outcome, Unscored)


def test_a_replayer_has_the_last_word(open_folder: Path) -> None:
    right = "theorem target : True := True.intro"
    with live_pool(mounts=stand_in(open_folder, leanchecker=CHECKER)) as live:
        found = scored(grade(live, right, TRUE, min_level="kernel_replayed"))
        assert (found.reward, found.raw["level"]) == (1.0, "kernel_replayed")
        forged = "theorem forged : True := True.intro\ntheorem target : True := forged"
        found = scored(grade(live, forged, TRUE, min_level="kernel_replayed"))
        assert (found.reward, found.raw["outcome"]) == (0.0, "replay_failed")
        assert found.raw["level"] == "axioms_audited"
        assert "found a problem" in found.raw["detail"]
        assert scored(grade(live, forged, TRUE)).reward == 1.0  # not asked to replay
        asked = TRUE | {"header": "theorem forged : True := True.intro"}
        refuses = grade(live, right, asked, min_level="kernel_replayed")
        assert isinstance(refuses, Unscored)
        assert "the challenge itself" in refuses.detail


def test_elaborated_is_a_level_that_must_be_chosen(live: Live) -> None:
    for completion, reward in (("True.intro", 1.0), ("sorry", 0.0)):
        found = scored(grade(live, completion, TRUE, mode="body", min_level="elaborated"))
        assert found.reward == reward
    with pytest.raises(ValidationError):
        LeanConfig(allowed_axioms=["sorryAx"])


def test_axioms_that_are_allowed(live: Live) -> None:
    propext = "theorem target (a : Prop) (h : a) : Eq a True"
    proof = "propext (Iff.intro (fun _ => True.intro) (fun _ => h))"
    asked = {"statement": propext, "imports": ["Ax"]}
    assert scored(grade(live, proof, asked, mode="body")).raw["axioms"] == ["propext"]
    refused = scored(grade(live, proof, asked, mode="body", allowed_axioms=[]))
    assert refused.raw["outcome"] == "axioms"
    given = {
        "statement": "theorem target : False",
        "imports": ["Ax"],
        "header": "axiom given : False",
    }
    assert scored(grade(live, "given", given, mode="body")).raw["outcome"] == "axioms"
    allowed = grade(live, "given", given, mode="body", allowed_axioms=["given"])
    assert scored(allowed).reward == 1.0
    own = "axiom given : False\ntheorem target : False := given"
    asked = {"statement": "theorem target : False", "imports": ["Ax"]}
    assert scored(grade(live, own, asked, allowed_axioms=["given"])).raw["outcome"] == "axioms"


def test_a_toolchain_without_setup(open_folder: Path) -> None:
    """Older ones: the header is in the file, and what else is imported shows in what is compiled."""
    script = """#!/bin/bash
for a in "$@"; do case "$a" in
  --setup=*) echo "unknown option" >&2; exit 1;;
  --help) echo "usage: lean"; exit 0;;
esac; done
exec "$(dirname "$0")/real" "$@"
"""
    mounts = stand_in(open_folder, lean=script)
    shutil.copy(prefix() / "bin" / "lean", open_folder / "bin" / "real")
    with live_pool(mounts=mounts) as live:
        for mode, completion in (
            ("body", "True.intro"),
            ("theorem", "theorem target : True := True.intro"),
            ("file", "prelude\nimport Ax\ntheorem target : True := True.intro"),
        ):
            assert scored(grade(live, completion, TRUE, mode=mode)).reward == 1.0
        other = "prelude\nimport Mini\naxiom propext : False\ntheorem target : True := True.intro"
        assert scored(grade(live, other, TRUE)).raw["outcome"] == "statement_differs"
        own = (
            "prelude\ninductive True : Prop\n  | intro : True\ntheorem target : True := True.intro"
        )
        assert scored(grade(live, own, TRUE)).raw["outcome"] == "statement_differs"


def test_what_is_not_here_leaves_the_item_unscored(live: Live, tmp_path: Path) -> None:
    right = "theorem target : True := True.intro"
    for config, words in (
        ({"toolchain": "leanprover/lean4:v4.9.0"}, "v4.9.0"),
        ({"project": "mathlib"}, "REWARD_LEAN__PROJECTS"),
        ({"toolchain_hash": "sha256:" + "0" * 64}, "register the grader again"),
        ({"project_hash": "sha256:" + "0" * 64}, "register the grader again"),
    ):
        outcome = grade(live, right, TRUE, **config)
        assert isinstance(outcome, Unscored)
        assert outcome.kind is FailureKind.TOOLCHAIN_UNAVAILABLE
        assert words in outcome.detail
    for toolchain in ("4.35.0", "v4.35.0", "leanprover/lean4:v4.35.0", "test"):
        assert scored(grade(live, right, TRUE, toolchain=toolchain)).reward == 1.0
    with live_pool() as nothing:
        outcome = grade(nothing, right, TRUE, project=None)
        assert isinstance(outcome, Unscored)
        assert "elan" in outcome.detail


def test_the_hashes_of_what_is_here_are_pinned() -> None:
    config = pinned(LeanConfig(project="mini"), mounts())
    assert config.toolchain_hash == pinned(config, mounts()).toolchain_hash
    assert config.toolchain_hash is not None
    assert config.project_hash is not None
    assert pinned(LeanConfig(project="mini"), ()) == LeanConfig(project="mini")


def test_toolchains_of_elan_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bin_folder = tmp_path / "toolchains" / "leanprover--lean4---v4.35.0" / "bin"
    bin_folder.mkdir(parents=True)
    for name in ("lean", "libleanshared.so"):
        shutil.copy(prefix() / "bin" / name, bin_folder / name)
    monkeypatch.setenv("ELAN_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    here = installed(mounts_of({}, {}))
    assert [(t.name, t.version) for t in here.toolchains] == [
        ("leanprover_lean4_v4.35.0", "4.35.0")
    ]
    assert here.workshop("leanprover/lean4:v4.35.0", None, None, None).toolchain.setup


def test_a_lake_project(tmp_path: Path) -> None:
    """Its packages' compiled modules, and the toolchain that it names."""
    for folder in (
        ".lake/build/lib/lean",
        ".lake/packages/mathlib/.lake/build/lib/lean",
        ".lake/packages/std/build/lib",
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "A.olean").write_bytes(b"")
    (tmp_path / ".lake/packages/checker/.lake/build/bin").mkdir(parents=True)
    (tmp_path / ".lake/packages/checker/.lake/build/bin/safe_verify").write_text("")
    (tmp_path / "lean-toolchain").write_text("leanprover/lean4:v4.35.0\n")
    (tmp_path / "lake-manifest.json").write_text('{"packagesDir": ".lake/packages"}')
    here = installed(mounts_of({"a": prefix()}, {"math": tmp_path}, look=False))
    (project,) = here.projects
    assert project.paths == tuple(
        f"/tools/lean-project-math/{p}"
        for p in (
            ".lake/build/lib/lean",
            ".lake/packages/mathlib/.lake/build/lib/lean",
            ".lake/packages/std/build/lib",
        )
    )
    shop = here.workshop(None, None, "math", None)
    assert shop.toolchain.version == "4.35.0"
    assert shop.replayer == (
        "safe_verify",
        "/tools/lean-project-math/.lake/packages/checker/.lake/build/bin/safe_verify",
    )
    before = project.digest
    (tmp_path / "lake-manifest.json").write_text('{"packages": []}')
    (again,) = installed(mounts_of({"a": prefix()}, {"math": tmp_path}, look=False)).projects
    assert again.digest != before


def test_challenges_are_compiled_once(live: Live) -> None:
    made = CATALOG.build(
        Spec("lean", canonical_json({**CONFIG, "mode": "body"}), Digest("sha256:t"))
    )
    assert isinstance(made, LiveGrader)
    grader = made

    async def several() -> list[Outcome]:
        context = live_context(live.pool, 60)
        views = [View(completion="True.intro" + " " * n, reference=TRUE) for n in range(6)]
        return list(await asyncio.gather(*(grader.grade_live(v, context) for v in views)))

    outcomes = live.wait(several())
    assert [scored(o).reward for o in outcomes] == [1.0] * 6
    assert sum("challenge_s" in o.raw["timings"] for o in outcomes) == 1


def test_a_cancelled_item_holds_up_nobody_that_waits_for_its_challenge(live: Live) -> None:
    made = CATALOG.build(
        Spec("lean", canonical_json({**CONFIG, "mode": "body"}), Digest("sha256:t"))
    )
    assert isinstance(made, LiveGrader)
    grader = made

    async def two() -> Outcome:
        context = live_context(live.pool, 60)
        view = View(
            completion="True.intro", reference={**TRUE, "header": "theorem x : True := True.intro"}
        )
        first = asyncio.create_task(grader.grade_live(view, context))
        await asyncio.sleep(0.01)
        second = asyncio.create_task(grader.grade_live(view, context))
        await asyncio.sleep(0.01)
        first.cancel()
        return await second

    assert scored(live.wait(two())).reward == 1.0
