"""Errors as the command line prints them."""

from __future__ import annotations

from nodus.client.config import ConfigError
from nodus.client.http import ConnectionFailed
from nodus.core.errors import NodusError

_FIXES = {
    "Unauthorized": "Log in: `nodus login`, or set NODUS_API_KEY. On the server's machine: `nodus up`.",
}
# Raised on this machine: no server said so.
_LOCAL_REASONS = frozenset(
    {
        "ServerNotStarted",
        "AlreadyRunning",
        "ServerNotStopped",
        "RotationRefused",
        "BackupRefused",
        "SweepRefused",
        "SHA256Mismatch",
        "JobFailed",
    }
)


def error_lines(error: NodusError) -> list[str]:
    """Return an error's lines: the message, one line a cause, ``fix:`` and ``request-id:``."""
    local = (
        isinstance(error, ConfigError | ConnectionFailed) or type(error) is NodusError or error.reason in _LOCAL_REASONS
    )
    message = _without_causes(error)
    lines = [f"error: {message}" if local else f"Error from server ({error.reason}): {message}"]
    causes = [f"{cause.field}: {cause.message}" for cause in error.causes]
    lines += [f"  {cause}" for cause in causes if cause != message]
    fix = error.fix or _FIXES.get(error.reason)
    if fix:
        lines.append(f"fix: {fix}")
    if error.request_id:
        lines.append(f"request-id: {error.request_id}")
    return lines


def _without_causes(error: NodusError) -> str:
    """Return the message up to where it repeats its causes, which have lines of their own."""
    if error.causes:
        first = error.causes[0]
        before, repeated, _ = error.message.partition(f": {first.field}: {first.message}")
        if repeated:
            return before
    return error.message
