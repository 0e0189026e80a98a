"""Every parameter of grpo-lora is observed to take effect on the made-up trainer, or is refused with its path."""

import pytest
import torch

from nodus.core.errors import Invalid
from nodus.trainer.parameters import GRPO_LORA

pytestmark = pytest.mark.timeout(240)  # the first of them imports torch and transformers


def args(name):
    return lambda made: getattr(made.trainer.args, name)


def adapter(name):
    return lambda made: getattr(made.trainer.model.peft_config["default"], name)


def warmup(made):
    made.trainer.create_optimizer_and_scheduler(10)
    return made.trainer.lr_scheduler.get_last_lr()


def prompt_lengths(made):
    return {len(ids) for ids in made.trainer._prompt_ids.values()}


def sampled_lengths(made):
    made.trainer.model.train()
    rows = [made.trainer.train_dataset[0]] * 4
    return int(made.trainer._generate_and_score_completions(rows)["completion_mask"].sum(dim=1).max()) <= 9


OBSERVED = {
    # path: (value, what shows it, what it shows)
    "attention": ("eager", lambda made: made.trainer.model.config._attn_implementation, "eager"),
    "batchSize": (8, args("per_device_train_batch_size"), 8),
    "beta": (0.5, lambda made: made.trainer.beta, 0.5),
    "distributed.findUnusedParameters": (True, args("ddp_find_unused_parameters"), True),
    "epochs": (2.5, args("num_train_epochs"), 2.5),
    "evalSteps": (2, lambda made: made.session.progress._eval_steps, 2),
    "evaluationBatchSize": (3, lambda made: made.session.evaluator._batch, 3),
    "generationBatchSize": (16, args("generation_batch_size"), 16),
    "gradientAccumulation": (4, args("gradient_accumulation_steps"), 4),
    "gradientCheckpointing": (True, args("gradient_checkpointing"), True),
    "learningRate": (0.25, args("learning_rate"), 0.25),
    "loggingSteps": (7, lambda made: made.session.progress._logging_steps, 7),
    "lora.alpha": (32, adapter("lora_alpha"), 32),
    "lora.dropout": (0.5, adapter("lora_dropout"), 0.5),
    "lora.r": (2, adapter("r"), 2),
    "lora.targetModules": (["q_proj", "v_proj"], adapter("target_modules"), {"q_proj", "v_proj"}),
    "lrScheduler": ("cosine", args("lr_scheduler_type"), "cosine"),
    "maxCompletionLength": (9, lambda made: (made.trainer.max_completion_length, sampled_lengths(made)), (9, True)),
    "maxEpisodeTokens": (8, lambda made: made.trainer.max_completion_length, 8),
    "maxGradNorm": (0.5, args("max_grad_norm"), 0.5),
    "maxLength": (16, prompt_lengths, {8}),
    "maxTurns": (3, lambda made: made.trainer.player and made.trainer.player.limits.turns, 3),
    "method": ("Full", lambda made: hasattr(made.trainer.model, "peft_config"), False),
    "numGenerations": (8, lambda made: made.trainer.num_generations, 8),
    "precision": ("bf16", lambda made: (made.trainer.args.bf16, made.trainer.model.dtype), (True, torch.bfloat16)),
    "sampling.temperature": (0.3, lambda made: made.trainer.temperature, 0.3),
    "sampling.topK": (3, lambda made: made.trainer.top_k, 3),
    "sampling.topP": (0.4, lambda made: made.trainer.top_p, 0.4),
    "saveSteps": (11, lambda made: made.session.progress._save_steps, 11),
    "saveTotalLimit": (1, lambda made: made.session.state._keep, 1),
    "seed": (5, lambda made: (made.trainer.args.seed, made.trainer._get_train_sampler()._seed), (5, 5)),
    "steps": (13, args("max_steps"), 13),
    "taskFilter": ({"family": "x"}, lambda made: made.session.spec.raw_parameters["taskFilter"], {"family": "x"}),
    "warmupRatio": (0.5, warmup, [0.0, 0.0]),
    "weightDecay": (0.1, args("weight_decay"), 0.1),
}
"""``taskFilter`` acts on the manifests before the trainer fetches them; here it is only recorded."""

BESIDE = {"warmupRatio": {"lrScheduler": "linear"}}
"""Parameters that another one shows: a constant schedule has no warm-up."""

REFUSED = {"distributed.strategy": "FSDP"}
ALSO_REFUSED = {"method": "QLoRA", "precision": "fp16", "attention": "flash_attention_2"}


def nested(path, value):
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


def with_base(given):
    """The parameters of a run, ``given`` merged into nested ones instead of replacing them."""
    from tests.integration.trainer.conftest import PARAMETERS

    return {k: {**PARAMETERS[k], **v} if isinstance(v, dict) and k in PARAMETERS else v for k, v in given.items()}


def test_every_parameter_is_covered():
    assert OBSERVED.keys() | REFUSED.keys() == {p.path for p in GRPO_LORA}


@pytest.mark.parametrize("path", OBSERVED)
def test_parameter_takes_effect(prepare, path):
    value, show, expected = OBSERVED[path]
    extra = BESIDE.get(path, {})
    assert show(prepare(**with_base(nested(path, value)), **extra)) == expected
    if path not in ("taskFilter", "maxEpisodeTokens"):
        assert show(prepare(**extra)) != expected


@pytest.mark.parametrize(("path", "value"), [*REFUSED.items(), *ALSO_REFUSED.items()])
def test_parameter_that_needs_more_than_this_machine_is_refused_by_path(runs, path, value):
    from nodus.trainer.attempt import AttemptClient
    from nodus.trainer.run import Run
    from nodus.trainer.tasks import grpo
    from tests.integration.trainer.conftest import HELD_OUT, TRAIN, letters

    run = runs(parameters=nested(path, value))
    with run.server(TRAIN, HELD_OUT, letters):
        spec = Run.load(run.environ("att1"))
        with pytest.raises(Invalid) as caught:
            grpo.run(spec, AttemptClient(spec.socket, spec.project, spec.name, spec.attempt))
    assert [cause.field for cause in caught.value.causes] == [f"spec.parameters.{path}"]


@pytest.mark.parametrize("modules", [["no_such_proj"], ["lm_head"]])
def test_modules_that_take_no_adapter_are_refused_by_path(prepare, modules):
    with pytest.raises(Invalid) as caught:
        prepare(lora={"targetModules": modules})
    assert [cause.field for cause in caught.value.causes] == ["spec.parameters.lora.targetModules"]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant", "constant_with_warmup"])
def test_learning_rate_follows_its_schedule_and_warm_up(prepare, schedule):
    made = prepare(lrScheduler=schedule, warmupRatio=0.2, learningRate=1.0)
    made.trainer.create_optimizer_and_scheduler(10)
    rates = []
    for _ in range(10):
        rates.append(made.trainer.lr_scheduler.get_last_lr()[0])
        made.trainer.optimizer.step()
        made.trainer.lr_scheduler.step()
    if schedule == "constant":
        assert rates == [1.0] * 10
    else:
        assert rates[:3] == [0.0, 0.5, 1.0]
        assert rates[-1] == pytest.approx({"cosine": 0.038, "linear": 0.125}.get(schedule, 1.0), abs=1e-3)
