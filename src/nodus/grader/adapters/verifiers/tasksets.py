"""Tasksets of ``verifiers`` 0.4, whose classic environments are gone: single replies, scored by their tasks' rewards.

A taskset's tasks run in a harness with a runtime: processes, containers, tools as MCP servers, none of which a grader
has. What needs one is refused; a task that only has a prompt and rewards is scored as the library scores a trace
without a runtime.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from nodus.grader.adapters.base import Message, Refused, held_out
from nodus.grader.adapters.verifiers import refusals, rows
from nodus.grader.adapters.verifiers.versions import installed, version_of
from nodus.grader.tasks import Task

MAX_TASKS = 100_000
_HOOKS = ("setup", "finalize", "stage_verifier")


class Tasksets:
    """A taskset of the library; see the module.

    Args:
        taskset: What ``load_environment()`` returned.

    Raises:
        Refused: When it can't be graded here.
    """

    kind = "verifiers"
    episodes = False

    def __init__(self, taskset: Any) -> None:
        if not (0, 4) <= version_of(installed()) < (0, 5):
            raise Refused(f"verifiers {installed()} is installed; tasksets can be graded with 0.4")
        if not taskset.bounded:
            raise Refused(f"{type(taskset).__name__} has no end; return a view that has one, such as .take(1000)")
        if taskset.toolsets(taskset.config):
            raise Refused("this taskset's tools are MCP servers, and grading has no network")
        self._tasks = list(itertools.islice(iter(taskset), MAX_TASKS + 1))
        if len(self._tasks) > MAX_TASKS:
            raise Refused(f"this taskset has more than {MAX_TASKS} tasks; return a view, such as .take(1000)")
        for task in self._tasks:
            if (reason := _reason_against(task)) is not None:
                raise Refused(f"this taskset {reason}")

    def tasks(self, split: str) -> Sequence[object]:
        """List a split, every fifth task held out; only the prompt is public."""
        chosen = (task for index, task in enumerate(self._tasks) if held_out(index) == (split == "test"))
        return [{"prompt": rows.public_messages(_messages(task)), "answer": task} for task in chosen]

    def grade(self, task: Task, turns: Sequence[str]) -> object:
        """Return the sum of the task's weighted rewards for the first turn."""
        return asyncio.run(_score(task.answer, turns[0]))

    def reply(self, task: Task, turns: Sequence[str]) -> list[Message] | None:
        """Return None: without tools and a user there is one reply."""
        return None


def taskset_in(module: Any) -> Any:
    """Return the taskset that a module exports as the library finds it, by ``__all__``; None where there is not one."""
    names = [name for name in getattr(module, "__all__", ()) if refusals.is_taskset(getattr(module, name, None))]
    if len(names) != 1:
        return None
    kind = getattr(module, names[0])
    generic = importlib.import_module("verifiers.v1.utils.generic")
    config = importlib.import_module("verifiers.v1.configs.taskset").TasksetConfig
    return kind((generic.concrete_type(kind, config) or config)())


def _reason_against(task: Any) -> str | None:
    """Return why a task can't be scored without a runtime; None when it can."""
    kind = type(task)
    if kind.NEEDS_CONTAINER or task.data.image:
        return "has tasks that run in a container, and graders start none"
    if own := [name for name in _HOOKS if not _is_the_librarys(getattr(kind, name, None))]:
        return f"has tasks that prepare a runtime ({kind.__name__}.{own[0]}), and a grader has none"
    if task.toolsets(task.config):
        return "has tasks whose tools are MCP servers, and grading has no network"
    if task.config.judges:
        return "is scored by another model (a judge), and grading has no network and holds no credential for that model"
    if task.data.prompt is None:
        return "has tasks that a simulated user opens; here a prompt does"
    for reward in task.hooks("reward"):
        runtime = inspect.signature(reward).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            return f"has a reward that needs a runtime ({reward.__name__}), and a grader has none"
        if client := refusals.calls_a_model(reward):
            return f"has a reward that asks another model ({reward.__name__}, {client}), and grading has no network"
    return None


def _is_the_librarys(function: Any) -> bool:
    return function is None or str(getattr(function, "__module__", "")).startswith("verifiers.")


def _messages(task: Any) -> list[Any]:
    types = importlib.import_module("verifiers.v1.types")
    prompt = task.data.prompt
    opening = [types.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt)
    system = task.data.system_prompt
    return [*([types.SystemMessage(content=system)] if system else []), *opening]


def _nodes(task: Any, text: str) -> Iterator[Any]:
    types = importlib.import_module("verifiers.v1.types")
    node = importlib.import_module("verifiers.v1.graph").MessageNode
    messages = _messages(task)
    for number, message in enumerate([*messages, types.AssistantMessage(content=text)]):
        yield node(parent=number - 1 if number else None, message=message, sampled=number == len(messages))


async def _score(task: Any, text: str) -> float:
    traces = importlib.import_module("verifiers.v1.trace")
    state = importlib.import_module("verifiers.v1.state").state_cls(type(task))()
    about = traces.TraceTask.model_construct(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    # constructed as it is: an agent's configuration would look for a harness, and the version for a repository
    trace = traces.Trace.model_construct(
        verifiers=None, task=about, agent=None, state=state, nodes=list(_nodes(task, text)),
        is_completed=True, ok=True, stop_condition="agent_completed",
    )  # fmt: skip
    try:
        await task.score(trace)
    except importlib.import_module("verifiers.v1.errors").TaskError as error:
        raise error.__cause__ or error from None
    return float(trace.reward)
