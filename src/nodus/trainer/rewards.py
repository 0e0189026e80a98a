"""The reward of a GRPO step: its completions go to the platform's grader and the verdicts come back. Loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nodus.trainer.attempt import AttemptClient, Sample


class SocketRewards:
    """A TRL reward function that has completions graded over the attempt socket.

    A completion is named by its task and a sample number that is unique within the optimizer step it is sampled in,
    also when a step samples more than once and when a batch is spread over several processes.

    Args:
        attempt: Where completions are graded.
        group: Completions of one task in a batch (G); a batch is a whole number of groups over all processes.
        rank: This process; its completions are the slice ``rank * len(completions)`` onward of the whole batch.
    """

    __name__ = "grader"

    def __init__(self, attempt: AttemptClient, group: int, rank: int = 0) -> None:
        self._attempt = attempt
        self._group = group
        self._rank = rank
        self._step = -1
        self._calls = 0
        self.graded = 0
        """Completions graded so far."""
        self.failures = 0
        """Those of them whose grader could not run."""

    def __call__(
        self, *, prompts: Sequence[str], completions: Sequence[str], trainer_state: Any, **_: Any
    ) -> list[float | None]:
        """Grade a batch sampled in the step after ``trainer_state.global_step``.

        Args:
            prompts: Task id of every completion.
            completions: Text of every completion, same length.
            trainer_state: transformers' TrainerState.
            **_: Other columns that TRL passes along.

        Returns:
            One reward a completion; None where the grader could not run, which is not a reward of 0.
        """
        step = trainer_state.global_step + 1
        self._calls = self._calls + 1 if step == self._step else 0
        self._step = step
        first = self._rank * len(completions)
        samples = [
            Sample(task_id, self._calls * self._group + (first + i) % self._group, text)
            for i, (task_id, text) in enumerate(zip(prompts, completions, strict=True))
        ]
        verdicts = self._attempt.grade("Training", step, samples)
        self.graded += len(verdicts)
        self.failures += sum(v.reward is None for v in verdicts)
        return [v.reward for v in verdicts]
