"""`parameters.taskFilter`: which tasks of an Environment a run is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nodus.core.errors import Cause, Invalid

_SHOWN = 12


def matches(metadata: Mapping[str, Any], task_filter: Mapping[str, Any]) -> bool:
    """Whether a task's metadata has every value of a filter; a list in the filter means any of its values."""
    for name, wanted in task_filter.items():
        value = metadata.get(name)
        allowed = wanted if isinstance(wanted, list) else [wanted]
        if value not in allowed and value != wanted:
            return False
    return True


def unknown_value(listed: Iterable[Mapping[str, Any]], task_filter: Mapping[str, Any]) -> Invalid | None:
    """Return the refusal of a filter's list with a value that no task has, such as a misspelt one; else None.

    Args:
        listed: the metadata of every task.
        task_filter: what a run asks for.
    """
    every = list(listed)
    for name, wanted in task_filter.items():
        values = [metadata.get(name) for metadata in every] if isinstance(wanted, list) else []
        if not isinstance(wanted, list) or wanted in values:  # a list may also be the value itself
            continue
        if unknown := [value for value in wanted if value not in values]:
            return _refused(f"no task has {name} {_shown(unknown)}; {_there(name, every)}")
    return None


def nothing_left(listed: Iterable[Mapping[str, Any]], task_filter: Mapping[str, Any]) -> Invalid:
    """Return the refusal of a filter that no task passes; it names the values that there are.

    Args:
        listed: the metadata of every task.
        task_filter: what no task has.
    """
    every = list(listed)
    for name, wanted in task_filter.items():
        if not any(matches(metadata, {name: wanted}) for metadata in every):
            message = f"no task has {name} {_shown([wanted])}; {_there(name, every)}"
            break
    else:
        message = f"no task has all of {', '.join(task_filter)}, though some have each"
    return _refused(message)


def _refused(message: str) -> Invalid:
    return Invalid(message, causes=[Cause("spec.parameters.taskFilter", "FieldValueInvalid", message)])


def _there(name: str, every: list[Mapping[str, Any]]) -> str:
    values = {_shown([metadata[name]]): None for metadata in every if name in metadata}
    if values:
        more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
        return f"tasks have {', '.join(sorted(values)[:_SHOWN])}{more}"
    keys = sorted({key for metadata in every for key in metadata})
    return f"their metadata has {', '.join(keys[:_SHOWN])}" if keys else "tasks of this environment have no metadata"


def _shown(values: Iterable[Any]) -> str:
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return ", ".join(str(item)[:40] for item in flat[:_SHOWN])
