"""The callback that reports every step and decides when to save."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from nodus.runtime import progress
from nodus.runtime.sending import emit
from nodus.runtime.subscription import Subscription
from nodus.trainer.attempt import AttemptClient
from nodus.trainer.grpo_trainer import StepFigures

if TYPE_CHECKING:
    from nodus.trainer.grpo_trainer import GroupTrainer

_REPORTED = ("reward", "loss", "kl", "learningRate", "gradNorm", "entropy", "completionLength", "tokensPerSecond")
"""Figures that the Job shows too; the TrainingJob has all of them."""
_HISTORY = 100
"""Log entries kept in a checkpoint's trainer state; the server has them all."""


class Progress(TrainerCallback):
    """Sends a Metrics event every step, writes a log line every ``loggingSteps``, asks for checkpoints and validations.

    While it trains, a run that is to be suspended is asked for a checkpoint: it is saved at the next boundary.

    Args:
        attempt: Where events go; None in processes that report nothing.
        logging_steps: Steps between log lines.
        save_steps: Steps between checkpoints.
        validate: Called with the step after every ``eval_steps``-th one but the last, which has the final evaluation.
        eval_steps: Steps between validations; None for none.
    """

    def __init__(
        self,
        attempt: AttemptClient | None,
        *,
        logging_steps: int,
        save_steps: int,
        validate: Callable[[int], Mapping[str, Any]] | None = None,
        eval_steps: int | None = None,
    ) -> None:
        self._attempt = attempt
        self._logging_steps = logging_steps
        self._save_steps = save_steps
        self._validate = validate
        self._eval_steps = eval_steps
        self._trainer: GroupTrainer | None = None
        self._started = 0.0
        self._seconds = 0.0
        self._sampled: dict[str, Any] = {}
        self._saved_at = 0
        self._requests = Subscription()
        self._answering: str | None = None
        self.last: dict[str, Any] = {}
        """The newest Metrics event."""

    def attach(self, trainer: GroupTrainer) -> None:
        """Give the callback the trainer whose figures it reports."""
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count checkpoints from the step the training starts at, and listen for requests."""
        self._saved_at = state.global_step
        # Of several processes only one would know of a request, and all have to save.
        if self._attempt is not None and args.world_size == 1:
            self._requests.listen()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Answer the request that the checkpoint was saved for."""
        if self._answering is not None:
            self._requests.answer(self._answering)
            self._answering = None

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Listen no longer: the last checkpoint is saved."""
        self._requests.close()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the step's clock and figures."""
        assert self._trainer is not None
        self._trainer.figures = StepFigures()
        self._started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop the clock and ask for a checkpoint when one is due and the samples in hand are used up."""
        assert self._trainer is not None
        self._seconds = time.perf_counter() - self._started
        last = state.global_step >= state.max_steps
        asked = self._requests.pending
        due = asked is not None or state.global_step - self._saved_at >= self._save_steps
        # After the last step there is nothing left to sample for, so that checkpoint needs no boundary.
        if last or (due and self._trainer.at_generation_boundary):
            control.should_save = True
            self._saved_at, self._answering = state.global_step, asked

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Report a step; transformers' closing summary has no loss of a step and is passed over."""
        if logs is None or "loss" not in logs or self._trainer is None:
            return
        event = {**self._event(state, logs), **self._validation(state)}
        self.last = event
        del state.log_history[:-_HISTORY]
        if self._attempt is None:
            return
        self._attempt.events([event])
        progress(state.global_step, state.max_steps)
        emit({"type": "metrics", "step": state.global_step, **{name: event.get(name) for name in _REPORTED}})
        if state.global_step % self._logging_steps == 0 or state.global_step in (1, state.max_steps):
            sys.stdout.write(_line(event) + "\n")
            sys.stdout.flush()

    def _event(self, state: Any, logs: Mapping[str, Any]) -> dict[str, Any]:
        assert self._trainer is not None
        figures = self._trainer.figures
        if "reward" in logs:
            # A step that reuses completions sampled earlier shows the rewards they got then.
            self._sampled = {"reward": logs["reward"], "rewardStd": logs["reward_std"], **self._trainer.episodes}
        seconds = self._seconds - figures.kl_seconds
        return {
            "id": f"metrics-{state.global_step}",
            "type": "Metrics",
            "step": state.global_step,
            "totalSteps": state.max_steps,
            **self._sampled,
            "noContrastShare": self._trainer.no_contrast_share,
            "loss": float(logs["loss"]),
            "kl": figures.kl if figures.kl is not None else logs.get("kl"),
            "learningRate": logs.get("learning_rate"),
            "gradNorm": _number(logs.get("grad_norm")),
            # Of all completions sampled; the loss's own leaves out the groups that it need not compute.
            "entropy": logs.get("entropy")
            if self._trainer.sampling_entropy is None
            else self._trainer.sampling_entropy,
            "completionLength": figures.completion_tokens / figures.rows if figures.rows else None,
            "tokensPerSecond": figures.tokens / seconds if seconds > 0 else None,
            "stepSeconds": seconds,
            "klSeconds": figures.kl_seconds,
        }

    def _validation(self, state: Any) -> dict[str, Any]:
        due = self._eval_steps is not None and state.global_step % self._eval_steps == 0
        if not due or self._validate is None or state.global_step >= state.max_steps:
            return {}
        figures = self._validate(state.global_step)
        return {"validationPassRate": figures["passRate"], "validationMeanReward": figures["meanReward"]}


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _line(event: Mapping[str, Any]) -> str:
    def shown(name: str) -> str:
        value = event.get(name)
        return "-" if value is None else f"{value:.4g}"

    names = ["reward", "rewardStd", "loss", "kl", "learningRate", "entropy", "completionLength", "noContrastShare"]
    names += ["turns"] if "turns" in event else []
    figures = " ".join(f"{name}={shown(name)}" for name in names)
    return f"step {event['step']}/{event['totalSteps']} {figures} {shown('stepSeconds')}s"
