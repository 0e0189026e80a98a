"""Runs recipes: one build an Image, one at a time of the same key, each in a thread of its own.

Nothing here must survive the server: what is finished is in the store, what is not is begun again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nodus.core.clock import Clock, SystemClock
from nodus.server.grading.builds.base import Build, BuildFailed, BuildStopped, Order, Recipe, Report, Step
from nodus.server.grading.builds.keeping import BuildStore
from nodus.server.trees import TreeRefused, remove_tree

log = logging.getLogger(__name__)

AT_ONCE = 2
"""Builds that run at the same time; more wait."""
_TAIL_BYTES = 4000


class LogSink(Protocol):
    """Takes a build's output."""

    def write(self, data: bytes) -> None:
        """Append it."""
        ...

    def close(self) -> None:
        """Write no more."""
        ...


@dataclass(frozen=True, slots=True)
class BuildState:
    """How far a build is.

    Attributes:
        steps: Every step.
        build: What was built, once it is finished.
        failure: Why it failed, once it has.
        log_tail: The end of its log, where it failed.
    """

    steps: tuple[Step, ...]
    build: Build | None = None
    failure: BuildFailed | None = None
    log_tail: str = ""

    @property
    def over(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self.build is not None or self.failure is not None


class _Running:
    """A build and its end."""

    def __init__(self, report: Report, tail: _Tail) -> None:
        self.report = report
        self.tail = tail
        self.build: Build | None = None
        self.failure: BuildFailed | None = None
        self.task: asyncio.Task[None] | None = None
        self.has_turn = False

    def state(self) -> BuildState:
        tail = self.tail.text() if self.failure is not None else ""
        return BuildState(self.report.steps, self.build, self.failure, tail)


class Builds:
    """Builds what Images are of.

    Args:
        store: Keeps what was built.
        recipes: By packaging: the key of ``spec.package`` they are for, such as ``pip``.
        open_log: Opens the log in a directory.
        clock: Says when steps begin and end.

    Example:
        >>> builds = Builds(BuildStore(data_dir / "builds"), {"pip": recipe}, LogWriter)
        >>> builds.begin(order)
        >>> await builds.wait(order.uid, timeout_s=1.0)
        >>> builds.state(order.uid)
    """

    def __init__(
        self,
        store: BuildStore,
        recipes: Mapping[str, Recipe],
        open_log: Callable[[Path], LogSink],
        clock: Clock | None = None,
    ) -> None:
        self.store = store
        self.recipes = dict(recipes)
        self._open_log = open_log
        self._clock = clock or SystemClock()
        self._running: dict[str, _Running] = {}
        self._keys: dict[str, asyncio.Lock] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._closed = False

    async def start(self) -> None:
        """Remove what builds of a server that was killed have left; the server starts whatever they are."""
        await asyncio.to_thread(self.store.clear_work)

    async def close(self) -> None:
        """Stop every build and wait for that; Images that were being built are begun again by the next server."""
        self._closed = True
        await asyncio.gather(*(self.stop(uid) for uid in list(self._running)))

    def state(self, uid: str) -> BuildState | None:
        """Return how far the build of an Image is; None where this server has begun none."""
        running = self._running.get(uid)
        return running.state() if running is not None else None

    def begin(self, order: Order) -> None:
        """Begin a build; does nothing where it was begun and not forgotten."""
        if order.uid in self._running or self._closed:
            return
        recipe = self._recipe(order)
        self.store.forget_log(order.uid)
        directory = self.store.log_directory(order.uid)
        directory.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        tail = _Tail(self._open_log(directory))
        running = _Running(Report(recipe.steps, tail.write, self._clock), tail)
        running.task = asyncio.create_task(self._run(order, recipe, running), name=f"build {order.image}")
        self._running[order.uid] = running

    async def wait(self, uid: str, timeout_s: float) -> None:
        """Wait until a build has ended, for some time at most."""
        running = self._running.get(uid)
        if running is not None and running.task is not None:
            await asyncio.wait([running.task], timeout=timeout_s)

    async def stop(self, uid: str) -> None:
        """Stop a build, wait for its end and forget it; its log stays."""
        running = self._running.pop(uid, None)
        if running is None or running.task is None:
            return
        running.report.stopping.set()
        if not running.has_turn:
            running.task.cancel()  # other builds may keep it waiting for an hour
        with contextlib.suppress(asyncio.CancelledError):
            await running.task
        running.tail.close()  # also of one that was cancelled before it began

    def forget(self, uid: str) -> None:
        """Forget a build that has ended; what it made stays."""
        running = self._running.get(uid)
        if running is not None and running.state().over:
            self._running.pop(uid)

    async def gone(self, uid: str) -> None:
        """Stop the build of an Image that was deleted, and remove its log."""
        await self.stop(uid)
        await asyncio.to_thread(self.store.forget_log, uid)

    def _recipe(self, order: Order) -> Recipe:
        return next(self.recipes[kind] for kind, value in order.package.items() if value and kind in self.recipes)

    async def _run(self, order: Order, recipe: Recipe, running: _Running) -> None:
        report = running.report
        try:
            key = await asyncio.to_thread(recipe.key, order)
            lock = self._keys.setdefault(key, asyncio.Lock())
            if lock.locked():
                report.write("another Environment's build of the same package runs; waiting for it\n")
            async with lock, self._slots:
                report.check()
                running.has_turn = True
                running.build = await asyncio.to_thread(self._build, order, recipe, key, report)
        except BuildStopped:
            return
        except BuildFailed as failure:
            running.failure = failure  # first: whatever becomes of the report, the build has ended
            _fail(report, failure.message)
        except TreeRefused as error:
            _fail(report, str(error))
            running.failure = BuildFailed(f"what was built can't be kept: {error}", "Nest directories less deep.")
        except OSError as error:
            fix = "Look at the server's disk and its log; it is tried again."
            running.failure = BuildFailed(f"the server could not build: {error}", fix, transient=True)
            _fail(report, f"the server's disk: {error.strerror or error}")
            log.exception("the build of %s failed", order.image)
        except Exception as error:
            running.failure = BuildFailed(f"a fault of the server: {error!r}", "See the server's log.")
            _fail(report, f"a fault of the server: {type(error).__name__}")
            log.exception("the build of %s failed", order.image)
        finally:
            running.tail.close()

    def _build(self, order: Order, recipe: Recipe, key: str, report: Report) -> Build:
        there = self.store.of_key(key)
        if there is not None:
            report.skip(f"built before as {there.digest}")
            return there
        work = self.store.begin(order.uid)
        try:
            built = recipe.build(order, work, report)
            report.check()
            build = self.store.finish(key, work, built)
            report.succeed()
            report.write(f"== built {build.digest}, {build.size_bytes / 1e6:.1f} MB\n")
            return build
        finally:
            remove_tree(work)


def _fail(report: Report, message: str) -> None:
    with contextlib.suppress(OSError):  # the log's disk may be what is wrong
        report.fail(message)


class _Tail:
    """A log that is written and whose end is kept at hand."""

    def __init__(self, sink: LogSink) -> None:
        self._sink = sink
        self._end = b""
        self._open = True

    def write(self, data: bytes) -> None:
        if self._open:
            self._sink.write(data)
            self._end = (self._end + data)[-_TAIL_BYTES:]

    def close(self) -> None:
        if self._open:
            self._open = False
            self._sink.close()

    def text(self) -> str:
        return self._end.decode(errors="replace")
