"""Greedy evaluation of held-out tasks: complete, have graded, count."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodus.trainer.attempt import VERDICTS, AttemptClient, Phase, Sample, Task, Verdict
from nodus.trainer.episodes import Episode, Player, figures
from nodus.trainer.generation import GREEDY, generate
from nodus.trainer.grpo_config import EVALUATION_BATCH, completion_length
from nodus.trainer.models import stop_ids
from nodus.trainer.parameters import Values


@dataclass(frozen=True, slots=True)
class Scores:
    """The result of one evaluation: every task's completion and verdict, in task order."""

    phase: str
    step: int
    seconds: float
    rows: tuple[Mapping[str, Any], ...]
    """``taskId``, ``completion``, ``verdict``, ``outcome``, ``reward`` of each task; of an episode, whose completion is
    its last reply, also its ``messages`` after the prompt, ``turns``, ``environmentTokens`` and ``end``."""

    def counts(self) -> dict[str, Any]:
        """The figures of the evaluation; a task whose grader failed is an error and in no rate.

        ``passRate`` and ``meanReward`` are None when nothing was scored. Those of episodes follow.
        """
        scored = [row for row in self.rows if row["outcome"] != "Error"]
        passed = sum(row["outcome"] == "Passed" for row in scored)
        rewards = [row["reward"] for row in scored]
        return {
            "tasks": len(self.rows),
            "passed": passed,
            "errors": len(self.rows) - len(scored),
            "passRate": passed / len(scored) if scored else None,
            "meanReward": sum(rewards) / len(rewards) if rewards else None,
            "seconds": round(self.seconds, 3),
            "step": self.step,
            **self._episodes(),
        }

    def _episodes(self) -> dict[str, Any]:
        played = [row for row in self.rows if "turns" in row]
        columns = [[row[name] for row in played] for name in ("end", "turns", "environmentTokens")]
        return figures(*columns)

    def to_json(self) -> dict[str, Any]:
        """The scores as they are kept in the state directory."""
        return {"phase": self.phase, "step": self.step, "seconds": self.seconds, "rows": list(self.rows)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Scores:
        """Read what ``to_json`` wrote."""
        return cls(value["phase"], value["step"], value["seconds"], tuple(value["rows"]))


class Evaluator:
    """Evaluates one model on one set of tasks, any number of times.

    Args:
        model: The causal language model, with or without adapter; as it is at the time of each call.
        tokenizer: Its tokenizer.
        prompts: Token ids of every task's prompt, by task id.
        tasks: The tasks, in the order they are graded.
        values: The run's parameters.
        attempt: Where completions are graded.
        player: Plays an episode of each task; None where one reply is all there is to it.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        prompts: Mapping[str, list[int]],
        tasks: Sequence[Task],
        values: Values,
        attempt: AttemptClient,
        player: Player | None = None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._tasks = tasks
        self._batch = values["evaluationBatchSize"] or EVALUATION_BATCH
        self._max_new_tokens = completion_length(values)
        self._attempt = attempt
        self._player = player

    def run(self, phase: Phase, step: int) -> Scores:
        """Complete every task greedily and have the completions graded, a batch at a time."""
        started = time.monotonic()
        rows: list[Mapping[str, Any]] = []
        for start in range(0, len(self._tasks), self._batch):
            batch = self._tasks[start : start + self._batch]
            if self._player is not None:
                rows += self._play(batch, phase, step)
                continue
            texts = self._complete(batch)
            samples = [Sample(task.id, 0, text) for task, text in zip(batch, texts, strict=True)]
            verdicts = self._attempt.grade(phase, step, samples)
            rows += [_row(text, verdict) for text, verdict in zip(texts, verdicts, strict=True)]
        return Scores(phase, step, time.monotonic() - started, tuple(rows))

    def _complete(self, tasks: Sequence[Task]) -> list[str]:
        completions = generate(
            self._model,
            [self._prompts[task.id] for task in tasks],
            copies=1,
            max_new_tokens=self._max_new_tokens,
            stop_ids=stop_ids(self._model, self._tokenizer),
            pad_id=self._tokenizer.pad_token_id,
            sampling=GREEDY,
        )
        return self._tokenizer.batch_decode([c.tokens for c in completions], skip_special_tokens=True)

    def _play(self, tasks: Sequence[Task], phase: Phase, step: int) -> list[dict[str, Any]]:
        assert self._player is not None
        episodes = [Episode(task.id, 0) for task in tasks]
        self._player.play(self._model, episodes, copies=1, sampling=GREEDY, phase=phase, step=step)
        verdicts = iter(self._attempt.grade(phase, step, [e.to_sample() for e in episodes if e.failure is None]))
        return [_episode_row(e, next(verdicts) if e.failure is None else _failed(e)) for e in episodes]


def _failed(episode: Episode) -> Verdict:
    """The verdict of an episode that its environment could not go on with; nothing of it is graded."""
    name = "InfrastructureFailure"
    return Verdict(episode.task_id, episode.sample, name, VERDICTS[name], None, episode.failure)


def _episode_row(episode: Episode, verdict: Verdict) -> dict[str, Any]:
    return {
        **_row(episode.turns[-1], verdict),
        "messages": episode.messages,
        "turns": len(episode.turns),
        "environmentTokens": len(episode.own) - sum(episode.own),
        "end": episode.end,
    }


def _row(text: str, verdict: Verdict) -> dict[str, Any]:
    return {
        "taskId": verdict.task_id,
        "completion": text,
        "verdict": verdict.verdict,
        "outcome": verdict.outcome,
        "reward": verdict.reward,
    }
