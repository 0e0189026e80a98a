"""Task GRPO: baseline, training, final evaluation, outputs; every part of it resumable."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import PrinterCallback
from transformers.trainer_utils import set_seed
from trl import GRPOConfig

from nodus.core.errors import Cause, Invalid, Unsupported
from nodus.trainer import outputs
from nodus.trainer.attempt import AttemptClient, Task
from nodus.trainer.chat import render
from nodus.trainer.checkpoints import State, step_of
from nodus.trainer.episodes import player
from nodus.trainer.evaluation import Evaluator, Scores
from nodus.trainer.grpo_config import KEEP_CHECKPOINTS, Device, check, grpo_arguments, lora_arguments, prompt_length
from nodus.trainer.grpo_trainer import GroupTrainer
from nodus.trainer.models import detect_device, load_model, load_tokenizer, quiet
from nodus.trainer.progress import Progress
from nodus.trainer.rewards import SocketRewards
from nodus.trainer.run import Run
from nodus.trainer.scoring import model_attention


def run(spec: Run, attempt: AttemptClient) -> None:
    """Train an adapter (or the whole model) against the run's Environment.

    Raises:
        Invalid: When the parameters can't be trained as asked, naming every field.
        StateMismatch: When the state directory belongs to another run.
        GraderFailed: When the grader fails too often to learn from.
    """
    quiet()
    device = detect_device(spec.world["size"])
    train_tasks, held_out = attempt.tasks()
    check(spec.parameters, device, len(train_tasks))
    _check_evaluation(spec, held_out)
    state = State(spec.state_dir, spec.binding(), spec.parameters["saveTotalLimit"] or KEEP_CHECKPOINTS)
    if spec.is_main:
        state.open()
    session = prepare(spec, attempt, state, device, train_tasks, held_out)

    baseline = _baseline(session) if spec.evaluation.baseline else None
    training = _train(session)
    final = None
    if spec.evaluation.final and spec.is_main:
        attempt.stage("Evaluating")
        final = session.evaluator.run("Evaluation", session.trainer.state.global_step)
    if spec.is_main:
        _write(session, baseline, final, training)


@dataclass(frozen=True, slots=True)
class Session:
    """What a run is made of once its model is loaded."""

    spec: Run
    attempt: AttemptClient
    state: State
    device: Device
    tokenizer: Any
    trainer: GroupTrainer
    progress: Progress
    rewards: SocketRewards
    evaluator: Evaluator
    held_out: Sequence[Task]


def _check_evaluation(spec: Run, held_out: Sequence[Task]) -> None:
    wanted = spec.evaluation.baseline or spec.evaluation.final or spec.parameters["evalSteps"] is not None
    if wanted and not held_out:
        message = "an evaluation needs held-out tasks"
        cause = Cause("spec.environment.heldOutTasks", "FieldValueRequired", message)
        raise Invalid("this run has nothing to evaluate on", causes=[cause], fix="set spec.environment.heldOutTasks")


def prepare(
    spec: Run,
    attempt: AttemptClient,
    state: State,
    device: Device,
    train_tasks: Sequence[Task],
    held_out: Sequence[Task],
) -> Session:
    """Load the model and make everything ready up to the first step; nothing is graded yet.

    Args:
        spec: The run.
        attempt: Where completions are graded and events go.
        state: Its state directory, opened.
        device: What it trains on.
        train_tasks: Tasks to sample completions for.
        held_out: Tasks to evaluate on; may be empty.
    """
    values = spec.parameters
    tokenizer = load_tokenizer(spec.model_dir)
    prompts = render(tokenizer, [*train_tasks, *held_out], prompt_length(values))
    rewards = SocketRewards(attempt, values["numGenerations"], spec.world["rank"])
    trainer = _trainer(spec, state, device, tokenizer, prompts, [task.id for task in train_tasks], rewards)
    _check_strategy(values["distributed.strategy"], trainer)
    trainer.player = player(values, trainer.model, tokenizer, prompts, [*train_tasks, *held_out], attempt)
    if trainer.player is not None and (trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled):
        # Every process of a sharded model has to run it as often as the others, and episodes differ.
        raise Unsupported(
            f"{values['distributed.strategy']} plays no episodes, nor tasks with tools",
            fix="set spec.parameters.distributed.strategy to Auto or DDP",
        )
    evaluator = Evaluator(trainer.model, tokenizer, prompts, held_out, values, attempt, trainer.player)
    progress = Progress(
        attempt if spec.is_main else None,
        logging_steps=values["loggingSteps"],
        save_steps=values["saveSteps"],
        eval_steps=values["evalSteps"] if spec.is_main else None,
        validate=lambda step: evaluator.run("Evaluation", step).counts(),
    )
    progress.attach(trainer)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(progress)
    return Session(spec, attempt, state, device, tokenizer, trainer, progress, rewards, evaluator, held_out)


def _trainer(
    spec: Run,
    state: State,
    device: Device,
    tokenizer: Any,
    prompts: Mapping[str, list[int]],
    task_ids: Sequence[str],
    rewards: SocketRewards,
) -> GroupTrainer:
    values = spec.parameters
    set_seed(values["seed"])
    model = load_model(spec.model_dir, values, device, training=True)
    lora = lora_arguments(values)
    try:
        return GroupTrainer(
            prompt_ids=prompts,
            on_checkpoint=state.complete if spec.is_main else None,
            model=model,
            args=GRPOConfig(**grpo_arguments(values, device, str(state.checkpoint_dir))),
            reward_funcs=rewards,
            train_dataset=Dataset.from_list([{"prompt": task_id} for task_id in task_ids]),
            processing_class=tokenizer,
            peft_config=LoraConfig(**lora) if lora is not None else None,
        )
    except ValueError as error:
        # PEFT and TRL know the model's modules only now, and say which names they don't take.
        if not values.is_set("lora.targetModules") or not ("arget modules" in str(error) or "lm_head" in str(error)):
            raise
        cause = Cause("spec.parameters.lora.targetModules", "FieldValueInvalid", str(error).splitlines()[0])
        raise Invalid("the adapter can't be put on these modules", causes=[cause], fix="use all-linear") from error


def _check_strategy(asked: str, trainer: GroupTrainer) -> None:
    """Compare the strategy in force with the one asked for: accelerate falls back silently where it can't shard."""
    if asked in ("Auto", "DDP"):
        return
    in_force = trainer.accelerator.distributed_type.value
    if ("FSDP" if asked == "FSDP" else "DEEPSPEED") != in_force:
        raise Unsupported(
            f"spec.parameters.distributed.strategy is {asked}, and {in_force} is what is in force",
            fix="use Auto or DDP, or give the run several GPUs",
        )


def _baseline(session: Session) -> Scores | None:
    """Grade the untouched model, or take what an earlier attempt graded."""
    if not session.spec.is_main:
        return None
    kept = session.state.load("baseline")
    if kept is not None:
        return Scores.from_json(kept)
    session.attempt.stage("Baseline")
    scores = session.evaluator.run("Baseline", 0)
    session.state.keep("baseline", scores.to_json())
    return scores


def _train(session: Session) -> dict[str, Any]:
    """Train from the newest whole checkpoint to the last step; returns the training's figures."""
    trainer, state = session.trainer, session.state
    main = session.spec.is_main
    initial = state.load("initial")
    if initial is None:
        initial = {"weights": _weights_digest(trainer.model)}
        if main:
            state.keep("initial", initial)
    if main:
        session.attempt.stage("Training")
    checkpoint = state.latest()
    started = time.monotonic()
    if checkpoint is not None and _is_finished(trainer, checkpoint):
        trainer._load_from_checkpoint(str(checkpoint))
        trainer.state.global_step = step_of(checkpoint)
    else:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    changed = _weights_digest(trainer.model) != initial["weights"]
    if main:
        session.attempt.events([{"id": "diagnostics", "type": "Diagnostics", "weightsChanged": changed}])
    return {
        "steps": trainer.state.global_step,
        "secondsOfThisAttempt": round(time.monotonic() - started, 3),
        "resumedFromStep": step_of(checkpoint) if checkpoint else None,
        "weightsChanged": changed,
        "completionsGraded": session.rewards.graded,
        "gradingFailures": session.rewards.failures,
        "last": {k: v for k, v in session.progress.last.items() if k not in ("id", "type")},
    }


def _is_finished(trainer: GroupTrainer, checkpoint: Path) -> bool:
    """Whether a checkpoint is the training's last; transformers would start another epoch from it."""
    *_, max_steps = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
    return step_of(checkpoint) >= max_steps


def _weights_digest(model: Any) -> str:
    """The sha256 over the weights that are trained, in name order."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        if parameter.requires_grad:
            digest.update(name.encode())
            digest.update(parameter.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()


def _write(session: Session, baseline: Scores | None, final: Scores | None, training: Mapping[str, Any]) -> None:
    spec = session.spec
    outputs.clear(spec.output_dir)
    model = session.trainer.accelerator.unwrap_model(session.trainer.model)
    outputs.write_weights(model, session.tokenizer, spec.output_dir, spec.model.get("uri"))
    outputs.write_results(spec, baseline=baseline, final=final, tasks=session.held_out, training=training)
    attention = model_attention(model)
    outputs.write_provenance(spec, session.device, session.tokenizer.chat_template, attention=attention)
    outputs.write_manifest(spec.output_dir)
