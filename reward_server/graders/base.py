"""The grader interface: what a kind is, what a grader sees, and what it gives back.

A *kind* (``exact``, ``format``, …) turns a config into a *grader*. A *spec* is a version of one:
kind, canonical config and digest, self-contained, so that a worker on any machine can build its
grader from it. A grader sees a *view* of the item that holds only the fields it declares in
``reads``; what it does not read can neither sway it nor change the identity of a grading.

Graders know nothing of storage, retries, queues or HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NewType, Protocol, runtime_checkable

import orjson
from pydantic import BaseModel, TypeAdapter

from reward_server.outcome import Outcome, Scored

Digest = NewType("Digest", str)
"""``sha256:<64 hex digits>``"""


class Field(StrEnum):
    """A field of an item that a grader may ask to see."""

    PROMPT = "prompt"
    COMPLETION = "completion"
    REFERENCE = "reference"
    FINISH_REASON = "finish_reason"
    TOKENS = "tokens"
    METADATA = "metadata"


@dataclass(frozen=True, slots=True)
class Spec:
    """A grader version, self-contained. ``config`` is canonical JSON."""

    kind: str
    config: bytes
    digest: Digest
    parts: Mapping[str, Spec] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class View:
    """What a grader sees of an item: the fields it reads, None for the others.

    ``completion`` is the assistant's words only; ``prompt`` is a string, or a list of
    ``{"role", "content"}`` with string contents.
    """

    completion: str = ""
    prompt: str | list[dict[str, str]] | None = None
    reference: Any = None
    finish_reason: str | None = None
    tokens: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: bytes) -> View:
        return cls(**json.loads(data))


@dataclass(frozen=True, slots=True)
class Budget:
    """What one item may spend. CPU decides verdicts; the wall limit only catches a sleeper."""

    cpu_s: float = 1.0
    wall_s: float = 10.0


class Grader(Protocol):
    """What every grader declares, whichever way it runs."""

    reads: frozenset[Field]
    requires: frozenset[Field]
    """Fields without which an item is rejected (422). A subset of ``reads``."""

    def reference_problem(self, reference: Any) -> str | None:
        """What is wrong with a reference's *shape* (a 422), or None."""
        ...


@runtime_checkable
class PureGrader(Grader, Protocol):
    """CPU work without I/O; runs in killable worker processes.

    Raises :class:`reward_server.outcome.CannotScore` for a reference without a usable meaning. One that
    interrupts a library has an attribute ``tainted``: whether this process should grade no more.
    """

    def grade(self, view: View) -> Scored: ...


class Context(Protocol):
    """Everything that a live grader may touch; given by ``scoring``."""

    @property
    def deadline(self) -> float:
        """When the request's time is over (``time.monotonic()``)."""
        ...

    @property
    def sandbox(self) -> Any:
        """A :class:`sandboxes.program.Sandbox`. Not typed as one, because this module is part of every kind's
        digest, and a change of the sandboxes must not make new versions of those that use none."""
        ...

    async def part(self, name: str, view: View) -> Outcome:
        """Grades a part of this spec; it is reused and stored like any other grading."""
        ...


@runtime_checkable
class LiveGrader(Grader, Protocol):
    """Waits on other things (parts, and later sandboxes, provers, HTTP); runs on the event loop."""

    async def grade_live(self, view: View, ctx: Context) -> Outcome: ...


@dataclass(frozen=True)
class Kind:
    """A kind of grader: how to read a config, and how to build a grader from a spec."""

    name: str
    summary: str
    config: type[BaseModel]
    reference: Any
    """The type of a reference, for its JSON schema."""
    build: Callable[[Any, Spec], PureGrader | LiveGrader]
    """(validated config, spec) -> grader. Raises ValueError for a config that cannot work."""
    deterministic: bool = True
    """Whether equal views give equal gradings, so that they may be reused; see :func:`repeats`."""
    decided_by: tuple[str, ...] = ()
    """Distributions whose version can change a verdict; they enter the digest."""
    measured: int = 1
    """How often golden cases run at registration: more than once to see whether rewards repeat."""
    pure: bool = True
    cheap: bool = False
    """Grading costs less than looking for an earlier grading; so that is looked for while storing."""
    budget: Budget = Budget()
    preload: tuple[str, ...] = ()
    """Modules too slow to import for every start, which workers get preloaded."""
    unavailable: Callable[[], str | None] = lambda: None
    """Why it cannot run on this machine and what to install, or None."""
    pinned: Callable[[Any, Any], Any] = lambda config, mounts: config
    """(config, :class:`sandboxes.program.Mount` of this host) -> the config as it is registered: with the hashes of
    what it names. Blocks."""
    parts: Callable[[Any], Mapping[str, str]] = lambda config: {}
    """Part name -> grader reference, for a kind made of others."""

    @property
    def module(self) -> str:
        """The root of the source closure that the digest covers."""
        return self.config.__module__

    def validate_config(self, config: Mapping[str, Any]) -> BaseModel:
        """Raises pydantic.ValidationError."""
        return self.config.model_validate(dict(config))

    def canonical_config(self, config: BaseModel) -> bytes:
        """Canonical JSON without defaults: stating a default is the same content."""
        return canonical_json(config.model_dump(mode="json", exclude_defaults=True))

    def grader(self, spec: Spec) -> PureGrader | LiveGrader:
        return self.build(self.config.model_validate_json(spec.config), spec)

    @property
    def reference_schema(self) -> dict[str, Any]:
        return TypeAdapter(self.reference).json_schema()


def repeats(kind: Kind, grader: Grader) -> bool:
    """Whether gradings may be reused. A grader whose config decides that has an attribute ``deterministic``."""
    return kind.deterministic and bool(getattr(grader, "deterministic", True))


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces. Raises ValueError for NaN and infinities."""
    if type(value) is dict and all(type(v) is str or v is None for v in value.values()):
        # The usual view: nothing in it that orjson writes differently (it writes NaN as null).
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return _encode(value).encode()


_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"), check_circular=False
).encode
