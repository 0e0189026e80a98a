"""Grades replies as their own library does, without Nodus: what ours must be equal to.

``library_grades.py MODULE`` reads a JSON list of ``[what, turns]``, where ``what`` is a seed, an entry's index or a
row, and writes a JSON list of rewards.
"""

import asyncio
import importlib
import inspect
import json
import sys
from typing import Any


def number_game(environment: Any, seed: int, turns: list[str]) -> float:
    from number_game import Guess  # type: ignore[import-not-found]

    environment.reset(seed=seed)
    total = 0.0
    for turn in turns:
        observation = environment.step(Guess(text=turn))
        total += float(observation.reward or 0)
        if observation.done:
            break
    return total


def puzzles(dataset: Any, index: int, turns: list[str]) -> float:
    from reasoning_gym.utils import extract_answer

    answer = extract_answer(turns[0])
    entry = dataset[index]
    return float(dataset.score_answer(turns[0].strip() if answer is None else answer, entry))


def sums_of_verl(module: Any, row: dict[str, Any], turns: list[str]) -> float:
    """As ``NaiveRewardManager`` of verl does."""
    score = module.compute_score(
        data_source=row["data_source"],
        solution_str=turns[0],
        ground_truth=row["reward_model"]["ground_truth"],
        extra_info={**row["extra_info"], "num_turns": 2},
    )
    score = asyncio.run(score) if inspect.isawaitable(score) else score
    return float(score["score"] if isinstance(score, dict) else score)


def sums_of_skyrl(module: Any, row: dict[str, Any], turns: list[str]) -> float:
    """As ``SkyRLGymGenerator`` does."""
    import skyrl_gym  # type: ignore[import-not-found]
    from omegaconf import DictConfig

    extras = {**row, "max_turns": 1}
    prompt, name = extras.pop("prompt"), extras.pop("env_class")
    environment = skyrl_gym.make(name, env_config=DictConfig({}), extras=extras)
    environment.init(prompt)
    return float(environment.step(turns[0])["reward"])


def main() -> None:
    name = sys.argv[1]
    module = importlib.import_module(name)
    environment = module.load_environment() if hasattr(module, "load_environment") else module
    grade = globals()[name]
    rewards = [grade(environment, what, turns) for what, turns in json.load(sys.stdin)]
    sys.stdout.write("\n" + json.dumps(rewards) + "\n")


if __name__ == "__main__":
    main()
