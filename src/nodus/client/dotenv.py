"""Files of ``KEY=VALUE`` lines, as ``.env`` files are."""

from __future__ import annotations

from collections.abc import Iterator


def parse(text: str) -> Iterator[tuple[str, str]]:
    """Yield the key and value of each line; comments, ``export`` and quotes around a value are understood.

    Raises:
        ValueError: For another line; the message has its number and nothing of its text.
    """
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        key, equals, value = stripped.removeprefix("export ").partition("=")
        if not equals or not key.strip():
            raise ValueError(f"line {number}")
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        yield key.strip(), value
