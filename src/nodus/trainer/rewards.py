"""The reward of a GRPO step: its completions go to the platform's grader and the verdicts come back. Loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nodus.trainer.attempt import AttemptClient, Sample

if TYPE_CHECKING:
    from nodus.trainer.episodes import Episode


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

    def numbers(self, count: int, step: int) -> list[int]:
        """Sample numbers of the next batch of a step, of this process's ``count`` rows."""
        self._calls = self._calls + 1 if step == self._step else 0
        self._step = step
        first = self._rank * count
        return [self._calls * self._group + (first + i) % self._group for i in range(count)]

    def __call__(
        self,
        *,
        prompts: Sequence[str],
        completions: Sequence[str],
        trainer_state: Any,
        episode: Sequence[Episode] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """Grade a batch sampled in the step after ``trainer_state.global_step``.

        Args:
            prompts: Task id of every completion.
            completions: Text of every completion, same length; not looked at where there are episodes.
            trainer_state: transformers' TrainerState.
            episode: The episodes that were played, numbered; None for completions.
            **_: Other columns that TRL passes along.

        Returns:
            One reward a completion; None where the grader or the environment could not run, which is not a reward
            of 0.
        """
        step = trainer_state.global_step + 1
        if episode is None:
            rows = zip(prompts, self.numbers(len(prompts), step), completions, strict=True)
            return self._graded([Sample(*row) for row in rows], step)
        played = [e for e in episode if e.failure is None]
        rewards = iter(self._graded([e.to_sample() for e in played], step))
        self.failures += len(episode) - len(played)
        return [next(rewards) if e.failure is None else None for e in episode]

    def _graded(self, samples: Sequence[Sample], step: int) -> list[float | None]:
        verdicts = self._attempt.grade("Training", step, samples)
        self.graded += len(verdicts)
        self.failures += sum(v.reward is None for v in verdicts)
        return [v.reward for v in verdicts]
