"""SandboxFusion's ``POST /run_code`` (github.com/bytedance/SandboxFusion), which verl's ``sandbox_fusion`` calls.

What differs from the original, on purpose: the program sees neither our environment nor our files; times
are limits on CPU as well; absolute and parent paths in ``files`` are refused; output beyond 4 MB ends
the run. Everything that happens to a program is a 200, as there.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from reward_server.execution import Execution, Limits, Report, Run, Submission, Verdict

_LANGUAGES = {
    "python": "python",
    "cpp": "cpp",
    "c": "c",
    "nodejs": "javascript",
    "javascript": "javascript",
    "go": "go",
    "java": "java",
    "bash": "bash",
    "rust": "rust",
}
_OTHERS = frozenset(
    """
    go_test php csharp typescript sql cuda lua R perl D_ut ruby scala julia pytest junit kotlin_script jest verilog
    python_gpu lean swift racket
    """.split()
)
"""Languages of SandboxFusion's that have no runtime here."""
_DEFAULT_MEMORY_MB = 1024
_MOST_MEMORY_MB = 8192
_MOST_SECONDS = 300.0
_MAX_FILES = 100


class RunCodeRequest(BaseModel):
    model_config = ConfigDict(extra="ignore")
    code: str
    language: str
    compile_timeout: float = Field(10, gt=0)
    run_timeout: float = Field(10, gt=0)
    memory_limit_MB: int = -1
    stdin: str | None = None
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []

    @field_validator("language")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in _LANGUAGES and value not in _OTHERS:
            raise ValueError(f"no such language; there are {', '.join(sorted(_LANGUAGES))}")
        return value

    @field_validator("files")
    @classmethod
    def _decodable(cls, value: dict[str, str | None]) -> dict[str, str | None]:
        if len(value) > _MAX_FILES:
            raise ValueError(f"at most {_MAX_FILES} files")
        for name, content in value.items():
            try:
                base64.b64decode(content or "", validate=True)
            except (binascii.Error, ValueError):
                raise ValueError(f"{name}: not base64") from None
        return value


class CommandResult(BaseModel):
    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class RunCodeResponse(BaseModel):
    status: Literal["Success", "Failed", "SandboxError"]
    message: str = ""
    compile_result: CommandResult | None = None
    run_result: CommandResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = {}


def unsupported(request: RunCodeRequest) -> RunCodeResponse | None:
    """The answer for a language that SandboxFusion has and we have not."""
    if request.language in _LANGUAGES:
        return None
    return failure(
        f"{request.language} has no runtime here; there are {', '.join(sorted(_LANGUAGES))}"
    )


def seconds(request: RunCodeRequest) -> tuple[float, float]:
    """(compilation, run), within what is allowed."""
    return min(request.compile_timeout, _MOST_SECONDS), min(request.run_timeout, _MOST_SECONDS)


def submission(request: RunCodeRequest) -> Submission:
    compiling, running = seconds(request)
    memory = request.memory_limit_MB if request.memory_limit_MB > 0 else _DEFAULT_MEMORY_MB
    memory = min(max(16, memory), _MOST_MEMORY_MB)
    return Submission(
        _LANGUAGES[request.language],
        request.code,
        (
            Run(
                stdin=(request.stdin or "").encode("utf-8", "surrogatepass"),
                fetch=tuple(request.fetch_files),
            ),
        ),
        Limits(cpu_s=running, wall_s=running, memory_mb=memory, pids=64),
        Limits(cpu_s=compiling, wall_s=compiling, memory_mb=2048, pids=64, disk_mb=256, files=4096),
        {name: base64.b64decode(content or "") for name, content in request.files.items()},
    )


def response(report: Report) -> RunCodeResponse:
    compilation = report.compilation
    run = report.runs[0] if report.runs else None
    ends = [e for e in (compilation, run) if e is not None]
    if any(e.verdict is Verdict.SANDBOX_FAILED for e in ends):
        return failure(next(e.detail for e in ends if e.verdict is Verdict.SANDBOX_FAILED))
    return RunCodeResponse(
        status="Success" if all(e.ok for e in ends) else "Failed",
        compile_result=None if compilation is None else _result(compilation),
        run_result=None if run is None else _result(run),
        files={n: base64.b64encode(c).decode() for n, c in (run.files if run else {}).items()},
    )


def failure(message: str) -> RunCodeResponse:
    return RunCodeResponse(status="SandboxError", message=message)


def _result(execution: Execution) -> CommandResult:
    stderr = execution.stderr.decode("utf-8", "replace")
    timed_out = execution.verdict is Verdict.TIME_LIMIT
    if execution.killed_by and not timed_out:
        stderr += f"\n[killed: {execution.verdict.value}]"
    code = execution.exit_code if execution.signal is None else -execution.signal
    if not execution.ok and not timed_out and code == 0:
        code = 1  # a verdict of ours on a program that ended well: it must not look like a success
    return CommandResult(
        status="TimeLimitExceeded" if timed_out else "Finished",
        execution_time=execution.wall_s,
        return_code=None if timed_out else code,
        stdout=execution.stdout.decode("utf-8", "replace"),
        stderr=stderr,
    )


def as_json(answer: RunCodeResponse) -> dict[str, Any]:
    return answer.model_dump(mode="json")
