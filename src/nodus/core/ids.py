"""Random identifiers and the rules for names."""

from __future__ import annotations

import re
import secrets
import time

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def new_uid() -> str:
    """Return a UUID that begins with the time (version 7): rows made one after another stand together in an index."""
    value = time.time_ns() // 1_000_000 << 80 | secrets.randbits(80)
    text = f"{value & ~(0xF << 76 | 0x3 << 62) | 0x7 << 76 | 0x2 << 62:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_id(prefix: str) -> str:
    """Return ``<prefix>_<26 random characters>``, for request ids and the like."""
    return f"{prefix}_{secrets.token_hex(13)}"


def new_api_key() -> str:
    """Return a new API key: ``nodus_`` and 256 random bits."""
    return "nodus_" + secrets.token_urlsafe(32)


def generated_name(prefix: str) -> str:
    """Return ``prefix`` and five random characters, as ``metadata.generateName`` asks for."""
    return prefix[:57] + "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(5))


def slug(text: str, fallback: str = "nodus") -> str:
    """Return a text as a name: lower case, dashes for what is no letter or digit, at most 63 characters."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:63].strip("-") or fallback


def name_problem(name: str) -> str | None:
    """Say what is wrong with an object name, or None when it is a DNS label of at most 63 characters."""
    if _DNS_LABEL.fullmatch(name):
        return None
    rule = "use at most 63 lower-case letters, digits and '-', starting and ending with a letter or digit"
    return f"{name!r} is not a name: {rule}"
