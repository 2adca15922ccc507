"""Reading a request's body: strict about type and size, precise about what is wrong.

Lone surrogates (``"\\ud800"``) are JSON that a policy's broken text can produce. They are no reason to
refuse 255 other items, so they are read as U+FFFD, the replacement character.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from reward_server.problems import FieldError, Invalid, Malformed, TooLarge, UnsupportedMedia

M = TypeVar("M", bound=BaseModel)

_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_MAX_ERRORS = 50
_MANY_KEYS = 400_000
_MAX_NAME = 100


async def read_json(request: Request, model: type[M], max_bytes: int) -> tuple[M, int]:
    """(the parsed body, its size in bytes). Raises Refused."""
    body = await read_body(request, max_bytes)
    return parse(body, model), len(body)


async def read_body(request: Request, max_bytes: int) -> bytes:
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    if media_type.strip().lower() != "application/json":
        raise UnsupportedMedia("send Content-Type: application/json")
    if (charset := _charset(parameters)) not in (None, "utf-8", "utf8"):
        raise UnsupportedMedia(f"JSON is UTF-8, not {charset}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise UnsupportedMedia("Content-Encoding: gzip or none")
    try:
        declared = int(request.headers.get("content-length", "0"))
    except ValueError:
        raise Malformed("Content-Length is not a number") from None
    if declared > max_bytes:
        raise _too_large(max_bytes)
    # Not request.stream(): an async generator costs as much as all else here.
    chunks, size, more = [], 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
        more = message.get("more_body", False)
    body = b"".join(chunks) if len(chunks) > 1 else chunks[0]
    return body if encoding == "identity" else _gunzip(body, max_bytes)


def parse(body: bytes, model: type[M]) -> M:
    """The body as a model. Raises Malformed for what is not JSON, Invalid for wrong fields."""
    if len(body) > _MANY_KEYS and body.count(b'":') - body.count(b'\\":') > _MANY_KEYS:
        # Each unknown key would be an error of its own, and a report of millions an attack.
        raise TooLarge(f"more than {_MANY_KEYS} keys in one body: send smaller batches")
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        if not _is_syntax(error):
            raise invalid(error) from None
        if _SURROGATE_ESCAPE.search(body) is None:
            raise _malformed(error) from None
        first = error
    try:
        return model.model_validate_json(_without_lone_surrogates(body))
    except ValidationError as error:
        raise (_malformed(error) if _is_syntax(error) else invalid(error)) from None
    except (ValueError, RecursionError):
        raise _malformed(first) from None


def invalid(error: ValidationError) -> Invalid:
    """Each wrong field by its path, with the index of the item it belongs to."""
    return Invalid.of(
        [
            field_error(e["loc"], e["msg"])
            for e in error.errors(include_url=False, include_context=False, include_input=False)
        ],
        _MAX_ERRORS,
    )


def field_error(location: tuple[int | str, ...], message: str) -> FieldError:
    # Of a union (string or messages) pydantic names the branch it tried; users know only fields.
    path = [p for p in location if not (isinstance(p, str) and ("[" in p or p in ("str", "list")))]
    item = None
    if len(path) > 1 and path[0] in ("items", "cases") and isinstance(path[1], int):
        item = path[1]
    field = ".".join(str(p)[:_MAX_NAME] for p in path) or "body"
    return FieldError(
        _printable(field), _printable(message.removeprefix("Value error, ")[:500]), item
    )


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def _is_syntax(error: ValidationError) -> bool:
    return error.error_count() == 1 and error.errors()[0]["type"] == "json_invalid"


def _malformed(error: ValidationError) -> Malformed:
    detail = error.errors(include_input=False, include_url=False)[0]["msg"]
    return Malformed(_printable(detail[:500]))


def _without_lone_surrogates(body: bytes) -> bytes:
    """The document with U+FFFD for each lone surrogate. Raises ValueError, RecursionError."""
    text = json.dumps(json.loads(body), ensure_ascii=False)
    return _SURROGATE.sub("\ufffd", text).encode()


def _gunzip(body: bytes, max_bytes: int) -> bytes:
    """Decompressed up to the cap: a bomb is refused after at most that much memory."""
    machine = zlib.decompressobj(wbits=31)
    try:
        plain = machine.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise Malformed(f"gzip: {error}") from None
    if len(plain) > max_bytes:
        raise _too_large(max_bytes)
    if not machine.eof:
        raise Malformed("gzip: the stream is cut off")
    if machine.unused_data:
        raise Malformed("gzip: data after the stream")
    return plain


def _charset(parameters: str) -> str | None:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"').lower()
    return None


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(
        f"the body is over {max_bytes >> 20} MiB (REWARD_MAX_BODY_MB): send smaller batches"
    )
