"""From what an answer says to the class that a client raises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nodus.core.errors.base import Cause, NodusError
from nodus.core.errors.reasons import (
    BadRequest,
    Conflict,
    Expired,
    Forbidden,
    InsufficientCredits,
    InternalError,
    Invalid,
    MethodNotAllowed,
    NotFound,
    PreconditionFailed,
    RequestEntityTooLarge,
    StoreError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
)


def all_errors() -> Iterator[type[NodusError]]:
    """Yield every error class, the base first."""
    pending: list[type[NodusError]] = [NodusError]
    while pending:
        cls = pending.pop(0)
        yield cls
        pending.extend(cls.__subclasses__())


def _by_reason() -> dict[str, type[NodusError]]:
    found: dict[str, type[NodusError]] = {}
    for cls in all_errors():
        if "reason" in cls.__dict__ and cls is not StoreError:
            found[cls.reason] = cls
    found["InternalError"] = InternalError
    return found


_STATUS_FALLBACK: dict[int, type[NodusError]] = {
    400: BadRequest,
    401: Unauthorized,
    402: InsufficientCredits,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    409: Conflict,
    410: Expired,
    412: PreconditionFailed,
    413: RequestEntityTooLarge,
    415: UnsupportedMediaType,
    422: Invalid,
    429: TooManyRequests,
    500: InternalError,
}


def class_for(reason: str | None, status: int) -> type[NodusError]:
    """Return the class a client raises for a Status: by reason, else by HTTP status."""
    known = _by_reason().get(reason or "")
    if known is not None:
        return known
    if status in _STATUS_FALLBACK:
        return _STATUS_FALLBACK[status]
    return Unavailable if status > 500 else NodusError


def from_status(body: Mapping[str, Any], status: int, request_id: str | None = None) -> NodusError:
    """Rebuild the error that a Status body describes.

    Args:
        body: The decoded JSON body; anything that is not a Status gives an error by HTTP status alone.
        status: HTTP status code.
        request_id: From the ``X-Request-Id`` header, used when the body has none.
    """
    details = dict(body.get("details") or {}) if isinstance(body.get("details"), Mapping) else {}
    raw_causes = details.pop("causes", None) or []
    causes = [
        Cause(str(c.get("field", "")), str(c.get("reason", "")), str(c.get("message", "")))
        for c in raw_causes
        if isinstance(c, Mapping)
    ]
    retry = details.get("retryAfterSeconds")
    cls = class_for(body.get("reason"), status)
    return cls(
        str(body.get("message") or f"the server answered HTTP {status}"),
        fix=body.get("fix"),
        details=details,
        causes=causes,
        retry_after_s=float(retry) if isinstance(retry, int | float) else None,
        request_id=body.get("requestId") or request_id,
    )
