"""What a reference of kind ``code`` states: a language, and cases."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from reward_server.graders.code import outputs, results
from sandboxes.languages import ALIASES, LANGUAGES
from sandboxes.program import Limits as SandboxLimits, files_problem, name_problem

MAX_CASES = 1000
MAX_SOURCE = 1 << 20


class Limits(BaseModel):
    """What one run of the program may use; ``total_cpu_s`` and ``total_wall_s`` bound all runs together."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    cpu_s: float = Field(2.0, gt=0, le=120)
    wall_s: float = Field(10.0, gt=0, le=600)
    total_cpu_s: float = Field(20.0, gt=0, le=600)
    total_wall_s: float = Field(60.0, gt=0, le=3600)
    memory_mb: int = Field(256, ge=16, le=16_384)
    pids: int = Field(32, ge=1, le=512)
    output_kb: int = Field(4096, ge=1, le=65_536)
    disk_mb: int = Field(64, ge=1, le=4096)
    files: int = Field(1024, ge=8, le=100_000)


class Tolerance(BaseModel):
    """|printed − expected| ≤ max(absolute, relative · |expected|)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    absolute: float = Field(0.0, ge=0, allow_inf_nan=False)
    relative: float = Field(0.0, ge=0, lt=1, allow_inf_nan=False)


class Comparison(BaseModel):
    """How what was printed is compared; see :mod:`reward_server.graders.code.outputs`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    mode: outputs.Mode = "lines"
    tolerance: Tolerance | None = None
    case_sensitive: bool = True


class _Case(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    weight: float = Field(1.0, gt=0, le=1e6, allow_inf_nan=False)
    public: bool = False
    """Whether ``raw`` may show its input and what was expected."""


class StdioCase(_Case):
    stdin: str = ""
    stdout: str = ""
    """May be empty where a checker decides."""


class CallCase(_Case):
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    expected: Any


class Checker(BaseModel):
    """Decides in place of a comparison: a program, or an expression of Python.

    A program is called as testlib's checkers are, with the names of three files: input, output, answer.
    It exits with 0 for accepted, 1 or 2 for wrong, 7 for partly right (``points 0.5`` on stderr), and 3
    where the reference itself is at fault. An expression sees ``input``, ``output`` and ``answer`` as texts.
    Both run in a box of their own.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    language: str = "python"
    source: Annotated[str, StringConstraints(min_length=1, max_length=MAX_SOURCE)] | None = None
    expression: Annotated[str, StringConstraints(min_length=1, max_length=10_000)] | None = None
    files: dict[str, str] = {}
    """Further files of the checker, such as ``testlib.h``."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Checker:
        if (self.source is None) == (self.expression is None):
            raise ValueError("give either source or expression")
        if self.expression is not None and _canonical(self.language) != "python":
            raise ValueError("an expression is one of python")
        for name in self.files:
            if (problem := name_problem(name)) is not None:
                raise ValueError(problem)
        _known_language(self.language)
        return self


class CodeReference(BaseModel):
    """``tests``, or ``cases`` of one kind: ``stdin``/``stdout`` for a program, ``args``/``expected`` for a function."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    language: str = "python"
    entry_point: (
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)?$")] | None
    ) = None
    """``name`` or ``Class.method``: the cases are calls of it, and ``candidate`` in tests."""
    cases: (
        Annotated[list[CallCase] | list[StdioCase], Field(min_length=1, max_length=MAX_CASES)]
        | None
    ) = None
    tests: Annotated[str, StringConstraints(min_length=1, max_length=MAX_SOURCE)] | None = None
    """Python source: asserts, ``check(candidate)``, or test functions as pytest and unittest have them. It runs in
    a box of its own and calls the candidate, in another one, with plain data."""
    functions: list[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*$")]] = []
    """Further functions of the candidate that the tests call."""
    allow_shared: bool = False
    """Whether the tests need live objects of the candidate (its classes, functions passed to it): then one process runs
    both, and a candidate that attacks its tests is only guarded against as well as possible."""
    comparison: Comparison | None = None
    """None: the config's."""
    checker: Checker | None = None
    limits: Limits | None = None
    """None: the config's."""
    files: dict[str, str] = {}
    """Further files in the working directory of every run."""
    prefix: str = ""
    """Source before the completion's: imports, or the head of the function that it completes."""
    suffix: str = ""
    """Source after it."""

    @model_validator(mode="after")
    def _fits(self) -> CodeReference:
        _known_language(self.language)
        if (self.cases is None) == (self.tests is None):
            raise ValueError("give either cases or tests")
        if self.tests is not None:
            if self.canonical_language != "python" or self.checker is not None:
                raise ValueError("tests are of python, and decide without a checker")
        elif self.functions or self.allow_shared:
            raise ValueError("functions and allow_shared are for tests")
        calls = self.cases is not None and isinstance(self.cases[0], CallCase)
        if self.tests is None and calls != (self.entry_point is not None):
            raise ValueError(
                "cases with args and expected need an entry_point, those with stdin have none"
            )
        if calls and _canonical(self.language) != "python":
            raise ValueError(
                "an entry_point is one of python; other languages are graded by stdin and stdout"
            )
        if calls and self.checker is not None:
            raise ValueError("a checker reads what a program prints, and there is an entry_point")
        source = LANGUAGES[_canonical(self.language)].source
        files = {n: t.encode("utf-8", "surrogatepass") for n, t in self.files.items()}
        if (problem := files_problem(files | {source: b""}, SandboxLimits())) is not None:
            raise ValueError(problem)
        if LANGUAGES[_canonical(self.language)].source in self.files:
            raise ValueError("a file has the name of the program itself")
        for case in self.cases or ():
            if isinstance(case, CallCase):
                results.expected_value(case.expected)
                results.argument([case.args, case.kwargs])
        return self

    @property
    def canonical_language(self) -> str:
        return _canonical(self.language)


def _canonical(language: str) -> str:
    low = language.lower()
    return ALIASES.get(low, low)


def _known_language(language: str) -> None:
    if _canonical(language) not in LANGUAGES:
        raise ValueError(f"no language {language!r}; there are {', '.join(LANGUAGES)}")


def names_of(language: str) -> frozenset[str]:
    """What a fence may call a language."""
    return frozenset({language, *(alias for alias, name in ALIASES.items() if name == language)})
