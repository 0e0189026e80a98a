"""Episodes to grade with the environments of ``hub/``, good and bad ones, the same on every machine."""

from __future__ import annotations

import json
import random
from typing import Any

Turn = dict[str, Any]
Episode = dict[str, Any]


def said(text: str, *calls: tuple[str, dict[str, Any]]) -> Turn:
    """Return a model's turn; its calls are written as Qwen writes them."""
    return {"text": text, "calls": [list(call) for call in calls]}


def text_of(turn: Turn) -> str:
    """Return a turn as the model's tokens say it; a model's server would take the calls out and keep the text."""
    blocks = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in turn["calls"]]
    return "\n".join([turn["text"], *(f"<tool_call>\n{block}\n</tool_call>" for block in blocks)]).strip()


def episode(row: int, *turns: Turn, split: str = "dataset", max_turns: int | None = None) -> Episode:
    return {"row": row, "split": split, "turns": list(turns), "maxTurns": max_turns}


def reverse_text(rng: random.Random) -> Episode:
    """Return a reply to ``reverse_text``: right, nearly right, without the tag, empty or broken."""
    from tests.integration.grading.hub.words import texts

    row = rng.randrange(40)
    right = texts()[row][::-1]
    kinds = [
        f"<reversed_text>{right}</reversed_text>",
        f"Sure!\n<reversed_text>\n{right}\n</reversed_text>",
        f"<reversed_text>{right[: rng.randrange(len(right))]}</reversed_text>",
        f"<reversed_text>{right}",
        right,
        "",
        f"<reversed_text></reversed_text> {right}",
    ]
    return episode(row, said(rng.choice(kinds)))


def word_guess(rng: random.Random) -> Episode:
    """Return a game of ``word_guess``: won, lost, or cut off at some turn."""
    from tests.integration.grading.hub.words import EVAL, TRAIN

    split, words = rng.choice([("dataset", TRAIN), ("eval_dataset", EVAL)])
    row = rng.randrange(len(words))
    wrong = [word for word in [*TRAIN, *EVAL, "zzzzz", ""] if word != words[row]]
    length = rng.randrange(1, 5)
    turns = [said(f"<guess>{rng.choice(wrong)}</guess>") for _ in range(length)]
    if won := rng.random() < 0.5:
        turns[-1] = said(rng.choice(["<guess>{}</guess>", "I know!\n<guess> {} </guess>"]).format(words[row].upper()))
    return episode(row, *turns, split=split, max_turns=None if won or length == 4 else length)


def tool_test(rng: random.Random) -> Episode:
    """Return an episode of ``tool_test``: with right, wrong, unknown and no calls."""
    from tests.integration.grading.hub.words import ROOMS

    row = rng.randrange(20)
    room, legs = list(ROOMS)[row // 5], row % 5 + 3
    count = said("Let me look.", ("count_chairs", {"room": room}))
    product = said("", ("multiply", {"a": ROOMS[room], "b": legs}))
    answer = said(f"There are {ROOMS[room] * legs}")
    return rng.choice(
        [
            episode(row, count, product, answer),
            episode(row, said("Both", *map(tuple, count["calls"] + product["calls"])), answer),
            episode(row, said("", ("nope", {"room": room})), answer),
            episode(row, said("", ("count_chairs", {"house": room})), said("I can't tell.")),
            episode(row, count, product, max_turns=2),
            episode(row, answer),
            episode(row, said("nothing")),
            episode(row, *[count] * 4),
        ]
    )


MAKERS = {"reverse_text": reverse_text, "word_guess": word_guess, "tool_test": tool_test}


def episodes(module: str, count: int) -> list[Episode]:
    """Return episodes of an environment."""
    rng = random.Random(module)
    return [MAKERS[module](rng) for _ in range(count)]
