"""Kind ``lean``: a completion proves a given statement in Lean 4, and real Lean decides.

The server owns the statement: it is compiled by itself (the *challenge*), and never from a file that a completion has
part in. The completion is compiled in a sandboxed process of its own. Then an audit that runs nothing of it reads
both compiled files as data: the theorem must state what was asked, and rest on allowed axioms alone. At last a kernel
of its own replays the proof. What was reached is a level (``reference.LEVELS``); ``min_level`` says which one is paid.

What a proof does to itself (errors, time, memory, crashes of Lean or of the audit) scores 0. A toolchain or project
that is not here, or that has changed since the grader was registered, leaves items unscored.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field as ModelField, ValidationError, field_validator

from reward_server.graders.base import Budget, Context, Field, Kind, Spec, View
from reward_server.graders.code.extraction import extract
from reward_server.graders.code.limits import require
from reward_server.graders.lean.audit import AuditFailed
from reward_server.graders.lean.proving import Challenges, Proving, SandboxFailed
from reward_server.graders.lean.reference import (
    STANDARD_AXIOMS,
    LeanName,
    LeanReference,
    Level,
    Limits,
    Mode,
    OptionName,
    Protection,
)
from reward_server.graders.lean.toolchains import ToolchainMissing, Workshop, installed
from reward_server.outcome import CannotScore, FailureKind, Outcome, Scored
from sandboxes import program as sandbox

if TYPE_CHECKING:  # not imported here, but they decide verdicts, so they belong into the digest
    from sandboxes import keeper  # noqa: F401

_TIMES_TO_TRY = 2
_LANGUAGES = frozenset({"lean", "lean4"})


class LeanConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    toolchain: LeanName | None = None
    """A name of the server's settings, of elan's (``leanprover/lean4:v4.35.0``), or a version. None: the project's,
    or the newest."""
    toolchain_hash: str | None = ModelField(None, pattern=r"^sha256:[0-9a-f]{64}$")
    """Filled in at registration. A host whose toolchain has another one leaves items unscored."""
    project: LeanName | None = None
    """A name of the server's settings: compiled libraries, such as Mathlib."""
    project_hash: str | None = ModelField(None, pattern=r"^sha256:[0-9a-f]{64}$")
    mode: Mode = "file"
    """What a completion holds: a ``file``, the ``theorem``, its ``body`` after ``:=``, or ``tactics`` after ``by``."""
    imports: list[LeanName] = ["Init"]
    """Of every file, unless the reference says others."""
    prelude: bool = False
    """Whether ``Init`` is not imported by itself: for libraries that begin with ``prelude``."""
    options: dict[OptionName, str | int | bool] = {"maxHeartbeats": 400_000}
    """Of Lean, for challenge and submission; a file may set others, so these bound nothing by themselves."""
    allowed_axioms: list[LeanName] = list(STANDARD_AXIOMS)
    min_level: Level = "kernel_replayed"
    """What a proof must reach to be paid."""
    limits: Limits = Limits()
    required: list[Protection] = ["namespaces", "rlimits", "seccomp", "unprivileged"]
    """Protections without which nothing is graded: a host that lacks one leaves items unscored."""

    @field_validator("allowed_axioms")
    @classmethod
    def _sorted(cls, names: list[str]) -> list[str]:
        if "sorryAx" in names:
            raise ValueError("sorryAx proves everything")
        return sorted(set(names))


class LeanGrader:
    reads = frozenset({Field.COMPLETION, Field.REFERENCE})
    requires = frozenset({Field.REFERENCE})

    def __init__(self, config: LeanConfig, spec: Spec) -> None:
        self._config = config
        self._challenges = Challenges()

    def reference_problem(self, reference: Any) -> str | None:
        try:
            LeanReference.model_validate(reference)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "reference"
            return f"an object with a statement or a file: {where}: {first['msg']}"[:400]
        return None

    async def grade_live(self, view: View, ctx: Context) -> Outcome:
        reference = LeanReference.model_validate(view.reference)
        found = extract(view.completion, ("block", "whole"), _LANGUAGES)
        if found is None or not found.text.strip():
            return Scored(0.0, {"correct": 0.0}, raw={"outcome": "no_proof", "level": None})
        shop = await workshop(self._config, ctx)
        where = {"rule": found.rule, "span": [found.start, found.end]}
        for attempt in range(_TIMES_TO_TRY):
            proving = Proving(self._config, reference, shop, self._challenges, ctx)
            try:
                await require(ctx.sandbox, self._config.required, None)
                outcome, starved = await proving.run(found.text, where)
            except (sandbox.SandboxLost, SandboxFailed) as error:
                if attempt + 1 == _TIMES_TO_TRY:
                    raise CannotScore(FailureKind.SANDBOX_UNAVAILABLE, str(error)) from None
                continue
            except AuditFailed as error:
                raise CannotScore(FailureKind.TOOLCHAIN_UNAVAILABLE, str(error)) from None
            except sandbox.SandboxUnavailable as error:
                raise CannotScore(FailureKind.SANDBOX_UNAVAILABLE, str(error)) from None
            except sandbox.NoSlotInTime as error:
                raise CannotScore(FailureKind.DEADLINE_EXCEEDED, str(error)) from None
            if not starved:
                break
        return outcome


async def workshop(config: LeanConfig, ctx: Context) -> Workshop:
    """Raises CannotScore."""
    here = await asyncio.to_thread(installed, ctx.sandbox.mounts)
    try:
        return here.workshop(
            config.toolchain, config.toolchain_hash, config.project, config.project_hash
        )
    except ToolchainMissing as error:
        raise CannotScore(FailureKind.TOOLCHAIN_UNAVAILABLE, str(error)) from None


def pinned(config: LeanConfig, mounts: tuple[sandbox.Mount, ...]) -> LeanConfig:
    """With the hashes of what is installed here, where it is."""
    try:
        shop = installed(mounts).workshop(
            config.toolchain, config.toolchain_hash, config.project, config.project_hash
        )
    except ToolchainMissing:
        return config
    return config.model_copy(
        update={
            "toolchain_hash": shop.toolchain.digest,
            "project_hash": shop.project.digest if shop.project else None,
        }
    )


def _unavailable() -> str | None:
    from sandboxes import doctor  # noqa: PLC0415

    return doctor.unavailable()


KIND = Kind(
    name="lean",
    summary="A proof in Lean 4 of a given statement, decided by real Lean.",
    config=LeanConfig,
    reference=LeanReference,
    build=LeanGrader,
    pure=False,
    budget=Budget(cpu_s=1.0),
    pinned=pinned,
    unavailable=_unavailable,
)
