"""A stateful tool environment whose setup writes the prompt, and whose tools get what the model doesn't say."""

import inspect
import random

import verifiers as vf
from datasets import Dataset

try:
    from verifiers import StatefulToolEnv
except ImportError:  # not among the names of the oldest versions
    from verifiers.envs.stateful_tool_env import StatefulToolEnv

NAMED = "tool_name" in inspect.signature(StatefulToolEnv.update_tool_args).parameters


def deposit(amount: int, owner: str = "nobody") -> str:
    """Put money into the account.

    Args:
        amount: How much.
        owner: Whose account it is.
    """
    return f"{owner} +{amount}"


class Ledger(StatefulToolEnv):
    async def setup_state(self, state, **kwargs):
        state["owner"] = random.choice(["ann", "bob", "cleo", "dan"])
        state["prompt"][-1] = {"role": "user", "content": f"Pay into the account of {state['owner']}."}
        return state

    def update_tool_args(self, *args, **kwargs):
        tool_args = args[1] if NAMED else args[0]
        state = args[3] if NAMED else args[2]
        return {**tool_args, "owner": state["owner"]}


def load_environment():
    def paid(completion, state, **kwargs):
        texts = [str(message["content"] if isinstance(message, dict) else message.content) for message in completion]
        return 0.5 * any(text.startswith(state["owner"]) for text in texts) + 0.5 * (len(texts) > 2)

    rows = [{"prompt": [{"role": "user", "content": "?"}], "answer": ""} for _ in range(10)]
    rubric = vf.Rubric(funcs=[paid])
    return Ledger(dataset=Dataset.from_list(rows), tools=[deposit], rubric=rubric)
