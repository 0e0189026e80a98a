"""What every error of Nodus has: a message with a fix, its mistakes, and its form on the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    @property
    def retry_after(self) -> float | None:
        """Seconds after which a retry makes sense, when the server said so."""
        return self.retry_after_s

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


def detail(key: str, what: str) -> property:
    """Return a property that reads one key of ``details``; None where the answer had none.

    Args:
        key: its name on the wire.
        what: what it is.
    """
    return property(lambda error: error.details.get(key), doc=what)
