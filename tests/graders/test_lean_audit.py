"""What reads compiled files: it runs in a box, but is plain Python, so here it is called directly."""

from __future__ import annotations

import importlib
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from tests.lean.toolchain import compile_module, needs_lean, prefix

pytestmark = needs_lean
TARGET = ("target",)
STATEMENT = "prelude\nimport Ax\ntheorem target (a b : Prop) (h : And a b) : And b a := "
PROOF = STATEMENT + "And.intro h.right h.left\n"


@pytest.fixture(scope="module")
def inside() -> Iterator[Any]:
    folder = str(files("reward_server.graders.lean").joinpath("inside"))
    sys.path.insert(0, folder)
    yield importlib.import_module
    sys.path.remove(folder)
    for name in ("olean", "compare", "closure"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("lean")
    for name in ("Mini", "Tac", "Ax"):
        (folder / f"{name}.olean").symlink_to(prefix() / "prelude" / f"{name}.olean")

    def one(text: str) -> bytes:
        compile_module(prefix() / "bin" / "lean", folder, "Submission", text)
        return (folder / "Submission.olean").read_bytes()

    return one


@pytest.fixture(scope="module")
def pair(compiled: Any) -> tuple[bytes, bytes]:
    return compiled(STATEMENT + "sorry\n"), compiled(PROOF)


def test_a_proof_and_what_it_rests_on(inside: Any, pair: tuple[bytes, bytes]) -> None:
    told = inside("compare").compared([pair[0]], [pair[1]], TARGET)
    assert told["axioms"] == told["unsafe"] == []
    assert told["elsewhere"] == [("And",), ("And", "intro"), ("And", "left"), ("And", "right")]
    found = inside("closure").axioms_of(
        [str(prefix() / "prelude")], [("Ax",)], told["elsewhere"], {}
    )
    assert {found[n] for n in told["elsewhere"]} == {(frozenset(), False)}


def test_axioms_of_the_library(inside: Any) -> None:
    axioms_of = inside("closure").axioms_of
    wanted = [
        ("propext",),
        ("Classical", "choice"),
        ("sorryAx",),
        ("lcErased",),
        ("of_decide_eq_true",),
    ]
    found = axioms_of([str(prefix() / "prelude")], [("Ax",)], wanted, {})
    assert found[("propext",)] == (frozenset([("propext",)]), False)
    assert found[("Classical", "choice")] == (frozenset([("Classical", "choice")]), False)
    assert found[("lcErased",)] == (frozenset([("lcErased",)]), True)
    assert found[("of_decide_eq_true",)] == (frozenset(), False)
    again = axioms_of([str(prefix() / "prelude")], [("Ax",)], [("rfl",)], found)
    assert again.keys() > found.keys()


def test_the_parts_of_a_module_are_read_as_one(inside: Any, tmp_path: Path) -> None:
    """Under ``module``, the first part of a file shows theorems as axioms; the proofs are in the last."""
    lean = prefix() / "bin" / "lean"
    text = (
        "module\nprelude\n@[expose] public section\ninductive True : Prop where\n  | intro : True\n"
        "axiom hidden : True\ntheorem shown : True := hidden\n"
    )
    compile_module(lean, tmp_path, "M", text)
    closure, olean = inside("closure"), inside("olean")
    assert len(olean.parts_of(str(tmp_path / "M.olean"))) == 3
    found = closure.axioms_of([str(tmp_path)], [("M",)], [("shown",)], {})
    assert found[("shown",)] == (frozenset([("hidden",)]), False)
    (tmp_path / "M.olean.private").unlink()
    with pytest.raises(olean.Malformed, match="private"):
        closure.axioms_of([str(tmp_path)], [("M",)], [("shown",)], {})


def test_a_forged_proof_is_one_for_the_replayer(inside: Any, pair: tuple[bytes, bytes]) -> None:
    """Why ``axioms_audited`` is not enough against those who can write files: the audit does not check proofs."""
    olean = inside("olean")
    module = olean.Module([pair[1]])
    constant = module.constant(TARGET)
    data = bytearray(pair[1])
    at = constant.address - module.image.regions[0].base + 16
    struct.pack_into("<Q", data, at, constant.type)  # its value is now its type
    told = inside("compare").compared([pair[0]], [bytes(data)], TARGET)
    assert told["axioms"] == []
    lean = prefix() / "bin" / "lean"
    assert subprocess.run([lean, "--version"], capture_output=True, check=True).stdout


@pytest.mark.parametrize("size", [0, 5, 96, 104, 1000])
def test_a_file_that_is_cut_off(inside: Any, pair: tuple[bytes, bytes], size: int) -> None:
    with pytest.raises(inside("olean").Malformed):
        inside("compare").compared([pair[0]], [pair[1][:size]], TARGET)


def test_another_version_of_the_format_is_no_verdict(
    inside: Any, pair: tuple[bytes, bytes]
) -> None:
    old = bytearray(pair[0])
    old[5] = 1
    with pytest.raises(inside("olean").Malformed, match="version 1"):
        inside("olean").Module([bytes(old)])


@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 20), st.integers(0, (1 << 64) - 1)), min_size=1, max_size=8
    )
)
@example([(12, 0x41)])
@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_the_bytes_are_it_ends_in_a_verdict(
    inside: Any, pair: tuple[bytes, bytes], changes: list[tuple[int, int]]
) -> None:
    """Words of the file are replaced: by anything, and by addresses of other objects, which makes cycles."""
    data = bytearray(pair[1])
    words = len(data) // 8
    base = struct.unpack_from("<Q", data, 80)[0]
    for where, value in changes:
        at = 10 + where % (words - 10)
        inner = base + 96 + value % (len(data) - 96) // 8 * 8
        struct.pack_into("<Q", data, 8 * at, inner if value & 1 else value)
    try:
        told = inside("compare").compared([pair[0]], [bytes(data)], TARGET)
    except inside("olean").Malformed:
        return
    assert told.keys() <= {"differs"} or "axioms" in told
