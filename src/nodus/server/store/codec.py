"""JSON and time as the store writes them."""

from __future__ import annotations

import json
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def dumps(value: Any) -> str:
    """Return compact JSON in ASCII, key order kept; ASCII so that NUL and lone surrogates pass PostgreSQL's text.

    Raises:
        ValueError: for NaN and infinities, which JSON lacks.
    """
    try:
        found = orjson.dumps(value, option=_OPTIONS)
    except TypeError:  # what orjson does not take: lone surrogates, keys that are numbers
        return _encode(value)
    # It writes NaN as null, and letters as they are; the standard library refuses the one and escapes the other.
    return _encode(value) if b"null" in found or not found.isascii() else found.decode("ascii")


def loads(text: str) -> Any:
    """Return the value that :func:`dumps` wrote."""
    try:
        return orjson.loads(text)
    except ValueError:  # half of a surrogate pair, which orjson refuses
        return json.loads(text)


def clean(text: str) -> str:
    """Return text that both databases hold: NUL and lone surrogates are replaced."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def pack(value: Any) -> bytes:
    """Return zlib-compressed JSON, for large values that are read whole."""
    return zlib.compress(_encode(value).encode(), 1)


def unpack(data: bytes) -> Any:
    """Return the value that :func:`pack` wrote."""
    return json.loads(zlib.decompress(data))


def to_us(moment: datetime) -> int:
    """Return microseconds since the epoch of a timezone-aware moment."""
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def from_us(value: int) -> datetime:
    """Return the UTC moment of ``value`` microseconds since the epoch."""
    return _EPOCH + timedelta(microseconds=value)
