"""Kind ``python``: a function that somebody registered grades, in a sandbox and never in the server.

The source is not trusted, and neither is what it is given: a grader that runs completions runs hostile code. It
runs in a box without network or disk, a few items in one process (``chunks``). What it returns is plain data that
is checked here (``returned``). What an item makes it do (raise, loop, crash, eat memory) is ``on_exception``; a
source that does not load, or a sandbox that fails, leaves items unscored.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field as ModelField, field_validator, model_validator

from reward_server.graders.base import Budget, Context, Field, Kind, Spec, View
from reward_server.graders.python.chunks import Chunks, Ending
from reward_server.graders.python.returned import BadReturn, scored
from reward_server.outcome import Basis, CannotScore, FailureKind, Outcome, Scored, Unscored

if TYPE_CHECKING:  # not imported here, but they decide verdicts, so they belong into the digest
    from reward_server.graders.python import runner  # noqa: F401
    from sandboxes import keeper  # noqa: F401

Protection = Literal["namespaces", "seccomp", "unprivileged", "memory", "pids", "proc", "rlimits"]
_MOST_SOURCE = 400_000


class PythonLimits(BaseModel):
    """What one item may use; the first of a chunk has all of it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    cpu_s: float = ModelField(5.0, gt=0, le=600)
    wall_s: float = ModelField(20.0, gt=0, le=600)
    memory_mb: int = ModelField(512, ge=32, le=65536)
    disk_mb: int = ModelField(64, ge=1, le=1024)


class PythonConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    source: str = ModelField(min_length=1, max_length=_MOST_SOURCE)
    """A Python module that defines the function."""
    entry_point: str = ModelField("grade", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")
    signature: Literal["grade", "trl", "verl", "openrlhf"] = "grade"
    """How it is called. ``grade``: with those of ``completion``, ``reference``, ``prompt`` and ``metadata`` that it
    takes."""
    reference_as: str = ModelField("answer", min_length=1, max_length=100)
    """With ``trl``: the column that the reference is."""
    on_exception: Literal["lowest", "unscored"] = "lowest"
    """What an item gets on which the function raises, returns nonsense, or spends its limits."""
    lowest: float = ModelField(0.0, allow_inf_nan=False)
    """The lowest reward it gives. Less than that is a defect, and leaves the item unscored."""
    deterministic: bool = False
    """Whether equal items get equal rewards, so that they may be reused. Checked on the golden cases."""
    isolate: bool = False
    """One item a process: for graders that run completions themselves, or keep state."""
    limits: PythonLimits = PythonLimits()
    required: list[Protection] = ["namespaces", "rlimits", "seccomp", "unprivileged"]
    """Protections without which nothing is graded: a host that lacks one leaves items unscored."""

    @field_validator("source")
    @classmethod
    def _compiles(cls, source: str) -> str:
        try:
            ast.parse(source)
        except SyntaxError as error:
            raise ValueError(f"line {error.lineno}: {error.msg}") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"cannot be read as Python: {error}") from None
        return source

    @model_validator(mode="after")
    def _defines_the_function(self) -> PythonConfig:
        if self.entry_point not in _defined(self.source):
            raise ValueError(f"the source does not define {self.entry_point!r}")
        return self


def _defined(source: str) -> set[str]:
    """Names that a module binds, anywhere: a function may be made by another one, or imported."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add(other or name)
    return found


class PythonGrader:
    reads = frozenset({Field.COMPLETION, Field.REFERENCE, Field.PROMPT, Field.METADATA})
    requires: frozenset[Field] = frozenset()

    def __init__(self, config: PythonConfig, spec: Spec) -> None:
        self._config = config
        self.deterministic = config.deterministic
        self._chunks = Chunks(config)

    def reference_problem(self, reference: Any) -> str | None:
        return None

    async def grade_live(self, view: View, ctx: Context) -> Outcome:
        item = {
            "completion": view.completion,
            "reference": view.reference,
            "prompt": view.prompt,
            "metadata": dict(view.metadata),
        }
        ending = await self._chunks.put(item, ctx)
        if ending.returned is None:
            return self._failed(ending, ending.detail)
        try:
            found = scored(ending.returned[0], len(view.completion))
        except BadReturn as error:
            return self._failed(ending, str(error))
        if found is None:
            return Unscored(
                FailureKind.GRADER_ERROR, "the grader returned None: it does not judge this item"
            )
        if found.reward < self._config.lowest:
            text = f"the grader returned {found.reward:g}, less than its `lowest` of {self._config.lowest:g}: set that"
            raise CannotScore(FailureKind.GRADER_ERROR, text)
        return found

    def _failed(self, ending: Ending, detail: str) -> Outcome:
        raw = {"outcome": ending.word, "traceback": detail}
        if self._config.on_exception == "unscored":
            last = detail.rstrip().rpartition("\n")[2]
            return Unscored(FailureKind.GRADER_ERROR, f"{ending.word}: {last}"[:500], raw)
        basis = Basis.VERDICT if ending.word == "exception" else Basis.LIMIT
        return Scored(self._config.lowest, raw=raw, basis=basis)


def _unavailable() -> str | None:
    from sandboxes import doctor  # noqa: PLC0415

    return doctor.unavailable()


KIND = Kind(
    name="python",
    summary="A function of yours, run in a sandbox.",
    config=PythonConfig,
    reference=Any,
    build=PythonGrader,
    pure=False,
    measured=3,
    budget=Budget(cpu_s=1.0),
    unavailable=_unavailable,
)
