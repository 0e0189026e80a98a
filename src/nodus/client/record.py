"""JSON objects of the wire that also answer to attribute names, in Python's spelling."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# What must not be shown where an object is printed: values by these names, and texts that hold an API key.
_SECRET_NAMES = frozenset(
    {"stringdata", "token", "password", "sessiontoken", "secretaccesskey", "repositorykey", "codeverifier"}
)
_KEY_LIKE = re.compile(r"nodus_\S{16,}")
_HIDDEN = "…"
_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z](?!s(?:[A-Z]|$))[a-z])")
_NAMES_SHOWN = 20


class Record(dict[str, Any]):
    """A JSON object whose keys also read as attributes, in snake_case.

    It is a dict with the names of the wire: ``status["changePP"]``, ``.get("changePP")``. As an attribute a key is
    spelled as Python spells names, or as on the wire, whatever its capitals: ``status.change_pp``,
    ``spec.max_cost_usd`` (``maxCostUSD``), ``provenance.parameters_sha256``. Setting an attribute changes the key that
    it reads. A key that a dict's own method hides (``keys``, ``items``, ``values``, ``get``, ...) is read as an item.

    Example::

        run.status.summary.comparison.change_pp  # "45.1"
        run.status.summary.get("comparison")  # None before there is one
        run.status.to_dict()  # plain dicts and lists

    Raises:
        AttributeError: For a key that isn't there, with those that come near.
    """

    def __getattr__(self, name: str) -> Any:
        key = None if name.startswith("__") else self._key(name)
        if key is None:
            raise AttributeError(self._missing(name))
        return self[key]

    def __setattr__(self, name: str, value: Any) -> None:
        key = self._key(name)
        if key is None:
            raise AttributeError(f"{self._missing(name)} A new key is set as an item: [{name!r}] = ...")
        self[key] = as_record(value)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *(name for name in map(snake_case, self) if name.isidentifier())]

    def __repr__(self) -> str:
        return repr(_shown(self))

    def to_dict(self) -> dict[str, Any]:
        """Return a copy made of plain dicts and lists, with the names of the wire."""
        return {key: _plain(item) for key, item in self.items()}

    def _key(self, name: str) -> str | None:
        """Return the key that an attribute's name means."""
        if name in self:
            return name
        wanted = name.replace("_", "").lower()
        return next((key for key in self if key.lower() == wanted), None)

    def _missing(self, name: str) -> str:
        if name.startswith("__"):  # Python's own questions, such as copy's; nobody reads the answer
            return name
        from difflib import get_close_matches

        names = sorted(map(snake_case, self))
        close = get_close_matches(snake_case(name), names, n=3)
        hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        return f"there is no {name!r} here; {hint}It has: {', '.join(names[:_NAMES_SHOWN]) or 'nothing'}{more}."


def as_record(value: Any) -> Any:
    """Return the value with every JSON object in it made a Record; lists are kept, other values are as they were."""
    if isinstance(value, Record):
        return value
    if isinstance(value, Mapping):
        return Record({key: as_record(item) for key, item in value.items()})
    if isinstance(value, list):
        return [as_record(item) for item in value]
    return value


def snake_case(name: str) -> str:
    """Return a wire name as Python spells it: ``maxCostUSD`` is ``max_cost_usd``."""
    return _WORD_ENDS.sub("_", name).lower()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _shown(value: Any, secret: bool = False) -> Any:
    """Return a copy for printing, with what is secret hidden."""
    if isinstance(value, Mapping):
        return {key: _shown(item, secret or str(key).lower() in _SECRET_NAMES) for key, item in value.items()}
    if isinstance(value, list):
        return [_shown(item, secret) for item in value]
    if value is not None and (secret or (isinstance(value, str) and _KEY_LIKE.search(value))):
        return _HIDDEN
    return value
