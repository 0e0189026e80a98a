"""What admission is: the checks and defaults an object passes between the request and the transaction that stores it.

The generic verbs (``api/resources.py``) drive it, in this order::

    decode (strict, every mistake) -> resolve (network look-ups) -> admit (one transaction: look-ups, defaults, rules)
    -> create or update -> stored (rows beside the object, same transaction)

A kind overrides what it needs of :class:`Admission`; most need one or two methods. Mistakes are appended to
``draft.causes``, never raised one by one: a user gets all of them in one answer.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from nodus.core.errors import Cause, FieldImmutable, Invalid
from nodus.core.kinds import Kind, Model
from nodus.core.kinds.decode import MOST_CAUSES, decode
from nodus.core.money import parse_usd
from nodus.server.store import blobs

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.api.auth import Principal
    from nodus.server.services import Services
    from nodus.server.store.objects import Object

M = TypeVar("M", bound=Model)
MISSING: Any = object()
"""Stands for "no such field" where ``None`` is a value."""


@dataclass(slots=True)
class Draft:
    """An object on its way into the store."""

    kind: Kind
    project: str | None
    """Project name; ``None`` for org kinds."""
    name: str | None
    """Final name; ``None`` until ``generate_name`` made one."""
    generate_name: str | None
    labels: dict[str, str]
    annotations: dict[str, str]
    finalizers: list[str]
    spec: dict[str, Any]
    """What the user wrote, plus what admission adds. This is what gets stored."""
    model: Model | None
    """``spec`` decoded. When ``causes`` has mistakes, it lacks the mistaken fields, so that the rest can be checked."""
    user: str
    """Who asks, as the created-by label has it."""
    actor: Principal | None = None
    """Who asks, with scopes and projects; ``None`` for the server itself."""
    causes: list[Cause] = field(default_factory=list)
    """Every mistake found so far."""
    old: Object | None = None
    """The stored object, for updates."""
    owner: Object | None = None
    """The object whose deletion deletes a new one."""
    owner_references: list[dict[str, Any]] = field(default_factory=list)
    """References to owners as they are to be stored, besides the one to :attr:`owner`."""
    status: dict[str, Any] = field(default_factory=dict)
    """Status to store with a new object."""
    resolved: dict[str, Any] = field(default_factory=dict)
    """What ``resolve`` found out, for ``admit``."""
    reply_status: dict[str, Any] = field(default_factory=dict)
    """Merged into the status of this one reply and stored nowhere: a new API key, a dry run's estimate."""
    dry_run: bool = False
    """Nothing will be stored."""
    spec_sent: dict[str, Any] = field(default_factory=dict)
    """Updates: the spec as the change left it, before admission."""

    @property
    def creating(self) -> bool:
        """Whether there is no stored object yet."""
        return self.old is None

    def reject(self, path: str, message: str, reason: str = "FieldValueInvalid") -> None:
        """Note a mistake.

        Args:
            path: field from the object's root, such as ``spec.environment.name``.
            message: what is wrong and what would be right.
            reason: see :class:`nodus.core.errors.Cause`.
        """
        self.causes.append(Cause(path, reason, message))

    def check_blob(self, conn: Connection, services: Services, path: str, blob: str) -> None:
        """Note a mistake where a blob isn't one of the object's own project."""
        if blobs.find(conn, self.project, blob) is None or not services.store.blobs.exists(blob):
            self.reject(path, f"project {self.project} has no blob {blob}; upload it first")

    def raise_causes(self) -> None:
        """Raise :class:`Invalid` with every mistake, when there is one."""
        if self.causes:
            shown = self.name or f"{self.generate_name or ''}..."
            raise Invalid(
                f'{self.kind.name} "{shown}" is invalid: '
                + "; ".join(f"{cause.field}: {cause.message}" for cause in self.causes[:3])
                + (f"; and {len(self.causes) - 3} more" if len(self.causes) > 3 else ""),
                fix="Correct the fields listed and send it again.",
                details={"name": self.name or "", "group": "nodus.dev", "kind": self.kind.plural},
                causes=self.causes[: 2 * MOST_CAUSES],
            )


class Admission(Generic[M]):
    """Admission of one kind; the defaults here add and refuse nothing beyond the kind's own declaration."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    """Spec fields stored when the user left them out."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    async def resolve(self, services: Services, draft: Draft, spec: M) -> None:
        """Look up what is outside of the store (a model hub) into ``draft.resolved``; may take seconds."""

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: M) -> None:
        """Check against the store, fill defaults and the initial status. Called again when the transaction retries."""

    def preview(self, conn: Connection, services: Services, draft: Draft, spec: M) -> dict[str, Any]:
        """The status a dry run shows: estimate, compiled Job. The ETag covers it except ``estimate.validUntil``."""
        return {}

    def stored(self, conn: Connection, services: Services, draft: Draft, obj: Object) -> None:
        """Write rows beside the object, in the transaction that stored it."""

    def authorize(self, conn: Connection, actor: Principal, obj: Object) -> None:
        """Refuse a change or deletion of this very object to somebody whose scopes allow such changes, by raising."""

    def deleting(self, conn: Connection, services: Services, obj: Object) -> None:
        """Refuse a deletion by raising a :class:`nodus.core.errors.NodusError`."""

    def render(self, wire: dict[str, Any]) -> dict[str, Any]:
        """Change how a stored object is shown. Returns ``wire`` or a changed copy."""
        return wire

    def storable(self, spec: dict[str, Any]) -> dict[str, Any]:
        """What of an admitted spec goes into the object; credentials are stored elsewhere."""
        return spec

    def annotated(self, annotations: dict[str, str]) -> dict[str, str]:
        """What of the annotations may be stored and shown."""
        return annotations

    def repeats(self, conn: Connection, services: Services, draft: Draft, there: Object) -> bool:
        """Whether a create asks for just what is stored under that name already."""
        return same_spec(self.kind, there.spec, draft.spec)

    def prepare(self, draft: Draft) -> M | None:
        """Decode ``draft.spec``, note every mistake, fill :attr:`defaults`, and set ``draft.model``."""
        draft.model, pruned = decode_all(self.kind, draft.spec, draft.causes)
        missing = [name for name in self.defaults if name not in draft.spec or name not in pruned]
        if draft.model is not None and missing:
            pruned = dict(pruned)  # it may be the spec itself
            for name in missing:
                draft.spec.setdefault(name, copy.deepcopy(self.defaults[name]))
                pruned.setdefault(name, copy.deepcopy(self.defaults[name]))
            draft.model = decode(self.kind.spec_model, pruned)[0]
        return cast("M | None", draft.model)


def decode_all(kind: Kind, spec: Any, causes: list[Cause]) -> tuple[Model | None, dict[str, Any]]:
    """Decode ``spec``, adding every mistake to ``causes``; mistaken fields are left out so that the rest decodes.

    Returns:
        The model (``None`` when something required is missing) and the spec it was made from.
    """
    model, found = decode(kind.spec_model, spec)
    causes.extend(found)
    if model is not None:
        return model, spec
    pruned = copy.deepcopy(spec) if isinstance(spec, dict) else {}
    for _ in range(_PRUNE_ROUNDS):
        for cause in found:
            path = _parts(cause.field)
            # What lacks something goes as a whole; the spec itself can't.
            path = path[:-1] if cause.reason == "FieldValueRequired" else path
            if not path:
                return None, pruned
            _remove(pruned, path)
        model, found = decode(kind.spec_model, pruned)
        if model is not None:
            return model, pruned
    return None, pruned


_PRUNE_ROUNDS = 6


def _parts(path: str) -> list[str | int]:
    """The parts of ``spec.a.b[0].c`` below ``spec``."""
    found: list[str | int] = []
    for word in path.split(".")[1:]:
        name, *indexes = word.split("[")
        found.append(name)
        found.extend(int(index[:-1]) for index in indexes if index[:-1].isdigit())
    return found


def _remove(spec: dict[str, Any], path: list[str | int]) -> None:
    """Delete the value at a path. An item takes its list along: the other items must keep their numbers."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    holder: Any = spec
    for part in path[:-1]:
        try:
            inner = holder[part]
        except (KeyError, IndexError, TypeError):
            return
        if not isinstance(inner, dict | list):
            # A shorthand that stands for an object: the mistake is in the whole of it.
            holder.pop(part, None) if isinstance(holder, dict) else None
            return
        holder = inner
    if isinstance(holder, dict) and path:
        holder.pop(path[-1], None)


def check_immutable(kind: Kind, old_spec: Mapping[str, Any], new_spec: Mapping[str, Any]) -> None:
    """Refuse changes of fields that can't change, comparing decoded values so that spellings don't matter.

    Raises:
        FieldImmutable: naming each changed field, and money that may only rise and would fall, with both values.
    """
    before, after = _normal(kind, old_spec), _normal(kind, new_spec)
    paths = sorted(set(before) | set(after)) if "*" in kind.immutable else kind.immutable
    diff = {
        f"spec.{path}": {"old": a, "new": b} for path in paths if (a := _at(before, path)) != (b := _at(after, path))
    }
    if diff:
        names = ", ".join(diff)
        raise FieldImmutable(
            f"{names} can't change after creation",
            fix=f"Create another {kind.name} with the new values.",
            details={"diff": diff, "kind": kind.plural},
            causes=[
                Cause(path, "FieldValueForbidden", f"can't change after creation{_changes(both['old'], both['new'])}")
                for path, both in diff.items()
            ],
        )
    for path in kind.raise_only:
        _check_raise(kind, path, _at(before, path), _at(after, path))


MOST_CHANGES = 5


def _changes(old: Any, new: Any) -> str:
    """What changed between two values, in words; objects are compared field by field."""
    found = [f"{path} {_short(a)} to {_short(b)}".strip() for path, a, b in _leaves("", old, new)]
    more = [f"{len(found) - MOST_CHANGES} more"] if len(found) > MOST_CHANGES else []
    return f" ({', '.join(found[:MOST_CHANGES] + more)})"


def _leaves(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                yield from _leaves(f"{path}.{key}".lstrip("."), old.get(key), new.get(key))
    else:
        yield path, old, new


def _short(value: Any) -> str:
    """A value as JSON, cut where it is long; ``unset`` for none."""
    text = "unset" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _check_raise(kind: Kind, path: str, before: Any, after: Any) -> None:
    if before == after or before is None or (after is not None and parse_usd(after) >= parse_usd(before)):
        return
    message = f"may only rise; it is {before} now"
    raise FieldImmutable(
        f"spec.{path} {message}",
        fix="Give a higher one, or leave it as it is.",
        details={"diff": {f"spec.{path}": {"old": before, "new": after}}, "kind": kind.plural},
        causes=[Cause(f"spec.{path}", "FieldValueForbidden", message)],
    )


def _normal(kind: Kind, spec: Mapping[str, Any]) -> dict[str, Any]:
    model, _ = decode(kind.spec_model, spec)
    return model.model_dump(mode="json", by_alias=True, exclude_none=True) if model is not None else dict(spec)


def same_spec(kind: Kind, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two specs mean the same: equal once decoded, whatever their spelling and unset defaults."""
    return one == other or _normal(kind, one) == _normal(kind, other)


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value
