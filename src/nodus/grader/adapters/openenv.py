"""OpenEnv: an ``Environment`` played in process, each task a seed.

Every action is the model's turn, as the one text field of the environment's action class; what the environment
observes is told in return. An episode is replayed from its seed for every turn and for its grade, so the same seed must
always play the same: that is tried before the environment is taken. The reward of an episode is the sum of its steps'.

An environment's object is used for one episode at most: some keep what the last episode left.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from nodus.grader.adapters.apart import apart
from nodus.grader.adapters.base import Adapter, EnvironmentFault, Message, Refused, class_names
from nodus.grader.adapters.observations import describe
from nodus.grader.adapters.waiting import finished
from nodus.grader.tasks import Keyed, Task

if TYPE_CHECKING:
    from nodus.grader.adapters.textaction import TextAction

TRAIN_SEEDS, TEST_SEEDS = range(800), range(800, 1000)
MAX_SEEDS = 10_000
_FIXED_TURNS = ("", "a")
_SAMPLED = 8


class OpenEnv:
    """An OpenEnv environment; see the module.

    Args:
        environment: As its loader made it. It is never reset in this process, only in forks of it.
        action: How a turn becomes an action.
        seeds: Split to its seeds.
    """

    kind = "openenv"
    episodes = True

    def __init__(self, environment: Any, action: TextAction, seeds: dict[str, Sequence[int]]) -> None:
        self._environment, self._action, self._seeds = environment, action, seeds
        self._takes_id = _accepts(environment.reset, "episode_id")

    def tasks(self, split: str) -> Sequence[object]:
        """List a split's seeds, each with what the environment says first."""
        seeds = self._seeds[split]
        return [
            Keyed(str(seed), prompt=prompt, answer=seed, metadata={"seed": seed})
            for seed, prompt in zip(seeds, self._prompts(seeds), strict=True)
        ]

    def grade(self, task: Task, turns: Sequence[str]) -> object:
        """Return the sum of the steps' rewards; None when a turn could not even be made an action."""
        return _Episode(self, task.answer).play(turns)

    def reply(self, task: Task, turns: Sequence[str]) -> list[Message] | None:
        """Return what the environment observes after the last turn, as the user's message."""
        episode = _Episode(self, task.answer)
        if episode.play(turns) is None or episode.done:
            return None
        return [{"role": "user", "content": episode.said}]

    def reset(self, seed: int) -> Any:
        """Start an episode; return its first observation."""
        more = {"episode_id": f"seed-{seed}"} if self._takes_id else {}
        return finished(self._environment.reset(seed=seed, **more))

    def step(self, turn: str) -> Any:
        """Take an action; return the observation.

        Raises:
            ValueError: When the text is none that the action class allows.
        """
        return finished(self._environment.step(self._action.of(turn)))

    def allows(self, turn: str) -> bool:
        """Tell whether the action class takes a text."""
        try:
            self._action.of(turn)
        except ValueError:  # pydantic's ValidationError is one
            return False
        return True

    def check_replay(self) -> None:
        """Play one seed in two processes.

        Raises:
            Refused: When they differ.
        """
        seed = next((seeds[0] for seeds in self._seeds.values() if seeds), None)
        if seed is None:
            raise Refused("train_seeds and test_seeds are both empty")
        what = f"an episode of seed {seed}"
        first, second = (apart(what, partial(self._record, seed, salt)) for salt in (1, 2))
        for number, (one, other) in enumerate(zip(first, second, strict=False)):
            if one != other:
                where = f"after {number} fixed actions" if number else "at reset"
                raise Refused(
                    f"the environment does not play the same episode for the same seed: with seed {seed}, {where}, it "
                    f"gave {str(one)[:120]!r} once and {str(other)[:120]!r} another time"
                )

    def _record(self, seed: int, salt: int) -> list[Any]:
        """Return what an episode of fixed actions gives; ``salt`` seeds what the environment's seed should."""
        import random

        random.seed(salt)
        episode = _Episode(self, seed)
        record: list[Any] = [episode.said]
        for turn in _FIXED_TURNS:
            try:
                reward = episode.play([turn])
            except Exception as error:  # noqa: BLE001 - an environment may refuse an action that makes no sense
                return [*record, f"{type(error).__name__}: {error}"]
            record.append([episode.said, reward, episode.done])
        return record

    def _prompts(self, seeds: Sequence[int]) -> list[Any]:
        """Return what each seed opens with, as it does in an environment that was never used before.

        A process for each seed costs milliseconds. So one object is reset for all of them, or a copy for each, where
        that says the same: the first two are tried before the others, as an object that keeps every episode would grow
        too large, and some of the others after.
        """
        sample = sorted({*range(min(2, len(seeds))), *range(0, len(seeds), max(1, len(seeds) // _SAMPLED))})
        alone = {at: self._first_prompt(seeds[at]) for at in sample}
        for copies in (False, True):
            try:
                if self._in_turn(seeds[:2], copies) != [alone[at] for at in sample[: len(seeds[:2])]]:
                    continue
                prompts = self._in_turn(seeds, copies)
            except EnvironmentFault:
                continue  # some objects can't be copied; what else fails does so in a process of its own, too
            if all(prompts[at] == alone[at] for at in sample):
                return prompts
        return [self._first_prompt(seed) for seed in seeds]

    def _in_turn(self, seeds: Sequence[int], copies: bool) -> list[Any]:
        def said() -> list[str]:
            adapters = (OpenEnv(copy.deepcopy(self._environment), self._action, {}) if copies else self for _ in seeds)
            return [adapter._prompt(seed) for adapter, seed in zip(adapters, seeds, strict=True)]

        prompts: list[Any] = apart("resetting the environment", said)
        return prompts

    def _first_prompt(self, seed: int) -> Any:
        return apart(f"reset(seed={seed})", partial(self._prompt, seed))

    def _prompt(self, seed: int) -> str:
        return describe(self.reset(seed))


class _Episode:
    """One episode from its reset on.

    Attributes:
        said: What the environment said last.
        done: Whether it has ended.
    """

    def __init__(self, adapter: OpenEnv, seed: int) -> None:
        self._adapter = adapter
        self._observation = adapter.reset(seed)
        self._reward: float = 0.0
        self.said = describe(self._observation)
        self.done = bool(self._observation.done)

    def play(self, turns: Sequence[str]) -> float | None:
        """Take turns until the episode ends; return the reward so far, None for a turn that is no action."""
        for turn in turns:
            if self.done:
                break
            if not self._adapter.allows(turn):
                return None
            before, self._observation = self._observation, self._adapter.step(turn)
            self.said = describe(self._observation, before, turn)
            self.done = bool(self._observation.done)
            self._reward += _number(self._observation.reward)
        return self._reward


def _number(reward: Any) -> float:
    if reward is None:
        return 0.0
    plain = reward.item() if callable(getattr(reward, "item", None)) else reward
    if not isinstance(plain, int | float):
        raise TypeError(f"the observation's reward is {type(reward).__name__}; expected a number, a bool or None")
    return float(plain)


def recognises(found: object) -> bool:
    """Tell whether it is an OpenEnv environment, or a class of one."""
    return "Environment" in _names(found) or (isinstance(found, type) and "Environment" in _bases(found))


def adapt(found: Any) -> Adapter:
    """Return the adapter of an environment.

    Raises:
        Refused: When it is a class, its actions are no text, it takes no seed, its seeds are none, or the same seed
            plays differently.
    """
    if isinstance(found, type):
        raise Refused(f"the loader gave the class {found.__name__}; return an environment, {found.__name__}()")
    if "MCPEnvironment" in _names(found):
        raise Refused(f"{type(found).__name__} offers its tools by MCP, which has no place here: grading is in process")
    from nodus.grader.adapters.textaction import text_action  # late: forks copy what is there

    action = text_action(found)
    if not _accepts(found.reset, "seed"):
        raise Refused(f"{type(found).__name__}.reset takes no seed, and each task is a seed")
    adapter = OpenEnv(found, action, {"train": _seeds(found, "train"), "test": _seeds(found, "test")})
    adapter.check_replay()
    return adapter


def _names(found: object) -> set[str]:
    return class_names(found, "openenv") | class_names(found, "openenv_core")


def _bases(cls: type) -> set[str]:
    return {base.__name__ for base in cls.__mro__ if base.__module__.partition(".")[0] in ("openenv", "openenv_core")}


def _seeds(found: Any, split: str) -> Sequence[int]:
    given = getattr(found, f"{split}_seeds", None)
    if given is None:
        return TRAIN_SEEDS if split == "train" else TEST_SEEDS
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else [given]
    if len(listed) > MAX_SEEDS:
        raise Refused(f"{split}_seeds has {len(listed)} seeds; at most {MAX_SEEDS} are allowed")
    if wrong := [seed for seed in listed if type(seed) is not int]:
        raise Refused(f"{split}_seeds holds {str(wrong[0])[:40]!r}; expected whole numbers, such as range(100)")
    if len(set(listed)) != len(listed):
        raise Refused(f"{split}_seeds names a seed twice")
    return listed


def _accepts(function: Any, name: str) -> bool:
    """Tell whether a function takes a keyword."""
    import inspect

    parameters = inspect.signature(function).parameters.values()
    return any(parameter.name == name or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
