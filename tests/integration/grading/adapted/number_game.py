"""An OpenEnv environment: guess a number below a hundred that the seed decides, in at most five turns."""

import random
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    text: str


class Told(Observation):
    text: str = ""


class NumberGame(Environment[Guess, Told, State]):
    def __init__(self) -> None:
        super().__init__()
        self.near = lambda guess: 10 - abs(guess - self.secret) // 10

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Told:
        self.secret, self.turns = random.Random(seed).randrange(100), 0
        return Told(text="Guess my number, from 0 to 99.")

    def step(self, action: Guess, timeout_s: float | None = None, **more: Any) -> Told:
        self.turns += 1
        if not action.text.strip().isdigit():
            return Told(text="That is no number.", reward=-0.5, done=self.turns == 5)
        guess = int(action.text)
        won = guess == self.secret
        told = "Yes." if won else "Higher." if guess < self.secret else "Lower."
        return Told(text=told, done=won or self.turns == 5, reward=True if won else self.near(guess) / 100)

    @property
    def state(self) -> State:
        return State(step_count=self.turns)


def load_environment() -> NumberGame:
    return NumberGame()
