"""Decoding of the envelope of an object (apiVersion, kind, metadata) into a draft, strictly and with every mistake."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from nodus.core.errors import BadRequest, Cause, Conflict
from nodus.core.ids import name_problem
from nodus.core.kinds import Kind
from nodus.core.kinds.decode import MOST_CAUSES
from nodus.core.labels import is_label_key, label_problem
from nodus.server.api.http import json_type
from nodus.server.api.owners import read_references
from nodus.server.kinds import admission_of
from nodus.server.kinds.base import Draft

if TYPE_CHECKING:
    from nodus.server.store.objects import Object

TOP_FIELDS = ("apiVersion", "kind", "metadata", "spec", "status")
WRITABLE_METADATA = (
    "name",
    "generateName",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
)
SERVER_METADATA = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
)
ANNOTATIONS_LIMIT_BYTES = 256 * 1024


def read_envelope(
    kind: Kind, project: str | None, body: Mapping[str, Any], user: str, old: Object | None = None
) -> Draft:
    """Decode a whole object as a client sent it.

    Args:
        kind: what the path says it is.
        project: the project in the path.
        body: the decoded JSON object.
        user: who sends it.
        old: the stored object, for updates.

    Returns:
        A draft; mistakes are in ``draft.causes``. ``spec`` is not decoded yet.

    Raises:
        BadRequest: it is another kind of object, or meant for another project or name, than the path says.
    """
    causes: list[Cause] = []
    _check_identity(kind, project, body)
    for key in islice((key for key in body if key not in TOP_FIELDS), MOST_CAUSES):
        causes.append(_unknown(str(key), str(key), TOP_FIELDS))
    metadata = _object(body.get("metadata"), "metadata", causes)
    unknown = (key for key in metadata if key not in WRITABLE_METADATA and key not in SERVER_METADATA)
    for key in islice(unknown, MOST_CAUSES):
        causes.append(_unknown(f"metadata.{key}", str(key), WRITABLE_METADATA))
    draft = Draft(
        kind=kind,
        project=project,
        name=_name(metadata, "name", causes),
        generate_name=_name(metadata, "generateName", causes),
        labels=_labels(metadata.get("labels"), causes),
        annotations=admission_of(kind).annotated(_annotations(metadata.get("annotations"), causes)),
        finalizers=_finalizers(metadata.get("finalizers"), causes, old),
        owner_references=read_references(
            metadata.get("ownerReferences"), old.owner_references if old is not None else [], causes
        ),
        spec=_object(body.get("spec"), "spec", causes),
        model=None,
        user=user,
        causes=causes,
        old=old,
    )
    if old is not None and draft.name not in (None, old.name):
        raise BadRequest(f"metadata.name is {draft.name!r} and the path says {old.name!r}; a name can't change")
    if old is not None and metadata.get("uid") not in (None, "", old.uid):
        raise Conflict(
            f'{kind.plural} "{old.name}" is another object now: its uid is {old.uid}',
            fix="Get it again and repeat the change.",
        )
    if metadata.get("namespace") not in (None, "", project):
        raise BadRequest(
            f"metadata.namespace is {metadata['namespace']!r} and the path says {project!r}",
            fix="Send the object to its own project.",
        )
    return draft


def _check_identity(kind: Kind, project: str | None, body: Mapping[str, Any]) -> None:
    version, name = body.get("apiVersion", kind.api_version), body.get("kind", kind.name)
    if version != kind.api_version or name != kind.name:
        raise BadRequest(
            f"the object is {_short(version)} {_short(name)} and the path takes {kind.api_version} {kind.name}",
            fix=f"Set apiVersion: {kind.api_version} and kind: {kind.name}, or send it to the path of its kind.",
        )


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 and text.isprintable() else ascii(text)[:60]


def _unknown(path: str, name: str, known: tuple[str, ...]) -> Cause:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return Cause(path, "FieldValueNotSupported", "unknown field" + (f"; did you mean {near[0]!r}?" if near else ""))


def _object(value: Any, path: str, causes: list[Cause]) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    causes.append(Cause(path, "FieldValueInvalid", f"an object is expected, this is a {json_type(value)}"))
    return {}


def _name(metadata: Mapping[str, Any], key: str, causes: list[Cause]) -> str | None:
    value = metadata.get(key)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        causes.append(
            Cause(f"metadata.{key}", "FieldValueInvalid", f"a string is expected, this is a {json_type(value)}")
        )
        return None
    problem = name_problem(value if key == "name" else value[:57] + "x")
    if problem:
        causes.append(Cause(f"metadata.{key}", "FieldValueInvalid", problem))
    return value


def _labels(value: Any, causes: list[Cause]) -> dict[str, str]:
    found = _object(value, "metadata.labels", causes)
    if len(found) > 64:
        causes.append(Cause("metadata.labels", "FieldValueInvalid", f"at most 64 labels fit, these are {len(found)}"))
        return {}
    for key, text in found.items():
        problem = label_problem(key, text if isinstance(text, str) else "")
        if problem is None and not isinstance(text, str):
            problem = f"a string is expected, this is a {json_type(text)}"
        if problem is not None:
            causes.append(Cause(f"metadata.labels.{key}", "FieldValueInvalid", problem))
    return {key: text for key, text in found.items() if isinstance(text, str)}


def _annotations(value: Any, causes: list[Cause]) -> dict[str, str]:
    found = _object(value, "metadata.annotations", causes)
    size = 0
    for key, text in found.items():
        if len(causes) > MOST_CAUSES:
            break
        path = f"metadata.annotations.{key}"
        if not is_label_key(key):
            causes.append(Cause(path, "FieldValueInvalid", f"{_short(key)!r} is not an annotation name"))
        if not isinstance(text, str):
            causes.append(Cause(path, "FieldValueInvalid", f"a string is expected, this is a {json_type(text)}"))
        else:
            size += len(key) + len(text.encode("utf-8", "surrogatepass"))
    if size > ANNOTATIONS_LIMIT_BYTES:
        causes.append(
            Cause(
                "metadata.annotations", "FieldValueInvalid", f"{size} bytes are too many; {ANNOTATIONS_LIMIT_BYTES} fit"
            )
        )
    return {key: text for key, text in found.items() if isinstance(text, str)}


def _finalizers(value: Any, causes: list[Cause], old: Object | None) -> list[str]:
    if value is None:
        return []
    if not (
        isinstance(value, list)
        and all(isinstance(item, str) and 0 < len(item) <= 253 for item in value)
        and len(value) <= 16
    ):
        causes.append(Cause("metadata.finalizers", "FieldValueInvalid", "a list of at most 16 names is expected"))
        return []
    if (
        old is not None
        and old.deleted_at is not None
        and (new := [item for item in value if item not in old.finalizers])
    ):
        message = f"{new[0]!r} can't be added any more: the object is being deleted"
        causes.append(Cause("metadata.finalizers", "FieldValueForbidden", message))
    return list(dict.fromkeys(value))
