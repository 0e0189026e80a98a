"""Grades episodes as ``verifiers`` itself does, with a scripted model: what ours must be equal to.

Runs in an environment that has the library, and imports nothing of Nodus. Reads a JSON list of episodes ``{"row":
index, "split": "dataset" | "eval_dataset", "turns": [{"text", "calls": [[name, arguments]]}], "maxTurns": n | null}``
and writes a JSON list of rewards.
"""

import asyncio
import importlib
import inspect
import json
import sys
from typing import Any

Turn = dict[str, Any]


def completion_of(turn: Turn, number: int) -> Any:
    from openai.types.chat import ChatCompletion

    calls = [
        {"id": f"id{number}{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments) in enumerate(turn["calls"])
    ]
    message = {"role": "assistant", "content": turn["text"], "tool_calls": calls or None}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    body = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    return ChatCompletion.model_validate(body)


class OpenAI:
    """A client of the OpenAI package, as far as old versions of the library use one."""

    base_url = "http://127.0.0.1"

    def __init__(self, turns: list[Turn]) -> None:
        self.turns, self.used = turns, 0
        self.chat = self.completions = self

    async def create(self, **_: Any) -> Any:
        self.used += 1
        return completion_of(self.turns[self.used - 1], self.used)


def scripted_client(turns: list[Turn]) -> Any:
    try:
        clients = importlib.import_module("verifiers.clients")
    except ModuleNotFoundError:
        return OpenAI(turns)
    native = clients.OpenAIChatCompletionsClient

    class Scripted(native):  # type: ignore[misc, valid-type]
        async def get_native_response(self, *args: Any, **kwargs: Any) -> Any:
            return await self.client.create()

    return Scripted(OpenAI(turns))


def reward_of(environment: Any, episode: dict[str, Any]) -> float:
    rows = getattr(environment, f"get_{episode['split']}")()
    row = rows[episode["row"]]
    client = scripted_client(episode["turns"])
    if not hasattr(environment, "run_rollout") and not hasattr(environment, "a_generate"):
        raise RuntimeError("this version has another way to grade")
    if "input" in inspect.signature(environment.rollout).parameters:
        outputs = asyncio.run(generated(environment, [row], client))
    else:
        table = rows.select([episode["row"]])
        outputs = asyncio.run(environment.a_generate(table, client, "m"))
    return found_reward(outputs)


async def generated(environment: Any, rows: list[Any], client: Any) -> Any:
    return await environment.generate(rows, client, "m")


def found_reward(outputs: Any) -> float:
    if isinstance(outputs, dict) and "outputs" in outputs:
        return float(outputs["outputs"][0]["reward"])
    rewards = outputs["reward"] if isinstance(outputs, dict) else outputs.reward
    return float(rewards[0])


def main() -> None:
    environment = importlib.import_module(sys.argv[1]).load_environment()
    limits = environment.max_turns
    found = []
    for episode in json.load(sys.stdin):
        environment.max_turns = episode["maxTurns"] or limits
        found.append(reward_of(environment, episode))
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
