"""The grading service: what the rest of the server asks for tasks and verdicts.

One per server process, on its event loop. It owns the pools, and nothing that must survive: verdicts and manifests are
kept by the caller and the store. Graders run where the compute backend puts them. When the server dies, however it
dies, every grader dies with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from nodus.core.clock import Clock, SystemClock
from nodus.core.errors import EnvironmentTasksFailed, GraderFailed, Unavailable
from nodus.server.compute.graders import GraderHost, GraderIsolation, GraderNotStarted
from nodus.server.grading import exact_match
from nodus.server.grading.compiled import files_of, needed_python
from nodus.server.grading.environments import MIB, EnvironmentLibrary, ResolvedEnvironment
from nodus.server.grading.episodes import Episode, StepReply
from nodus.server.grading.foreign import held_out_apart, tasks_among
from nodus.server.grading.manifests import Manifest, ManifestStore
from nodus.server.grading.pool import GraderPool
from nodus.server.grading.runner import RunnerFailed, Runners, run_once
from nodus.server.grading.verdicts import Answer, Completion, Item, Verdict

log = logging.getLogger(__name__)

IDLE_S = 300.0
TASKS_TIMEOUT_S = 120.0
TASKS_BYTES = 64 * MIB
_SWEEP_INTERVAL_S = 15.0
_YIELD_EVERY = 256
_KEPT_ANSWERS = 16

A = TypeVar("A", bound=Answer)


class GradingService:
    """Tasks and verdicts of environments.

    Args:
        library: Resolves Environments.
        manifests: Where task manifests are kept.
        graders: Where graders run; closed with the service.
        clock: Says how long graders have been idle.
        allow_unsafe: Grade without isolation where there is none; each verdict then says so.

    Example:
        >>> service = GradingService(EnvironmentLibrary(root, blobs.path), StoredManifests(store), backend.graders)
        >>> environment = await service.resolve("arithmetic", spec)
        >>> manifest = await service.tasks(environment, "test", seed=42)
        >>> verdicts = await service.grade(job_uid, environment, completions, beside=attempt_uid)
        >>> await service.release(job_uid)
    """

    def __init__(
        self,
        library: EnvironmentLibrary,
        manifests: ManifestStore,
        graders: GraderHost,
        clock: Clock | None = None,
        *,
        allow_unsafe: bool = False,
    ) -> None:
        self.library = library
        self._manifests = manifests
        self._host = graders
        self._clock = clock or SystemClock()
        self._allow_unsafe = allow_unsafe
        self._warned = False
        self._pools: dict[tuple[str, str], GraderPool] = {}
        self._answers: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._making: dict[tuple[str, str, int], asyncio.Lock] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Clean up after a server that was killed, and begin to end idle graders."""
        await self._host.sweep()
        self._sweeper = asyncio.create_task(self._sweep(), name="grading-sweeper")

    async def close(self) -> None:
        """End every grader and wait until none is left; no further one is started."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        pools, self._pools = list(self._pools.values()), {}
        await asyncio.gather(*(pool.close() for pool in pools))
        await self._host.close()

    async def resolve(self, name: str, spec: Mapping[str, Any]) -> ResolvedEnvironment:
        """Return an Environment ready to run, with the Python it needs; see :meth:`EnvironmentLibrary.resolve`.

        Raises:
            BadBundle: Also when its compiled modules are for a Python that graders don't have.
        """
        return await asyncio.to_thread(lambda: self._with_python(self.library.resolve(name, spec)))

    def _with_python(self, environment: ResolvedEnvironment) -> ResolvedEnvironment:
        if environment.directory is None or (own := self._host.python()) is None:
            return environment
        version = needed_python(files_of(environment.directory), own, self._host.python)
        return replace(environment, python=version)

    async def isolation(self) -> GraderIsolation:
        """Return whether graders can be isolated now."""
        return await self._host.isolation()

    async def problem(self) -> str | None:
        """Return why untrusted code cannot be run here, with the fix; None when it can, or was allowed without."""
        isolation = await self.isolation()
        return None if isolation.ok or self._allow_unsafe else _why_not(isolation)

    async def tasks(self, environment: ResolvedEnvironment, split: str, seed: int) -> Manifest:
        """Return a split's tasks in a seed's order: what was kept, else what the environment lists now.

        Raises:
            EnvironmentTasksFailed: When it lists none, or no sandbox can be started; with the environment's traceback.
        """
        key = (environment.digest, split, seed)
        kept = await self._manifests.get(*key)
        if kept is None:
            try:
                async with self._making.setdefault(key, asyncio.Lock()):
                    kept = await self._manifests.get(*key)
                    if kept is None:
                        made = await self.list_tasks(environment, split, seed)
                        kept = await self._manifests.put(*key, made.to_json())
            finally:
                self._making.pop(key, None)  # who waits has the lock; who comes later finds what is kept
        return Manifest.from_json(*key, kept)

    async def libraries(self, environment: ResolvedEnvironment) -> dict[str, Any]:
        """Return what the runner says of Python and libraries in this environment's sandbox; nothing of it is run.

        Raises:
            EnvironmentTasksFailed: When the runner cannot be run, or not to its end.
        """
        return await self._facts(environment, "libraries", "the libraries of environment {} could not be listed")

    async def info(self, environment: ResolvedEnvironment) -> dict[str, Any]:
        """Return what the environment is, by its runner: ``kind``, ``episodes``, ``maxTurns`` where it knows its own.

        Raises:
            EnvironmentTasksFailed: When it can't be loaded.
        """
        return await self._facts(environment, "info", "environment {} could not be loaded")

    async def _facts(self, environment: ResolvedEnvironment, command: str, complaint: str) -> dict[str, Any]:
        try:
            lines = await run_once(await self._runners(environment), [command], TASKS_TIMEOUT_S, MIB)
        except (RunnerFailed, GraderNotStarted, OSError) as error:
            if environment.root is not None and isinstance(error, RunnerFailed):
                return {}  # an image need not say
            trace = getattr(error, "trace", "")
            name = f"{environment.name}@{environment.version}"
            raise EnvironmentTasksFailed(
                f"{complaint.format(name)}: {error}", details={"traceback": trace} if trace else None
            ) from error
        return lines[0] if lines and isinstance(lines[0], dict) else {}

    async def list_tasks(
        self, environment: ResolvedEnvironment, split: str, seed: int, *, answers: bool | None = None
    ) -> Manifest:
        """Run the environment in a sandbox and return what it lists, without keeping it.

        Args:
            environment: Which.
            split: ``train`` or ``test``.
            seed: Decides the order.
            answers: Whether to take answers along; by default where an ExactMatch grader needs them.

        Raises:
            EnvironmentTasksFailed: When it fails.
            Unavailable: When the service is closed meanwhile.
        """
        with_answers = environment.exact_match is not None if answers is None else answers
        foreign = environment.root is not None
        with_answers = with_answers and not foreign  # an image keeps them to itself
        command = ["tasks", "--split", split, "--seed", str(seed), *(["--answers"] if with_answers else [])]
        try:
            lines = await run_once(await self._runners(environment), command, TASKS_TIMEOUT_S, TASKS_BYTES)
            manifest = await asyncio.to_thread(_manifest, environment, split, seed, lines, with_answers)
            if foreign and split == "train":
                held_out = await self.list_tasks(environment, "test", seed)
                return await asyncio.to_thread(held_out_apart, manifest, held_out)
            return manifest
        except (RunnerFailed, GraderNotStarted, ValueError, OSError) as error:
            if self._closed:
                raise _stopping() from error
            trace = getattr(error, "trace", "")
            raise EnvironmentTasksFailed(
                f"environment {environment.name}@{environment.version} could not list its {split} tasks: {error}",
                details={"traceback": trace} if trace else None,
            ) from error

    async def grade(
        self,
        pool_key: str,
        environment: ResolvedEnvironment,
        items: Sequence[Completion],
        max_parallel: int | None = None,
        *,
        beside: str | None = None,
    ) -> list[Verdict]:
        """Grade completions.

        Args:
            pool_key: Whose graders: the TrainingJob's uid. Batches of one key are graded one after the other.
            environment: Which.
            items: The completions, any number.
            max_parallel: Most graders at once; the number of CPUs when None.
            beside: Key of the member that the completions come from, the Attempt's uid: they are graded on its host.
                None for any host.

        Returns:
            A verdict for each item, in the same order; faults are verdicts too.

        Raises:
            GraderFailed: When this machine cannot isolate and was not told to do without.
            Unavailable: When the graders are released meanwhile, because the server stops.
            EnvironmentTasksFailed: When an ExactMatch environment cannot list its answers.
        """
        if not items:
            return []
        if environment.exact_match is not None:
            return await self._match(environment, environment.exact_match, items)
        return await self._ask(pool_key, environment, items, max_parallel, beside)

    async def step(
        self,
        pool_key: str,
        environment: ResolvedEnvironment,
        episodes: Sequence[Episode],
        max_parallel: int | None = None,
        *,
        beside: str | None = None,
    ) -> list[StepReply]:
        """Go on with episodes: what the environment says after the model's last turn. Arguments as for :meth:`grade`.

        Asked again, it answers the same; nothing is kept of it.

        Returns:
            A reply for each episode, in the same order; faults are replies too.

        Raises:
            GraderFailed: When this machine cannot isolate and was not told to do without.
            Unavailable: When the graders are released meanwhile, because the server stops.
        """
        if environment.exact_match is not None or not episodes:
            return [episode.ended() for episode in episodes]
        return await self._ask(pool_key, environment, episodes, max_parallel, beside)

    async def _ask(
        self,
        pool_key: str,
        environment: ResolvedEnvironment,
        items: Sequence[Item[A]],
        max_parallel: int | None,
        beside: str | None,
    ) -> list[A]:
        try:
            runners = await self._runners(environment)
        except GraderNotStarted as error:
            raise GraderFailed(f"completions cannot be graded: {error}") from error
        pool = self._pools.get((pool_key, environment.digest))
        if pool is None:
            pool = GraderPool(runners, self._clock)
            self._pools[pool_key, environment.digest] = pool
        return await pool.grade(items, max_parallel or os.cpu_count() or 1, beside)

    async def release(self, pool_key: str) -> None:
        """End the graders of a key: its run has finished or is suspended."""
        keys = [key for key in self._pools if key[0] == pool_key]
        await asyncio.gather(*(self._pools.pop(key).close() for key in keys))

    async def end_idle(self) -> int:
        """End the graders of keys that graded nothing for five minutes; return how many pools that were."""
        idle = [key for key, pool in self._pools.items() if pool.idle_s() >= IDLE_S]
        await asyncio.gather(*(self._pools.pop(key).close() for key in idle))
        return len(idle)

    @property
    def graders(self) -> int:
        """How many grader sandboxes are running."""
        return sum(pool.graders for pool in self._pools.values())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            try:
                await self.end_idle()
            except Exception:  # a loop's top: the next round tries again
                log.exception("ending idle graders failed")

    async def _runners(self, environment: ResolvedEnvironment) -> Runners:
        """Return what starts an environment's runners, after a check that code can be isolated.

        Raises:
            GraderNotStarted: When it cannot; the message says what to do.
            Unavailable: When the service was closed.
        """
        isolation = await self.isolation()
        if not isolation.ok and not self._allow_unsafe:
            raise GraderNotStarted(_why_not(isolation))
        if self._closed:
            raise _stopping()
        if not isolation.ok and not self._warned:
            log.warning("grading without isolation (--allow-unsafe-sandbox)")
            self._warned = True
        return Runners(self._host, environment, unsafe=not isolation.ok)

    async def _match(self, environment: ResolvedEnvironment, grader: str, items: Sequence[Completion]) -> list[Verdict]:
        answers = self._answers.get(environment.digest)
        if answers is None:
            splits = [await self.tasks(environment, split, 0) for split in ("train", "test")]
            answers = {task.task_id: task.answer for manifest in splits for task in manifest.tasks}
            self._answers[environment.digest] = answers
            while len(self._answers) > _KEPT_ANSWERS:
                self._answers.popitem(last=False)
        match = exact_match.matcher(grader)
        verdicts = []
        for index, item in enumerate(items):
            if index % _YIELD_EVERY == _YIELD_EVERY - 1:
                await asyncio.sleep(0)
            verdicts.append(exact_match.grade(item, answers, match))
        return verdicts


def _manifest(
    environment: ResolvedEnvironment, split: str, seed: int, lines: Sequence[Any], with_answers: bool
) -> Manifest:
    """Return the manifest of what was listed; takes seconds for many tasks, so it is for threads."""
    listed = lines if environment.root is None else tasks_among(lines)
    return Manifest.from_lines(environment.digest, split, seed, listed, with_answers)


def _stopping() -> Unavailable:
    return Unavailable("the server is stopping", fix="Send it again.")


def _why_not(isolation: GraderIsolation) -> str:
    fix = f"; to fix it: {isolation.fix}" if isolation.fix else ""
    return f"this machine cannot isolate untrusted code: {'; '.join(isolation.problems)}{fix}"
