"""The one error tree of Nodus.

Each class carries its wire reason, its HTTP status and whether a client may try again. The server renders an error as a
Kubernetes-style Status; the client rebuilds the same class from the reason, so ``except nodus.errors.NotFound`` works
on both sides. Errors pickle: they cross process boundaries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that is wrong with a request, with the path of the field it concerns."""

    field: str
    """Dotted path from the object's root, such as ``spec.parameters.learning_rate``."""
    reason: str
    """``FieldValueNotSupported`` for unknown fields, ``FieldValueInvalid`` for bad values, ``FieldValueRequired``."""
    message: str
    """What is wrong and what would be right."""

    def to_wire(self) -> dict[str, str]:
        """Return the cause as it stands in ``Status.details.causes``."""
        return {"field": self.field, "reason": self.reason, "message": self.message}


class NodusError(Exception):
    """Base of every error that Nodus raises on purpose.

    Args:
        message: What happened, quoting the value, for a person to read.
        fix: What to do next; one sentence.
        details: Extra machine-readable keys, merged into ``Status.details``.
        causes: The single mistakes of an invalid request, all of them.
        retry_after_s: When a retry makes sense, in seconds.
        request_id: The id of the HTTP request that failed, when a client raised this.
    """

    reason: ClassVar[str] = "InternalError"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        fix: str | None = None,
        details: Mapping[str, Any] | None = None,
        causes: Sequence[Cause] = (),
        retry_after_s: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        if fix:
            self.add_note(f"fix: {fix}")  # so that a traceback says it too
        self.details: dict[str, Any] = dict(details or {})
        self.causes: tuple[Cause, ...] = tuple(causes)
        self.retry_after_s = retry_after_s
        self.request_id = request_id

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            _rebuild,
            (type(self), self.message, self.fix, self.details, self.causes, self.retry_after_s, self.request_id),
        )

    def to_status(self, request_id: str | None = None) -> dict[str, Any]:
        """Return the Status body of this error (wire contract, section 10.1)."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "code": self.status,
            "reason": self.reason,
            "message": self.message,
        }
        if self.fix:
            body["fix"] = self.fix
        request = request_id or self.request_id
        if request:
            body["requestId"] = request
        details = dict(self.details)
        if self.causes:
            details["causes"] = [cause.to_wire() for cause in self.causes]
        if self.retry_after_s is not None:
            details["retryAfterSeconds"] = self.retry_after_s
        if details:
            body["details"] = details
        return body


def _rebuild(
    cls: type[NodusError],
    message: str,
    fix: str | None,
    details: dict[str, Any],
    causes: tuple[Cause, ...],
    retry_after_s: float | None,
    request_id: str | None,
) -> NodusError:
    return cls(message, fix=fix, details=details, causes=causes, retry_after_s=retry_after_s, request_id=request_id)


class InternalError(NodusError):
    """A fault of Nodus itself; the log has the trace under the request id."""

    retryable = True


class BadRequest(NodusError):
    """The request can't be read: malformed JSON, a bad query, a bad header."""

    reason, status = "BadRequest", 400


class OutputIndexRequired(NodusError):
    """Several completion indexes have outputs of that name; say which."""

    reason, status = "OutputIndexRequired", 400


class Unauthorized(NodusError):
    """No key, or one that is unknown, expired or revoked."""

    reason, status = "Unauthorized", 401


class InsufficientCredits(NodusError):
    """The credits left don't cover the hold."""

    reason, status = "InsufficientCredits", 402


class BudgetExceeded(NodusError):
    """A Budget or a cap blocks the spend."""

    reason, status = "BudgetExceeded", 402


class Forbidden(NodusError):
    """The key is known and lacks the scope or the project."""

    reason, status = "Forbidden", 403


class NotFound(NodusError):
    """No object of that kind and name, or none that this key may see."""

    reason, status = "NotFound", 404


class OutputNotFound(NodusError):
    """The run has no output of that name."""

    reason, status = "OutputNotFound", 404


class MethodNotAllowed(NodusError):
    """The kind doesn't support the verb."""

    reason, status = "MethodNotAllowed", 405


class AlreadyExists(NodusError):
    """An object of that name exists with another spec; ``details.diff`` shows it."""

    reason, status = "AlreadyExists", 409


class Conflict(NodusError):
    """The object changed since it was read, or the state forbids the change."""

    reason, status = "Conflict", 409


class FieldImmutable(NodusError):
    """The field can't change after creation; ``details.diff`` shows both values."""

    reason, status = "FieldImmutable", 409


class IdempotencyKeyReused(NodusError):
    """The Idempotency-Key was used for another request within 24 hours."""

    reason, status = "IdempotencyKeyReused", 409


class RequestInProgress(NodusError):
    """The first request with this Idempotency-Key is still running."""

    reason, status, retryable = "RequestInProgress", 409, True


class VolumeBusy(NodusError):
    """Another writer holds the Volume."""

    reason, status, retryable = "VolumeBusy", 409, True


class Expired(NodusError):
    """The resourceVersion, link or page token is too old; start again."""

    reason, status = "Expired", 410


class PreconditionFailed(NodusError):
    """If-Match names a plan that no longer holds; dry-run again."""

    reason, status = "PreconditionFailed", 412


class SHA256Mismatch(NodusError):
    """The bytes don't have the digest that was announced."""

    reason, status = "SHA256Mismatch", 412


class RequestEntityTooLarge(NodusError):
    """The body is over the limit."""

    reason, status = "RequestEntityTooLarge", 413


class FileTooLarge(NodusError):
    """The file is over the limit."""

    reason, status = "FileTooLarge", 413


class UnsupportedMediaType(NodusError):
    """The content type isn't one the route takes."""

    reason, status = "UnsupportedMediaType", 415


class Invalid(NodusError):
    """The object is well-formed and wrong; ``causes`` lists every mistake."""

    reason, status = "Invalid", 422


class Unsupported(NodusError):
    """The request asks for something this installation doesn't do."""

    reason, status = "Unsupported", 422


class EnvironmentTasksFailed(NodusError):
    """The Environment could not list its tasks."""

    reason, status = "EnvironmentTasksFailed", 422


class GraderFailed(NodusError):
    """Too many completions could not be graded; the evidence of the last ones is in the message."""

    reason, status = "GraderFailed", 422


class SecretValueInEnv(NodusError):
    """A value that looks like a Secret's stands in plain env; use a reference."""

    reason, status = "SecretValueInEnv", 422


class TooManyRequests(NodusError):
    """A rate limit; retry after ``retry_after_s``."""

    reason, status, retryable = "TooManyRequests", 429, True


class QuotaExceeded(NodusError):
    """A quota is used up."""

    reason, status = "QuotaExceeded", 429


class Unavailable(NodusError):
    """Something needed is out of reach for now; retry shortly."""

    reason, status, retryable = "Unavailable", 503, True


class CapacityUnavailable(NodusError):
    """No capacity of that kind."""

    reason, status = "CapacityUnavailable", 503


class StoreError(NodusError):
    """The database can't be used; the message says why and what to do. Never sent to API clients in detail."""

    reason, status, retryable = "Unavailable", 503, True


class StaleLease(Conflict):
    """The lease was taken over; the write is dropped."""


class StateMismatch(NodusError):
    """A checkpoint belongs to another configuration; names both values. Raised in the trainer."""

    reason, status = "StateMismatch", 409


class JobFailed(NodusError):
    """A run ended in Failed or Cancelled; raised by the client's ``wait``. ``details`` has ``reason`` and ``phase``."""

    reason, status = "JobFailed", 409


class NodusTimeout(NodusError):
    """A client-side wait ran out of time; the run goes on."""

    reason, status = "Timeout", 504


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
