"""Train on a reward function of your own: ``python -m nodus.examples.rl``. A template: copy it and change the task.

The task: spell a word backwards. ``reward`` alone decides what a good reply is; Nodus packages it with the lines of
this file that it uses, runs it isolated, and trains a LoRA adapter so that replies earn more of it.
"""

from __future__ import annotations

import argparse
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
# The small model that a CPU trains gets nowhere with whole words; with two letters it is right now and then.
SHORT_WORDS = """
    ad ah am an as ax be by ed eh em go ha he hi hm id if is it jo la lo ma me mi mu my no of oh on or ow ox
    oy pa pi re so to uh um un up us we wo ye yo
""".split()  # noqa: SIM905 - a list of fifty words in quotes reads badly


def reward(completion: str, answer: str) -> float | None:
    """Score a reply: 1 for the word backwards, up to 0.5 for letters in their place, None where there is no answer."""
    found = ANSWER.findall(completion)
    if not found:
        return None
    given = found[-1].lower()
    if given == answer:
        return 1.0
    # Partial credit: without it a model that is never right has nothing to learn from.
    return 0.5 * sum(a == b for a, b in zip(given, answer, strict=False)) / max(len(given), len(answer))


def tasks_for(words: list[str], shown: list[str]) -> list[tuple[Any, str]]:
    """Return a ``(prompt, answer)`` pair for each word; a prompt is a chat that begins with worked examples."""
    examples = [message for word in shown for message in turn(word, f"<answer>{word[::-1]}</answer>")]
    return [([*examples, *turn(word)], word[::-1]) for word in words]


def turn(word: str, reply: str | None = None) -> list[dict[str, str]]:
    """Return the question about a word as chat messages, with the reply where there is one."""
    question = {"role": "user", "content": PROMPT.format(word=word)}
    return [question] if reply is None else [question, {"role": "assistant", "content": reply}]


def settings(device: str) -> dict[str, Any]:
    """Return what the run takes on a device: on a CPU small enough for ten minutes."""
    if device == "CPU":
        small = {"steps": 30, "groups_per_step": 4, "max_tokens": 12, "learning_rate": 3e-4, "lora": 8}
        return {**small, "gradient_checkpointing": False, "evaluation_batch_size": 16, "logging_steps": 1}
    return {"steps": 50}


def main(argv: list[str] | None = None) -> int:
    """Run the example and return the exit code."""
    from nodus.examples.report import make_console, no_contrast, print_error

    parser = argparse.ArgumentParser(prog="python -m nodus.examples.rl", description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="./outputs", help="where results go (default: ./outputs)")
    options = parser.parse_args(argv)
    console = make_console()
    try:
        device = str(default_client().server_info().get("device", "GPU"))
        tasks = tasks_for(SHORT_WORDS, ["at", "do"]) if device == "CPU" else tasks_for(WORDS, ["robin", "marble"])
        run = rl.train(tasks, reward, max_cost=2, **settings(device))
        console.print(f"[bold]{run.name}[/]: {len(tasks)} tasks on {run.spec.model.uri} ({device})", highlight=False)
        run.watch()  # each stage, then the reward, loss and KL of every step
        run.outputs.download(options.output)  # the LoRA adapter and the before-and-after comparison
        wrong = run.tasks(phase="Evaluation", outcome="Failed")
    except NodusError as error:
        print_error(console, error)
        return 1
    console.print(
        f"still wrong: {len(wrong)} held-out tasks; the adapter is in {options.output}/adapter", highlight=False
    )
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
