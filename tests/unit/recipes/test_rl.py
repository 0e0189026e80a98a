"""What rl.train, rl.grpo_lora and rl.evaluate send."""

from __future__ import annotations

from typing import Any

import pytest

from nodus import errors
from nodus.client.blocking import BlockingCall
from nodus.recipes import rl
from tests.unit.client.fake_server import Asked, FakeServer, Reply, status

TASKS = [(f"Say {number}.", str(number)) for number in range(64)]


def reward(completion: str, answer: str) -> float:
    """Score a reply."""
    return float(completion == answer)


class Platform:
    """The server, as far as a recipe sees it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.environments: dict[str, dict[str, Any]] = {
            "arithmetic": {
                "spec": {"version": "2.0.0"},
                "status": {"phase": "Ready", "splits": {"train": 233, "test": 40}},
            }
        }
        self.blobs: dict[str, bytes] = {}
        self.next_phase = "Ready"

    def __call__(self, asked: Asked) -> Reply:
        parts = asked.path.strip("/").split("/")
        if asked.path == "/.well-known/nodus-configuration":
            return Reply({"defaultModel": "hf://the/default", "device": "CPU"})
        if parts[0] == "blobs":
            return self.blob(asked)
        if parts[-1] == "environments" or parts[-2] == "environments":
            return self.environment(asked, parts)
        return Reply(asked.json | {"status": {"phase": "Queued"}}, 201, {"ETag": '"plan"'})

    def blob(self, asked: Asked) -> Reply:
        if asked.method == "PUT":
            self.blobs[asked.path] = asked.body
            return Reply({}, 201)
        return Reply({"exists": False, "url": f"{self.url}/blobs/{asked.json['sha256']}", "headers": {"X-Grant": "g"}})

    def environment(self, asked: Asked, parts: list[str]) -> Reply:
        if asked.query.get("watch"):
            return Reply(b"")
        if asked.method == "POST":
            name = asked.json["metadata"]["name"]
            self.environments[name] = asked.json | {
                "status": {"phase": self.next_phase, "message": "the grader said no"}
            }
        else:
            name = parts[-1]
        if asked.method == "DELETE":
            self.environments.pop(name)
            return Reply({})
        found = self.environments.get(name)
        return Reply({"kind": "Environment", "metadata": {"name": name}} | found) if found else status("NotFound", 404)


@pytest.fixture
def platform(server: FakeServer) -> Platform:
    """Make the scripted server a platform."""
    server.script = Platform(server.url)
    return server.script


def sent(server: FakeServer) -> list[Asked]:
    """Return the requests that plan and create the run."""
    return [asked for asked in server.asked if asked.path.endswith("/trainingjobs")]


def test_train_sends_what_the_guide_says(server: FakeServer, platform: Platform) -> None:
    run = rl.train(TASKS, reward, max_cost=2, client=server.client())
    name = next(name for name in platform.environments if name.startswith("rl-"))
    assert run.raw["metadata"] == {"generateName": "grpo-lora-", "namespace": "default"}
    assert run.spec == {
        "runtime": "nodus/grpo-lora",
        "mode": "Train",
        "model": {"uri": "hf://the/default"},
        "environment": {"name": f"{name}@1.0.0", "trainTasks": 48, "heldOutTasks": 16, "seed": 0},
        "parameters": {
            "steps": 50,
            "numGenerations": 8,
            "batchSize": 8,
            "gradientAccumulation": 4,
            "learningRate": 4e-5,
            "maxCompletionLength": 256,
            "sampling": {"temperature": 1.0},
        },
        "evaluation": {"baseline": True, "final": True, "minComparisonTasks": 16},
        "maxCostUSD": "2.00",
    }
    planned, created = sent(server)
    assert planned.query == {"dryRun": "All"} and created.headers["if-match"] == '"plan"'
    assert created.headers["idempotency-key"] != planned.headers["idempotency-key"]


def test_environment_is_made_from_the_bundle(server: FakeServer, platform: Platform) -> None:
    rl.train(TASKS, reward, client=server.client())
    (name,) = (name for name in platform.environments if name.startswith("rl-"))
    spec = platform.environments[name]["spec"]
    (path,) = platform.blobs
    assert spec["package"] == {"source": {"blob": f"sha256:{path.rpartition('/')[2]}", "module": "nodus_task"}}
    assert (spec["version"], spec["category"], spec["modes"]) == ("1.0.0", "Custom", ["Train", "Evaluate"])
    (put,) = (asked for asked in server.asked if asked.method == "PUT")
    assert put.headers["x-grant"] == "g" and "authorization" not in put.headers


def test_same_code_and_tasks_reuse_the_environment(server: FakeServer, platform: Platform) -> None:
    first, second = (rl.train(TASKS, reward, client=server.client()) for _ in range(2))
    assert first.spec.environment == second.spec.environment
    assert len(platform.blobs) == 1
    assert len([asked for asked in server.asked if asked.path.endswith("/environments")]) == 1


def test_failed_environment_stops_the_run_with_its_message(server: FakeServer, platform: Platform) -> None:
    platform.next_phase = "Failed"
    with pytest.raises(errors.NodusError, match="the grader said no"):
        rl.train(TASKS, reward, client=server.client())
    assert not sent(server)


def test_failed_environment_is_built_anew_next_time(server: FakeServer, platform: Platform) -> None:
    platform.next_phase = "Failed"
    with pytest.raises(errors.NodusError):
        rl.train(TASKS, reward, client=server.client())
    platform.next_phase = "Ready"
    assert rl.train(TASKS, reward, client=server.client()).phase == "Queued"


async def test_train_awaited_sends_the_same(server: FakeServer, platform: Platform) -> None:
    run = await rl.train.aio(TASKS, reward, max_cost=2, client=server.client())
    assert run.spec.environment.held_out_tasks == 16


def test_train_on_an_environment_asks_its_sizes(server: FakeServer, platform: Platform) -> None:
    run = rl.train("nodus/arithmetic@2.0.0", steps=3, client=server.client())
    assert run.spec.environment == {"name": "nodus/arithmetic@2.0.0", "trainTasks": 233, "heldOutTasks": 40, "seed": 42}
    assert run.spec.parameters.steps == 3
    assert server.asked[0].path == "/apis/nodus.dev/v1/namespaces/nodus/environments/arithmetic"


def test_counts_that_are_given_are_not_looked_up(server: FakeServer, platform: Platform) -> None:
    rl.train("nodus/arithmetic@2.0.0", train_tasks=10, held_out_tasks=20, model="Qwen/Qwen3-4B", client=server.client())
    assert [asked.method for asked in server.asked] == ["POST", "POST"]
    assert sent(server)[0].json["spec"]["model"] == {"uri": "hf://Qwen/Qwen3-4B"}


def test_grpo_lora_leaves_the_runtime_its_defaults(server: FakeServer, platform: Platform) -> None:
    run = rl.grpo_lora("nodus/arithmetic@2.0.0", num_generations=4, gpu="H100:2", max_cost="5", client=server.client())
    assert run.spec.parameters == {"steps": 50, "numGenerations": 4}
    assert run.spec.resources == {"gpu": {"type": ["H100"], "count": 2}}


def test_evaluate_only_scores(server: FakeServer, platform: Platform) -> None:
    run = rl.evaluate("nodus/arithmetic@2.0.0", max_tokens=32, client=server.client())
    assert (run.spec.runtime, run.spec.mode) == ("nodus/evaluate", "Evaluate")
    assert run.spec.environment == {"name": "nodus/arithmetic@2.0.0", "heldOutTasks": 40, "seed": 42}
    assert run.spec.parameters == {"maxCompletionLength": 32}


@pytest.mark.parametrize(
    ("lora", "expected"),
    [
        (16, {"method": "LoRA", "lora": {"r": 16, "alpha": 32}}),
        (
            {"r": 8, "alpha": 8, "target_modules": "all-linear"},
            {"method": "LoRA", "lora": {"r": 8, "alpha": 8, "targetModules": "all-linear"}},
        ),
        ({"r": 4, "method": "QLoRA"}, {"method": "QLoRA", "lora": {"r": 4, "alpha": 8}}),
    ],
)
def test_lora_forms(server: FakeServer, platform: Platform, lora: Any, expected: dict[str, Any]) -> None:
    run = rl.grpo_lora("nodus/arithmetic@2.0.0", lora=lora, client=server.client())
    assert {key: run.spec.parameters[key] for key in expected} == expected


def test_parameters_are_respelt_and_filters_are_not(server: FakeServer, platform: Platform) -> None:
    run = rl.grpo_lora(
        "nodus/arithmetic@2.0.0",
        beta=0.04,
        save_steps=10,
        sampling={"top_p": 0.9},
        task_filter={"task_family": "x"},
        warmup_ratio=None,
        client=server.client(),
    )
    assert run.spec.parameters == {
        "steps": 50,
        "beta": 0.04,
        "saveSteps": 10,
        "sampling": {"topP": 0.9},
        "taskFilter": {"task_family": "x"},
    }


REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "no reward": ((TASKS,), {}, errors.RewardError, "own tasks need a reward"),
    "too few tasks": ((TASKS[:5], reward), {}, errors.TasksError, "5 tasks are too few"),
    "a bad task": (([*TASKS, 3], reward), {}, errors.TasksError, r"tasks\[64\] is 3"),
    "a reward for an environment": (
        ("nodus/arithmetic@2.0.0", reward),
        {},
        errors.Invalid,
        "reward goes with tasks of your own",
    ),
    "no version": (("nodus/arithmetic",), {}, errors.Invalid, "names no version"),
    "a bad price": (("nodus/arithmetic@2.0.0",), {"max_cost": -2}, errors.Invalid, "max_cost"),
    "a bad gpu": (("nodus/arithmetic@2.0.0",), {"gpu": "H100:x"}, errors.Invalid, "gpu='H100:x'"),
    "a loose requirement": ((TASKS, reward), {"pip": ["rapidfuzz"]}, errors.RewardError, "not an exact version"),
}


@pytest.mark.parametrize(("args", "options", "error", "message"), REFUSED.values(), ids=list(REFUSED))
def test_mistakes_are_found_before_anything_is_stored(
    server: FakeServer,
    platform: Platform,
    args: tuple[Any, ...],
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        rl.train(*args, **options, client=server.client())
    assert not [asked for asked in server.asked if asked.method != "GET"]


def test_bad_reward_is_found_without_a_server() -> None:
    def nested(completion: str, answer: str) -> float:
        return 1.0

    with pytest.raises(errors.RewardError):
        rl.train(TASKS, nested)


@pytest.mark.parametrize("call", [rl.train, rl.grpo_lora, rl.evaluate])
def test_every_recipe_has_a_twin(call: Any) -> None:
    assert isinstance(call, BlockingCall)
