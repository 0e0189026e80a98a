"""Graders of one TrainingJob (or agent evaluation) for one environment version.

A pool has up to ``max_parallel`` graders, each driven by a thread of its own that takes completions from one queue::

    Idle --job--> Starting --ready--> Serving --(recycled | idle | released)--> Idle
                     |                   |
                     +--StartFailed      +--GraderDied: the completion it was on is tried once more on a fresh grader,
                                            what was waiting behind it is simply asked again

A completion is graded, an episode is answered: both are items, and a pool takes either. It never raises for an item:
whatever goes wrong becomes an InfrastructureFailure, or a reply's error, with its evidence.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nodus.core.clock import Clock
from nodus.core.errors import Unavailable
from nodus.server.grading.foreign import ForeignGrader, in_flight
from nodus.server.grading.runner import Runners
from nodus.server.grading.verdicts import Answer, Evidence, Item
from nodus.server.grading.worker import PURE_IN_FLIGHT, Grader, GraderDied, Reply, Request, StartFailed

log = logging.getLogger(__name__)

MAX_TRIES = 2
RECYCLE_AFTER = 5000
"""Completions after which a grader is replaced: what leaks in an environment does not leak for ever."""
_COMPLETIONS_A_GRADER = 4
"""A further grader is started only when each has at least so many completions to do."""

A = TypeVar("A", bound=Answer)


@dataclass(slots=True, eq=False)
class _Batch:
    """Items that were handed in together; ``done`` is set when each has its answer."""

    items: Sequence[Item[Any]]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]
    answers: list[Any]
    left: int
    cancelled: bool = False


@dataclass(slots=True, eq=False)
class _Job:
    """One item of a batch on its way through the pool."""

    batch: _Batch
    index: int
    tries: int = 0

    @property
    def item(self) -> Item[Any]:
        return self.batch.items[self.index]


@dataclass(slots=True, eq=False)
class _Seat:
    """A grader's place in the pool, and the thread that drives it."""

    beside: str | None
    thread: threading.Thread | None = None
    grader: Grader | None = None
    jobs: dict[int, _Job] = field(default_factory=dict)
    closing: bool = False


class GraderPool:
    """The graders of one key.

    Args:
        runners: Starts the graders.
        clock: Says how long the pool has been idle.

    Example:
        >>> pool = GraderPool(Runners(backend.graders, environment), SystemClock())
        >>> verdicts = await pool.grade(completions, max_parallel=2, beside=attempt_uid)
        >>> await pool.close()
    """

    def __init__(self, runners: Runners, clock: Clock) -> None:
        self._runners = runners
        self._clock = clock
        self._kind = Grader if runners.environment.root is None else ForeignGrader
        self._in_flight = in_flight(runners.environment)
        self._changed = threading.Condition()
        self._pending: deque[_Job] = deque()
        self._seats: list[_Seat] = []
        self._leaving: list[_Seat] = []
        self._batch: _Batch | None = None
        self._number = 0
        self._times_closed = 0
        self._one_batch = asyncio.Lock()
        self._used_at = clock.monotonic()

    async def grade(self, items: Sequence[Item[A]], max_parallel: int, beside: str | None = None) -> list[A]:
        """Grade completions, or go on with episodes; one batch at a time.

        Args:
            items: What to ask, at least one.
            max_parallel: Most graders at once.
            beside: Key of the member they come from. Graders are on its host: those beside another are replaced.

        Returns:
            An answer for each item, in the same order.

        Raises:
            Unavailable: When the pool is closed meanwhile, also while this batch waits for its turn.
        """
        closed_before = self._times_closed
        async with self._one_batch:
            if self._times_closed != closed_before:
                raise _released()
            loop = asyncio.get_running_loop()
            batch = _Batch(items, loop, loop.create_future(), [None] * len(items), len(items))
            with self._changed:
                self._batch = batch
                self._pending.extend(_Job(batch, index) for index in range(len(items)))
                self._set_seats(max_parallel, beside)
                self._changed.notify_all()
            try:
                await batch.done
            finally:
                self._used_at = self._clock.monotonic()
                with self._changed:
                    batch.cancelled, self._batch = True, None
                    self._pending = deque(job for job in self._pending if job.batch is not batch)
            return list(batch.answers)

    def idle_s(self) -> float:
        """Return for how long nothing has been graded; 0 while something is."""
        return 0.0 if self._one_batch.locked() else self._clock.monotonic() - self._used_at

    @property
    def graders(self) -> int:
        """How many graders are running."""
        return sum(seat.grader is not None for seat in self._seats)

    async def close(self) -> None:
        """End every grader and wait until nothing of them is left; the pool may be used again.

        A batch under way is given up: its ``grade`` raises Unavailable, which whoever asked may send again.
        """
        with self._changed:
            self._times_closed += 1
            seats, self._seats = self._seats, []
            self._pending.clear()
            self._end(seats)
            leaving = self._leaving
            if self._batch is not None and not self._batch.done.done():
                self._batch.done.set_exception(_released())
        for seat in leaving:
            if seat.thread is not None:
                await asyncio.to_thread(seat.thread.join)

    def _set_seats(self, max_parallel: int, beside: str | None) -> None:
        """Have as many seats as the waiting completions are worth, all in place, and no more than ``max_parallel``."""
        kept = [seat for seat in self._seats if seat.beside == beside][:max_parallel]
        others = [seat for seat in self._seats if seat not in kept]
        self._seats = kept
        self._end(others)
        wanted = max(1, min(max_parallel, len(self._pending) // _COMPLETIONS_A_GRADER))
        while len(self._seats) < wanted:
            seat = _Seat(beside)
            seat.thread = threading.Thread(target=self._drive, args=(seat,), name="nodus-grader", daemon=True)
            self._seats.append(seat)
            seat.thread.start()

    def _end(self, seats: Sequence[_Seat]) -> None:
        for seat in seats:
            seat.closing = True
            if seat.grader is not None:
                seat.grader.interrupt()
        # a new list each time: whoever waits for the ones before goes on with theirs
        self._leaving = [seat for seat in [*self._leaving, *seats] if seat.thread and seat.thread.is_alive()]
        self._changed.notify_all()

    # the rest runs on the seats' threads

    def _drive(self, seat: _Seat) -> None:
        """Serve until the pool closes."""
        try:
            while self._fill(seat):
                try:
                    self._serve(seat)
                except GraderDied as death:
                    self._bury(seat, death)
                except StartFailed as failure:
                    self._not_started(seat, failure)
                except Exception as error:  # a fault of ours must not leave a batch waiting for ever
                    log.exception("grading failed")
                    fault = GraderDied(f"grading failed in the server: {error!r}", Evidence([], "none", 0.0))
                    self._bury(seat, fault)
        finally:
            self._dismiss(seat)

    def _fill(self, seat: _Seat) -> bool:
        """Give the seat as many completions as a grader may have; wait for one. False when the pool closes."""
        with self._changed:
            while not self._pending and not seat.jobs and not seat.closing:
                self._changed.wait()
            if seat.closing:
                return False
            limit = PURE_IN_FLIGHT if seat.grader is not None and seat.grader.pure else self._in_flight
            while self._pending and len(seat.jobs) < limit:
                job = self._pending.popleft()
                self._number += 1
                seat.jobs[self._number] = job
                job.tries += 1
        return True

    def _serve(self, seat: _Seat) -> None:
        """Hand the seat's new completions to its grader and take in at least one verdict."""
        if seat.grader is None:
            grader = self._kind(self._runners, seat.beside)
            seat.grader = grader
            grader.start()
            if seat.closing:
                return  # the pool closed before there was a process to interrupt
        grader = seat.grader
        for number in list(seat.jobs)[grader.inside :]:
            job = seat.jobs[number]
            grader.send(Request(number, job.item, job.tries))
        for reply in grader.exchange():
            self._take(seat, reply)
        if grader.served >= RECYCLE_AFTER and not grader.pure and not seat.jobs:
            self._dismiss(seat)

    def _take(self, seat: _Seat, reply: Reply) -> None:
        job = seat.jobs.pop(reply.request.number)
        answer = job.item.read(reply.request.number, reply.evidence)
        if answer is None:
            answer = job.item.failed("the grader's answer is no verdict on this completion", reply.evidence)
        self._finish(job, answer)

    def _bury(self, seat: _Seat, death: GraderDied) -> None:
        """Replace a grader that ended: its oldest completion is tried once more, the others are asked again."""
        numbers = list(seat.jobs)
        jobs = [seat.jobs.pop(number) for number in numbers]
        self._dismiss(seat)
        oldest, others = jobs[:1], jobs[1:]
        again = []
        for job in oldest:
            if death.blameless or seat.closing:
                job.tries -= 1
            if job.tries < MAX_TRIES:
                again.append(job)
            else:
                answer = job.item.ended_sandbox if death.by_code else job.item.failed
                self._finish(job, answer(str(death), death.evidence))
        for job in others:
            job.tries -= 1
        self._ask_again([*again, *others])

    def _not_started(self, seat: _Seat, failure: StartFailed) -> None:
        """An environment at fault fails everything that waits; otherwise each completion may try once more."""
        jobs = [seat.jobs.pop(number) for number in list(seat.jobs)]
        self._dismiss(seat)
        if failure.refused:
            with self._changed:
                jobs += self._pending
                self._pending.clear()
        again = [] if failure.refused else [job for job in jobs if job.tries < MAX_TRIES]
        for job in jobs:
            if job not in again:
                answer = job.item.failed(str(failure), failure.evidence, traceback=failure.trace[-2000:])
                self._finish(job, answer)
        self._ask_again(again)

    def _ask_again(self, jobs: list[_Job]) -> None:
        with self._changed:
            self._pending.extendleft(reversed([job for job in jobs if not job.batch.cancelled]))
            self._changed.notify_all()

    def _dismiss(self, seat: _Seat) -> None:
        grader, seat.grader = seat.grader, None
        if grader is not None:
            grader.close()

    def _finish(self, job: _Job, answer: Answer) -> None:
        batch = job.batch
        with self._changed:
            batch.answers[job.index] = answer
            batch.left -= 1
            last = batch.left == 0
        if last:
            try:
                batch.loop.call_soon_threadsafe(_set_done, batch.done)
            except RuntimeError:
                log.info("a batch was graded after its event loop ended")


def _released() -> Unavailable:
    return Unavailable("the graders were released while they graded")


def _set_done(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
