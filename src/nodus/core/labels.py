"""What labels may be, in metadata and in selectors over them."""

from __future__ import annotations

import re

_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def is_label_key(key: str) -> bool:
    """Tell whether a label or annotation may be called so: ``app`` or ``example.com/app``."""
    prefix, slash, name = key.rpartition("/")
    return bool(_NAME.fullmatch(name)) and (not slash or bool(_PREFIX.fullmatch(prefix)))


def is_label_value(text: str) -> bool:
    """Tell whether a label may have that value."""
    return _VALUE.fullmatch(text) is not None


def label_problem(key: str, value: str) -> str | None:
    """Return what is wrong with a label, or None."""
    if not is_label_key(key):
        return f"{_short(key)} is not a label name; write it like app or example.com/app"
    if not is_label_value(value):
        return f"{_short(value)} is not a label value; use at most 63 letters, digits, '-', '_' and '.'"
    return None


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
