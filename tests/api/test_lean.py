"""Kind ``lean`` over HTTP: a grader is pinned to the toolchain and project that it was registered with."""

from __future__ import annotations

from pathlib import Path

from reward_server.settings import LeanSettings, Settings
from tests.conftest import serving
from tests.lean.toolchain import needs_lean, prefix

pytestmark = needs_lean

CONFIG = {"project": "mini", "prelude": True, "min_level": "axioms_audited"}
REFERENCE = {"statement": "theorem target : True", "imports": ["Ax"]}


def _settings(folder: Path) -> Settings:
    lean = LeanSettings(
        toolchains={"test": prefix()}, projects={"mini": prefix() / "prelude"}, look=False
    )
    return Settings(data_dir=folder, workers=1, lean=lean)


def test_register_and_score(tmp_path: Path) -> None:
    golden = [
        {
            "completion": "theorem target : True := True.intro",
            "reference": REFERENCE,
            "expect": {"reward": 1},
        },
        {
            "completion": "theorem target : True := sorry",
            "reference": REFERENCE,
            "expect": {"reward": 0},
        },
    ]
    with serving(_settings(tmp_path)) as client:
        body = {"name": "proof", "kind": "lean", "config": CONFIG, "cases": golden}
        made = client.post("/graders", json=body)
        assert made.status_code == 201, made.text
        config = client.get("/graders/proof/versions/1").json()["config"]
        assert config["toolchain_hash"].startswith("sha256:")
        assert config["project_hash"].startswith("sha256:")
        items = [
            {"completion": c, "reference": REFERENCE, "grader": "proof"}
            for c in (
                "theorem target : True := True.intro",
                "axiom x : True\ntheorem target : True := x",
            )
        ]
        results = client.post("/score", json={"items": items}).json()["scores"]
        assert [r["reward"] for r in results] == [1.0, 0.0]
        assert [r["raw"]["outcome"] for r in results] == ["proved", "axioms"]
        assert results[0]["raw"]["axioms"] == []


def test_without_a_replayer_nobody_is_paid_and_nobody_blamed(tmp_path: Path) -> None:
    with serving(_settings(tmp_path)) as client:
        config = CONFIG | {"min_level": "kernel_replayed"}
        body = {"name": "proof", "kind": "lean", "config": config}
        assert client.post("/graders", json=body).status_code == 201
        item = {
            "completion": "theorem target : True := True.intro",
            "grader": "proof",
            "reference": REFERENCE,
        }
        found = client.post("/score", json={"items": [item]}).json()["scores"][0]
        assert found["reward"] is None
        assert found["failure"]["kind"] == "toolchain_unavailable", found
        assert "leanchecker" in found["failure"]["detail"]


def test_another_project_than_registered_leaves_items_unscored(tmp_path: Path) -> None:
    with serving(_settings(tmp_path)) as client:
        config = CONFIG | {"project_hash": "sha256:" + "0" * 64}
        body = {"name": "proof", "kind": "lean", "config": config}
        assert client.post("/graders", json=body).status_code == 201
        item = {"completion": "x", "grader": "proof", "reference": REFERENCE}
        found = client.post("/score", json={"items": [item]}).json()["scores"][0]
        assert found["failure"]["kind"] == "toolchain_unavailable"
        assert "register the grader again" in found["failure"]["detail"]
