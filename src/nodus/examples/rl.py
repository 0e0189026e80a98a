"""Train on a reward function of your own: ``python -m nodus.examples.rl``. A template: copy it and change the task.

The task: spell a word backwards. ``reward`` alone decides what a good reply is; Nodus packages it with the lines of
this file that it uses, runs it isolated, and trains a LoRA adapter so that replies earn more of it.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from nodus.client.client import default_client
from nodus.core.errors import NodusError
from nodus.recipes import rl

ANSWER = re.compile(r"<answer>\s*([A-Za-z]+)\s*</answer>")
PROMPT = "Spell the word backwards inside <answer></answer>.\n\nWord: {word}"

WORDS = """
    apple bread chair dance eagle flame grape house island jungle kite lemon mango night ocean piano queen river
    stone table uncle valley water yellow zebra anchor basket candle desert engine forest garden hammer insect jacket
    kernel ladder magnet needle orange pepper quartz rabbit saddle temple urchin velvet window yonder zipper bridge
    copper dragon ember falcon glider harbor ivory jigsaw kitten lantern meadow nectar oyster pillow quiver ribbon
    silver timber unicorn violet walnut yarrow
""".split()  # noqa: SIM905 - a list of a hundred words in quotes reads badly
# A small model on a CPU gets nowhere with six letters; with two or three it is right now and then, which is enough.
SHORT_WORDS = """
    am an as at be by do go he if in is it me my no of on or so to up us we act add age ago air all and any arm art
    ask bad bag bar bat bed bee bet big bit box boy bus but buy can cap car cat cow cry cup cut day dog dry ear eat
    egg end eye far fat few fit fly fog for fox fun gas get hat hen hot ice ink jam jar job joy key kid leg let lid
""".split()  # noqa: SIM905 - a list of a hundred words in quotes reads badly


def reward(completion: str, answer: str) -> float | None:
    """Score a reply: 1 for the word backwards, 0 for another, None where there is no answer at all."""
    found = ANSWER.findall(completion)
    return None if not found else float(found[-1].lower() == answer)


def tasks_for(words: list[str]) -> list[tuple[str, str]]:
    """Return a ``(prompt, answer)`` pair for each word."""
    return [(PROMPT.format(word=word), word[::-1]) for word in words]


def settings(device: str) -> dict[str, Any]:
    """Return what the run takes on a device: on a CPU small enough for ten minutes."""
    if device == "CPU":
        return {"steps": 24, "groups_per_step": 4, "group_size": 8, "max_tokens": 16, "learning_rate": 3e-4, "lora": 8}
    return {"steps": 50}


def main() -> int:
    """Run the example and return the exit code."""
    from rich.console import Console

    from nodus.examples.report import no_contrast

    console = Console()
    try:
        device = str(default_client().server_info().get("device", "GPU"))
        tasks = tasks_for(SHORT_WORDS if device == "CPU" else WORDS)
        run = rl.train(tasks, reward, max_cost=2, **settings(device))
        console.print(f"[bold]{run.name}[/]: {len(tasks)} tasks on {run.spec.model.uri} ({device})", highlight=False)
        run.watch()  # each stage, then the reward, loss and KL of every step
        run.outputs.download("./outputs")  # the LoRA adapter and the before-and-after comparison
        wrong = run.tasks(phase="Evaluation", outcome="Failed")
    except NodusError as error:
        console.print(f"[red]error:[/] {error.message}{f' ({error.fix})' if error.fix else ''}", highlight=False)
        return 1
    console.print(f"still wrong: {len(wrong)} held-out tasks; the adapter is in ./outputs/adapter", highlight=False)
    reason = no_contrast(run)
    if reason:
        console.print(
            f"[yellow]Nothing could be learnt here: {reason}.[/] Easier words, a larger model "
            "(model=) or a reward with partial credit make a difference.",
            highlight=False,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
