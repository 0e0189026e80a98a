"""OpenEnv environments, small ones over the real library: what is played, what is told, and what is refused."""

from __future__ import annotations

import dataclasses
import os
import random
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from nodus.grader.adapters import Adapter, EnvironmentFault, Refused, adapt
from nodus.grader.adapters.observations import describe
from nodus.grader.loading import Environment as Loaded
from nodus.grader.tasks import Task


class Guess(Action):
    word: str


class Told(Observation):
    text: str = ""


class Game(Environment[Guess, Told, State]):
    """Guess a number below ten that the seed decides; four turns, a tenth off for each miss."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.secret = 0
        self.is_secret = lambda word: word == str(self.secret)
        vars(self).update(attributes)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Told:
        self.secret, self.turns = random.Random(seed).randrange(10), 0
        return Told(text="Guess my number.")

    def step(self, action: Guess, timeout_s: float | None = None, **more: Any) -> Told:
        self.turns += 1
        won = self.is_secret(action.word)
        text = "Yes." if won else f"{action.word} is not it."
        return Told(text=text, done=won or self.turns == 4, reward=1 if won else -0.1)

    @property
    def state(self) -> State:
        return State(step_count=self.turns)


def secret(seed: int) -> str:
    return str(random.Random(seed).randrange(10))


def miss(seed: int) -> str:
    return str((int(secret(seed)) + 1) % 10)


def loaded(environment: Any) -> Loaded:
    return Loaded("game", "1.0.0", adapt(environment, "game"))


def task(seed: int = 0) -> Task:
    return Task("0" * 16, "?", seed)


def test_seeds_are_tasks_even_where_all_of_them_open_alike() -> None:
    game = loaded(Game())
    train, test = game.split("train"), game.split("test")
    assert [t.answer for t in train] == list(range(800)) and [t.answer for t in test] == list(range(800, 1000))
    assert len(game.by_id()) == 1000
    assert {t.prompt for t in train} == {"Guess my number."} and train[3].metadata == {"seed": 3}


def test_seeds_of_the_environment_are_used_and_one_in_both_is_held_out() -> None:
    game = loaded(Game(train_seeds=range(5), test_seeds=(3, 7)))
    assert [t.answer for t in game.split("train")] == [0, 1, 2, 4]
    assert [t.answer for t in game.split("test")] == [3, 7]


@pytest.mark.parametrize(
    ("turns", "reward", "said"),
    [
        ([secret(0)], 1.0, None),
        ([miss(0)], -0.1, f"{miss(0)} is not it."),
        ([miss(0), secret(0)], 0.9, None),
        ([miss(0), "", "x"], -0.3, "x is not it."),
        ([miss(0)] * 4, -0.4, None),
        ([miss(0)] * 4 + [secret(0)], -0.4, None),
        ([secret(0), miss(0)], 1.0, None),
    ],
)
def test_episode_is_replayed_from_its_seed(turns: list[str], reward: float, said: str | None) -> None:
    assert adapt(Game(), "game").grade(task(), turns) == pytest.approx(reward)
    assert adapt(Game(), "game").reply(task(), turns) == (said and [{"role": "user", "content": said}])


class Short(Action):
    word: str = Field(max_length=3)


class ShortGame(Game):
    def step(self, action: Short, timeout_s: float | None = None, **more: Any) -> Told:  # type: ignore[override]
        return super().step(Guess(word=action.word))


def test_turn_that_the_action_class_refuses_is_an_invalid_output_and_ends_the_episode() -> None:
    adapter = adapt(ShortGame(), "game")
    assert adapter.grade(task(), ["a long one"]) is None
    assert adapter.reply(task(), ["a long one"]) is None
    assert adapter.grade(task(), [miss(0), "a long one"]) is None


class Piling(Game):
    """Keeps what the last episode said, as some do."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Told:
        vars(self).setdefault("log", []).append(f"Seed {seed}.")
        super().reset(seed)
        return Told(text=" ".join(self.log))


def test_what_an_episode_leaves_reaches_no_other() -> None:
    game = loaded(Piling(train_seeds=range(12), test_seeds=range(20, 23)))
    assert [t.prompt for t in game.split("train")] == [f"Seed {seed}." for seed in range(12)]
    assert [t.prompt for t in game.split("test")] == ["Seed 20.", "Seed 21.", "Seed 22."]


def test_what_can_not_be_copied_is_reset_in_a_process_for_each_seed() -> None:
    game = loaded(Piling(train_seeds=range(12), test_seeds=[], lock=threading.Lock()))
    assert [t.prompt for t in game.split("train")] == [f"Seed {seed}." for seed in range(12)]


class Late(Game):
    """Says something else once it has played ten episodes."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Told:
        self.played = vars(self).get("played", 0) + 1
        super().reset(seed)
        return Told(text=f"Seed {seed}." + " Again!" * (self.played > 10))


def test_what_shows_only_after_many_episodes_reaches_no_prompt() -> None:
    game = loaded(Late(train_seeds=range(30), test_seeds=[]))
    assert [t.prompt for t in game.split("train")] == [f"Seed {seed}." for seed in range(30)]


class Waiting(Game):
    async def reset(self, seed: int | None = None, **more: Any) -> Told:  # type: ignore[override]
        return super().reset(seed)

    async def step(self, action: Guess, **more: Any) -> Told:  # type: ignore[override]
        return super().step(action)


def test_environment_that_is_awaited_is() -> None:
    assert adapt(Waiting(), "game").grade(task(), [miss(0), secret(0)]) == pytest.approx(0.9)


@dataclasses.dataclass(kw_only=True)
class OldGuess:
    word: str
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)


class OldGame(Game):
    def step(self, action: OldGuess, **more: Any) -> Told:  # type: ignore[override]
        return super().step(Guess(word=action.word))


class BareGame(Game):
    """Its step says no more than ``Action``; the class that it derives from says which one."""

    def step(self, action: Action, **more: Any) -> Told:
        return super().step(action)  # type: ignore[arg-type]


class Optional2(Action):
    word: str
    reason: str = ""
    count: int = 0


class OptionalGame(Game):
    def step(self, action: Optional2, **more: Any) -> Told:  # type: ignore[override]
        return super().step(Guess(word=action.word))


@pytest.mark.parametrize("game", [OldGame, BareGame, OptionalGame])
def test_text_field_is_found(game: type[Game]) -> None:
    assert adapt(game(), "game").grade(task(), [secret(0)]) == 1.0


# What is refused, each in one sentence


def environment(step: Callable[..., Any] | None = None, reset: Callable[..., Any] | None = None, **more: Any) -> Any:
    """Return a game with another step or reset."""
    methods = {"step": step, "reset": reset}
    cls = type("Odd", (Game,), {name: method for name, method in methods.items() if method})
    return cls(**more)


class Number(Action):
    number: int


class Two(Action):
    word: str
    reason: str


class Also(Action):
    word: str
    number: int


def taking(action: Any) -> Any:
    def step(self: Any, action: Any, **more: Any) -> Told:
        return Told(done=True)

    step.__annotations__["action"] = action
    return environment(step)


def unannotated() -> Any:
    class Plain(Environment):  # type: ignore[type-arg]
        def reset(self, seed=None, **more):  # type: ignore[no-untyped-def]
            return Told()

        def step(self, action, **more):  # type: ignore[no-untyped-def]
            return Told()

        @property
        def state(self) -> State:
            return State()

    return Plain()


def without_seed(self: Any) -> Told:
    return Told(text="Hello.")


def of_the_system(self: Any, seed: int | None = None, **more: Any) -> Told:
    return Told(text=os.urandom(8).hex())


def secretly_random(self: Any, seed: int | None = None, **more: Any) -> Told:
    self.secret, self.turns = random.random(), 0
    return Told(text="Guess my number.")


def says_the_secret(self: Any, action: Guess, **more: Any) -> Told:
    return Told(text=f"It was {self.secret}.", done=True)


def ends_itself(self: Any, seed: int | None = None, **more: Any) -> Told:
    sys.exit(4)


def kills_itself(self: Any, seed: int | None = None, **more: Any) -> Told:
    os._exit(4)


class McpGame(MCPEnvironment):
    def __init__(self) -> None:
        pass

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Told:
        return Told()

    def _step_impl(self, action: Action, timeout_s: float | None = None, **more: Any) -> Told:
        return Told()

    @property
    def state(self) -> State:
        return State()


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a class": (lambda: Game, r"gave the class Game; return an environment, Game\(\)"),
    "no text": (lambda: taking(Number), "action class Number needs exactly one text field .* it has none"),
    "two texts": (lambda: taking(Two), "action class Two needs exactly one text field .* it has word, reason"),
    "text and more": (lambda: taking(Also), "action class Also also needs number; a model's turn is one text, word"),
    "no action class": (lambda: taking(int | str), r"the action of Odd is int \| str; expected one class"),
    "no annotation": (unannotated, "Plain.step says not which class its action is of; annotate it"),
    "tools by MCP": (McpGame, "McpGame offers its tools by MCP"),
    "no seed": (lambda: environment(reset=without_seed), "Odd.reset takes no seed"),
    "system's random": (lambda: environment(reset=of_the_system), "with seed 0, at reset, it gave"),
    "unseeded random": (
        lambda: environment(says_the_secret, secretly_random),
        "does not play the same episode for the same seed: with seed 0, after 1 fixed actions",
    ),
    "seeds that are none": (lambda: Game(train_seeds=["a"]), "train_seeds holds 'a'; expected whole numbers"),
    "a seed": (lambda: Game(test_seeds=True), "test_seeds holds 'True'; expected whole numbers"),
    "seeds twice": (lambda: Game(test_seeds=[1, 1]), "test_seeds names a seed twice"),
    "endless seeds": (lambda: Game(train_seeds=range(10**6)), "train_seeds has 1000000 seeds; at most 10000"),
    "no seeds": (lambda: Game(train_seeds=[], test_seeds=[]), "train_seeds and test_seeds are both empty"),
}


@pytest.mark.parametrize(("make", "reason"), REFUSED.values(), ids=REFUSED)
def test_environment_that_cannot_be_graded_is_refused_in_a_sentence(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(Refused, match=reason) as caught:
        adapt(make(), "game")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("reset", "reason"),
    [(ends_itself, "episode of seed 0 failed: SystemExit: 4"), (kills_itself, "ended its process with exit code 4")],
)
def test_environment_that_ends_its_process_is_a_fault(reset: Callable[..., Any], reason: str) -> None:
    with pytest.raises(EnvironmentFault, match=reason):
        adapt(environment(reset=reset), "game")


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_reward_that_is_no_number_reaches_the_verdict(reward: float) -> None:
    def step(self: Any, action: Guess, **more: Any) -> Told:
        return Told.model_construct(text="", done=True, reward=reward)

    assert adapt(environment(step), "game").grade(task(), ["x"]) == pytest.approx(reward, nan_ok=True)


def test_reward_that_is_text_is_a_fault() -> None:
    def step(self: Any, action: Guess, **more: Any) -> Told:
        return Told.model_construct(text="", done=True, reward="1")

    with pytest.raises(TypeError, match="the observation's reward is str"):
        adapt(environment(step), "game").grade(task(), ["x"])


# What is told


class Line(NamedTuple):
    content: str


class Chat(Observation):
    prompt: str = ""
    hint: str = ""
    messages: list[Any] = Field(default_factory=list)
    board: list[list[int]] = Field(default_factory=list)


def chat(*contents: str, **more: Any) -> Chat:
    return Chat(messages=[Line(content) for content in contents], metadata={"solution": "42"}, **more)


@pytest.mark.parametrize(
    ("observation", "before", "said"),
    [
        (Told(text="Hello."), None, "Hello."),
        (Told(text="Hello."), Told(text="Hello."), "Hello."),
        (chat(prompt="Play.", hint="Be quick."), None, "Play.\nBe quick."),
        (chat("Play.", prompt="Play."), None, "Play."),
        (chat("Play.", "guess", "Wrong."), chat("Play."), "Wrong."),
        (chat("Play.", "guess", "Wrong.", prompt="Play."), chat("Play.", prompt="Play."), "Wrong."),
        (chat("Play.", "Wrong.", prompt="Wrong."), chat("Play.", prompt="Play."), "Wrong."),
        (chat("Wrong."), chat("Play."), "Wrong."),
        (chat("Play.", prompt="Play."), chat("Play.", prompt="Play."), "Play."),
        (Chat(messages=[{"content": "As a dict."}]), None, "As a dict."),
        # as TextArena's wrapper has it: one message that grows, and a prompt that becomes the game's name
        (chat("\n[GAME] Play.", prompt="[GAME] Play."), None, "[GAME] Play."),
        (
            chat("\n[GAME] Play.\n[Player] guess\n[GAME] No.", prompt="Game-v0"),
            chat("\n[GAME] Play.", prompt="[GAME] Play."),
            "[GAME] No.",
        ),
        (chat("[GAME] Play.\n[Player] guess"), chat("[GAME] Play."), "[GAME] Play.\n[Player] guess"),
        (chat("Play.", "No.", hint="New."), chat("Play.", hint="Old."), "New.\nNo."),
        (Chat(board=[[1, 2]]), None, '{"board": [[1, 2]], "hint": "", "messages": [], "prompt": ""}'),
    ],
)
def test_observation_is_told_as_text(observation: Observation, before: Observation | None, said: str) -> None:
    assert describe(observation, before, "guess") == said


def test_adapter_says_what_it_is() -> None:
    adapter: Adapter = adapt(Game(), "game")
    assert (adapter.kind, adapter.episodes) == ("openenv", True)
