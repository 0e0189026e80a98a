"""A ``verifiers`` environment in the runner's form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from nodus.grader.adapters.apart import apart
from nodus.grader.adapters.base import Message, Refused
from nodus.grader.adapters.verifiers import refusals, rewards, rollouts, rows
from nodus.grader.adapters.verifiers.rows import Row
from nodus.grader.adapters.verifiers.toolcalls import schemas
from nodus.grader.adapters.verifiers.versions import VERSIONS, installed, version_of
from nodus.grader.tasks import Keyed, Task

_TELLING = ("answer", "info", "task")
_PROMPT_HOOKS = ("setup_state", "get_prompt_messages", "init_state", "rollout", "get_model_response")


class Verifiers:
    """An environment of the library; see the package.

    Args:
        environment: What ``load_environment()`` returned.

    Raises:
        Refused: When it can't be graded here.
    """

    kind = "verifiers"

    def __init__(self, environment: Any) -> None:
        _check(environment)
        self._environment = environment
        self._members = list(rows.members_of(environment).values()) or [environment]
        self.episodes = any(_has_turns(member) for member in self._members)
        limits = [member.max_turns if _has_turns(member) else 1 for member in self._members]
        self.max_turns = max(limits) if all(isinstance(limit, int) and limit > 0 for limit in limits) else None
        self._splits: dict[str, list[Row]] | None = None
        rollouts.install(environment)
        for rubric in rewards.rubrics_of(environment):
            rewards.watch(rubric)

    def tasks(self, split: str) -> Sequence[object]:
        """List a split's rows; of each only its prompt, its tools and of a group its environment's name are public."""
        if self._splits is None:
            self._splits = rows.splits(self._environment)
        listed = self._splits[split]
        prompts = self._prompts(listed)
        return [self._listed(row, prompt) for row, prompt in zip(listed, prompts, strict=True)]

    def grade(self, task: Task, turns: Sequence[str]) -> object:
        """Return the rubric's reward for an episode as it stands; None where its parser finds no answer."""
        return asyncio.run(self._grade(task.answer, turns))

    def reply(self, task: Task, turns: Sequence[str]) -> list[Message] | None:
        """Return what the environment says after the last turn, results of tools included."""
        asks = asyncio.run(rollouts.play(self._environment, task.answer, turns)).asks
        if asks is None:
            return None
        messages = rows.public_messages(asks)
        last = max((number for number, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        return messages[last + 1 :]

    async def _grade(self, row: Row, turns: Sequence[str]) -> object:
        played = await rollouts.play(self._environment, row, turns)
        if played.asks is not None:
            # the model's last turn: an episode that reached its limit ends there, without the environment's answer
            played = await rollouts.play(self._environment, row, turns, capped=True)
        reward = await rewards.score(self._environment, played, row.data)
        return None if reward == 0 and (played.empty or self._unparsed(row, played.completion)) else reward

    def _unparsed(self, row: Row, completion: Any) -> bool:
        """Say whether the environment's own parser, if it has one that looks for an answer, finds none."""
        parser = getattr(rows.member_of(self._environment, row.data), "parser", None)
        if parser is None or type(parser).__name__ == "Parser" or not hasattr(parser, "parse_answer"):
            return False
        try:
            return parser.parse_answer(completion) is None
        except Exception:  # noqa: BLE001 - what the rubric made of it stands; this is only what it is called
            return False

    def _listed(self, row: Row, prompt: Any) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        if members := rows.members_of(self._environment):
            metadata["environment"] = rows.route(row.data, members)
        listed = {"prompt": prompt, "answer": row, "metadata": metadata}
        if tools := rows.tools_of(self._environment, row.data):
            listed["tools"] = schemas(tools)
        if not self.episodes:
            return listed
        # games open the same whatever their secret is
        return Keyed(json.dumps([row.data.get(name) for name in _TELLING], default=str), **listed)

    def _prompts(self, listed: Sequence[Row]) -> list[Any]:
        """Return the prompts that the model gets: the rows', or what an environment that sets its own asks with."""
        if not any(_sets_prompt(member) for member in self._members):
            return [_prompt(row.data["prompt"]) for row in listed]
        return list(apart("asking for the prompts", lambda: asyncio.run(_asked(self._environment, listed))))


async def _asked(environment: Any, listed: Sequence[Row]) -> list[Any]:
    return [await _first_prompt(environment, row) for row in listed]


async def _first_prompt(environment: Any, row: Row) -> Any:
    played = await rollouts.play(environment, row, ())
    return _prompt(row.data["prompt"] if played.asks is None else played.asks)


def _prompt(prompt: Any) -> Any:
    return prompt if isinstance(prompt, str) else rows.public_messages(prompt)


def _has_turns(member: Any) -> bool:
    single = any(cls.__name__ == "SingleTurnEnv" for cls in type(member).__mro__)
    return not single and getattr(member, "max_turns", 1) != 1


def _sets_prompt(member: Any) -> bool:
    """Say whether an environment has code of its own between the row and the first request."""
    own = [cls for cls in type(member).__mro__ if cls.__module__.partition(".")[0] != "verifiers"]
    if any(name in vars(cls) for cls in own for name in _PROMPT_HOOKS):
        return True
    return type(member).__name__ == "TextArenaEnv"


def _check(environment: Any) -> None:
    """Refuse what was built and can't be graded here.

    Raises:
        Refused: With the reason.
    """
    _check_version()
    for member in [environment, *rows.members_of(environment).values()]:
        name = type(member).__name__
        if any(cls.__module__.startswith("verifiers.v1") for cls in type(member).__mro__):
            raise Refused(f"{name} is a v1 environment of a taskset and a harness, which needs a model to run")
        if (reason := refusals.reason_of(type(member))) is not None:
            raise Refused(f"this environment {reason}")
        if getattr(member, "message_type", "chat") == "completion":
            raise Refused(f"{name} has message_type 'completion': there is no chat to train on; use 'chat'")
        for tool in getattr(member, "tools", None) or ():
            if client := refusals.calls_a_model(tool):
                raise Refused(f"the tool {_named(tool)} calls another model ({client}), and grading has no network")
    for rubric in rewards.rubrics_of(environment):
        _check_rubric(rubric)


def _check_version() -> None:
    found = version_of(installed())
    if len(found) >= 2 and not (0, 1, 2) <= found < (0, 4):
        raise Refused(f"verifiers {installed()} is installed; environments of {VERSIONS} can be graded")


def _check_rubric(rubric: Any) -> None:
    name = type(rubric).__name__
    if (reason := refusals.reason_of(type(rubric))) is not None:
        raise Refused(f"this environment {reason}")
    held = [*vars(rubric).values(), *(getattr(rubric, "class_objects", None) or {}).values()]
    if client := refusals.holds_a_model(held):
        raise Refused(f"{name} scores with another model ({client}), and grading has no network")
    for function, _ in rewards.functions_of(rubric):
        if client := refusals.calls_a_model(function):
            raise Refused(f"the reward {_named(function)} asks another model ({client}), and grading has no network")
        if _compares_group(rubric, function):
            raise Refused(f"the reward {_named(function)} compares the replies of a group; here each is graded alone")


def _compares_group(rubric: Any, function: Any) -> bool:
    asks = getattr(rubric, "_is_group_func", None)
    return bool(asks(function)) if callable(asks) else False


def _named(function: Any) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)
