"""JSON objects that also answer to attribute names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Record(dict[str, Any]):
    """A JSON object whose keys can be read as attributes, in camelCase or snake_case.

    ``status.summary.comparison.change_pp`` reads ``status["summary"]["comparison"]["changePP"]``. A missing key raises
    AttributeError; use ``.get`` for what may be absent.
    """

    def __getattr__(self, name: str) -> Any:
        for spelling in (name, *_spellings(name)):
            if spelling in self:
                return self[spelling]
        raise AttributeError(f"there is no {name!r} here; the keys are {', '.join(sorted(self)) or 'none'}")


def as_record(value: Any) -> Any:
    """Return the value with every JSON object in it made a Record; lists are kept, other values are as they were."""
    if isinstance(value, Mapping):
        return Record({key: as_record(item) for key, item in value.items()})
    if isinstance(value, list):
        return [as_record(item) for item in value]
    return value


def _spellings(name: str) -> tuple[str, str]:
    head, *rest = name.split("_")
    camel = head + "".join(part.capitalize() for part in rest)
    upper = head + "".join(part.upper() if part in _ACRONYMS else part.capitalize() for part in rest)
    return camel, upper


_ACRONYMS = frozenset({"pp", "usd", "uri", "url", "uid", "id", "sha256"}) - {"id"}
