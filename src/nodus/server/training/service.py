"""What a running TrainingJob asks the server for: its tasks, and verdicts on its completions.

Runs in the API server, called by `api/attempt_api.py` with bodies that were checked there. Promises: a run's tasks
never change; exactly one verdict is recorded for each (attempt, phase, step, task, sample), before anyone is told it;
one batch of a TrainingJob is graded at a time.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodus.core.errors import BudgetExceeded, Cause, GraderFailed, InsufficientCredits, Invalid, NodusError, Unavailable
from nodus.core.kinds import ATTEMPT
from nodus.core.money import format_usd, parse_usd
from nodus.server.billing import gradingbill
from nodus.server.billing.pricebook import PriceBook, read_price_book
from nodus.server.billing.refusals import reason_of
from nodus.server.controllers import stopping
from nodus.server.grading.episodes import Episode, StepReply
from nodus.server.grading.verdicts import OUTCOMES, Completion, Verdict
from nodus.server.store import ledger, objects, taskevents
from nodus.server.store.taskevents import SampleKey, VerdictRow, another_completion, completion_digest
from nodus.server.training import lookups
from nodus.server.training.compile import DEFAULT_SEED
from nodus.server.training.parameters import lookup
from nodus.server.training.references import BadReference
from nodus.server.training.taskfilter import matches, nothing_left, unknown_value

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.grading import GradingService, Manifest, ResolvedEnvironment, Task
    from nodus.server.store import Store
    from nodus.server.store.objects import Object
    from nodus.server.training.lookups import FoundEnvironment

CHUNK = 128
KEPT_COMPLETION_CHARS = 4000
"""Completions graded between two records: what a killed server has to grade again at most."""
LISTING_TIMEOUT_S = 20.0
"""How long a create waits for an environment to list its tasks; the listing goes on and the next try finds it."""
FAILURE_WINDOW = 32
FAILURE_MINIMUM = 8
FAILURE_SHARE = 0.5
_KEPT_RUNS = 64
_SPLITS = {"Baseline": "test", "Evaluation": "test", "Training": "train"}


@dataclass(frozen=True, slots=True)
class RunTasks:
    """The environment of a run and the tasks it was given."""

    environment: ResolvedEnvironment
    tasks: Mapping[str, tuple[Task, ...]]
    """By split; already filtered, in the seed's order and cut to the run's counts."""

    def ids(self, phase: str) -> frozenset[str]:
        """Ids of the tasks that a phase may submit completions of."""
        return frozenset(task.task_id for task in self.tasks[_SPLITS[phase]])


class TrainingService:
    """Tasks and gradings of TrainingJobs.

    Args:
        store: where verdicts are recorded.
        grading: lists tasks and grades, in sandboxes.
        prices: what grading costs.
    """

    def __init__(self, store: Store, grading: GradingService, prices: PriceBook | None = None) -> None:
        self._store = store
        self._prices = prices or read_price_book()
        self._grading = grading
        self._runs: OrderedDict[str, RunTasks] = OrderedDict()
        self._batches: dict[str, asyncio.Lock] = {}

    async def task_files(self, obj: Object) -> dict[str, str]:
        """`train.jsonl` and `test.jsonl` of a TrainingJob: prompts and public metadata, never an answer.

        Raises:
            EnvironmentTasksFailed: the environment can't list its tasks.
            Invalid: the TrainingJob has no environment, or it no longer resolves to what was pinned.
        """
        run = await self._run_of(obj)
        return {f"{split}.jsonl": _jsonl(tasks) for split, tasks in run.tasks.items()}

    async def grade(
        self,
        obj: Object,
        attempt: str,
        phase: str,
        step: int,
        completions: Sequence[Mapping[str, Any]],
        *,
        beside: str | None = None,
    ) -> list[dict[str, Any]]:
        """Verdicts on completions, in their order; what was recorded before is returned as it was.

        Args:
            obj: the TrainingJob.
            attempt: name of the attempt that submits.
            phase: `Baseline`, `Training` or `Evaluation`.
            step: optimizer step; 0 outside of training.
            completions: each with `taskId`, `sample` (default 0) and `completion`, or `turns` of an episode.
            beside: key of the member that submits, its Attempt's uid: graders run on its host.

        Raises:
            Invalid: a completion is of a task that the run was not given, or comes twice.
            Conflict: a completion was graded before with another text.
            GraderFailed: too many of the last completions could not be graded; names the evidence.
            Unavailable: no money is left for it; the run is being suspended.
        """
        run = await self._run_of(obj)
        items = _items(completions, phase, step)
        _check_items(items, run.ids(phase), phase)
        async with self._batches.setdefault(obj.uid, asyncio.Lock()):
            recorded = await self._store.read(taskevents.find_verdicts, obj.uid, attempt, list(items))
            for key, item in items.items():
                if key in recorded and recorded[key].completion_sha256 != completion_digest(
                    item.completion, item.turns
                ):
                    raise another_completion(key)
            missing = [(key, item) for key, item in items.items() if key not in recorded]
            parallel = lookup(obj.spec, "grading.maxParallel")
            for start in range(0, len(missing), CHUNK):
                chunk = missing[start : start + CHUNK]
                chosen = [item for _, item in chunk]
                reference = await self._hold(obj, attempt, [key for key, _ in chunk], run.environment.timeout_s)
                verdicts = await self._grading.grade(obj.uid, run.environment, chosen, parallel, beside=beside)
                rows = [_row(key, item, verdict) for (key, item), verdict in zip(chunk, verdicts, strict=True)]
                recorded |= await self._store.write(self._record, obj.uid, attempt, rows, reference, verdicts)
            await self._check_failures(obj, attempt)
        return [_wire(recorded[key]) for key in items]

    async def step(
        self,
        obj: Object,
        attempt: str,
        phase: str,
        step: int,
        episodes: Sequence[Mapping[str, Any]],
        *,
        beside: str | None = None,
    ) -> list[dict[str, Any]]:
        """What the environment says after the last turn of each episode, in their order.

        Of an answer nothing is recorded: asked again, the environment answers again, and the same. Where it could not
        run, that is the episode's verdict: it is recorded as InfrastructureFailure, and told again. Arguments as for
        :meth:`grade`, with `episodes`: each with `taskId`, `sample` (default 0) and `turns`.

        Raises:
            Invalid: an episode is of a task that the run was not given, or comes twice.
            GraderFailed: this machine can't run graders, or too many of the last episodes could not go on.
            Unavailable: no money is left for it; the run is being suspended.
        """
        run = await self._run_of(obj)
        items = {
            key: Episode(key.task_id, key.sample, tuple(given["turns"]))
            for key, given in _keyed(episodes, phase, step, "episodes")
        }
        _check_items(items, run.ids(phase), phase, "episodes")
        async with self._batches.setdefault(obj.uid, asyncio.Lock()):
            known = await self._store.read(taskevents.find_verdicts, obj.uid, attempt, list(items))
            replies = {
                key: StepReply(key.task_id, key.sample, None, row.reason or "it could not be graded", row.evidence)
                for key, row in known.items()
                if row.outcome == "Error"
            }
            missing = [(key, item) for key, item in items.items() if key not in replies]
            parallel = lookup(obj.spec, "grading.maxParallel")
            for start in range(0, len(missing), CHUNK):
                chunk = missing[start : start + CHUNK]
                held = [("step", *key, len(item.turns)) for key, item in chunk]
                reference = await self._hold(obj, attempt, held, run.environment.timeout_s)
                answers = await self._grading.step(
                    obj.uid, run.environment, [item for _, item in chunk], parallel, beside=beside
                )
                answered = [(key, item, answer) for (key, item), answer in zip(chunk, answers, strict=True)]
                rows = [_failed_row(*found) for found in answered if found[2].error is not None]
                if rows or reference is not None:
                    await self._store.write(self._record, obj.uid, attempt, rows, reference, answers)
                replies |= {key: answer for key, _, answer in answered}
            if any(reply.error is not None for reply in replies.values()):
                await self._check_failures(obj, attempt)
        return [replies[key].to_wire() for key in items]

    async def _hold(self, obj: Object, attempt: str, keys: Sequence[object], timeout_s: float) -> str | None:
        """Hold what grading may cost; None where it costs nothing.

        Raises:
            Unavailable: there is no money for it.
        """
        if self._prices.grading == 0:
            return None
        try:
            return await self._store.write(gradingbill.hold, obj, attempt, keys, timeout_s, self._prices)
        except (InsufficientCredits, BudgetExceeded) as refusal:
            await self._store.write(_suspend, obj, attempt, refusal)
            message = f"the run is being suspended: {refusal.message}"
            raise Unavailable(message, fix="It goes on when there is money again.", retry_after_s=5.0) from refusal

    def _record(
        self,
        conn: Connection,
        uid: str,
        attempt: str,
        rows: list[VerdictRow],
        reference: str | None,
        of: Sequence[Verdict] | Sequence[StepReply],
    ) -> dict[SampleKey, VerdictRow]:
        """Record verdicts and charge for them: both or nothing."""
        recorded = taskevents.record_verdicts(conn, uid, attempt, rows)
        gradingbill.settle(conn, reference, of, self._prices)
        return recorded

    async def count_tasks(
        self, found: FoundEnvironment, seed: int | None, task_filter: Mapping[str, Any]
    ) -> dict[str, int]:
        """Sizes of an environment's splits after a `taskFilter`.

        Raises:
            EnvironmentTasksFailed: the environment can't list its tasks.
            Invalid: no task passes the filter; names the values that there are.
            Unavailable: it takes long; a retry finds what was listed meanwhile.
        """
        listing = asyncio.ensure_future(self._counts(found, DEFAULT_SEED if seed is None else seed, task_filter))
        try:
            async with asyncio.timeout(LISTING_TIMEOUT_S):
                return await asyncio.shield(listing)
        except TimeoutError:
            # Its end is nobody's any more: take the result, so that a failure is not reported as unhandled.
            listing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            raise Unavailable(
                f"{found.ref} is still listing its tasks", fix="Try again in a moment.", retry_after_s=5.0
            ) from None

    async def _counts(self, found: FoundEnvironment, seed: int, task_filter: Mapping[str, Any]) -> dict[str, int]:
        environment = await self._grading.resolve(found.object.name, found.spec)
        manifests = {split: await self._grading.tasks(environment, split, seed) for split in ("train", "test")}
        listed = {split: [task.metadata for task in manifest.tasks] for split, manifest in manifests.items()}
        counts = {split: sum(matches(metadata, task_filter) for metadata in rows) for split, rows in listed.items()}
        every = listed["train"] + listed["test"]
        if (refusal := unknown_value(every, task_filter)) is not None:
            raise refusal
        if not any(counts.values()):
            raise nothing_left(every, task_filter)
        return counts

    async def digest_of(self, found: FoundEnvironment) -> str:
        """Digest of an environment at a version."""
        environment = await self._grading.resolve(found.object.name, found.spec)
        return environment.digest

    def forget(self, uid: str) -> None:
        """Drop what is kept in memory of a run that ended."""
        self._runs.pop(uid, None)
        self._batches.pop(uid, None)

    async def _run_of(self, obj: Object) -> RunTasks:
        known = self._runs.get(obj.uid)
        if known is not None:
            self._runs.move_to_end(obj.uid)
            return known
        name = lookup(obj.spec, "environment.name")
        if not isinstance(name, str):
            raise Invalid(f"TrainingJob {obj.name!r} has no environment, so it has no tasks and gradings")
        found: FoundEnvironment = await self._store.read(_found, obj, name)
        environment = await self._grading.resolve(found.object.name, found.spec)
        pinned = lookup(obj.status, "pinned.environment.digest")
        if pinned and pinned != environment.digest:
            raise Invalid(
                f"{found.ref} is not what TrainingJob {obj.name!r} was created with "
                f"({environment.digest}, pinned {pinned})",
                fix="Create the TrainingJob again to train on what is there now.",
            )
        run = RunTasks(environment, await self._tasks_of(obj, environment))
        self._runs[obj.uid] = run
        while len(self._runs) > _KEPT_RUNS:
            self._runs.popitem(last=False)
        return run

    async def _tasks_of(self, obj: Object, environment: ResolvedEnvironment) -> dict[str, tuple[Task, ...]]:
        pinned = obj.status.get("pinned") or {}
        wanted = lookup(obj.spec, "parameters.taskFilter") or {}
        seed = int(pinned.get("seed", DEFAULT_SEED))
        tasks: dict[str, tuple[Task, ...]] = {}
        for split, name in (("train", "trainTasks"), ("test", "heldOutTasks")):
            count = int(pinned.get(name) or 0)
            manifest: Manifest | None = await self._grading.tasks(environment, split, seed) if count else None
            tasks[split] = _chosen(manifest, wanted, count)
        return tasks

    async def _check_failures(self, obj: Object, attempt: str) -> None:
        """Stop a run whose grader is broken: a policy that learns from what is left would learn nonsense."""
        rows = await self._store.read(taskevents.recent_verdicts, obj.uid, FAILURE_WINDOW, attempt)
        failed = [row for row in rows if row.outcome == "Error"]
        if len(rows) < FAILURE_MINIMUM or len(failed) < FAILURE_SHARE * len(rows):
            return
        last = failed[0]
        raise GraderFailed(
            f"{len(failed)} of the last {len(rows)} completions could not be graded; the last, of task "
            f"{last.key.task_id}: {last.reason or 'no reason given'}",
            fix="Correct the environment's grader and publish a new version; nodus get the run's task events for more.",
            details={"failed": len(failed), "of": len(rows), "reason": last.reason, "evidence": last.evidence},
        )


def _suspend(conn: Connection, obj: Object, attempt: str, refusal: NodusError) -> None:
    """Have the attempt stopped that has no money to be graded with; its Job goes on when there is more than there was.

    What its own hold gives back is no more: with that it would start again and come to the same point.
    """
    found = objects.find(conn, ATTEMPT, obj.project, attempt)
    update = stopping.stop(found, reason_of(refusal)) if found is not None else None
    if found is not None and update is not None:
        own = sum(held.amount for held in ledger.open_holds(conn, owner=found.uid))
        left = parse_usd(refusal.details.get("remainingUSD") or refusal.details["availableUSD"])
        needs = max(own + left, parse_usd(refusal.details["neededUSD"]))
        objects.update(conn, update.obj, spec={**(update.spec or {}), "needsUSD": format_usd(needs)})


def _found(conn: Connection, obj: Object, name: str) -> FoundEnvironment:
    try:
        return lookups.environment(conn, str(obj.project), name)
    except BadReference as error:
        raise Invalid(str(error)) from error


def _chosen(manifest: Manifest | None, task_filter: Mapping[str, Any], count: int) -> tuple[Task, ...]:
    if manifest is None:
        return ()
    kept = [task for task in manifest.tasks if matches(task.metadata, task_filter)]
    return tuple(kept[:count])


def _jsonl(tasks: Sequence[Task]) -> str:
    return "".join(json.dumps(task.public(), ensure_ascii=False) + "\n" for task in tasks)


def _items(completions: Sequence[Mapping[str, Any]], phase: str, step: int) -> dict[SampleKey, Completion]:
    items: dict[SampleKey, Completion] = {}
    for key, given in _keyed(completions, phase, step, "completions"):
        turns = tuple(given["turns"]) if "turns" in given else None
        items[key] = Completion(key.task_id, key.sample, given.get("completion", ""), turns)
    return items


def _keyed(
    given: Sequence[Mapping[str, Any]], phase: str, step: int, name: str
) -> list[tuple[SampleKey, Mapping[str, Any]]]:
    """Return each item with its key.

    Raises:
        Invalid: two have the same.
    """
    keyed = [(SampleKey(phase, step, str(item["taskId"]), int(item.get("sample", 0))), item) for item in given]
    seen: set[SampleKey] = set()
    causes = []
    for number, (key, _) in enumerate(keyed):
        if key in seen:
            causes.append(Cause(f"{name}[{number}]", "FieldValueInvalid", "the same task and sample come twice"))
        seen.add(key)
    if causes:
        raise Invalid(f"the {name} can't be graded as sent", causes=causes[:20])
    return keyed


def _check_items(items: Iterable[SampleKey], known: frozenset[str], phase: str, name: str = "completions") -> None:
    unknown = sorted({key.task_id for key in items} - known)
    if unknown:
        shown = ", ".join(unknown[:3])
        raise Invalid(
            f"{len(unknown)} tasks are not among the {phase} tasks of this run: {shown}",
            causes=[Cause(name, "FieldValueInvalid", f"unknown taskId {task_id}") for task_id in unknown[:20]],
        )


def _digest(item: Completion) -> str:
    return completion_digest(item.completion, item.turns)


def _row(key: SampleKey, item: Completion, verdict: Verdict) -> VerdictRow:
    return VerdictRow(
        key=key,
        completion_sha256=_digest(item),
        verdict=verdict.verdict,
        outcome=OUTCOMES[verdict.verdict],
        reward=verdict.reward,
        reason=verdict.reason,
        evidence=_evidence(key, item, verdict),
    )


def _failed_row(key: SampleKey, episode: Episode, reply: StepReply) -> VerdictRow:
    """The verdict of an episode whose environment could not go on with it."""
    item = Completion(key.task_id, key.sample, "", episode.turns)
    return _row(
        key, item, Verdict(key.task_id, key.sample, "InfrastructureFailure", None, reply.error, dict(reply.evidence))
    )


def _evidence(key: SampleKey, item: Completion, verdict: Verdict) -> dict[str, Any]:
    """The grader's evidence, with the reply itself for held-out tasks: what a person compares before and after.

    Of an episode, with the last reply, and with all of them in short.
    """
    if key.phase == "Training":
        return verdict.evidence
    if item.turns is None:
        return {**verdict.evidence, "completion": item.completion[:KEPT_COMPLETION_CHARS]}
    return {**verdict.evidence, "completion": item.turns[-1][:KEPT_COMPLETION_CHARS], "turns": _kept(item.turns)}


def _kept(turns: Sequence[str]) -> list[str]:
    """The turns of an episode, together no longer than a completion is kept: each cut to its share."""
    share = KEPT_COMPLETION_CHARS // len(turns)
    return [turn[:share] for turn in turns]


def _wire(row: VerdictRow) -> dict[str, Any]:
    wire: dict[str, Any] = {
        "taskId": row.key.task_id,
        "sample": row.key.sample,
        "verdict": row.verdict,
        "outcome": row.outcome,
        "reward": row.reward,
    }
    return wire | {"reason": row.reason} if row.reason else wire
