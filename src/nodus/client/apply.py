"""Three-way apply: what the user wrote now, what they wrote last time, and what the server has.

The document as written is kept in the annotation ``nodus.dev/last-applied``. A key that stood there and no longer
stands in the document is removed; a key that only the server has stays. Lists are compared as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nodus.core.digests import canonical_json

LAST_APPLIED = "nodus.dev/last-applied"


def with_name(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with the name that its spec decides, where it has none: a group's run is GROUP-TASKKEY."""
    metadata, spec = document.get("metadata") or {}, document.get("spec")
    if metadata.get("name") or document.get("kind") != "AgentRun" or not isinstance(spec, Mapping):
        return document
    group, key = spec.get("group"), spec.get("taskKey")
    if not (isinstance(group, str) and isinstance(key, str) and group and key):
        return document
    return document | {"metadata": {"name": f"{group}-{key}"} | metadata}


def prepare(document: Mapping[str, Any], project: str | None) -> tuple[dict[str, Any], str]:
    """Return the document to send (project set, no status, annotation in place) and the annotation's text.

    Args:
        document: A manifest as the user wrote it.
        project: Set as ``metadata.namespace`` where the manifest names none; None for kinds without a project.
    """
    metadata = dict(document.get("metadata") or {})
    if project is not None:
        metadata.setdefault("namespace", project)
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != LAST_APPLIED}
    if annotations or "annotations" in metadata:
        metadata["annotations"] = annotations
    plain = {key: value for key, value in document.items() if key != "status"} | {"metadata": metadata}
    last = canonical_json(_without_values(plain))
    sent = plain | {"metadata": metadata | {"annotations": annotations | {LAST_APPLIED: last}}}
    return sent, last


def _without_values(document: dict[str, Any]) -> dict[str, Any]:
    spec = document.get("spec")
    if document.get("kind") != "Secret" or not isinstance(spec, Mapping):
        return document
    return document | {"spec": {key: value for key, value in spec.items() if key != "stringData"}}


def three_way_patch(document: Mapping[str, Any], last: str, live: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the merge patch that brings the live object to the document; None when there is nothing to change.

    Args:
        document: From `prepare`, with the annotation.
        last: From `prepare`.
        live: The object as the server has it.
    """
    annotations = (live.get("metadata") or {}).get("annotations") or {}
    try:
        original = json.loads(annotations.get(LAST_APPLIED) or "{}")
    except ValueError:
        original = {}
    metadata = document["metadata"]
    written = {key: value for key, value in metadata["annotations"].items() if key != LAST_APPLIED}
    kept = {key: value for key, value in metadata.items() if key != "annotations"}
    wanted = {**document, "metadata": kept | ({"annotations": written} if written else {})}
    patch = _diff(original, wanted, live)
    patch.pop("apiVersion", None)
    patch.pop("kind", None)
    if not patch:
        return None
    patch.setdefault("metadata", {}).setdefault("annotations", {})[LAST_APPLIED] = last
    return patch


def merge_patch_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that makes ``after`` of ``before``; empty when they are equal."""
    return _diff(before, after, before)


def _diff(original: Any, wanted: Mapping[str, Any], live: Any) -> dict[str, Any]:
    was = original if isinstance(original, Mapping) else {}
    has = live if isinstance(live, Mapping) else {}
    patch: dict[str, Any] = {key: None for key in was if key not in wanted and key in has}
    for key, value in wanted.items():
        if isinstance(value, Mapping) and isinstance(has.get(key), Mapping):
            inner = _diff(was.get(key), value, has[key])
            if inner:
                patch[key] = inner
        elif key not in has or has[key] != value:
            patch[key] = value
    return patch
