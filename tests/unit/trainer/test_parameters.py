"""The declared parameters agree with the published table, and everything generated from them is current."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from nodus.trainer.parameters import EVALUATE, GRPO_LORA, Values, defaults, json_schema, problems
from nodus.trainer.runtimes import _allowed, _plain, files

ROOT = Path(__file__).resolve().parents[3]

# The published reference page's table, to the letter.
TABLE = """\
| attention | string | none | eager, sdpa, flash_attention_2 | Attention kernel |
| batchSize | integer | 1 | 1 to 1024 | Examples per GPU per step |
| beta | number | 0 | 0 to 10 | KL penalty toward the base model; 0 disables the reference model |
| distributed.findUnusedParameters | boolean | none |  | DDP: tolerate parameters without gradients |
| distributed.strategy | string | Auto | Auto, DDP, FSDP, ZeRO1, ZeRO2, ZeRO3 | Auto and DDP replicate the model; FSDP \
and ZeRO shard it |
| epochs | number | 1 | 0.01 to 100 | Passes over the data when steps is -1 |
| evalSteps | integer | none | 1 to 100000 | Steps between validation passes; unset evaluates at the end only |
| evaluationBatchSize | integer | none | 1 to 1024 | Prompts generated together during Environment baseline and final \
evaluation |
| generationBatchSize | integer | none | 2 to 65536 | Total sampled completions per generation batch; must divide \
evenly across GPUs and numGenerations |
| gradientAccumulation | integer | 4 | 1 to 1024 | Steps whose gradients are summed before an update |
| gradientCheckpointing | boolean | true |  | Recompute activations to save GPU memory |
| learningRate | number | 0.000001 | 0 to 1 | Peak learning rate |
| loggingSteps | integer | 10 | 1 to 10000 | Steps between metric reports |
| lora.alpha | integer | 16 | 1 to 4096 | Adapter scaling numerator |
| lora.dropout | number | 0.05 | 0 to 0.9 | Adapter dropout |
| lora.r | integer | 8 | 1 to 1024 | Adapter rank |
| lora.targetModules | any | none |  | Module names, or all-linear |
| lrScheduler | string | cosine | cosine, linear, constant, constant_with_warmup | Learning-rate schedule |
| maxCompletionLength | integer | 64 | 8 to 32768 | Tokens per completion; in a multi-turn episode, tokens per reply |
| maxEpisodeTokens | integer | none | 8 to 131072 | Tokens of a whole multi-turn episode after the prompt, the model’s \
and the Environment’s |
| maxGradNorm | number | none | 0 to 100 | Gradient clipping norm |
| maxLength | integer | 2048 | 16 to 131072 | Tokens per example after truncation (packed block size for pretraining) |
| maxTurns | integer | none | 1 to 31 | Model turns per episode of a multi-turn Environment; 1 grades the first reply \
alone |
| method | string | LoRA | Full, LoRA, QLoRA | Full fine-tuning, a LoRA adapter, or LoRA on a 4-bit quantized base \
(GPU only) |
| numGenerations | integer | 4 | 2 to 64 | Completions sampled per prompt (the GRPO group) |
| precision | string | Auto | Auto, bf16, fp16, fp32 | Numeric precision; Auto is bf16 where the GPU supports it, else \
fp16 |
| sampling.temperature | number | 0.7 | 0 to 5 | Sampling temperature |
| sampling.topK | integer | none | 0 to 1000000 | Keep the highest-probability K tokens; 0 disables top-k filtering |
| sampling.topP | number | 1 | 0 to 1 | Nucleus sampling mass |
| saveSteps | integer | 25 | 1 to 100000 | Steps between recovery checkpoints |
| saveTotalLimit | integer | none | 1 to 10 | Recovery checkpoints kept in the state directory |
| seed | integer | 42 | 0 to 2147483647 | Seed for data order, splits and initialization |
| steps | integer | 50 | -1 to 1000000 | Optimizer steps; -1 trains for epochs instead |
| taskFilter | object | none | at most 8 keys | Keep only tasks whose metadata has these values (such as family on \
reasoning-gym), before trainTasks and heldOutTasks count them |
| warmupRatio | number | 0.03 | 0 to 0.5 | Fraction of steps spent warming up the learning rate |
| weightDecay | number | none | 0 to 1 | AdamW weight decay |
"""
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines()]


def test_grpo_lora_declares_exactly_the_published_table():
    declared = [[p.path, p.type, _plain(p.default), _allowed(p), p.description] for p in GRPO_LORA]
    assert declared == ROWS
    assert len(declared) == 36


@pytest.mark.parametrize("name", sorted(files()))
def test_generated_file_is_current(name):
    assert (ROOT / name).read_text() == files()[name], "run python -m nodus.trainer.runtimes"


def test_catalog_runtime_carries_the_table_as_a_schema():
    spec = yaml.safe_load((ROOT / "src/nodus/catalog/runtimes/grpo-lora.yaml").read_text())["spec"]
    Draft202012Validator.check_schema(spec["parameters"])
    for path, kind, default, allowed, description in ROWS:
        node = spec["parameters"]
        for part in path.split("."):
            assert node["additionalProperties"] is False
            node = node["properties"][part]
        assert node["description"] == description
        assert node.get("type", "any") == kind
        assert _plain(node.get("default")) == default
        bounds = f"{_plain(node['minimum'])} to {_plain(node['maximum'])}" if "minimum" in node else ""
        limit = f"at most {node['maxProperties']} keys" if "maxProperties" in node else ""
        assert (", ".join(node.get("enum", [])) or bounds or limit) == allowed


def test_catalog_runtime_is_the_published_one():
    spec = yaml.safe_load((ROOT / "src/nodus/catalog/runtimes/grpo-lora.yaml").read_text())["spec"]
    assert spec["image"] == "nodus/grpo-lora:2.0.0"
    assert (spec["task"], spec["modes"], spec["launcher"]) == ("GRPO", ["Train", "Evaluate"], "Torchrun")
    assert spec["requires"] == {"model": True, "data": False, "environment": True, "teacher": False}
    assert spec["checkpointing"] == {"path": "/nodus/state", "strategy": "HFTrainer"}
    assert spec["environmentTasks"] == "AttemptAPI"
    assert spec["outputs"] == [{"name": "outputs", "path": "/nodus/outputs"}]
    gpus = {"A100-80G": 0.7, "H100": 0.45, "L40S": 1, "RTX-4090": 1.2, "RTX-A6000": 1.3}
    assert {k: v for k, v in spec["estimate"]["secondsPerStep"].items() if k != "CPU"} == gpus
    presets = [(p["model"], p["method"], p.get("quantization"), p["resources"].get("gpu")) for p in spec["presets"]]
    small, large = ["RTX-4090", "L40S", "RTX-A6000"], ["L40S", "RTX-A6000", "A100-80G"]
    assert presets == [
        ("Qwen/Qwen3-0.6B", "LoRA", None, {"type": small, "count": 1}),
        ("Qwen/Qwen3-1.7B", "LoRA", None, {"type": small, "count": 1}),
        ("Qwen/Qwen3-4B", "QLoRA", "nf4", {"type": small, "count": 1}),
        ("Qwen/Qwen3-4B", "LoRA", None, {"type": large, "count": 1}),
        ("Qwen/Qwen3-8B", "QLoRA", "nf4", {"type": large, "count": 1}),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "LoRA", None, None),
    ]
    everything = ["RTX-4090", "L40S", "RTX-A6000", "A100-80G"]
    assert spec["defaults"]["resources"] == {"gpu": {"type": everything, "count": 1}}


def test_defaults_validate_against_the_schema():
    for parameters in (GRPO_LORA, EVALUATE):
        Draft202012Validator(json_schema(parameters)).validate(defaults(parameters))
        assert list(problems(defaults(parameters), parameters)) == []


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"learning_rate": 0.1}, "learning_rate"),
        ({"lora": {"rank": 8}}, "lora.rank"),
        ({"lora": {"r": 0}}, "lora.r"),
        ({"lora": {"r": 8.5}}, "lora.r"),
        ({"steps": True}, "steps"),
        ({"batchSize": "8"}, "batchSize"),
        ({"epochs": 0}, "epochs"),
        ({"lrScheduler": "polynomial"}, "lrScheduler"),
        ({"gradientCheckpointing": 1}, "gradientCheckpointing"),
        ({"taskFilter": {str(i): i for i in range(9)}}, "taskFilter"),
        ({"learningRate": float("nan")}, "learningRate"),
    ],
)
def test_problem_names_the_path_of_what_is_wrong(given, field):
    assert [cause.field for cause in problems(given, GRPO_LORA)] == [f"spec.parameters.{field}"]


def test_values_read_by_path_with_the_declared_default():
    values = Values({"lora": {"r": 4, "alpha": None}, "taskFilter": {"family": "x"}}, GRPO_LORA)
    assert (values["lora.r"], values["lora.alpha"], values["lora.dropout"]) == (4, 16, 0.05)
    assert values["taskFilter"] == {"family": "x"}
    assert values["maxGradNorm"] is None
    assert values.is_set("lora.r")
    assert not values.is_set("lora.alpha")


def test_declaration_is_importable_without_the_training_stack():
    code = (
        "import sys; import nodus.trainer.runtimes, nodus.trainer.run, nodus.trainer.attempt, nodus.trainer.main; "
        "import nodus.trainer.grpo_config, nodus.trainer.checkpoints, nodus.trainer.library; "
        "sys.exit(sorted({'torch', 'transformers', 'trl', 'peft', 'datasets'} & set(sys.modules)) != [])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
