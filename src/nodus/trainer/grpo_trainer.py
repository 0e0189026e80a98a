"""TRL's GRPOTrainer with what Nodus adds: shared prompts, exact resume, faults left out, and figures for every step.

The algorithm and the loss are TRL's. Overridden here are how completions are sampled and scored (the same numbers in
fewer operations), the order of tasks (a function of seed and epoch, so that a resumed run continues it), the removal of
completions whose grader could not run, and the measuring of the KL divergence where ``beta`` is 0. Episodes of several
turns come in as TRL's rollouts: one completion each, whose ``tool_mask`` is 1 at the model's own tokens; the others are
attended to and are in no loss, entropy or length.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Sampler
from transformers import Trainer
from trl import GRPOTrainer
from trl.models import unwrap_model_for_generation
from trl.trainer.utils import pad, split_tensor_dict

from nodus.trainer.episodes import Episode, Player, figures
from nodus.trainer.generation import Sampling, generate
from nodus.trainer.rewards import SocketRewards
from nodus.trainer.scoring import add_scoring, pack, score, supports_packing

_ROWS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "sampling_per_token_logps")


@dataclass(slots=True)
class StepFigures:
    """What one optimizer step measured of itself, summed over its micro-batches."""

    rows: int = 0
    """Completions in the loss."""
    completion_tokens: int = 0
    """The model's own tokens in the loss."""
    tokens: int = 0
    """Tokens that were run for the loss: prompts, the model's and the environment's."""
    kl: float | None = None
    """Mean KL divergence from the base model over the tokens of one group; None where it is not measured apart."""
    kl_seconds: float = 0.0


class EpochSampler(Sampler[int]):
    """TRL's RepeatSampler with an order that follows from seed and epoch alone.

    TRL draws each epoch's permutation from one generator, which a resumed process starts anew: it would see the first
    epoch's order in every epoch it resumes in. The permutations here are TRL's, drawn up to the epoch asked for.

    Args:
        num_tasks: Length of the data set.
        group: Times each task is repeated in a batch (G).
        tasks_per_batch: Different tasks of one generation batch; what is left over at an epoch's end is dropped.
        repeats: Times a batch is yielded, once a micro-step that uses it.
        seed: Seed of the order.
    """

    def __init__(self, num_tasks: int, group: int, tasks_per_batch: int, repeats: int, seed: int) -> None:
        self._num_tasks = num_tasks
        self._group = group
        self._tasks_per_batch = tasks_per_batch
        self._repeats = repeats
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration yields, from 0."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed)
        for _ in range(self._epoch):
            torch.randperm(self._num_tasks, generator=generator)
        order = torch.randperm(self._num_tasks, generator=generator).tolist()
        for start in range(0, self._num_tasks - self._tasks_per_batch + 1, self._tasks_per_batch):
            chunk = order[start : start + self._tasks_per_batch]
            for _ in range(self._repeats):
                for index in chunk:
                    yield from [index] * self._group

    def __len__(self) -> int:
        batches = self._num_tasks // self._tasks_per_batch
        return batches * self._tasks_per_batch * self._group * self._repeats


class GroupTrainer(GRPOTrainer):
    """A GRPOTrainer whose data set names tasks and whose prompts are token ids prepared beforehand.

    Args:
        prompt_ids: Token ids of every task's prompt, by task id; the data set's ``prompt`` column holds the task id.
        on_checkpoint: Called with a checkpoint's directory once transformers has written it.
        **arguments: Those of GRPOTrainer; the reward of episodes is a ``SocketRewards``.
    """

    def __init__(
        self,
        *,
        prompt_ids: Mapping[str, list[int]],
        on_checkpoint: Callable[[Path], None] | None = None,
        **arguments: Any,
    ) -> None:
        self._buffered_inputs: list[dict[str, Any]] | None = None
        super().__init__(**arguments)
        self._prompt_ids = prompt_ids
        self._player: Player | None = None
        self._own: torch.Tensor | None = None
        self.episodes: dict[str, Any] = {}
        """Figures of the episodes sampled last, of this process; empty for completions."""
        self._on_checkpoint = on_checkpoint
        self._unscored: torch.Tensor | None = None
        self._sampled_in = -1
        self.sampling_entropy: float | None = None
        self.figures = StepFigures()
        self.no_contrast_share: float | None = None
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        self._packs = supports_packing(base) and not (self.is_deepspeed_enabled or self.is_fsdp_enabled)
        if self._packs:
            add_scoring(base, self.temperature)

    # ---- data ------------------------------------------------------------------------------------------------------

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        return EpochSampler(
            len(self.train_dataset if dataset is None else dataset),
            self.num_generations,
            self.args.generation_batch_size // self.num_generations,
            self.num_iterations * self.args.steps_per_generation,
            self.args.seed,
        )

    @property
    def at_generation_boundary(self) -> bool:
        """Whether the completions sampled so far are used up: an unbroken run and a resumed one both sample next."""
        return self._step % (self.args.steps_per_generation * self.num_iterations) == 0

    # ---- sampling --------------------------------------------------------------------------------------------------

    @property
    def player(self) -> Player | None:
        """Plays episodes in place of sampling one completion a prompt; None for completions."""
        return self._player

    @player.setter
    def player(self, player: Player | None) -> None:
        self._player = player
        self.rollout_func = None if player is None else self._play

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [self._prompt_ids[task_id] for task_id in prompts], None, {}

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], images: Any, multimodal_fields: Any, num_generations: int, *rest: Any
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            return super()._generate_single_turn(prompt_ids, images, multimodal_fields, num_generations, *rest)
        # A process may hold part of a group: copies of a prompt are those that stand next to each other here.
        unique, copies = _runs(prompt_ids)
        with self._sampler() as model:
            completions = generate(
                model,
                unique,
                copies=copies,
                max_new_tokens=self.max_completion_length,
                stop_ids=self.eos_token_ids,
                pad_id=self._tokenizer.pad_token_id,
                sampling=Sampling(self.temperature, self.top_k, self.top_p),
            )
        self._sampled([c.entropies for c in completions])
        return [c.tokens for c in completions], [c.log_probs for c in completions]

    @contextmanager
    def _sampler(self) -> Iterator[Any]:
        """The model to sample with, in the precision of the training."""
        unwrap = unwrap_model_for_generation(
            self.model_wrapped,
            self.accelerator,
            gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,
        )
        with unwrap as model, self.accelerator.autocast():
            yield model

    def _sampled(self, entropies: list[list[float]]) -> None:
        self._sampled_in = self.state.global_step
        drawn = [entropy for row in entropies for entropy in row]
        self.sampling_entropy = sum(drawn) / len(drawn)

    def _play(self, task_ids: list[str], _: Any) -> dict[str, list[Any]]:
        """TRL's rollout: an episode of every task, its environment's tokens masked."""
        assert self._player is not None
        rewards = self.reward_funcs[0]
        assert isinstance(rewards, SocketRewards)
        step = self.state.global_step + 1
        numbers = rewards.numbers(len(task_ids), step)
        episodes = [Episode(task_id, number) for task_id, number in zip(task_ids, numbers, strict=True)]
        prompt_ids = [self._prompt_ids[task_id] for task_id in task_ids]
        sampling = Sampling(self.temperature, self.top_k, self.top_p)
        with self._sampler() as model:
            copies = _runs(prompt_ids)[1]
            self._player.play(model, episodes, copies=copies, sampling=sampling, phase="Training", step=step)
        self._sampled([episode.entropies for episode in episodes])
        environment = [len(episode.own) - sum(episode.own) for episode in episodes]
        self.episodes = figures([e.end for e in episodes], [len(e.turns) for e in episodes], environment)
        own = [episode.own for episode in episodes]
        self._own = pad([torch.tensor(row) for row in own], padding_value=0).to(self.accelerator.device)
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": [episode.tokens for episode in episodes],
            "logprobs": [episode.log_probs for episode in episodes],
            "env_mask": own,
            "episode": episodes,
        }

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        try:
            batch = super()._generate_and_score_completions(inputs)
        finally:
            self._own = None
        unscored = self._unscored
        if unscored is not None and bool(unscored.any()):
            # TRL leaves an unrewarded completion out of its group's mean and deviation and gives it no advantage; its
            # tokens would still count in the loss's normaliser and in the KL penalty.
            rank, rows = self.accelerator.process_index, len(inputs)
            local = unscored[rank * rows : (rank + 1) * rows].to(batch["completion_mask"].device)
            batch["completion_mask"] = batch["completion_mask"].masked_fill(local.unsqueeze(1), 0)
            batch["num_items_in_batch"] = self.accelerator.gather(_loss_mask(batch).sum()).sum()
        return batch

    def _calculate_rewards(self, *arguments: Any) -> torch.Tensor:
        rewards = super()._calculate_rewards(*arguments)
        self._unscored = rewards.isnan().all(dim=1)
        groups = rewards.nansum(dim=1).masked_fill(self._unscored, torch.nan).view(-1, self.num_generations)
        high = groups.nan_to_num(nan=-torch.inf).max(dim=1).values
        low = groups.nan_to_num(nan=torch.inf).min(dim=1).values
        # A group with no scored completion teaches as little as one whose rewards are all equal.
        self.no_contrast_share = float((high <= low).float().mean())
        return rewards

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """TRL's buffering of a generation batch without its shuffle, so that a group stays in one micro-batch.

        The loss is a sum over the batch, divided by a number of the whole batch: its gradient is that of any order.
        """
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        if self.at_generation_boundary or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = split_tensor_dict(batch, self.args.steps_per_generation)
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    # ---- loss ------------------------------------------------------------------------------------------------------

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **fields: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        if not self._packs or compute_aux_loss or model is self.ref_model:
            return super()._get_per_token_logps_and_entropies(
                model,
                input_ids,
                attention_mask,
                logits_to_keep,
                batch_size,
                compute_entropy,
                compute_aux_loss,
                **fields,
            )
        size = batch_size or len(input_ids)
        parts = []
        for start in range(0, len(input_ids), size):
            ids, mask = input_ids[start : start + size], attention_mask[start : start + size]
            own = None if self._own is None else self._own[start : start + size]
            packed = pack(ids, mask, logits_to_keep, self._tokenizer.pad_token_id, own)
            with self.accelerator.autocast():
                parts.append(score(model, packed, (len(ids), logits_to_keep), self.model.dtype))
        log_probs = torch.cat([part[0] for part in parts])
        entropies = torch.cat([part[1] for part in parts]) if compute_entropy else None
        return log_probs, entropies, None

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self._count(inputs)
        if self._first_of_step and self.beta == 0 and self._has_reference:
            self._measure_kl()
        if self._without_gradient(inputs):
            # Zero gradients rather than none: the optimizer still takes its step, momentum and decay included.
            return sum((p * 0).sum() for p in model.parameters() if p.requires_grad)
        with self._scoring(inputs):
            return super()._compute_loss(model, inputs)

    @contextmanager
    def _scoring(self, inputs: Mapping[str, Any]) -> Iterator[None]:
        """Have the model's own tokens of a batch scored alone: TRL passes no mask of them on to where they are."""
        self._own = inputs.get("tool_mask")
        try:
            yield
        finally:
            self._own = None

    @property
    def _first_of_step(self) -> bool:
        return self.figures.kl_seconds == 0.0

    @property
    def _has_reference(self) -> bool:
        return hasattr(self.model, "disable_adapter")

    def _without_gradient(self, inputs: dict[str, Any]) -> bool:
        """Whether a micro-batch's loss has a gradient of exactly zero: no advantage, no penalty, no other process."""
        if self.beta != 0 or self.accelerator.num_processes > 1:
            return False
        return not bool((inputs["advantages"] != 0).any()) or not bool(inputs["completion_mask"].any())

    def _count(self, inputs: dict[str, Any]) -> None:
        lengths = inputs["completion_mask"].sum(dim=1)
        prompts = inputs["prompt_mask"].sum(dim=1)
        self.figures.rows += int((lengths > 0).sum())
        self.figures.completion_tokens += int(_loss_mask(inputs).sum())
        self.figures.tokens += int(lengths.sum()) + int(prompts[lengths > 0].sum())

    @torch.no_grad()
    def _measure_kl(self) -> None:
        """Measure the KL divergence from the base model on one group of the step, with dropout off."""
        started = time.perf_counter()
        rows = self._one_group()
        mask = _loss_mask(rows)
        ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
        attention = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
        arguments = (ids, attention, mask.size(1), self.args.per_device_train_batch_size)
        training = self.model.training
        self.model.eval()
        policy = rows.get("sampling_per_token_logps")
        with self._scoring(rows):
            if policy is None or self._sampled_in != self.state.global_step:
                # The weights have moved since these were sampled, or the sampler kept no log-probabilities.
                policy = self._get_per_token_logps_and_entropies(self.model, *arguments)[0]
            with self.accelerator.unwrap_model(self.model).disable_adapter():
                base = self._get_per_token_logps_and_entropies(self.model, *arguments)[0]
        self.model.train(training)
        difference = (base - policy).double()
        divergence = (difference.exp() - difference - 1) * mask
        tokens = int(mask.sum())
        self.figures.kl = float(divergence.sum() / tokens) if tokens else None
        self.figures.kl_seconds = max(time.perf_counter() - started, 1e-9)

    def _one_group(self) -> dict[str, torch.Tensor]:
        parts, rows = [], 0
        assert self._buffered_inputs is not None
        for part in self._buffered_inputs[self._step % self.args.steps_per_generation :]:
            parts.append(part)
            rows += len(part["prompt_ids"])
            if rows >= self.num_generations:
                break
        keys = [key for key in _ROWS if key in parts[0]]
        return {key: torch.cat([part[key] for part in parts])[: self.num_generations] for key in keys}

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # transformers' own: TRL's adds a model card, which a recovery checkpoint has no use for.
        Trainer._save_checkpoint(self, model, trial)
        self.accelerator.wait_for_everyone()
        if self._on_checkpoint is not None and self.args.should_save:
            self._on_checkpoint(Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}")


def _loss_mask(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Ones at the completion tokens that a batch's loss is about: all of a completion's, an episode's own ones."""
    mask = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask


def _runs(prompt_ids: list[list[int]]) -> tuple[list[list[int]], int]:
    """Prompts without their repetitions, and how often each stands there; 1 when they are not evenly repeated."""
    unique: list[list[int]] = []
    counts: list[int] = []
    for ids in prompt_ids:
        if unique and unique[-1] == ids:
            counts[-1] += 1
        else:
            unique.append(ids)
            counts.append(1)
    return (unique, counts[0]) if len(set(counts)) == 1 else (list(prompt_ids), 1)
