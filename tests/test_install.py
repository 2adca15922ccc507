"""What an install brings: the bare SDK stays small enough to stand beside any trainer."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_base_install_asks_for_pydantic_and_httpx_only() -> None:
    base = [r for r in requires("reward-server") or [] if "extra ==" not in r]
    assert sorted(re.split(r"[><=~! ]", r)[0] for r in base) == ["httpx", "pydantic"]


def test_a_bare_install_pulls_nothing_else_and_the_wire_types_import(tmp_path: Path) -> None:
    """A real install into a fresh environment, from the local pip cache or index."""
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    constraints = str(ROOT / "constraints.txt")
    subprocess.run([*command, "-c", constraints, str(ROOT)], check=True, timeout=110)
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    names = {line.split("==")[0].lower().replace("_", "-") for line in listed.split()}
    of_pydantic = {
        "pydantic",
        "pydantic-core",
        "annotated-types",
        "typing-extensions",
        "typing-inspection",
    }
    of_httpx = {"httpx", "httpcore", "h11", "anyio", "certifi", "idna", "sniffio"}
    assert names - of_pydantic - of_httpx - {"pip", "setuptools", "wheel"} == {"reward-server"}
    program = "import reward_server.schema, sys; print('fastapi' in sys.modules)"
    done = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
