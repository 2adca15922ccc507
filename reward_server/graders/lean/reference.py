"""What is to be proved: a reference of kind ``lean``, and what both it and the config are made of."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

Level = Literal["elaborated", "axioms_audited", "kernel_replayed", "comparator"]
LEVELS: tuple[Level, ...] = ("elaborated", "axioms_audited", "kernel_replayed", "comparator")
Mode = Literal["file", "theorem", "body", "tactics"]
Protection = Literal["namespaces", "seccomp", "unprivileged", "memory", "pids", "proc", "rlimits"]
LeanName = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^\S(.*\S)?$")]
LeanText = Annotated[str, StringConstraints(max_length=1 << 20)]
OptionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]{0,100}$")]
STANDARD_AXIOMS = ("Classical.choice", "Quot.sound", "propext")


class Limits(BaseModel):
    """What one run of Lean may use: a challenge, a submission, a replay each."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    cpu_s: float = Field(30.0, gt=0, le=3600)
    wall_s: float = Field(60.0, gt=0, le=3600)
    memory_mb: int = Field(4096, ge=256, le=262_144)
    """Without what is mapped from files, as compiled libraries are, where no control group counts it."""
    disk_mb: int = Field(64, ge=1, le=4096)
    output_kb: int = Field(2048, ge=16, le=65_536)


class LeanReference(BaseModel):
    """``statement`` or ``file``.

    ``statement``: ``theorem NAME … : T`` without a proof, or just ``T`` with ``theorem`` as its name. ``file``: a
    Lean file in which the theorem has ``sorry`` for a proof.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    statement: Annotated[LeanText, StringConstraints(min_length=1)] | None = None
    file: Annotated[LeanText, StringConstraints(min_length=1)] | None = None
    theorem: LeanName | None = None
    """Full name of the theorem. None: as the statement says, or the file's only one with ``sorry``."""
    header: LeanText = ""
    """Between the imports and the statement: ``open``, ``variable``, definitions."""
    imports: list[LeanName] | None = None
    """None: the config's, or those that the file begins with."""

    @model_validator(mode="after")
    def _one_of_both(self) -> LeanReference:
        if (self.statement is None) == (self.file is None):
            raise ValueError("give either statement or file")
        if self.file is not None and self.header:
            raise ValueError("a file has its header in it")
        return self
