"""SandboxFusion's wire format: its shapes, and verl's own client against them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.faults.server import LiveServer
from tests.sandboxes.needs import needs_bubblewrap

URL = "/adapters/sandbox-fusion/run_code"
VERL = "0.9.1"

pytestmark = needs_bubblewrap


def run(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post(URL, json={"language": "python", **body})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_a_program_that_ends_well(client: TestClient) -> None:
    answer = run(client, code="print(input() * 2)", stdin="ab")
    assert answer["status"] == "Success"
    assert answer["compile_result"] is None
    assert answer["executor_pod_name"] is None
    result = answer["run_result"]
    assert (result["status"], result["return_code"], result["stdout"]) == ("Finished", 0, "abab\n")
    assert 0 < result["execution_time"] < 5


def test_a_program_that_fails(client: TestClient) -> None:
    answer = run(client, code="import sys\nsys.exit(3)")
    assert (answer["status"], answer["run_result"]["return_code"]) == ("Failed", 3)
    assert "ZeroDivisionError" in run(client, code="1/0")["run_result"]["stderr"]


def test_a_program_out_of_time(client: TestClient) -> None:
    answer = run(client, code="while True: pass", run_timeout=0.5)
    assert answer["status"] == "Failed"
    assert answer["run_result"]["status"] == "TimeLimitExceeded"
    assert answer["run_result"]["return_code"] is None


def test_a_program_that_is_compiled(client: TestClient) -> None:
    good = run(client, language="cpp", code='#include <cstdio>\nint main(){puts("hi");}')
    assert (
        good["status"],
        good["compile_result"]["return_code"],
        good["run_result"]["stdout"],
    ) == ("Success", 0, "hi\n")
    bad = run(client, language="cpp", code="int main(){return x;}")
    assert bad["status"] == "Failed"
    assert bad["run_result"] is None
    assert "x" in bad["compile_result"]["stderr"]


def test_files_go_in_and_come_back(client: TestClient) -> None:
    answer = run(
        client,
        code="open('out/b.bin', 'wb').write(open('in/a.txt', 'rb').read()[::-1])",
        files={"in/a.txt": base64.b64encode(b"abc").decode(), "out/.keep": None},
        fetch_files=["out/b.bin", "missing"],
    )
    assert {n: base64.b64decode(c) for n, c in answer["files"].items()} == {"out/b.bin": b"cba"}


@pytest.mark.parametrize("code", [
    "import os; os.symlink('/etc/passwd', 'x')",
    "import os; os.mkfifo('x')",
    "import os; os.mkdir('x')",
    "import os; os.symlink('/scratch', 'd')",
])  # fmt: skip
def test_only_regular_files_come_back(client: TestClient, code: str) -> None:
    assert run(client, code=code, fetch_files=["x", "d/work/main.py"])["files"] == {}


def test_output_that_was_cut_is_no_success(client: TestClient) -> None:
    answer = run(client, code="while True: print('x' * 1000)")
    assert answer["status"] == "Failed"
    assert answer["run_result"]["return_code"] != 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"code": "", "language": "cobol"}, "language"),
        ({"language": "python"}, "code"),
        ({"code": "", "language": "python", "files": {"../x": ""}}, "files"),
        ({"code": "", "language": "python", "files": {"/etc/x": ""}}, "files"),
        ({"code": "", "language": "python", "files": {"x": "%"}}, "files"),
        ({"code": "", "language": "python", "fetch_files": ["/etc/passwd"]}, "fetch_files"),
        ({"code": "", "language": "python", "run_timeout": 0}, "run_timeout"),
    ],
)
def test_a_malformed_request_is_a_422_that_names_the_field(
    client: TestClient, body: Any, field: str
) -> None:
    response = client.post(URL, json=body)
    assert response.status_code == 422
    assert field in response.text


def test_a_language_without_a_runtime_is_a_failure_of_ours(client: TestClient) -> None:
    assert run(client, language="julia", code="")["status"] == "SandboxError"


_CLIENT = """
import importlib.util, json, sys, types
for name in ("verl", "verl.utils", "verl.utils.reward_score"):  # verl itself would import torch and ray
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
folder = sys.argv[1] + "/verl/utils/reward_score/sandbox_fusion"
name = "verl.utils.reward_score.sandbox_fusion"
spec = importlib.util.spec_from_file_location(name, folder + "/__init__.py", submodule_search_locations=[folder])
module = importlib.util.module_from_spec(spec)
sys.modules[name] = module
spec.loader.exec_module(module)
print(json.dumps([module.compute_score(sys.argv[2], None, 256, *args)[0] for args in json.loads(sys.argv[3])]))
"""


@pytest.mark.timeout(400)  # downloads verl and makes an environment
def test_verls_own_client_scores_with_it(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    wheels = tmp_path / "wheels"
    done = subprocess.run(
        [*pip, "download", "--no-deps", f"verl=={VERL}", "-d", str(wheels)],
        check=False,
        capture_output=True,
    )
    if done.returncode and os.environ.get("CI") != "true":
        pytest.skip("verl cannot be downloaded here")
    (wheel,) = wheels.glob("verl-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "verl")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run(
        [str(python), "-m", "pip", "--quiet", "install", "requests"],
        check=True,
        capture_output=True,
    )
    sums = {"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]}
    calls = {"fn_name": "sum_of", "inputs": ["1\n2", "3\n4"], "outputs": ["3", "7"]}
    cases = [
        ("```python\nprint(sum(map(int, input().split())))\n```", sums),
        ("```python\nprint(3)\n```", sums),
        ("```python\nimport os; os._exit(0)\n```", sums),
        ("```python\nwhile True: pass\n```", sums, False, 1),
        ("```python\ndef sum_of(a, b): return a + b\n```", calls),
        ("```python\nclass Solution:\n    def sum_of(self, a, b): return a - b\n```", calls),
    ]
    server = LiveServer(tmp_path / "data")
    try:
        scored = subprocess.run(
            [str(python), "-c", _CLIENT, str(tmp_path / "verl"), server.url + URL, json.dumps(cases)],
            check=True, capture_output=True, text=True, timeout=100,
        )  # fmt: skip
    finally:
        server.terminate()
    assert json.loads(scored.stdout.splitlines()[-1]) == [1.0, 0.5, 0.0, 0.0, 1.0, 0.0]
