"""An environment of your own: the tasks and the reward, in two functions.

`tasks(split)` lists prompts with their answers; `reward(completion, answer)` scores one reply. Nodus runs both isolated
and without a network; the model and the trainer see prompts only.
"""

import re

ANSWER = re.compile(r"<answer>\s*([A-Za-z]+)\s*</answer>")
PROMPT = "Spell the word backwards inside <answer></answer>.\n\nWord: {word}"

WORDS = """
    apple bread chair dance eagle flame grape house island jungle kite lemon mango night ocean piano queen river
    stone table uncle valley water yellow zebra anchor basket candle desert engine forest garden hammer insect jacket
    kernel ladder magnet needle orange pepper quartz rabbit saddle temple urchin velvet window yonder zipper bridge
    copper dragon ember falcon glider harbor ivory jigsaw kitten lantern meadow nectar oyster pillow quiver ribbon
    silver timber unicorn violet walnut yarrow acorn badge cabin delta elbow fable giant honey index jelly koala
""".split()  # noqa: SIM905 - a hundred words in quotes read badly


def tasks(split):
    """Return the tasks of the train or the test split; every fifth word is held out."""
    held_out = split == "test"
    chosen = [word for number, word in enumerate(WORDS) if (number % 5 == 4) == held_out]
    return [
        {"prompt": PROMPT.format(word=word), "answer": word[::-1], "metadata": {"length": len(word)}} for word in chosen
    ]


def reward(completion, answer):
    """Score a reply: 1 for the word backwards, 0 for another, None where there is no answer at all."""
    found = ANSWER.findall(completion)
    if not found:
        return None
    return 1.0 if found[-1].lower() == answer else 0.0


def load_environment():
    """Return what has `tasks` and `reward`: this module. Called when the package is loaded by its name."""
    import sys

    return sys.modules[__name__]
