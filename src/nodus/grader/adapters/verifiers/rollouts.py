"""The library's own rollout, with recorded turns where it would ask a model.

``get_model_response`` of the base class returns the recorded turns in order. When they are used up it raises what no
environment catches, and the messages it was given, after the last turn, are the environment's answer. One way for every
version: what differs is how a rollout is called and what a response looks like.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import random
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from nodus.grader.adapters.verifiers import rows
from nodus.grader.adapters.verifiers.rows import Row
from nodus.grader.adapters.verifiers.toolcalls import Call, calls_in

MODEL = "nodus"


class NeedReply(BaseException):
    """The environment asks for a turn that there is not yet; no ``Exception``, since environments catch those.

    Attributes:
        messages: What the model would be asked with.
    """

    def __init__(self, messages: list[Any]) -> None:
        super().__init__("the environment waits for the model")
        self.messages = messages


class NoModel(Exception):
    """The environment asked a model for something else than the policy's next turn."""

    def __init__(self, wanted: str) -> None:
        super().__init__(f"the environment uses the model's client itself (.{wanted}); there is no model in a grader")


class Played(NamedTuple):
    """What a rollout came to.

    Attributes:
        completion: The messages after the prompt, as the library has them.
        state: Its state.
        asks: The messages of the request that there was no turn for; None when the episode has ended.
        empty: Whether an empty turn ended it: what clients of newer versions make an error of the rollout.
    """

    completion: Any
    state: Any
    asks: list[Any] | None
    empty: bool = False


class _Script:
    """The turns of the episode that this process plays."""

    turns: Sequence[str] = ()
    used = 0
    tools = False
    empty = False


def install(environment: Any) -> None:
    """Answer for the model in every environment of this process."""
    base: Any = next(cls for cls in type(environment).__mro__ if cls.__name__ == "Environment")
    base.get_model_response = _recorded_turn


async def _recorded_turn(_: Any, *args: Any, **kwargs: Any) -> Any:
    messages = kwargs.get("prompt")
    if messages is None:  # versions differ in what stands before it, none of which is a list
        messages = next(value for value in args if isinstance(value, list))
    if _Script.used >= len(_Script.turns):
        raise NeedReply(list(messages))
    _Script.used += 1
    text = _Script.turns[_Script.used - 1]
    calls = calls_in(text) if _Script.tools else []
    if not text and _has_own_types():
        _Script.empty = True
        raise importlib.import_module("verifiers.errors").EmptyModelResponseError("the model's turn is empty")
    return _response(text, calls, _Script.used)


async def play(environment: Any, row: Row, turns: Sequence[str], *, capped: bool = False) -> Played:
    """Play an episode.

    Args:
        environment: The environment.
        row: Its task.
        turns: The model's turns; those after the episode's end are not looked at.
        capped: Whether the episode ends with the last of them, as one does that has reached the environment's own
            ``max_turns``. Otherwise the environment decides.
    """
    _Script.turns, _Script.used, _Script.empty = turns, 0, False
    _Script.tools = bool(rows.tools_of(environment, row.data))
    seed_everything(row.seed)
    member = rows.member_of(environment, row.data)
    before = getattr(member, "max_turns", None)
    if capped:
        member.max_turns = len(turns)
    try:
        return await _rollout(environment, copy.deepcopy(row.data))
    except NeedReply as need:
        state, completion = _abandoned(need)
        return Played(completion, state, need.messages)
    finally:
        if capped:
            member.max_turns = before


def seed_everything(seed: int) -> None:
    """Seed what environments take random numbers from."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


async def _rollout(environment: Any, data: dict[str, Any]) -> Played:
    if takes(environment.rollout, "input"):
        state = await environment.rollout(_input(data), client(), MODEL, {})
        return Played(state.get("completion"), state, None, _Script.empty)
    # before 0.1.8: each column by itself
    info = rows.info_of(data)
    if tools := getattr(environment, "oai_tools", None):
        info.setdefault("oai_tools", tools)
    row = {
        "prompt": _cleaned(data["prompt"]),
        "answer": data.get("answer") if data.get("answer") is not None else "",
        "task": data.get("task") or "default",
        "info": info,
    }
    if takes(environment.rollout, "example_id"):
        row["example_id"] = data.get("example_id") or 0
    completion, state = await environment.rollout(client=client(), model=MODEL, sampling_args={}, **row)
    return Played(completion, state, None)


def _input(data: dict[str, Any]) -> dict[str, Any]:
    return {"example_id": 0, **data}


def _cleaned(messages: Any) -> Any:
    """Return messages as old versions clean up what a table makes of them: columns that only some rows have."""
    try:
        clean = importlib.import_module("verifiers.utils.message_utils").cleanup_messages
    except (ImportError, AttributeError):
        return messages
    return clean(messages)


def takes(function: Any, parameter: str) -> bool:
    """Say whether a function has a parameter of a name."""
    return parameter in inspect.signature(function).parameters


def client() -> Any:
    """Return what stands for a model's client, and fails for whoever uses it."""
    try:
        base = importlib.import_module("verifiers.clients").Client
    except (ImportError, AttributeError):
        return _Unusable()
    # not by its constructor: a configuration costs a TLS context
    return object.__new__(type("NoClient", (base,), dict.fromkeys(base.__abstractmethods__, _unusable_method)))


class _Unusable:
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # copying asks for those
        raise NoModel(name)

    def __deepcopy__(self, _: Any) -> _Unusable:
        return self


async def _unusable_method(*_: Any, **__: Any) -> Any:
    raise NoModel("get_response")


def _abandoned(need: NeedReply) -> tuple[Any, Any]:
    """Return state and completion of the rollout that asked in vain, from its frame: the oldest return neither."""
    trace = need.__traceback__
    state: Any = {}
    completion: Any = None
    while trace is not None:
        found = trace.tb_frame.f_locals
        if isinstance(found.get("state"), dict):
            state, completion = found["state"], found.get("completion", completion)
        trace = trace.tb_next
    rendered = state.get("completion")
    return state, rendered if rendered else completion


def _has_own_types() -> bool:
    """Say whether the version has types of its own for what a model answers, and not those of the OpenAI client."""
    return hasattr(importlib.import_module("verifiers.types"), "ResponseMessage")


def _response(text: str, calls: list[Call], turn: int) -> Any:
    """Return a reply as a client of the installed version would."""
    types = importlib.import_module("verifiers.types")
    named = [(f"call_{turn}_{number}", call.name, json.dumps(call.arguments)) for number, call in enumerate(calls)]
    finish = "tool_calls" if calls else "stop"
    if _has_own_types():
        made = [types.ToolCall(id=key, name=name, arguments=arguments) for key, name, arguments in named]
        message = types.ResponseMessage(
            content=text, tool_calls=made or None, finish_reason=finish, is_truncated=False, tokens=None
        )
        return types.Response(id=f"turn-{turn}", created=0, model=MODEL, usage=None, message=message)
    completion = importlib.import_module("openai.types.chat").ChatCompletion
    functions = [
        {"id": key, "type": "function", "function": {"name": name, "arguments": arguments}}
        for key, name, arguments in named
    ]
    message = {"role": "assistant", "content": text, "tool_calls": functions or None}
    choice = {"index": 0, "finish_reason": finish, "message": message}
    return completion.model_validate(
        {"id": f"turn-{turn}", "object": "chat.completion", "created": 0, "model": MODEL, "choices": [choice]}
    )
