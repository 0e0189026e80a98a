"""The kinds of skeletons: for each, a module that is an environment, and its tests.

The texts are ``string.Template``s. Each environment is small, differs in every prompt, and holds every fifth task out.
"""

from __future__ import annotations

from dataclasses import dataclass

_WORDS = '''\
WORDS = """
    apple bread chair dance eagle flame grape house island jungle kite lemon mango night ocean piano queen river
    stone table uncle valley water yellow zebra anchor basket candle desert engine forest garden hammer insect jacket
    kernel ladder magnet needle orange pepper quartz rabbit saddle temple urchin velvet window yonder zipper
""".split()'''


@dataclass(frozen=True, slots=True)
class Form:
    """What a kind of skeleton is made of.

    Attributes:
        summary: One sentence, of the environment.
        about: What its author changes first.
        source: The module.
        tests: Its tests, for ``unittest`` and pytest.
        dependencies: Requirements of the package.
        reward_type: ``Binary`` or ``Scalar``.
        make_data: A program that makes the data of the package.
    """

    summary: str
    about: str
    source: str
    tests: str
    dependencies: tuple[str, ...] = ()
    reward_type: str = "Binary"
    make_data: str = ""


FUNCTIONS = Form(
    summary="Spell a word backwards.",
    about="Change `tasks` and `reward` in `$module.py`: what to ask, and what a reply is worth.",
    source=f'''\
"""Words to spell backwards: tasks and their reward."""

import re
import sys

ANSWER = re.compile(r"<answer>\\s*([A-Za-z]+)\\s*</answer>")
PROMPT = "Spell the word backwards inside <answer></answer>.\\n\\nWord: {{word}}"
{_WORDS}


def tasks(split):
    """Return the tasks of the train or the test split; every fifth word is held out."""
    held_out = split == "test"
    chosen = [word for number, word in enumerate(WORDS) if (number % 5 == 4) == held_out]
    return [{{"prompt": PROMPT.format(word=word), "answer": word[::-1]}} for word in chosen]


def reward(completion, answer):
    """Return 1 for the word backwards, 0 for another, None where there is no answer at all."""
    found = ANSWER.findall(completion)
    if not found:
        return None
    return 1.0 if found[-1].lower() == answer else 0.0


def load_environment():
    """Return what has `tasks` and `reward`: this module."""
    return sys.modules[__name__]
''',
    tests="""\
import unittest

from $module import reward, tasks


class Tests(unittest.TestCase):
    def test_splits_share_no_task(self):
        train, test = ({task["prompt"] for task in tasks(split)} for split in ("train", "test"))
        self.assertTrue(train and test)
        self.assertFalse(train & test)

    def test_only_the_answer_is_paid(self):
        for task in tasks("test"):
            self.assertEqual(reward(f"<answer>{task['answer']}</answer>", task["answer"]), 1.0)
            self.assertEqual(reward("<answer>wrong</answer>", task["answer"]), 0.0)
            self.assertIsNone(reward("", task["answer"]))
            self.assertIsNone(reward(task["prompt"], task["answer"]))


if __name__ == "__main__":
    unittest.main()
""",
)

EPISODES = Form(
    summary="Find a word by its letters, in three guesses with hints.",
    about="Change `tasks` and `step` in `$module.py`. `step` gets every turn of the model so far and replays them.",
    source=f'''\
"""A game of several turns: the letters of a word are given, and each wrong guess is answered with a hint."""

import re
import sys

GUESS = re.compile(r"<guess>\\s*([A-Za-z]+)\\s*</guess>")
GUESSES = 3
PROMPT = "Which word has the letters {{letters}}? You have 3 guesses. Write each one inside <guess></guess>."
{_WORDS}


def tasks(split):
    """Return the tasks of the train or the test split; every fifth word is held out."""
    held_out = split == "test"
    chosen = [word for number, word in enumerate(WORDS) if (number % 5 == 4) == held_out]
    return [{{"prompt": PROMPT.format(letters=" ".join(sorted(word))), "answer": word}} for word in chosen]


def step(turns, answer):
    """Return the next message, or None once the episode has ended, and the reward so far.

    Called with all turns of the model from the start: there is no state between calls.
    """
    guesses = [GUESS.findall(turn) for turn in turns]
    if any(found and found[-1].lower() == answer for found in guesses):
        return None, 1.0
    reward = 0.0 if any(guesses) else None  # None: no guess in the whole episode
    if len(turns) >= GUESSES:
        return None, reward
    if not guesses or not guesses[-1]:
        return "Write your guess inside <guess></guess>.", reward
    return f"No. It begins with {{answer[: len(turns)]!r}}.", reward


def load_environment():
    """Return what has `tasks` and `step`: this module."""
    return sys.modules[__name__]
''',
    tests="""\
import unittest

from $module import step, tasks


class Tests(unittest.TestCase):
    def test_splits_share_no_task(self):
        train, test = ({task["prompt"] for task in tasks(split)} for split in ("train", "test"))
        self.assertTrue(train and test)
        self.assertFalse(train & test)

    def test_an_episode_ends_with_the_word_or_after_three_guesses(self):
        word = tasks("test")[0]["answer"]
        right, wrong = f"<guess>{word}</guess>", "<guess>nope</guess>"
        self.assertEqual(step([right], word), (None, 1.0))
        message, reward = step([wrong], word)
        self.assertIn(word[0], message)
        self.assertEqual(reward, 0.0)
        self.assertEqual(step([wrong, right], word), (None, 1.0))
        self.assertEqual(step([wrong, wrong, wrong], word), (None, 0.0))

    def test_a_reply_without_a_guess_is_none(self):
        self.assertIsNone(step([""], "apple")[1])


if __name__ == "__main__":
    unittest.main()
""",
)

VERIFIERS = Form(
    summary="Spell a word backwards, as an environment of verifiers.",
    about="`load_environment()` in `$module.py` returns a `verifiers` environment; change its dataset and its rubric.",
    dependencies=("verifiers>=0.1.10,<0.4",),
    source=f'''\
"""Words to spell backwards, as a verifiers environment: dataset, eval_dataset, and a rubric."""

import re

import verifiers as vf
from datasets import Dataset

ANSWER = re.compile(r"<answer>\\s*([A-Za-z]+)\\s*</answer>")
PROMPT = "Spell the word backwards inside <answer></answer>.\\n\\nWord: {{word}}"
{_WORDS}


def dataset(held_out):
    """Return the rows of one split; every fifth word is held out."""
    chosen = [word for number, word in enumerate(WORDS) if (number % 5 == 4) == held_out]
    return Dataset.from_list([{{"question": PROMPT.format(word=word), "answer": word[::-1]}} for word in chosen])


def correct(completion, answer, **_):
    """Return 1 for the word backwards; completion is the list of the messages of the model."""
    message = completion[-1]
    text = message["content"] if isinstance(message, dict) else message.content
    found = ANSWER.findall(text or "")
    return 1.0 if found and found[-1].lower() == answer else 0.0


def load_environment():
    """Return the environment."""
    return vf.SingleTurnEnv(dataset=dataset(False), eval_dataset=dataset(True), rubric=vf.Rubric(funcs=[correct]))
''',
    tests="""\
import importlib.util
import unittest


@unittest.skipUnless(importlib.util.find_spec("verifiers"), "needs verifiers: pip install -e .")
class Tests(unittest.TestCase):
    def test_only_the_answer_is_paid(self):
        from $module import correct, dataset

        for row in dataset(True):
            reply = [{"role": "assistant", "content": f"<answer>{row['answer']}</answer>"}]
            self.assertEqual(correct(reply, row["answer"]), 1.0)
            self.assertEqual(correct([{"role": "assistant", "content": row["question"]}], row["answer"]), 0.0)

    def test_it_loads(self):
        from $module import load_environment

        self.assertGreater(len(load_environment().get_dataset()), 0)


if __name__ == "__main__":
    unittest.main()
""",
)

OPENENV = Form(
    summary="Guess a number from hints, as an environment of OpenEnv.",
    about="`load_environment()` in `$module.py` returns an OpenEnv environment; each task is a seed to reset it with.",
    dependencies=("openenv>=0.7,<0.11",),
    source='''\
"""A number from 1 to 20 to guess, as an OpenEnv environment that runs in process; a seed decides the number."""

import random
import re

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

GUESSES = 5


class Guess(Action):
    """The reply of the model."""

    text: str


class Hint(Observation):
    """What the model reads."""

    message: str = ""


class NumberGame(Environment):
    """The game: the same seed plays the same episode."""

    def __init__(self):
        super().__init__()
        self._number = self._guesses = 0
        self._state = State()

    def reset(self, seed=None, episode_id=None, **_):
        self._number, self._guesses = random.Random(seed).randint(1, 20), 0
        return Hint(message=f"Game {seed}: guess my number from 1 to 20. Reply with the number alone.", done=False)

    def step(self, action: Guess, timeout_s=None, **_):
        self._guesses += 1
        found = re.findall(r"\\d+", action.text)
        if found and int(found[-1]) == self._number:
            return Hint(message="Right.", done=True, reward=1.0)
        done = self._guesses >= GUESSES
        if not found:
            return Hint(message="Reply with a number.", done=done, reward=0.0)
        return Hint(message="Higher." if int(found[-1]) < self._number else "Lower.", done=done, reward=0.0)

    @property
    def state(self):
        return self._state


def load_environment():
    """Return the environment; seeds 0 to 799 train, 800 to 999 are held out, unless it says otherwise."""
    game = NumberGame()
    game.train_seeds, game.test_seeds = range(80), range(800, 820)
    return game
''',
    tests="""\
import importlib.util
import unittest


@unittest.skipUnless(importlib.util.find_spec("openenv"), "needs openenv: pip install -e .")
class Tests(unittest.TestCase):
    def test_a_seed_plays_the_same_episode(self):
        from $module import Guess, load_environment

        played = []
        for _ in range(2):
            game = load_environment()
            game.reset(seed=7)
            played.append([game.step(Guess(text=str(number))).message for number in (1, 20)])
        self.assertEqual(*played)

    def test_only_the_number_is_paid(self):
        from $module import Guess, load_environment

        rewards = []
        for number in range(1, 21):
            game = load_environment()
            game.reset(seed=7)
            rewards.append(game.step(Guess(text=str(number))).reward)
        self.assertEqual(sum(rewards), 1.0)


if __name__ == "__main__":
    unittest.main()
""",
)

REASONING_GYM = Form(
    summary="Knights and knaves, a family of Reasoning Gym.",
    about="`load_environment()` in `$module.py` returns a Reasoning Gym dataset: any family, or a mix of them.",
    dependencies=("reasoning-gym==0.1.25",),
    reward_type="Scalar",
    source='''\
"""Knights and knaves: a dataset of Reasoning Gym, whose own scorer scores each reply. Every fifth entry is held out."""

import reasoning_gym


def load_environment():
    """Return the dataset."""
    return reasoning_gym.create_dataset("knights_knaves", size=200, seed=7)
''',
    tests="""\
import importlib.util
import unittest


@unittest.skipUnless(importlib.util.find_spec("reasoning_gym"), "needs reasoning-gym: pip install -e .")
class Tests(unittest.TestCase):
    def test_only_the_answer_scores_fully(self):
        from $module import load_environment

        dataset = load_environment()
        for entry in (dataset[0], dataset[4]):
            self.assertEqual(dataset.score_answer(entry["answer"], entry), 1.0)
            self.assertLess(dataset.score_answer(entry["question"], entry), 1.0)


if __name__ == "__main__":
    unittest.main()
""",
)

VERL = Form(
    summary="Spell a word backwards, as parquet files and a reward of verl.",
    about="Change `make_data.py`, which writes the rows, and `compute_score` in `$module/__init__.py`.",
    dependencies=("datasets>=4,<6",),
    source='''\
"""Words to spell backwards, with the keys and the reward function that verl reads. `make_data.py` makes the files."""

import re
import sys
from pathlib import Path

ANSWER = re.compile(r"<answer>\\s*([A-Za-z]+)\\s*</answer>")

train_files = str(Path(__file__).with_name("train.parquet"))
val_files = str(Path(__file__).with_name("test.parquet"))


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """Return 1 for the word backwards, 0 for anything else."""
    found = ANSWER.findall(solution_str)
    return 1.0 if found and found[-1].lower() == ground_truth else 0.0


def load_environment():
    """Return what names the files and the reward: this module."""
    return sys.modules[__name__]
''',
    make_data=f'''\
"""Write the rows of both splits into the package, as verl prepares a dataset."""

from pathlib import Path

import pyarrow
import pyarrow.parquet

PROMPT = "Spell the word backwards inside <answer></answer>.\\n\\nWord: {{word}}"
{_WORDS}


def row(word):
    """Return the row of one word."""
    return {{
        "data_source": "$name",
        "prompt": [{{"role": "user", "content": PROMPT.format(word=word)}}],
        "reward_model": {{"style": "rule", "ground_truth": word[::-1]}},
        "extra_info": {{"word": word}},
    }}


for split in ("train", "test"):
    words = [word for number, word in enumerate(WORDS) if (number % 5 == 4) == (split == "test")]
    table = pyarrow.Table.from_pylist([row(word) for word in words])
    pyarrow.parquet.write_table(table, Path(__file__).parent / "$module" / f"{{split}}.parquet")
''',
    tests="""\
import unittest

from $module import compute_score


class Tests(unittest.TestCase):
    def test_only_the_answer_is_paid(self):
        self.assertEqual(compute_score("$name", "<answer>elppa</answer>", "elppa"), 1.0)
        self.assertEqual(compute_score("$name", "<answer>apple</answer>", "elppa"), 0.0)
        self.assertEqual(compute_score("$name", "", "elppa"), 0.0)


if __name__ == "__main__":
    unittest.main()
""",
)

KINDS: dict[str, Form] = {
    "functions": FUNCTIONS,
    "episodes": EPISODES,
    "verifiers": VERIFIERS,
    "openenv": OPENENV,
    "reasoning-gym": REASONING_GYM,
    "verl": VERL,
}
"""By the name that ``--kind`` takes."""
