"""Who may do what: API keys, or, on a server without any, callers on this machine only."""

from __future__ import annotations

import base64
import binascii

from starlette.requests import Request

from reward_server.api.state import host_of
from reward_server.problems import Forbidden, Unauthorized
from reward_server.store.keys import Scope

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def _password(encoded: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""


def require(request: Request, scope: Scope) -> None:
    """Raises Unauthorized or Forbidden."""
    keys = host_of(request).keys
    if not keys.required:
        # A web page whose name was rebound to 127.0.0.1 sends its own name here.
        name = request.headers.get("host", "").lower()
        bare = name[: name.rfind("]") + 1] if name.startswith("[") else name.partition(":")[0]
        if bare not in _LOOPBACK_NAMES:
            raise Forbidden(
                "this server has no API keys and answers only as localhost: "
                "make one with 'reward-server keys create'"
            )
        return
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        token = _password(token)  # clients that only take a URL: http://key:<key>@host/…
    if scheme.lower() not in ("bearer", "basic") or not token:
        raise Unauthorized("send Authorization: Bearer <key>")
    key = keys.check(token.strip())
    if key is None:
        raise Unauthorized("the key is unknown, expired or revoked")
    if scope not in key.scopes and Scope.ADMIN not in key.scopes:
        raise Forbidden(f"the key {key.name!r} lacks the scope {scope.value!r}")
