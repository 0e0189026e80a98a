"""Episodes: the model replies, the environment answers, until it ends the episode or a cap is reached."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nodus.core.errors import Cause, Invalid
from nodus.trainer.attempt import AttemptClient, Phase, Sample, Task
from nodus.trainer.chat import Turns
from nodus.trainer.generation import Completion, Decoder, Sampling
from nodus.trainer.grpo_config import completion_length
from nodus.trainer.models import stop_ids
from nodus.trainer.parameters import PARAMETERS_PATH, Values

End = Literal["Environment", "MaxTurns", "MaxEpisodeTokens", "Failed"]
"""What ended an episode: the environment, a cap, or a failure of the environment."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long episodes may be."""

    turns: int
    """Replies of the model."""
    reply_tokens: int
    """Tokens of one reply."""
    episode_tokens: int | None = None
    """Tokens after the prompt, the model's and the environment's; None for as many as the model has positions."""
    positions: int | None = None
    """Tokens the model can tell apart, the prompt's included; None for no bound."""

    @classmethod
    def of(cls, values: Values, model: Any) -> Limits:
        """The limits that a run asks for and its model has."""
        positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        return cls(values["maxTurns"] or 1, completion_length(values), values["maxEpisodeTokens"], positions)

    def check(self, prompts: Iterable[Sequence[int]]) -> None:
        """Refuse episodes that the model has no room for.

        Raises:
            Invalid: When ``maxEpisodeTokens``, or where it is unset one reply, doesn't fit behind the longest prompt.
        """
        longest = max((len(ids) for ids in prompts), default=0)
        needed = self.episode_tokens or self.reply_tokens
        if self.positions is not None and longest + needed > self.positions:
            name = "maxEpisodeTokens" if self.episode_tokens else "maxCompletionLength"
            room = f"the model has {self.positions} positions and the longest prompt takes {longest}"
            cause = Cause(f"{PARAMETERS_PATH}.{name}", "FieldValueInvalid", f"{needed} tokens don't fit: {room}")
            raise Invalid("the model has no room for such episodes", causes=[cause], fix="lower the named field")

    def tokens(self, prompt: int) -> int:
        """Most tokens of an episode behind a prompt of so many."""
        asked = sys.maxsize if self.episode_tokens is None else self.episode_tokens
        return asked if self.positions is None else min(asked, self.positions - prompt)


@dataclass(slots=True)
class Episode:
    """One episode while it is played and after."""

    task_id: str
    sample: int
    tokens: list[int] = field(default_factory=list)
    """Everything after the prompt, the model's and the environment's."""
    own: list[int] = field(default_factory=list)
    """1 at each token that the model sampled, 0 at each of the environment's and the chat template's."""
    log_probs: list[float] = field(default_factory=list)
    """The policy's log-probability of each own token, 0 at the others; empty for greedy decoding."""
    entropies: list[float] = field(default_factory=list)
    """Entropy of what each own token was drawn from, the own ones alone; empty for greedy decoding."""
    turns: list[str] = field(default_factory=list)
    """The model's replies, as the environment reads them."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Replies and the environment's messages, in order."""
    end: End | None = None
    """None while it goes on."""
    failure: str | None = None
    """Why the environment could not go on."""

    def say(self, completion: Completion, text: str) -> None:
        """Append a reply of the model."""
        self.tokens += completion.tokens
        self.own += [1] * len(completion.tokens)
        self.log_probs += completion.log_probs
        self.entropies += completion.entropies
        self.turns.append(text)
        self.messages.append({"role": "assistant", "content": text})

    def hear(self, messages: Sequence[Mapping[str, Any]], tokens: Sequence[int]) -> None:
        """Append what the environment said, as the tokens the model reads."""
        self.tokens += tokens
        self.own += [0] * len(tokens)
        if self.log_probs:
            self.log_probs += [0.0] * len(tokens)
        self.messages += [dict(message) for message in messages]

    def to_sample(self) -> Sample:
        """The episode as it stands, to be answered or graded."""
        return Sample(self.task_id, self.sample, turns=tuple(self.turns))


class Player:
    """Plays episodes of one model with the environment behind an attempt's socket.

    Args:
        attempt: Where the environment answers.
        prompts: Token ids of every task's prompt, by task id.
        turns: How turns become tokens of the model's chat template.
        stop_ids: Tokens that end a reply.
        pad_id: Fills what is shorter.
        limits: How long episodes may be.
    """

    def __init__(
        self,
        attempt: AttemptClient,
        prompts: Mapping[str, Sequence[int]],
        turns: Turns,
        *,
        stop_ids: Sequence[int],
        pad_id: int,
        limits: Limits,
    ) -> None:
        self._attempt = attempt
        self._prompts = prompts
        self._turns = turns
        self._stop_ids = stop_ids
        self._pad_id = pad_id
        self.limits = limits

    def play(
        self, model: Any, episodes: Sequence[Episode], *, copies: int, sampling: Sampling, phase: Phase, step: int
    ) -> None:
        """Play new episodes to their ends, all of them turn by turn together.

        Args:
            model: As it is for ``Decoder``.
            episodes: Episodes of every task, ``copies`` of each standing together.
            copies: Episodes of one task; their prompt is computed once.
            sampling: How tokens are chosen.
            phase: What the episodes are played for.
            step: Optimizer step they belong to.

        Raises:
            BadRequest: When the chat template can't render what the environment says.
        """
        decoder = Decoder(
            model,
            stop_ids=self._stop_ids,
            pad_id=self._pad_id,
            sampling=sampling,
            keep=self.limits.turns > 1,
        )
        caps = [self.limits.tokens(len(self._prompts[episode.task_id])) for episode in episodes]
        live = list(range(len(episodes)))
        completions = decoder.start(
            [self._prompts[episode.task_id] for episode in episodes[::copies]],
            copies,
            [max(1, min(self.limits.reply_tokens, cap)) for cap in caps],
        )
        while True:
            for row, completion in zip(live, completions, strict=True):
                episodes[row].say(completion, self._turns.text(completion.tokens))
            said = self._answered([(row, episodes[row], caps[row]) for row in live], phase, step)
            if not said:
                return
            live = list(said)
            limits = [min(self.limits.reply_tokens, caps[row] - len(episodes[row].tokens)) for row in live]
            completions = decoder.go_on(live, list(said.values()), limits)

    def _answered(self, rows: Sequence[tuple[int, Episode, int]], phase: Phase, step: int) -> dict[int, list[int]]:
        """Let the environment answer; returns the tokens that it said in the episodes that go on, by their row."""
        asked = []
        for row, episode, cap in rows:
            if len(episode.turns) >= self.limits.turns:
                episode.end = "MaxTurns"
            elif len(episode.tokens) >= cap:
                episode.end = "MaxEpisodeTokens"
            else:
                asked.append((row, episode, cap))
        if not asked:
            return {}
        replies = self._attempt.reply(phase, step, [episode.to_sample() for _, episode, _ in asked])
        said = {}
        for (row, episode, cap), reply in zip(asked, replies, strict=True):
            if reply.error is not None:
                episode.end, episode.failure = "Failed", reply.error
            elif reply.messages is None:
                episode.end = "Environment"
            else:
                tokens = self._turns.between(reply.messages, episode.tokens[-1])
                if len(episode.tokens) + len(tokens) >= cap:
                    episode.end = "MaxEpisodeTokens"  # not a token would be left for the next reply
                else:
                    episode.hear(reply.messages, tokens)
                    said[row] = tokens
        return said


def player(
    values: Values,
    model: Any,
    tokenizer: Any,
    prompts: Mapping[str, Sequence[int]],
    tasks: Sequence[Task],
    attempt: AttemptClient,
) -> Player | None:
    """The player of a run's episodes; None for a run of single replies without tools, which has none.

    Args:
        values: The run's parameters.
        model: The model that plays.
        tokenizer: Its tokenizer.
        prompts: Token ids of every task's prompt, by task id.
        tasks: The tasks.
        attempt: Where the environment answers.

    Raises:
        Invalid: When the model has no room for the episodes asked for.
        BadRequest: When the tokenizer has no chat template, or one without a place for the environment's messages.
    """
    limits = Limits.of(values, model)
    if limits.turns == 1 and not any(task.tools for task in tasks):
        return None
    limits.check(prompts.values())
    ids = stop_ids(model, tokenizer)
    turns = Turns(tokenizer, ids)
    if limits.turns > 1:  # before anything is sampled
        for role in ("tool",) if any(task.tools for task in tasks) else ("user",):
            turns.check(role)
    return Player(attempt, prompts, turns, stop_ids=ids, pad_id=tokenizer.pad_token_id, limits=limits)


def figures(ends: Sequence[str | None], turns: Sequence[int], environment_tokens: Sequence[int]) -> dict[str, Any]:
    """What episodes were like: means a (whole or cut) episode, and how many of each end there were, as shares.

    Args:
        ends: What ended each.
        turns: Replies of the model in each.
        environment_tokens: Tokens of each that the model did not sample.
    """
    count = len(ends)
    if not count:
        return {}
    return {
        "turns": sum(turns) / count,
        "environmentTokens": sum(environment_tokens) / count,
        "maxTurnsShare": sum(end == "MaxTurns" for end in ends) / count,
        "maxEpisodeTokensShare": sum(end == "MaxEpisodeTokens" for end in ends) / count,
        "environmentFailures": sum(end == "Failed" for end in ends),
    }
