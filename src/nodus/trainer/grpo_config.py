"""How the declared parameters become TRL, PEFT and transformers arguments, and which of them this machine refuses.

Pure functions of the parameters and the device; torch is not imported. The trainer refuses here, by field path and
before a model is loaded, what would otherwise fail or be ignored somewhere inside a library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodus.core.errors import Cause, Invalid
from nodus.trainer.parameters import PARAMETERS_PATH, Values

KEEP_CHECKPOINTS = 2
"""Checkpoints kept when ``saveTotalLimit`` is unset: the newest, and the one before should the newest be damaged."""
EVALUATION_BATCH = 32
"""Prompts evaluated together when ``evaluationBatchSize`` is unset."""


@dataclass(frozen=True, slots=True)
class Device:
    """What the run's machine can do, as far as parameters depend on it."""

    kind: str = "cpu"
    """``cpu`` or ``cuda``."""
    bf16: bool = False
    """Whether a GPU computes in bfloat16."""
    processes: int = 1
    """Training processes, one a GPU."""

    @property
    def gpu(self) -> bool:
        """Whether there is a GPU."""
        return self.kind == "cuda"


def precision(values: Values, device: Device) -> str:
    """The precision in force: ``Auto`` is fp32 on a CPU, else bf16 where the GPU has it, else fp16."""
    asked = values["precision"]
    if asked != "Auto":
        return asked
    if not device.gpu:
        return "fp32"
    return "bf16" if device.bf16 else "fp16"


def completion_length(values: Values) -> int:
    """Tokens per reply: ``maxCompletionLength``, and no more than a whole episode may have."""
    episode = values["maxEpisodeTokens"]
    return values["maxCompletionLength"] if episode is None else min(values["maxCompletionLength"], episode)


def prompt_length(values: Values) -> int:
    """Tokens of a prompt that are kept, from its end, so that prompt and first reply fit ``maxLength``."""
    return values["maxLength"] - completion_length(values)


def generation_batch(values: Values, processes: int) -> int:
    """Completions sampled together, over all devices."""
    given = values["generationBatchSize"]
    return given if given is not None else values["batchSize"] * values["gradientAccumulation"] * processes


def check(values: Values, device: Device, train_tasks: int | None = None) -> None:
    """Refuse what this trainer can't do as asked.

    Args:
        values: The run's parameters, already valid one by one.
        device: The machine of the run.
        train_tasks: Number of training tasks; None where nothing is trained.

    Raises:
        Invalid: Naming every field that has to change, with its path.
    """
    causes = [*_shared_causes(values, device)]
    if train_tasks is not None:
        causes += [*_training_causes(values, device), *_batch_causes(values, device, train_tasks)]
    if causes:
        raise Invalid("this run can't be trained as asked", causes=causes, fix="correct the named fields")


def _cause(path: str, message: str, reason: str = "FieldValueInvalid") -> Cause:
    return Cause(f"{PARAMETERS_PATH}.{path}", reason, message)


def _shared_causes(values: Values, device: Device) -> list[Cause]:
    causes = []
    if prompt_length(values) < 1:
        message = (
            f"{values['maxLength']} leaves no room for a prompt beside {completion_length(values)} completion tokens"
        )
        causes.append(_cause("maxLength", message))
    if values["precision"] == "fp16" and not device.gpu:
        causes.append(_cause("precision", "fp16 needs a GPU; use fp32 or Auto on a CPU", "FieldValueNotSupported"))
    if values["precision"] == "bf16" and device.gpu and not device.bf16:
        causes.append(_cause("precision", "this GPU has no bf16; use fp16 or Auto", "FieldValueNotSupported"))
    if values["attention"] == "flash_attention_2" and not device.gpu:
        message = "flash_attention_2 needs a GPU; use sdpa or eager on a CPU"
        causes.append(_cause("attention", message, "FieldValueNotSupported"))
    return causes


def _training_causes(values: Values, device: Device) -> list[Cause]:
    causes = []
    if values["method"] == "QLoRA" and not device.gpu:
        message = "QLoRA needs a GPU; use LoRA on a CPU"
        causes.append(_cause("method", message, "FieldValueNotSupported"))
    strategy = values["distributed.strategy"]
    if strategy not in ("Auto", "DDP") and not device.gpu:
        message = f"{strategy} needs GPUs; use Auto or DDP on a CPU"
        causes.append(_cause("distributed.strategy", message, "FieldValueNotSupported"))
    if strategy not in ("Auto", "DDP") and (values["maxTurns"] or 1) > 1:
        # Every process of a sharded model has to run it as often as the others; episodes differ in turns.
        message = f"{strategy} does not play episodes of several turns; use Auto or DDP"
        causes.append(_cause("distributed.strategy", message, "FieldValueNotSupported"))
    if values["steps"] == 0:
        causes.append(_cause("steps", "0 steps train nothing; use -1 for epochs, or at least 1"))
    if values["sampling.temperature"] == 0:
        message = "0 samples the same completion every time, which gives a group no contrast; use more than 0"
        causes.append(_cause("sampling.temperature", message))
    modules = values["lora.targetModules"]
    names = isinstance(modules, (list, tuple)) and modules and all(isinstance(m, str) and m for m in modules)
    if modules is not None and not names and not (isinstance(modules, str) and modules):
        causes.append(_cause("lora.targetModules", f"{modules!r} is neither module names nor all-linear"))
    return causes


def _batch_causes(values: Values, device: Device, train_tasks: int) -> list[Cause]:
    batch, group, world = values["batchSize"], values["numGenerations"], device.processes
    total = generation_batch(values, world)
    given = values["generationBatchSize"] is not None
    field = "generationBatchSize" if given else "batchSize"
    what = f"{total}" if given else f"batchSize {batch} x gradientAccumulation x {world} device(s) = {total}"
    causes = []
    if total % group:
        causes.append(_cause(field, f"{what} completions are no whole groups of numGenerations {group}"))
    if given and total % (batch * world):
        causes.append(_cause(field, f"{what} is not a multiple of batchSize {batch} x {world} device(s)"))
    needed = total // group
    if not causes and train_tasks < needed:
        message = f"{train_tasks} training tasks are fewer than the {needed} of one generation batch"
        causes.append(Cause("spec.environment.trainTasks", "FieldValueInvalid", message))
    return causes


def grpo_arguments(values: Values, device: Device, checkpoint_dir: str) -> dict[str, Any]:
    """The keyword arguments of TRL's GRPOConfig; what is unset keeps TRL's own default."""
    kind = precision(values, device)
    strategy = values["distributed.strategy"]
    arguments: dict[str, Any] = {
        "output_dir": checkpoint_dir,
        "per_device_train_batch_size": values["batchSize"],
        "gradient_accumulation_steps": values["gradientAccumulation"],
        "generation_batch_size": values["generationBatchSize"],
        "num_generations": values["numGenerations"],
        "max_completion_length": completion_length(values),
        "temperature": float(values["sampling.temperature"]),
        "top_p": float(values["sampling.topP"]),
        "top_k": values["sampling.topK"] or 0,
        "beta": float(values["beta"]),
        "learning_rate": float(values["learningRate"]),
        "lr_scheduler_type": values["lrScheduler"],
        # A share below 1 is read as a share of the steps.
        "warmup_steps": float(values["warmupRatio"]),
        "max_grad_norm": values["maxGradNorm"],
        "weight_decay": values["weightDecay"],
        "max_steps": values["steps"],
        "num_train_epochs": float(values["epochs"]),
        "gradient_checkpointing": values["gradientCheckpointing"],
        "seed": values["seed"],
        "data_seed": values["seed"],
        "ddp_find_unused_parameters": values["distributed.findUnusedParameters"],
        "bf16": kind == "bf16",
        "fp16": kind == "fp16",
        "use_cpu": not device.gpu,
        # Checkpoints are saved by our callback, at generation boundaries; metrics are wanted every step.
        "save_strategy": "no",
        "eval_strategy": "no",
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_first_step": False,
        "logging_nan_inf_filter": False,
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": device.gpu,
        "remove_unused_columns": False,
        "shuffle_dataset": True,
        **_sharding(strategy),
    }
    return {key: value for key, value in arguments.items() if value is not None}


def _sharding(strategy: str) -> dict[str, Any]:
    if strategy == "FSDP":
        return {"fsdp": True, "fsdp_config": {"fsdp_version": 2}}
    if strategy.startswith("ZeRO"):
        stage = int(strategy[-1])
        auto = {
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
        }
        return {"deepspeed": {**auto, "gradient_clipping": "auto", "zero_optimization": {"stage": stage}}}
    return {}


def lora_arguments(values: Values) -> dict[str, Any] | None:
    """The keyword arguments of PEFT's LoraConfig, or None for full fine-tuning."""
    if values["method"] == "Full":
        return None
    modules = values["lora.targetModules"]
    return {
        "r": values["lora.r"],
        "lora_alpha": values["lora.alpha"],
        "lora_dropout": float(values["lora.dropout"]),
        # PEFT's own default covers two projections only; what every guide of ours calls LoRA adapts them all.
        "target_modules": "all-linear" if modules is None else modules,
        "task_type": "CAUSAL_LM",
    }


def effective(values: Values, device: Device) -> Mapping[str, Any]:
    """What the run really used where a parameter leaves a choice, for provenance."""
    return {
        "device": device.kind,
        "precision": precision(values, device),
        "strategy": "DDP" if device.processes > 1 else "single process",
        "processes": device.processes,
    }
