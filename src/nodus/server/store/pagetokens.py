"""``continue`` tokens of lists whose rows have numbers: they say where the page before ended."""

from __future__ import annotations

import base64
import binascii

from nodus.core.errors import BadRequest


def encode(seq: int) -> str:
    """Return the token of the page that begins after a row."""
    return base64.urlsafe_b64encode(str(seq).encode()).decode()


def decode(token: str | None) -> int | None:
    """Return the number of the row that a token's page begins after; None without a token.

    Raises:
        BadRequest: the token can't be read.
    """
    if token is None:
        return None
    try:
        number = int(base64.urlsafe_b64decode(token.encode()))
        if not 0 <= number < 2**62:
            raise ValueError("out of range")
        return number
    except (ValueError, binascii.Error) as error:
        raise BadRequest(f"{token[:60]!r} is no continue token of this server", fix="List again without it.") from error
