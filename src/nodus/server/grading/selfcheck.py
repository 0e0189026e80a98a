"""The build's self-check: can this environment be trusted to list and grade?

Run once for each version before the Environment becomes Ready, in sandboxes without network, like every run after it:
the libraries that its sources import must be there; the tasks are listed in two processes and must be equal; an
answer, plain and in the tags that its prompt names, and an empty reply are graded and must not raise. An environment
with episodes also plays two fixed turns in two processes: what it says and pays must be equal, since every turn is
played again from the start.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nodus.core.errors import EnvironmentTasksFailed, NodusError
from nodus.server.grading.environments import ResolvedEnvironment
from nodus.server.grading.episodes import Episode
from nodus.server.grading.libraries import grader_facts
from nodus.server.grading.manifests import Manifest, Task
from nodus.server.grading.replies import as_asked, as_reply
from nodus.server.grading.service import GradingService
from nodus.server.grading.verdicts import Completion, Verdict, storable

SPLITS = ("train", "test")
_SEED = 0
_TRACE_CHARS = 3000
_MOST_REPLIES = 32
FIXED_TURNS = ("Hello.", "1")
"""What is said to an environment with episodes: no answer to anything, as a model's reply may be."""


class SelfCheckFailed(NodusError):
    """A step of the check failed.

    Args:
        step: ``unpack``, ``libraries``, ``load``, ``tasks``, ``grade`` or ``step``.
        message: What went wrong.
        trace: The environment's traceback.
    """

    reason, status = "EnvironmentBuildFailed", 422

    def __init__(self, step: str, message: str, trace: str = "") -> None:
        super().__init__(f"step {step!r} failed: {message}" + (f"\n{trace.rstrip()[-_TRACE_CHARS:]}" if trace else ""))
        self.step = step


@dataclass(frozen=True, slots=True)
class Checked:
    """What the check found.

    Attributes:
        digest: The environment's digest.
        splits: Split to number of tasks.
        grader: The Python and the libraries that grade, as ``status.grader`` has them.
        manifests: Split to its tasks, with answers where they are JSON.
        facts: What it is, as the status has it: ``ecosystem``, ``episodes``, ``tools``, ``maxTurns`` where known; and
            ``shared``, how many tasks were left out of train since they are held out.
    """

    digest: str
    splits: Mapping[str, int]
    grader: Mapping[str, Any] = field(default_factory=dict)
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


async def check(service: GradingService, name: str, spec: Mapping[str, Any], pool_key: str) -> Checked:
    """Check an Environment.

    Args:
        service: Runs it.
        name: The object's name.
        spec: Its spec, in wire form.
        pool_key: Whose graders to use; released at the end.

    Raises:
        SelfCheckFailed: With the step that failed and the environment's traceback.
        GraderLibraryMissing: When it imports one of the graders' libraries, anywhere, and that is not installed.
    """
    try:
        environment = await service.resolve(name, spec)
    except NodusError as error:
        raise SelfCheckFailed("unpack", f"{error.message}{'; ' + error.fix if error.fix else ''}") from error
    try:
        # what grades in an image is its own affair
        foreign = environment.root is not None
        grader = {} if foreign else grader_facts(await _libraries(service, environment), environment.python)
        facts = _facts(await _info(service, environment))
        # at once, since an environment may take seconds to load in each process
        manifests = await asyncio.gather(*(_list_twice(service, environment, split) for split in SPLITS))
        splits = dict(zip(SPLITS, manifests, strict=True))
        task = _one_of(splits)
        await _grade_replies(service, environment, task, pool_key, [as_reply(task), ""])
        if facts["episodes"]:
            await _play_twice(service, environment, task, pool_key)
        await _grade_replies(service, environment, task, pool_key, as_asked(task)[:_MOST_REPLIES])
    finally:
        await service.release(pool_key)
    sizes = {split: len(manifest.tasks) for split, manifest in splits.items()}
    facts["tools"] = any(task.tools for manifest in splits.values() for task in manifest.tasks)
    return Checked(environment.digest, sizes, grader, splits, facts)


async def _info(service: GradingService, environment: ResolvedEnvironment) -> dict[str, Any]:
    try:
        return await service.info(environment)
    except EnvironmentTasksFailed as error:
        step = "tasks" if ": tasks(" in error.message else "load"  # what it is also tells how many tasks there are
        raise SelfCheckFailed(step, error.message, str(error.details.get("traceback", ""))) from error


def _facts(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return what counts of what a runner says the environment is; a stranger's may say anything."""
    facts: dict[str, Any] = {"episodes": info.get("episodes") is True}
    if isinstance(kind := info.get("kind"), str):
        facts["ecosystem"] = storable(kind, 63)
    if isinstance(shared := info.get("shared"), int):
        facts["shared"] = int(shared)
    turns = info.get("maxTurns")
    if facts["episodes"] and isinstance(turns, int) and not isinstance(turns, bool) and 0 < turns < 2**31:
        facts["maxTurns"] = turns
    return facts


def _one_of(splits: Mapping[str, Manifest]) -> Task:
    """Return the first task, a held-out one where there is any."""
    found = next((splits[split].tasks[0] for split in ("test", "train") if splits[split].tasks), None)
    if found is None:
        raise SelfCheckFailed("tasks", "tasks('train') and tasks('test') are both empty")
    return found


async def _libraries(service: GradingService, environment: ResolvedEnvironment) -> dict[str, Any]:
    try:
        return await service.libraries(environment)
    except EnvironmentTasksFailed as error:
        raise SelfCheckFailed("libraries", error.message, str(error.details.get("traceback", ""))) from error


async def _list_twice(service: GradingService, environment: ResolvedEnvironment, split: str) -> Manifest:
    first = await listed(service, environment, split)
    second = await listed(service, environment, split, answers=first.has_answers)
    if len(first.tasks) != len(second.tasks):
        raise SelfCheckFailed(
            "tasks",
            f"tasks({split!r}) listed {len(first.tasks)} tasks in one process and {len(second.tasks)} in another; "
            "the same version must always list the same tasks",
        )
    for position, (one, other) in enumerate(zip(first.tasks, second.tasks, strict=True)):
        if one.public() != other.public():
            raise SelfCheckFailed(
                "tasks",
                f"tasks({split!r}) differ between two processes, first at position {position} of the shuffled list: "
                f"{_short(one.prompt)} and {_short(other.prompt)}; seed whatever is random in it",
            )
    return first


async def listed(
    service: GradingService, environment: ResolvedEnvironment, split: str, *, answers: bool = True
) -> Manifest:
    """Return a split's tasks, with their answers where those are JSON.

    Args:
        service: Runs it.
        environment: Which.
        split: ``train`` or ``test``.
        answers: False where it is known that they aren't.

    Raises:
        SelfCheckFailed: When it can't list them.
    """
    try:
        try:
            return await service.list_tasks(environment, split, _SEED, answers=answers)
        except EnvironmentTasksFailed as error:
            if "is not JSON" not in error.message or environment.exact_match is not None:
                raise
            # answers may be any Python object where a program grades: they never leave the grader
            return await service.list_tasks(environment, split, _SEED, answers=False)
    except EnvironmentTasksFailed as error:
        raise SelfCheckFailed("tasks", error.message, str(error.details.get("traceback", ""))) from error


async def _grade_replies(
    service: GradingService, environment: ResolvedEnvironment, task: Task, pool_key: str, replies: Sequence[str]
) -> None:
    items = [Completion(task.task_id, number, reply) for number, reply in enumerate(replies)]
    for item, verdict in zip(items, await service.grade(pool_key, environment, items, 1), strict=True):
        if verdict.verdict == "InfrastructureFailure":
            reply = replies[item.sample]
            shown = f"the reply {_short(reply)}" if reply else "an empty reply"
            what = "its own answer" if reply == as_reply(task) else shown
            message = f"grading {what} to {_short(task.prompt)}: {verdict.reason}"
            raise SelfCheckFailed("grade", message, str(verdict.evidence.get("traceback", "")))


async def _play_twice(service: GradingService, environment: ResolvedEnvironment, task: Task, pool_key: str) -> None:
    first = await _play(service, environment, task, pool_key)
    await service.release(pool_key)  # the second time is another process's
    second = await _play(service, environment, task, pool_key)
    for turn, (one, other) in enumerate(zip(first, second, strict=True), 1):
        if one != other:
            raise SelfCheckFailed(
                "step",
                f"turn {turn} of {_short(task.prompt)}, after the replies {list(FIXED_TURNS[:turn])}, differs between "
                f"two processes: {_short(one)} and {_short(other)}; the same turns must always play the same episode: "
                "seed whatever is random in it by the task",
            )


async def _play(service: GradingService, environment: ResolvedEnvironment, task: Task, pool_key: str) -> list[object]:
    """Return what the environment says and pays after each of the fixed turns, until it ends the episode."""
    played: list[object] = [None] * len(FIXED_TURNS)
    for count in range(1, len(FIXED_TURNS) + 1):
        turns = FIXED_TURNS[:count]
        (reply,) = await service.step(pool_key, environment, [Episode(task.task_id, 0, turns)], 1)
        (verdict,) = await service.grade(pool_key, environment, [Completion(task.task_id, 0, turns=turns)], 1)
        for reason, evidence in ((reply.error, reply.evidence), (_fault_of(verdict), verdict.evidence)):
            if reason is not None:
                message = f"playing the replies {list(turns)} of {_short(task.prompt)}: {reason}"
                message += "; a reply may be any text: answer it, or end the episode"
                raise SelfCheckFailed("step", message, str(evidence.get("traceback", "")))
        played[count - 1] = {"messages": reply.messages, "reward": verdict.reward}
        if reply.messages is None:
            break
    return played


def _fault_of(verdict: Verdict) -> str | None:
    return (verdict.reason or "no reason given") if verdict.verdict == "InfrastructureFailure" else None


def _short(prompt: object) -> str:
    text = prompt if isinstance(prompt, str) else json.dumps(prompt)
    return repr(text if len(text) <= 80 else text[:77] + "...")
