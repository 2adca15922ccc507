"""Length-prefixed msgpack messages on a byte stream, between this server's own processes."""

from __future__ import annotations

import struct
from typing import Any

import msgpack

MAX_FRAME = 256 << 20
"""Bytes of one frame; who sends more is not one of ours."""

HEADER = struct.Struct("<I")


class Garbled(Exception):
    """Bytes that are not what the process at the other end sends."""


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
