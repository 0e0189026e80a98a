"""What this machine can't do is refused by field path; the rest keeps TRL's defaults where it is unset."""

import pytest

from nodus.core.errors import Invalid
from nodus.trainer.grpo_config import (
    Device,
    check,
    completion_length,
    effective,
    generation_batch,
    grpo_arguments,
    lora_arguments,
    precision,
    prompt_length,
)
from nodus.trainer.parameters import GRPO_LORA, Values

CPU = Device()
GPU = Device("cuda", bf16=True)
OLD_GPU = Device("cuda", bf16=False)


def values(**given):
    return Values(given, GRPO_LORA)


def refused(given, device=CPU, tasks=100):
    with pytest.raises(Invalid) as caught:
        check(Values(given, GRPO_LORA), device, tasks)
    return [cause.field for cause in caught.value.causes]


def test_defaults_are_accepted():
    check(values(), CPU, 100)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"method": "QLoRA"}, "method"),
        ({"precision": "fp16"}, "precision"),
        ({"attention": "flash_attention_2"}, "attention"),
        ({"distributed": {"strategy": "FSDP"}}, "distributed.strategy"),
        ({"distributed": {"strategy": "ZeRO3"}}, "distributed.strategy"),
        ({"steps": 0}, "steps"),
        ({"sampling": {"temperature": 0}}, "sampling.temperature"),
        ({"maxLength": 64, "maxCompletionLength": 64}, "maxLength"),
        ({"lora": {"targetModules": 3}}, "lora.targetModules"),
        ({"lora": {"targetModules": []}}, "lora.targetModules"),
        ({"lora": {"targetModules": ["q_proj", 1]}}, "lora.targetModules"),
        ({"batchSize": 3, "gradientAccumulation": 1}, "batchSize"),
        ({"numGenerations": 6}, "batchSize"),
        ({"generationBatchSize": 6}, "generationBatchSize"),
        ({"batchSize": 8, "generationBatchSize": 12}, "generationBatchSize"),
    ],
)
def test_what_a_cpu_run_cannot_do_is_refused_by_path(given, field):
    assert refused(given) == [f"spec.parameters.{field}"]


@pytest.mark.parametrize("strategy", ["FSDP", "ZeRO2"])
def test_shards_of_a_model_play_no_episodes(strategy):
    given = {"distributed": {"strategy": strategy}, "maxTurns": 3}
    assert refused(given, GPU) == ["spec.parameters.distributed.strategy"]
    check(Values({**given, "maxTurns": 1}, GRPO_LORA), GPU, 100)
    check(Values({"maxTurns": 3}, GRPO_LORA), GPU, 100)


def test_every_cause_is_listed_at_once():
    given = {"method": "QLoRA", "steps": 0, "precision": "fp16", "numGenerations": 7}
    assert sorted(refused(given)) == [f"spec.parameters.{n}" for n in ("batchSize", "method", "precision", "steps")]


def test_too_few_tasks_for_one_batch_are_refused():
    assert refused({"batchSize": 8, "numGenerations": 8}, tasks=3) == ["spec.environment.trainTasks"]


def test_gpu_can_do_what_the_cpu_cannot():
    for given in ({"method": "QLoRA"}, {"precision": "fp16"}, {"attention": "flash_attention_2"}):
        check(Values(given, GRPO_LORA), GPU, 100)
    assert refused({"precision": "bf16"}, OLD_GPU) == ["spec.parameters.precision"]


def test_divisibility_counts_every_device():
    check(values(batchSize=1, gradientAccumulation=1, numGenerations=4), Device("cuda", True, 4), 100)
    assert refused({"batchSize": 1, "gradientAccumulation": 1}, Device("cuda", True, 2)) == [
        "spec.parameters.batchSize"
    ]


@pytest.mark.parametrize(
    ("device", "asked", "expected"),
    [(CPU, "Auto", "fp32"), (GPU, "Auto", "bf16"), (OLD_GPU, "Auto", "fp16"), (CPU, "bf16", "bf16")],
)
def test_precision_auto_follows_the_device(device, asked, expected):
    assert precision(values(precision=asked), device) == expected


def test_completions_of_an_episode_are_bounded_by_its_tokens():
    assert completion_length(values(maxEpisodeTokens=16)) == 16
    assert completion_length(values(maxEpisodeTokens=512)) == 64
    assert prompt_length(values(maxLength=100, maxCompletionLength=40)) == 60


def test_rl_train_batch_is_four_groups_of_eight():
    given = values(batchSize=8, gradientAccumulation=4, numGenerations=8)
    assert generation_batch(given, 1) == 32
    assert effective(given, CPU)["precision"] == "fp32"


def test_unset_parameters_leave_trl_its_defaults():
    arguments = grpo_arguments(values(), CPU, "out")
    assert not {"weight_decay", "max_grad_norm", "generation_batch_size", "ddp_find_unused_parameters"} & set(arguments)


def test_full_fine_tuning_has_no_adapter():
    assert lora_arguments(values(method="Full")) is None
    assert lora_arguments(values())["target_modules"] == "all-linear"


def test_sharding_strategies_reach_their_library():
    assert grpo_arguments(values(distributed={"strategy": "FSDP"}), GPU, "o")["fsdp"] is True
    zero = grpo_arguments(values(distributed={"strategy": "ZeRO2"}), GPU, "o")["deepspeed"]
    assert zero["zero_optimization"] == {"stage": 2}
