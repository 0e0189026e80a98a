"""Two objects side by side, as a unified diff of their YAML."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from typing import Any

from nodus.cli.colour import paint
from nodus.cli.formats import to_yaml
from nodus.client.apply import LAST_APPLIED

# Written by the server, or by the client about itself.
SERVER_FIELDS = ("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "selfLink")
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def written_part(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an object that a user writes: no status, nothing that the server adds to its metadata."""
    metadata = {key: value for key, value in (obj.get("metadata") or {}).items() if key not in SERVER_FIELDS}
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != LAST_APPLIED}
    metadata.pop("annotations", None)
    if annotations:
        metadata["annotations"] = annotations
    return {key: value for key, value in obj.items() if key != "status"} | {"metadata": metadata}


def difference(label: str, before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a unified diff, in colours on a terminal; nothing when there is no difference.

    Args:
        label: What the headers call the object, such as ``job/train``.
        before: The object as it is; None where there is none.
        after: The object as it would be.
    """
    old = "" if before is None else to_yaml(written_part(before))
    new = to_yaml(written_part(after))
    names = (f"live/{label}", f"merged/{label}")
    for line in unified_diff(old.splitlines(), new.splitlines(), *names, lineterm=""):
        style = "bold" if line.startswith(("---", "+++")) else _STYLES.get(line[:1])
        yield paint(line, style, sys.stdout) if style else line
