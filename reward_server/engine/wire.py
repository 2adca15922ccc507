"""How the server and its workers talk: length-prefixed msgpack over a socket, plain data only.

Workers parse hostile text, so nothing that comes from one is trusted: no pickle, capped frames, and
every field of a result is checked before it becomes an outcome.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import msgpack

from reward_server.graders.base import Digest, Spec
from reward_server.outcome import Basis, FailureKind, Outcome, Scored, StepReward, Unscored

MAX_FRAME = 64 << 20
"""Bytes of one frame; a worker that sends more is killed."""
MAX_RAW = 256 << 10
"""Bytes of one packed outcome; a larger ``raw`` is replaced by a note."""

HEADER = struct.Struct("<I")


class Garbled(Exception):
    """A frame from a worker that is not what a worker sends."""


def frame(message: Any) -> bytes:
    body: bytes = msgpack.packb(message, use_bin_type=True)
    return HEADER.pack(len(body)) + body


def unpack(body: bytes) -> Any:
    try:
        return msgpack.unpackb(body, raw=False, strict_map_key=True)
    except Exception as error:  # msgpack raises many kinds, ValueError and its own among them
        raise Garbled(f"{type(error).__name__}: {error}") from None


class FrameBuffer:
    """Cuts a byte stream into frames. Raises Garbled for a frame over the cap."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._buffer = bytearray()
        self._max = max_frame

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        frames = []
        while len(self._buffer) >= HEADER.size:
            (size,) = HEADER.unpack_from(self._buffer)
            if size > self._max:
                raise Garbled(f"a frame of {size} bytes")
            end = HEADER.size + size
            if len(self._buffer) < end:
                break
            frames.append(bytes(self._buffer[HEADER.size : end]))
            del self._buffer[:end]
        return frames


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
