"""What the server and its workers say to each other, in frames of plain data (``frames.py``).

Workers parse hostile text, so nothing that comes from one is trusted: no pickle, capped frames, and
every field of a result is checked before it becomes an outcome.
"""

from __future__ import annotations

import math
from typing import Any

import msgpack

from reward_server.frames import Garbled, unpack
from reward_server.graders.base import Digest, Spec
from reward_server.outcome import Basis, FailureKind, Outcome, Scored, StepReward, Unscored

MAX_FRAME = 64 << 20
"""Bytes of one answer; a worker that sends more is killed."""
MAX_RAW = 256 << 10
"""Bytes of one packed outcome; a larger ``raw`` is replaced by a note."""


def pack_spec(spec: Spec) -> list[Any]:
    return [spec.kind, spec.config, spec.digest, {n: pack_spec(p) for n, p in spec.parts.items()}]


def unpack_spec(packed: list[Any]) -> Spec:
    kind, config, digest, parts = packed
    return Spec(kind, config, Digest(digest), {n: unpack_spec(p) for n, p in parts.items()})


def pack_outcome(outcome: Outcome) -> bytes:
    """An outcome as msgpack; ``raw`` is dropped where it is too large or not plain data."""
    try:
        packed = _pack(outcome, outcome.raw)
        if len(packed) <= MAX_RAW:
            return packed
        reason = f"raw of {len(packed)} bytes dropped"
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        reason = f"raw dropped: {type(error).__name__}"
    return _pack(outcome, {"outcome": outcome.raw.get("outcome"), "note": reason})


def _pack(outcome: Outcome, raw: Any) -> bytes:
    steps: Any
    message: list[Any]
    if isinstance(outcome, Scored):
        steps = outcome.step_rewards
        steps = None if steps is None else [[s.start, s.end, s.reward] for s in steps]
        message = [True, outcome.reward, dict(outcome.components), steps, raw, outcome.basis.value]
    else:
        message = [False, outcome.kind.value, outcome.detail, raw]
    packed: bytes = msgpack.packb(message, use_bin_type=True)
    return packed


def unpack_outcome(packed: Any) -> Outcome:
    """The outcome that a worker reports. Raises Garbled where any part is not what it must be."""
    try:
        match unpack(packed):
            case [True, reward, dict(components), steps, dict(raw), basis]:
                return Scored(
                    _finite(reward),
                    {str(name): _finite(value) for name, value in components.items()},
                    None if steps is None else tuple(_step(s) for s in steps),
                    raw,
                    Basis(basis),
                )
            case [False, str(kind), str(detail), dict(raw)]:
                return Unscored(FailureKind(kind), detail[:2000], raw)
    except (TypeError, ValueError) as error:
        raise Garbled(str(error)) from None
    raise Garbled("not an outcome")


def _step(packed: Any) -> StepReward:
    start, end, reward = packed
    if type(start) is not int or type(end) is not int or not 0 <= start <= end:
        raise ValueError("a step with an impossible span")
    return StepReward(start, end, _finite(reward))


def _finite(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"a reward of {value!r:.40}")
    return float(value)
