"""An environment whose tools the model calls, as ``tool-test`` is one."""

import verifiers as vf
from datasets import Dataset
from words import ROOMS


def count_chairs(room: str) -> int:
    """Count the chairs of a room.

    Args:
        room: The room's name.
    """
    return ROOMS[room]


async def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a * b


def content(message):
    return str((message["content"] if isinstance(message, dict) else message.content) or "")


def role(message):
    return message["role"] if isinstance(message, dict) else message.role


def load_environment(max_turns: int = 4):
    rows = [
        {
            "question": f"How many legs have the chairs in the {room}, with {legs} legs each?",
            "answer": str(count * legs),
        }
        for room, count in ROOMS.items()
        for legs in range(3, 8)
    ]

    def right(completion, answer, **kwargs):
        return float(content(completion[-1]).strip().endswith(answer)) if role(completion[-1]) == "assistant" else 0.0

    def used_tools(completion, **kwargs):
        return 0.1 * sum(role(message) == "tool" for message in completion)

    rubric = vf.Rubric(funcs=[right, used_tools], weights=[1.0, 1.0])
    return vf.ToolEnv(
        dataset=Dataset.from_list(rows), rubric=rubric, tools=[count_chairs, multiply], max_turns=max_turns
    )
