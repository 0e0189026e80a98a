"""The loop that every controller runs in: queue, leases, backoff, fencing and resync, written once.

A pass over one object is::

    fetch -> load (reads) -> decide (pure) -> apply (one transaction) -> act (outside) -> next pass

``load``, ``decide`` and ``act`` belong to the controller; everything else is here. The rules a controller can rely on:

* At most one pass per object runs at a time, in all servers together: a pass holds the object's lease.
* ``apply`` writes only while the lease's token is current and the object is as it was read. A stale pass is dropped
  and logged once; a conflict starts a new pass at once.
* ``act`` runs after its decision was committed, never inside a transaction. When the process dies between ``act`` and
  the next pass, the same decision is made again, with the same key: the effect must be idempotent by key.
* Whatever happens, an object that isn't finished is looked at again within ``resync_s``.
* A pass that keeps failing is not repeated for ever: the object ends, see :mod:`nodus.server.controllers.givingup`.
* A kind whose objects start without a phase is found by its changes and by the rarer looks at everything.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from nodus.core.clock import Clock, SystemClock
from nodus.core.errors import (
    AlreadyExists,
    BudgetExceeded,
    Conflict,
    Expired,
    InsufficientCredits,
    NotFound,
    StaleLease,
    StoreError,
)
from nodus.core.kinds import Kind
from nodus.server.controllers import givingup
from nodus.server.controllers.applying import apply
from nodus.server.controllers.givingup import Patience, Trouble
from nodus.server.controllers.leasekeeper import LeaseKeeper
from nodus.server.controllers.outcome import (
    NOTHING,
    REFUSED,
    Action,
    ActionResult,
    EventNote,
    EventType,
    NewObject,
    Outcome,
    Payment,
    Update,
)
from nodus.server.controllers.workqueue import WorkQueue
from nodus.server.store import Fence, failures, objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store import Store
    from nodus.server.store.changes import Change
    from nodus.server.store.failures import Failures
    from nodus.server.store.objects import Object

__all__ = [
    "NOTHING",
    "REFUSED",
    "TERMINAL_PHASES",
    "Action",
    "ActionResult",
    "BaseController",
    "Controller",
    "EventNote",
    "EventType",
    "Key",
    "Manager",
    "NewObject",
    "Outcome",
    "Payment",
    "Trouble",
    "Update",
]

log = logging.getLogger(__name__)

TERMINAL_PHASES = frozenset({"Succeeded", "Failed", "Cancelled"})
STATUS_INTERVAL_S = 1.0
"""A status whose phase stays is written at most this often."""

WHOLE_RESYNC_EVERY = 30
"""Every so many resyncs look at finished objects too."""

C = TypeVar("C")


class Controller(Protocol[C]):
    """What a kind's controller provides; see :class:`BaseController` for the defaults."""

    kind: Kind
    watches: tuple[Kind, ...]
    """Kinds whose objects, when they change, wake their owners of ``kind``."""
    rests_in: frozenset[str]
    """Phases in which objects need no pass although they are not terminal; there may be very many."""

    def eligible(self, obj: Object) -> bool:
        """Tell whether the object needs passes at all; what is finished does not."""
        ...

    def load(self, conn: Connection, obj: Object) -> C:
        """Read all that the decision needs, on a snapshot."""
        ...

    def absorb(self, ctx: C, result: ActionResult) -> C:
        """Return the context with the result of the last action in it."""
        ...

    def decide(self, ctx: C, now: datetime) -> Outcome:
        """Decide what to do; pure."""
        ...

    async def act(self, ctx: C, action: Action) -> ActionResult:
        """Carry out one action, idempotent by its key. Long work belongs in a task that is asked for by key."""
        ...

    async def gone(self, uid: str) -> None:
        """Clean up outside of the database after an object that was deleted."""
        ...

    def give_up(self, obj: Object, ctx: C | None, trouble: Trouble, now: datetime) -> Outcome:
        """Decide how an object ends whose passes keep failing; pure. Without a context, what failed was reading it."""
        ...

    async def abandon(self, obj: Object) -> None:
        """Give back what an object holds outside of the database that is about to be given up; as well as it goes."""
        ...


class BaseController:
    """Defaults for controllers: unfinished objects are eligible, results go to ``ctx.result``, no action."""

    kind: Kind
    watches: tuple[Kind, ...] = ()
    rests_in: frozenset[str] = frozenset()

    def eligible(self, obj: Object) -> bool:
        """Tell whether the object is not in a terminal phase, or is being deleted."""
        return obj.deleted_at is not None or obj.status.get("phase") not in TERMINAL_PHASES

    def absorb(self, ctx: Any, result: ActionResult) -> Any:
        """Return a copy of the dataclass ``ctx`` with ``result`` set."""
        return dataclasses.replace(ctx, result=result)

    async def act(self, ctx: Any, action: Action) -> ActionResult:
        """Refuse: a controller that returns actions overrides this."""
        raise NotImplementedError(f"{type(self).__name__} returned the action {action.name!r} and has no act()")

    async def gone(self, uid: str) -> None:
        """Do nothing."""

    def give_up(self, obj: Object, ctx: Any, trouble: Trouble, now: datetime) -> Outcome:
        """End the object as failed, or note the trouble as a condition where its kind can't fail."""
        return givingup.ended(self.kind, obj, trouble, now)

    async def abandon(self, obj: Object) -> None:
        """Do nothing."""


class Key(NamedTuple):
    """An object in the queue."""

    kind: str
    uid: str


class Manager:
    """Runs controllers over the store until stopped.

    Args:
        store: Where the objects are.
        controllers: At most one per kind.
        owner: Names this server in leases; the same after a restart on the same data directory, so that a server that
            was killed takes its objects over at once.
        clock: Where time comes from.
        workers: Passes at the same time.
        resync_s: How often every unfinished object is looked at whatever happened.
        lease_ttl_s: How long an object stays with a server that died.

    Example:
        >>> manager = Manager(store, [JobController(...), AttemptController(...)], owner=node_id)
        >>> await manager.run()  # until cancelled
    """

    def __init__(
        self,
        store: Store,
        controllers: Sequence[Controller[Any]],
        *,
        owner: str,
        clock: Clock | None = None,
        workers: int = 16,
        resync_s: float = 10.0,
        lease_ttl_s: float = 30.0,
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._controllers = {controller.kind.name: controller for controller in controllers}
        self._watchers: dict[str, list[Controller[Any]]] = {}
        for controller in controllers:
            for kind in controller.watches:
                self._watchers.setdefault(kind.name, []).append(controller)
        self._workers = workers
        self._resync_s = resync_s
        self._leases = LeaseKeeper(store, owner, self._clock, lease_ttl_s)
        self.queue: WorkQueue[Key] = WorkQueue(self._clock)
        self._results: dict[Key, ActionResult] = {}
        self._status_written: dict[str, float] = {}
        self._stale: set[Key] = set()
        self._patience = Patience(store)
        self._acting: dict[Key, Action] = {}

    def wake(self, kind: str, uid: str) -> None:
        """Ask for a pass over an object, because something outside of the store changed."""
        if kind in self._controllers:
            self.queue.add(Key(kind, uid))

    async def run(self) -> None:
        """Work until cancelled; then give the leases back."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow(), name="controllers-feed")
                group.create_task(self._resync_forever(), name="controllers-resync")
                group.create_task(self._leases.renew_forever(), name="controllers-leases")
                for number in range(self._workers):
                    group.create_task(self._work(), name=f"controllers-worker-{number}")
        finally:
            await asyncio.shield(self._leases.release_all())

    async def drain(self, *, limit: int = 1000) -> int:
        """Run passes until nothing is ready; for tests. Return how many ran.

        Raises:
            RuntimeError: When ``limit`` passes did not settle, which is a controller that never rests.
        """
        for count in range(limit):
            key = self.queue.next_ready()
            if key is None:
                return count
            await self._attempt(key)
        raise RuntimeError(f"the controllers did not settle within {limit} passes")

    async def resync(self, *, whole: bool = True) -> None:
        """Queue every object that needs passes; ``whole`` looks at those in terminal phases too."""
        for controller in self._controllers.values():
            for uid in await self._store.read(_eligible_uids, controller, whole):
                self.queue.add(Key(controller.kind.name, uid))

    async def _resync_forever(self) -> None:
        for count in itertools.count(1):
            await asyncio.sleep(self._resync_s)
            try:
                # Finished objects are many and seldom need a pass: their time to live, a finalizer.
                await self.resync(whole=count % WHOLE_RESYNC_EVERY == 0)
            except Exception:  # a failing read must not end the loop; the next round tries again
                log.exception("resync failed")

    async def _follow(self) -> None:
        """Queue what changes, for ever; where changes were missed, look at everything."""
        kinds = sorted({*self._controllers, *self._watchers})
        while True:
            try:
                since = await self._store.feed.position()
                await self.resync()
                async for change in self._store.feed.subscribe(kinds, since):
                    self.observe(change)
            except (Expired, StoreError) as error:
                log.warning("the controllers' feed of changes broke off: %s", error.message)
                await asyncio.sleep(1.0)

    def observe(self, change: Change) -> None:
        """Queue what a change concerns: the object itself, and its owners whose controllers watch its kind."""
        if self._concerns(change):
            self.wake(change.kind, change.uid)
        for controller in self._watchers.get(change.kind, ()):
            for reference in change.object.owner_references:
                if reference.get("kind") == controller.kind.name:
                    self.wake(controller.kind.name, str(reference["uid"]))

    def _concerns(self, change: Change) -> bool:
        """Tell whether a change may call for a pass; what is finished and not held needs none, nor a read to know."""
        controller = self._controllers.get(change.kind)
        if controller is None or change.type == "DELETED" or self._leases.has(Key(change.kind, change.uid)):
            return controller is not None
        return controller.eligible(change.object)

    async def _work(self) -> None:
        while True:
            await self._attempt(await self.queue.get())

    async def _attempt(self, key: Key) -> None:
        """Run one pass and schedule the next."""
        try:
            again_s = await self.reconcile(key)
            self.queue.forget(key)
            if again_s is not None:
                self.queue.add_after(key, again_s)
        except Exception as error:  # the loop top: any fault of a controller is logged and retried with backoff
            delay_s = self.queue.failed(key)
            log.exception("%s %s: pass failed, next try in %.1f s", key.kind, key.uid, delay_s)
            await self._bear(key, error)
        finally:
            self._acting.pop(key, None)
            self.queue.done(key)

    async def _bear(self, key: Key, error: Exception) -> None:
        """Count a failed pass, and give the object up when there were enough."""
        try:
            noted = await self._patience.failed(key.uid, error)
            if noted is not None and givingup.is_due(noted, self._clock.now()):
                await self._give_up(key, Trouble(noted, error, self._acting.get(key)))
        except Exception:  # the object fails again, and is given up then
            log.exception("%s %s: could not be given up", key.kind, key.uid)

    async def _give_up(self, key: Key, trouble: Trouble) -> None:
        controller, now = self._controllers[key.kind], self._clock.now()
        token = await self._leases.hold(key)
        obj = await self._store.read(objects.find_by_uid, key.uid)
        if token is None or obj is None or not controller.eligible(obj):
            return
        try:
            ctx = await self._store.read(controller.load, obj)
        except Exception:  # noqa: BLE001 - reading may be just what keeps failing
            ctx = None
        try:
            await controller.abandon(obj)
        except Exception:  # it may be just what fails, and the object ends all the same
            log.exception("%s %s: not everything that it held could be given back", key.kind, key.uid)
        outcome = dataclasses.replace(controller.give_up(obj, ctx, trouble, now), action=None)
        if not outcome.writes and outcome.status is None:
            return
        last = outcome.status is not None and not controller.eligible(dataclasses.replace(obj, status=outcome.status))
        fence = Fence(f"{key.kind}/{key.uid}", token)
        await self._store.write(apply, obj, outcome, outcome.status, fence, last=last)
        log.error("%s %s: given up: %s", key.kind, key.uid, trouble.message(now))
        self._results.pop(key, None)
        if givingup.is_over(outcome):
            self.queue.forget(key)
            await self._patience.went_well(key.uid)
        if last:
            self._leases.lost(key)

    async def reconcile(self, key: Key) -> float | None:
        """Run one pass; return after how many seconds the object wants another, if it does."""
        controller = self._controllers[key.kind]
        if not self._leases.has(key) and not await self._store.read(_wants_pass, controller, key.uid):
            return None  # Finished objects change too (labels, deletion); they cost no lease.
        fresh = not self._leases.has(key)
        token = await self._leases.hold(key)
        if token is None:
            return None  # Another server has it; its end shows in the feed, its death at the next resync.
        loaded = await self._store.read(_load, controller, key.uid, fresh)
        if loaded is None or loaded.ctx is None:
            await self._end(controller, key, gone=loaded is None)
            return None
        if fresh:
            self._patience.learn(key.uid, loaded.failed)
        again_s = await self._pass(controller, key, token, loaded)
        await self._patience.went_well(key.uid)
        return again_s

    async def _pass(self, controller: Controller[Any], key: Key, token: int, loaded: _Loaded) -> float | None:
        obj, ctx = loaded.obj, loaded.ctx
        if (result := self._results.get(key)) is not None:
            ctx = controller.absorb(ctx, result)
        outcome = controller.decide(ctx, self._clock.now())
        status, again_s = self._throttle(obj, outcome)
        last = outcome.action is None and status is not None
        last = last and not controller.eligible(dataclasses.replace(obj, status=status or {}))
        try:
            if outcome.writes or status is not None:
                fence = Fence(f"{key.kind}/{key.uid}", token)
                await self._store.write(apply, obj, outcome, status, fence, last=last)
        except StaleLease:
            self._drop(key)
            return None
        except (InsufficientCredits, BudgetExceeded) as refusal:
            self._results[key] = ActionResult(REFUSED, REFUSED, {"refusal": refusal}, error=refusal.message)
            return 0.0
        except (Conflict, NotFound) as error:
            if isinstance(error, AlreadyExists):
                raise
            return 0.0  # The object or a child changed since it was read: decide again on what is there now.
        self._results.pop(key, None)
        if status is not None:
            self._status_written[key.uid] = self._clock.monotonic()
        if last:
            self._leases.lost(key)
        if outcome.action is not None:
            self._acting[key] = outcome.action
            self._results[key] = await controller.act(ctx, outcome.action)
            return 0.0
        return again_s

    def _throttle(self, obj: Object, outcome: Outcome) -> tuple[dict[str, Any] | None, float | None]:
        """Return the status to write now, if any, and the delay until the next pass, if any."""
        status, again_s = outcome.status, outcome.requeue_after_s
        if status is None or status == obj.status:
            return None, again_s
        same_phase = status.get("phase") == obj.status.get("phase")
        if same_phase and not outcome.writes and outcome.action is None:
            wait_s = self._status_written.get(obj.uid, -STATUS_INTERVAL_S) + STATUS_INTERVAL_S - self._clock.monotonic()
            if wait_s > 0:
                return None, wait_s if again_s is None else min(wait_s, again_s)
        return status, again_s

    def _drop(self, key: Key) -> None:
        self._leases.lost(key)
        if key not in self._stale:
            self._stale.add(key)
            log.warning("%s %s: another server took it over; this pass's writes are dropped", key.kind, key.uid)

    async def _end(self, controller: Controller[Any], key: Key, *, gone: bool) -> None:
        self._results.pop(key, None)
        self._status_written.pop(key.uid, None)
        self._patience.forget(key.uid)
        self._stale.discard(key)
        if gone:
            await controller.gone(key.uid)
        await self._leases.release(key)


def _wants_pass(conn: Connection, controller: Controller[Any], uid: str) -> bool:
    obj = objects.find_by_uid(conn, uid)
    return obj is None or controller.eligible(obj)


class _Loaded(NamedTuple):
    obj: Object
    ctx: Any
    """None for an object that needs no pass."""
    failed: Failures | None
    """Its failed passes so far, where they were asked for."""


def _load(conn: Connection, controller: Controller[Any], uid: str, fresh: bool) -> _Loaded | None:
    obj = objects.find_by_uid(conn, uid)
    if obj is None:
        return None
    ctx = controller.load(conn, obj) if controller.eligible(obj) else None
    return _Loaded(obj, ctx, failures.find(conn, uid) if fresh else None)


def _eligible_uids(conn: Connection, controller: Controller[Any], whole: bool) -> list[str]:
    kind = controller.kind
    live = [phase for phase in kind.phases if not kind.is_terminal(phase) and phase not in controller.rests_in]
    indexed = bool(live) and "status.phase" in kind.selectable_fields
    fields = f"status.phase in ({','.join(live)})" if indexed and not whole else None
    page = objects.list_(conn, kind, None, fields=fields)
    return [obj.uid for obj in page.items if controller.eligible(obj)]
