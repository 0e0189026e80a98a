"""Times as people write them: how long something is valid, borders of ranges; and SSH public keys as text."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from datetime import UTC, date, datetime, timedelta

from nodus.core.clock import parse_rfc3339
from nodus.core.durations import parse_duration

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_DURATION = re.compile(r"(\d+(\.\d+)?(ms|s|m|h|d))+")
LONGEST_S = 100 * 366 * 86400.0


def expiry_of(text: str, start: datetime) -> datetime:
    """Return when something ends that starts at ``start``.

    Args:
        text: A duration (``720h``, ``90d``), a date (through its end, UTC) or an RFC 3339 time.
        start: What a duration counts from.

    Raises:
        ValueError: The text is none of these; the message shows the forms.
    """
    try:
        if _DURATION.fullmatch(text):
            seconds = parse_duration(text)
            if not 0 < seconds <= LONGEST_S:
                raise ValueError("out of range")
            return start + timedelta(seconds=seconds)
        if _DATE.fullmatch(text):
            day = date.fromisoformat(text)
            return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
        return parse_rfc3339(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{text[:60]!r} says no end; write a duration like 720h or 90d, a date like 2026-12-31, or an RFC 3339 time"
        ) from error


def check_expiry(text: str) -> str:
    """Return the text when :func:`expiry_of` takes it, for models.

    Raises:
        ValueError: It does not.
    """
    expiry_of(text, datetime(2000, 1, 1, tzinfo=UTC))
    return text


def check_timestamp(text: str) -> str:
    """Return the text when it is an RFC 3339 time, for models.

    Raises:
        ValueError: It is none.
    """
    try:
        parse_rfc3339(text)
    except ValueError as error:
        raise ValueError(f"{text[:60]!r} is no time; write it like 2026-12-31T00:00:00Z") from error
    return text


def moment_of(text: str, now: datetime) -> datetime:
    """Return the moment that a border of a range means.

    Args:
        text: A duration back from now (``30d``), a date (its beginning, UTC) or an RFC 3339 time.
        now: What a duration counts back from.

    Raises:
        ValueError: The text is none of these; the message shows the forms.
    """
    try:
        if _DURATION.fullmatch(text):
            return now - timedelta(seconds=parse_duration(text))
        if _DATE.fullmatch(text):
            day = date.fromisoformat(text)
            return datetime(day.year, day.month, day.day, tzinfo=UTC)
        return parse_rfc3339(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{text[:60]!r} is no time; write a duration back from now (30d), a date, or an RFC 3339 time"
        ) from error


_SSH_TYPES = (
    "ssh-ed25519",
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
)


def ssh_fingerprint(public_key: str) -> str:
    """Return the SHA-256 fingerprint of an OpenSSH public key, as ``ssh-keygen -l`` prints it.

    Raises:
        ValueError: The text is no public key; it is never quoted, it could be a private one.
    """
    line = public_key.strip()
    words = line.split()
    if len(words) < 2 or words[0] not in _SSH_TYPES or not line.isprintable():
        raise ValueError(f"one line like 'ssh-ed25519 AAAA... name' is expected; types are {', '.join(_SSH_TYPES)}")
    try:
        blob = base64.b64decode(words[1], validate=True)
    except binascii.Error as error:
        raise ValueError("the key's second word is not base64") from error
    length = int.from_bytes(blob[:4], "big")
    if blob[4 : 4 + length] != words[0].encode() or len(blob) <= 4 + length:
        raise ValueError(f"the key's data is not of type {words[0]}")
    digest = hashlib.sha256(blob).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
