"""What a controller's decision is made of: plain values that the runtime carries out.

``decide`` returns an :class:`Outcome`; the runtime applies everything in it in one transaction and then runs its
:class:`Action`, if it has one, outside of any transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from nodus.core.kinds import Kind

if TYPE_CHECKING:
    from nodus.server.store.ledger import Charge, HoldRequest
    from nodus.server.store.objects import Object


@dataclass(frozen=True, slots=True)
class NewObject:
    """A child to create in the project of the object that the pass is about.

    Creating is idempotent: a child of that name which this object owns already is left as it is.
    """

    kind: Kind
    name: str
    spec: dict[str, Any]
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    owned: bool = True
    """Whether it gets an owner reference, so that it is deleted with its owner."""


@dataclass(frozen=True, slots=True)
class Update:
    """A change to another object, or to the spec or metadata of this one; what is None stays. Compare-and-swap."""

    obj: Object
    spec: dict[str, Any] | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    status: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Payment:
    """Money that moves together with what else an outcome says.

    Where the hold is refused nothing of the outcome is applied: the next pass decides again, with the refusal as its
    ``result``, an :class:`ActionResult` of the name :data:`REFUSED`.
    """

    settle: str | None = None
    """Reference of a hold to end, with ``charges``."""
    charges: tuple[Charge, ...] = ()
    hold: HoldRequest | None = None
    """A hold to take."""
    spender: Object | None = None
    """Whose limits the hold stands under besides its own: they are read in the transaction that takes it."""


REFUSED = "payment-refused"

EventType = Literal["Normal", "Warning"]


class EventNote(NamedTuple):
    """An Event to record about the object: ``("Normal", "Started", "Attempt my-job-1 runs")``."""

    type: EventType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Action:
    """One effect outside of the database, idempotent by ``key``: the same key may be acted on again after a crash."""

    name: str
    key: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What an action came to; the next pass of the object finds it in its context's ``result``."""

    key: str
    name: str
    value: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    """One sentence when the action failed in a way the controller should decide about."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What to do about an object.

    All but ``action`` is applied in one transaction that is guarded by the lease and by the object's resourceVersion.
    """

    status: dict[str, Any] | None = None
    """The whole new status; None leaves it. Written at most once a second unless the phase changes."""
    create: Sequence[NewObject] = ()
    update: Sequence[Update] = ()
    delete: Sequence[Object] = ()
    events: Sequence[EventNote] = ()
    payment: Payment | None = None
    action: Action | None = None
    requeue_after_s: float | None = None
    """Look again after this many seconds, though nothing changed."""

    def __post_init__(self) -> None:
        # Lists are accepted for convenience and frozen here, so that an Outcome compares by value in tests.
        for name in ("create", "update", "delete"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "events", tuple(EventNote(*event) for event in self.events))

    @property
    def writes(self) -> bool:
        """Whether it changes anything but the status."""
        return bool(self.create or self.update or self.delete or self.events or self.payment)


NOTHING = Outcome()
"""Nothing to do until something changes."""
