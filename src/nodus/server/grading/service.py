"""The grading service: what the rest of the server asks for tasks and verdicts.

One per server process, on its event loop. It owns the launcher thread, the pools, and nothing that must survive:
verdicts and manifests are kept by the caller and the store. When the server dies, however it dies, every grader dies
with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nodus.core.clock import Clock, SystemClock
from nodus.core.errors import EnvironmentTasksFailed, GraderFailed, Unavailable
from nodus.server.compute.local import cgroups
from nodus.server.compute.local.probe import Isolation, probe
from nodus.server.compute.local.sandbox import MIB, SandboxError
from nodus.server.grading import exact_match
from nodus.server.grading.environments import EnvironmentLibrary, ResolvedEnvironment
from nodus.server.grading.manifests import Manifest, ManifestStore
from nodus.server.grading.pool import GraderPool
from nodus.server.grading.runner import Launcher, RunnerFailed, run_once
from nodus.server.grading.verdicts import Completion, Verdict

log = logging.getLogger(__name__)

IDLE_S = 300.0
TASKS_TIMEOUT_S = 120.0
TASKS_BYTES = 64 * MIB
_SWEEP_INTERVAL_S = 15.0
_YIELD_EVERY = 256
_KEPT_ANSWERS = 16


class GradingService:
    """Tasks and verdicts of environments.

    Args:
        library: Resolves Environments.
        manifests: Where task manifests are kept.
        clock: Says how long graders have been idle.
        allow_unsafe: Grade without isolation where there is none; each verdict then says so.
        check: Finds out how this machine isolates; replaced in tests.

    Example:
        >>> service = GradingService(EnvironmentLibrary(root, blobs.path), StoredManifests(store))
        >>> environment = await service.resolve("arithmetic", spec)
        >>> manifest = await service.tasks(environment, "test", seed=42)
        >>> verdicts = await service.grade(job_uid, environment, completions)
        >>> await service.release(job_uid)
    """

    def __init__(
        self,
        library: EnvironmentLibrary,
        manifests: ManifestStore,
        clock: Clock | None = None,
        *,
        allow_unsafe: bool = False,
        check: Callable[[], Isolation] = probe,
    ) -> None:
        self.library = library
        self._manifests = manifests
        self._clock = clock or SystemClock()
        self._allow_unsafe = allow_unsafe
        self._check = check
        self._isolation: Isolation | None = None
        self._launcher: Launcher | None = None
        self._pools: dict[tuple[str, str], GraderPool] = {}
        self._answers: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._making: dict[tuple[str, str, int], asyncio.Lock] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Clean up after a server that was killed, and begin to end idle graders."""
        await asyncio.to_thread(cgroups.sweep)
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
        if self._launcher is not None:
            launcher, self._launcher = self._launcher, None
            await asyncio.to_thread(launcher.close)

    async def resolve(self, name: str, spec: Mapping[str, Any]) -> ResolvedEnvironment:
        """Return an Environment ready to run; see :meth:`EnvironmentLibrary.resolve`."""
        return await asyncio.to_thread(self.library.resolve, name, spec)

    async def isolation(self) -> Isolation:
        """Return how this machine isolates; found out once if it does, else again: something may be installed."""
        if self._isolation is None or not self._isolation.ok:
            self._isolation = await asyncio.to_thread(self._check)
        return self._isolation

    async def problem(self) -> str | None:
        """Return why untrusted code cannot be run here, with the fix; None when it can, or was allowed without."""
        isolation = await self.isolation()
        if isolation.ok or self._allow_unsafe:
            return None
        fix = f"; to fix it: {isolation.fix}" if isolation.fix else ""
        return f"this machine cannot isolate untrusted code: {'; '.join(isolation.problems)}{fix}"

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
        """
        with_answers = environment.exact_match is not None if answers is None else answers
        command = ["tasks", "--split", split, "--seed", str(seed), *(["--answers"] if with_answers else [])]
        try:
            lines = await run_once(await self._ready(), environment, command, TASKS_TIMEOUT_S, TASKS_BYTES)
            return Manifest.from_lines(environment.digest, split, seed, lines, with_answers)
        except (RunnerFailed, SandboxError, ValueError, OSError) as error:
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
    ) -> list[Verdict]:
        """Grade completions.

        Args:
            pool_key: Whose graders: the TrainingJob's uid. Batches of one key are graded one after the other.
            environment: Which.
            items: The completions, any number.
            max_parallel: Most graders at once; the number of CPUs when None.

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
        try:
            launcher = await self._ready()
        except SandboxError as error:
            raise GraderFailed(f"completions cannot be graded: {error}") from error
        pool = self._pools.get((pool_key, environment.digest))
        if pool is None:
            pool = GraderPool(launcher, environment, self._clock)
            self._pools[pool_key, environment.digest] = pool
        return await pool.grade(items, max_parallel or os.cpu_count() or 1)

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

    async def _ready(self) -> Launcher:
        """Return the launcher, after a check that code can be isolated here.

        Raises:
            SandboxError: When it cannot; the message says what to do.
            Unavailable: When the service was closed.
        """
        if (problem := await self.problem()) is not None:
            raise SandboxError(problem)
        unsafe = not (await self.isolation()).ok
        if self._closed:
            raise Unavailable("the server is stopping", fix="Send it again.")
        if self._launcher is None:
            if unsafe:
                log.warning("grading without isolation (--allow-unsafe-sandbox)")
            self._launcher = Launcher(unsafe)
        return self._launcher

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
