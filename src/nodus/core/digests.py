"""Content digests: canonical JSON and sha256."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces, the same for equal values.

    Raises:
        ValueError: For NaN and infinities, which JSON lacks.
    """
    return _canonical(value)


def sha256_hex(data: bytes) -> str:
    """Return the sha256 of ``data`` as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def digest_of(value: Any) -> str:
    """Return ``sha256:<hex>`` of a JSON value's canonical form."""
    return "sha256:" + sha256_hex(canonical_json(value).encode())
