"""A game of TextArena as an OpenEnv environment: the wrapper keeps a whole history, which each observation repeats."""

from typing import Any

import textarena  # type: ignore[import-not-found]
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, Field


class Line(BaseModel):
    content: str
    sender_id: int = -1


class Move(Action):
    message: str


class Board(Observation):
    prompt: str = ""
    messages: list[Line] = Field(default_factory=list)
    info: dict[str, Any] = Field(default_factory=dict)


class Mastermind(Environment[Move, Board, State]):
    train_seeds, test_seeds = range(20), range(800, 805)

    def __init__(self) -> None:
        super().__init__()
        self.game = textarena.make("Mastermind-v0")
        self.game.reset(num_players=1)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Board:
        self.game.reset(num_players=1, seed=seed)
        return self.seen(prompt=True)

    def step(self, action: Move, timeout_s: float | None = None, **more: Any) -> Board:
        done, info = self.game.step(action.message)
        seen = self.seen()
        seen.done, seen.info = done, info or {}
        rewards = self.game.state.rewards or {}
        seen.reward = float(rewards.get(0, 0))
        return seen

    def seen(self, prompt: bool = False) -> Board:
        _, text = self.game.get_observation()
        return Board(prompt=text.strip() if prompt else "Mastermind-v0", messages=[Line(content=text)])

    @property
    def state(self) -> State:
        return State()


def load_environment() -> Mastermind:
    return Mastermind()
