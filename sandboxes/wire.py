"""Messages between the server and its keepers: msgpack, with its length before it."""

from __future__ import annotations

import struct
from dataclasses import asdict
from typing import Any

import msgpack

from sandboxes.program import Call, Execution, Limits, Peer, Run, Submission, Verdict

HEADER = struct.Struct("<I")
MAX_MESSAGE = 1 << 30


def frame(message: Any) -> bytes:
    body: bytes = msgpack.packb(message, use_bin_type=True)
    return HEADER.pack(len(body)) + body


def unpack(body: bytes) -> Any:
    return msgpack.unpackb(body, raw=False, strict_map_key=False, max_bin_len=MAX_MESSAGE)


def submission_out(submission: Submission) -> dict[str, Any]:
    found = asdict(submission)
    found["source"] = submission.source.encode("utf-8", "surrogatepass")
    if submission.peer is not None:
        found["peer"]["source"] = submission.peer.source.encode("utf-8", "surrogatepass")
    for run in found["runs"]:
        if run["call"] is not None:  # sets, tuples and big integers are not msgpack's
            run["call"] = {
                **run["call"],
                "args": _plain(run["call"]["args"]),
                "kwargs": _plain(run["call"]["kwargs"]),
            }
    return found


def submission_in(found: dict[str, Any]) -> Submission:
    runs = tuple(
        Run(
            run["stdin"],
            tuple(run["argv"]),
            run["call"]
            and Call(
                run["call"]["entry_point"],
                tuple(_rich(run["call"]["args"])),
                _rich(run["call"]["kwargs"]),
            ),
            tuple(run["fetch"]),
            run["files"],
            run["reports"],
        )
        for run in found["runs"]
    )
    peer = found["peer"]
    return Submission(
        found["language"],
        found["source"].decode("utf-8", "surrogatepass"),
        runs,
        Limits(**found["limits"]),
        found["compile_limits"] and Limits(**found["compile_limits"]),
        found["files"],
        found["stop_on_failure"],
        peer
        and Peer(
            peer["source"].decode("utf-8", "surrogatepass"), Limits(**peer["limits"]), peer["files"]
        ),
        tuple(found["preload"]),
        tuple(found["warm"]),
        found["keep"],
        tuple(found["command"]),
        found["env"],
    )


def execution_out(execution: Execution) -> dict[str, Any]:
    return asdict(execution)


def execution_in(found: dict[str, Any]) -> Execution:
    peer = found["peer"] and execution_in(found["peer"])
    return Execution(**{**found, "verdict": Verdict(found["verdict"]), "peer": peer})


def _plain(value: Any) -> Any:
    """Argument values for msgpack: ``[tag, content]`` for what it lacks."""
    match value:
        case bool() | None | float() | str() | bytes():
            return value
        case int():
            return value if -(2**63) <= value < 2**63 else {"i": hex(value)}
        case list():
            return [_plain(v) for v in value]
        case tuple():
            return {"t": [_plain(v) for v in value]}
        case set() | frozenset():
            return {"s": [_plain(v) for v in value]}
        case complex():
            return {"c": [value.real, value.imag]}
        case dict():
            return {"d": [[_plain(k), _plain(v)] for k, v in value.items()]}
    raise TypeError(f"a {type(value).__name__} cannot be an argument")


def _rich(value: Any) -> Any:
    if isinstance(value, list):
        return [_rich(v) for v in value]
    if not isinstance(value, dict):
        return value
    ((tag, inner),) = value.items()
    match tag:
        case "i":
            return int(inner, 16)
        case "t":
            return tuple(_rich(v) for v in inner)
        case "s":
            return {_rich(v) for v in inner}
        case "c":
            return complex(*inner)
        case _:
            return {_rich(k): _rich(v) for k, v in inner}
