"""Requests that are refused, as exceptions that know their HTTP status.

Raised anywhere between the routes and the registry; ``api`` turns each into problem+json (RFC 9457)
and the CLI into a message with an exit code.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing that is wrong: which item (if any), which field, and what to do."""

    field: str
    detail: str
    item: int | None = None


class Refused(Exception):
    """Base of every refusal: a status, a slug and a title that stay the same for a class."""

    status = 400
    slug = "bad-request"
    title = "Bad request"

    def __init__(self, detail: str, errors: tuple[FieldError, ...] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = errors
        self.headers: dict[str, str] = {}


class Malformed(Refused):
    """The body is not JSON that can be read."""

    slug = "malformed-body"
    title = "The body cannot be read"


class Unauthorized(Refused):
    status = 401
    slug = "unauthorized"
    title = "An API key is needed"

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.headers["WWW-Authenticate"] = "Bearer"


class Forbidden(Refused):
    status = 403
    slug = "forbidden"
    title = "Not allowed"


class NotFound(Refused):
    status = 404
    slug = "not-found"
    title = "Not found"


class NotAcceptable(Refused):
    status = 406
    slug = "not-acceptable"
    title = "No such representation"


class Conflict(Refused):
    status = 409
    slug = "conflict"
    title = "Conflict"


class TooLarge(Refused):
    status = 413
    slug = "too-large"
    title = "Too large"


class UnsupportedMedia(Refused):
    status = 415
    slug = "unsupported-media-type"
    title = "Unsupported media type"


class Invalid(Refused):
    """Readable, but wrong: names each item and field."""

    status = 422
    slug = "invalid"
    title = "The request is not valid"

    @classmethod
    def field(cls, field: str, detail: str, item: int | None = None) -> Invalid:
        return cls(f"{field}: {detail}", (FieldError(field, detail, item),))

    @classmethod
    def of(cls, errors: list[FieldError], shown: int = 50) -> Invalid:
        first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        return cls(f"{first.field}: {first.detail}{more}", tuple(errors[:shown]))


class Unavailable(Refused):
    """Nothing was admitted; the same request may succeed later."""

    status = 503
    slug = "unavailable"
    title = "Try again later"

    def __init__(self, detail: str, retry_after_s: float = 1.0) -> None:
        super().__init__(detail)
        self.headers["Retry-After"] = str(max(1, round(retry_after_s)))
