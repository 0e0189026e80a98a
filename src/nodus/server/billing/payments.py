"""What is refused because nobody here takes payments: credits come from grants alone."""

from __future__ import annotations

from nodus.core.errors import Unsupported

PLURALS = ("topups",)
"""Kinds of servers that sell credits."""


def no_provider(what: str) -> Unsupported:
    """Return the refusal of something that needs somebody who takes payments."""
    return Unsupported(
        f"this server has no payment provider, so {what}", fix="An Owner adds credits: `nodus admin grant --amount 25`."
    )
