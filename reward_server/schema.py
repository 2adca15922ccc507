"""Wire types: what the HTTP service takes and gives.

This file imports nothing else of ours, so that a client can be typed by it with only pydantic
installed. Requests are strict (no ``"3"`` for 3) and refuse unknown fields, because a misspelt
``refernce`` that is silently ignored is a wrong reward.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, StringConstraints

MAX_LABEL = 256


class _FailFast(FailFast):
    """Lists stop at their first wrong element: a report of a million errors would be an attack."""

    __hash__ = object.__hash__  # a union of types wants its members' metadata hashable


_AT_FIRST = _FailFast()

Label = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_LABEL, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$"),
]
"""A caller's identifier: printable, stored and shown as given."""

GraderName = Annotated[
    str, StringConstraints(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$")
]

GraderRef = Annotated[
    str,
    StringConstraints(
        max_length=160,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}(@([1-9][0-9]{0,8}|sha256:[0-9a-f]{64}))?$",
    ),
]
"""``name`` (the active version), ``name@3`` or ``name@sha256:<hex>``."""

FinishReason = Literal["stop", "length", "tool_error"]
Status = Literal["scored", "unscored"]

BigCount = Annotated[int, Field(ge=0, le=2**53 - 1)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Reply(BaseModel):
    model_config = ConfigDict(extra="ignore")


class TextPart(BaseModel):
    """One part of a message's content; parts that are not text are not graded."""

    model_config = ConfigDict(extra="ignore", strict=True)
    type: str
    text: str | None = None


class Message(BaseModel):
    """A chat message. Fields beyond role and content are accepted and ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)
    role: Annotated[str, StringConstraints(max_length=64)]
    content: str | Annotated[list[TextPart], _AT_FIRST] | None = None


Messages = Annotated[list[Message], _AT_FIRST]


class Item(_Request):
    """One completion to be graded."""

    id: Label | None = None
    """The caller's own name for it, given back unchanged."""
    grader: GraderRef | None = None
    """Overrides the request's ``grader`` for this item."""
    prompt: str | Messages | None = None
    completion: str | Messages
    """A string, or chat messages of which only the assistant's words are graded."""
    reference: Any = None
    """What the completion is held against; its shape is set by the grader's kind."""
    group: Label | None = None
    """Completions of one prompt share a group; its identity is (run, step, group)."""
    group_size: Annotated[int, Field(ge=1, le=65536)] | None = None
    policy_version: BigCount | None = None
    """Which policy sampled the completion."""
    finish_reason: FinishReason | None = None
    tokens: BigCount | None = None
    """Generated tokens (not characters)."""
    metadata: dict[str, Any] = Field(default_factory=dict)


class ScoreRequest(_Request):
    """Body of ``POST /score``."""

    grader: GraderRef | None = None
    """The default for items that name none."""
    run: Label | None = None
    """A run pins each unpinned grader name at its first use."""
    step: BigCount | None = None
    deadline_s: Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)] | None = None
    """Seconds the caller is willing to wait; an item that cannot start in time is unscored."""
    reuse: Literal["auto", "never"] = "auto"
    """``auto`` answers an equal item of a deterministic grader from its stored grading."""
    idempotency_key: Label | None = None
    """Same key and same body: the same scores. Same key, another body: 422."""
    items: Annotated[list[Item], Field(min_length=1, max_length=65536), _AT_FIRST]


class StepRewardOut(_Reply):
    start: int
    end: int
    reward: float


class GraderOut(_Reply):
    """The exact verifier version that produced a score."""

    name: str
    version: int
    digest: str


class FailureOut(_Reply):
    kind: str
    detail: str
    retryable: bool


class Score(_Reply):
    """The result for one item. ``reward`` is null exactly when ``status`` is ``unscored``."""

    index: int
    id: str | None
    score_id: str
    status: Status
    reward: float | None
    components: dict[str, float]
    step_rewards: list[StepRewardOut] | None
    grader: GraderOut
    environment: str
    """Hash of what was observed where it was graded (kernel, Python patch, …)."""
    raw: dict[str, Any]
    failure: FailureOut | None
    cached: bool
    elapsed_ms: float


class Summary(_Reply):
    scored: int
    unscored: int
    mean_reward: float | None
    """Mean over scored items; null when there are none."""


class ScoreResponse(_Reply):
    scores: list[Score]
    summary: Summary


class Expectation(_Request):
    """What a golden case must give. At least one field is stated."""

    reward: Annotated[float, Field(allow_inf_nan=False)] | None = None
    min_reward: Annotated[float, Field(allow_inf_nan=False)] | None = None
    max_reward: Annotated[float, Field(allow_inf_nan=False)] | None = None
    status: Status | None = None


class Case(_Request):
    """A golden case: an item with a known result, checked before a version goes live."""

    completion: str | Messages
    reference: Any = None
    prompt: str | Messages | None = None
    finish_reason: FinishReason | None = None
    tokens: BigCount | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    expect: Expectation


class GraderRegistration(_Request):
    """Body of ``POST /graders``."""

    name: GraderName
    kind: Annotated[str, StringConstraints(max_length=64)]
    config: dict[str, Any] = Field(default_factory=dict)
    description: (
        Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f]*$")]
        | None
    ) = None
    cases: Annotated[list[Case], Field(max_length=65536), _AT_FIRST] = Field(default_factory=list)
    activate: bool = True
    """Whether ``name`` without a version means this version from now on."""


class CaseResult(_Reply):
    index: int
    passed: bool
    status: Status
    reward: float | None
    detail: str | None = None


class Repeatability(_Reply):
    """How the rewards of the golden cases differed when they were graded several times."""

    runs: int
    cases: int
    differing: int
    """Cases whose reward or status was not the same each time."""
    largest_difference: float
    """Between two rewards of one case."""


class GraderRegistered(_Reply):
    name: str
    version: int
    digest: str
    active: bool
    cases: list[CaseResult]
    repeatability: Repeatability | None = None


class GraderVersionOut(_Reply):
    """One immutable version in full."""

    name: str
    version: int
    digest: str
    kind: str
    config: dict[str, Any]
    parts: dict[str, str]
    """Digest of each part of a composite."""
    description: str | None
    cases: list[dict[str, Any]]
    ingredients: dict[str, Any]
    """What the digest was computed from."""
    release: str
    """The release of this package that minted it."""
    note: str | None
    """What changed since the version before, for one that an upgrade minted."""
    repeatability: Repeatability | None = None
    """As measured at registration, for kinds whose rewards may differ from run to run."""
    created_at: str
    active: bool
    runnable: bool
    """Whether this server still has the code that the digest states."""


class GraderSummary(_Reply):
    name: str
    kind: str
    active_version: int | None
    digest: str | None
    versions: int
    runnable: bool
    description: str | None


class KindOut(_Reply):
    kind: str
    summary: str
    available: bool
    reason: str | None
    """Why it cannot run here, and what to install."""
    deterministic: bool
    config_schema: dict[str, Any]
    reference_schema: dict[str, Any]


class RunRequest(_Request):
    """Body of ``POST /runs``."""

    name: Label
    config: dict[str, Any] = Field(default_factory=dict)
    """The trainer's own settings, stored as given."""
    graders: Annotated[list[GraderRef], Field(max_length=1024), _AT_FIRST] = Field(
        default_factory=list
    )
    """Pinned at once; further names are pinned at their first use."""
    train_grader: GraderRef | None = None
    heldout_grader: GraderRef | None = None


class RunOut(_Reply):
    name: str
    config: dict[str, Any]
    graders: dict[str, GraderOut]
    """Pinned versions by name."""
    train_grader: str | None
    heldout_grader: str | None
    created_at: str


class StoredScore(_Reply):
    """A score as stored; ``item`` is what was submitted."""

    score_id: str
    created_at: str
    run: str | None
    step: int | None
    id: str | None
    group: str | None
    group_size: int | None
    policy_version: int | None
    finish_reason: str | None
    tokens: int | None
    status: Status
    reward: float | None
    components: dict[str, float]
    step_rewards: list[StepRewardOut] | None
    grader: GraderOut
    environment: str
    raw: dict[str, Any]
    failure: FailureOut | None
    basis: str | None
    grading_id: str
    cached: bool
    elapsed_ms: float
    item: dict[str, Any] | None = None


class ScorePage(_Reply):
    scores: list[StoredScore]
    next_cursor: str | None


class GraderList(_Reply):
    graders: list[GraderSummary]


class GraderVersions(_Reply):
    name: str
    versions: list[GraderVersionOut]


class KindList(_Reply):
    kinds: list[KindOut]


class RunList(_Reply):
    runs: list[RunOut]
    next_cursor: str | None


class ProblemItem(_Reply):
    """One thing that is wrong with a request."""

    item: int | None
    """Index of the item it concerns, where it concerns one."""
    field: str
    detail: str


class Problem(_Reply):
    """An error (RFC 9457, ``application/problem+json``)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[ProblemItem] = Field(default_factory=list)
