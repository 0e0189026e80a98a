"""What the rubric gives for an episode, and the faults of reward functions that the library swallows."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from nodus.grader.adapters.verifiers.rollouts import Played, takes
from nodus.grader.adapters.verifiers.rows import info_of, members_of

_MATH_TIMEOUT_S = 2
_faults: list[BaseException] = []


class InlineExecutor(concurrent.futures.Executor):
    """Runs what it is given at once, in the caller's thread.

    A pool of processes made before a fork is shared by every completion after it: one that is killed leaves its work,
    or a lock that is held, to the next.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Run and return a future that is done."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it is the future's, for whoever waits for it
            future.set_exception(error)
        return future


def rubrics_of(environment: Any) -> Iterator[Any]:
    """Yield an environment's rubrics, those in groups too."""
    seen: set[int] = set()
    waiting = [environment.rubric, *(member.rubric for member in members_of(environment).values())]
    while waiting:
        rubric = waiting.pop(0)
        if id(rubric) not in seen:
            seen.add(id(rubric))
            waiting += getattr(rubric, "rubrics", None) or ()
            yield rubric


def functions_of(rubric: Any) -> list[tuple[Callable[..., Any], float]]:
    """Return a rubric's own reward functions and their weights; those of the rubrics in a group are theirs."""
    functions = _listed(rubric)
    weights = getattr(rubric, "reward_weights", None) or getattr(rubric, "weights", None) or [1.0] * len(functions)
    return list(zip(functions, weights, strict=False))


def watch(rubric: Any) -> None:
    """Note what a rubric's functions raise: the library logs it and scores 0."""
    functions = _listed(rubric)
    for number, (function, weight) in enumerate(functions_of(rubric)):
        if weight != 0:  # a metric is no part of the reward
            functions[number] = _noting(function)
    for name, value in list(vars(rubric).items()):
        if isinstance(value, concurrent.futures.ProcessPoolExecutor):
            setattr(rubric, name, InlineExecutor())
            if isinstance(getattr(rubric, "timeout_seconds", None), int | float):
                # its alarms, which a hostile formula waits for, must come before the completion's limit
                rubric.timeout_seconds = min(rubric.timeout_seconds, _MATH_TIMEOUT_S)


def _listed(rubric: Any) -> list[Any]:
    found = getattr(rubric, "reward_funcs", None)
    found = getattr(rubric, "funcs", None) if found is None else found
    return found if isinstance(found, list) else []


def _noting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reward function that also notes why it has no number to give; signature and name are the function's."""

    def number(value: Any) -> Any:
        if isinstance(value, list):
            return value
        try:
            float(value)
        except (TypeError, ValueError):
            name = getattr(function, "__name__", "a reward function")
            _faults.append(TypeError(f"{name} returned {type(value).__name__}; expected a number"))
        return value

    async def finish(waiting: Any) -> Any:
        try:
            return number(await waiting)
        except Exception as error:
            _faults.append(error)
            raise

    @functools.wraps(function)
    def noting(*args: Any, **kwargs: Any) -> Any:
        try:
            value = function(*args, **kwargs)
        except Exception as error:
            _faults.append(error)
            raise
        return finish(value) if inspect.isawaitable(value) else number(value)

    if inspect.iscoroutinefunction(function):  # versions ask before they call

        @functools.wraps(function)
        async def noting_async(*args: Any, **kwargs: Any) -> Any:
            return await noting(*args, **kwargs)

        return noting_async
    return noting


async def score(environment: Any, played: Played, columns: dict[str, Any]) -> float:
    """Return the rubric's reward of an episode.

    Args:
        environment: The environment.
        played: The episode.
        columns: The row.

    Raises:
        Exception: What a reward function raised, or the error that the environment noted of the episode.
    """
    if isinstance(error := played.state.get("error"), BaseException) and not played.empty:
        raise error
    _faults.clear()
    rubric = environment.rubric
    scoring = inspect.signature(rubric.score_rollout).parameters
    if "prompt" in scoring:
        reward = await _score_columns(rubric, played, columns)
    else:
        more = {"score_sem": contextlib.nullcontext()} if "score_sem" in scoring else {}
        await rubric.score_rollout(played.state, **more)
        reward = played.state["reward"]
        if callable(cleanup := getattr(rubric, "cleanup", None)):
            await cleanup(played.state)
    if _faults and not played.empty:  # an empty turn leaves less than functions count on; that is the model's doing
        raise _faults[0]
    return float(reward)


async def _score_columns(rubric: Any, played: Played, columns: dict[str, Any]) -> Any:
    """Score as versions before 0.1.8 do: a batch of one, the only call that their groups of rubrics answer rightly."""
    state = played.state
    batch = {
        "prompts": [state["prompt"]],
        "completions": [played.completion],
        "answers": [state.get("answer", "")],
        "states": [state],
        "tasks": [state.get("task", "default")],
        "infos": [state.get("info") or info_of(columns)],
    }
    if takes(rubric.score_rollouts, "example_ids"):
        batch["example_ids"] = [columns.get("example_id") or 0]
    result = await rubric.score_rollouts(**batch, apply_weights=True)
    return (result["reward"] if isinstance(result, dict) else result.reward)[0]
