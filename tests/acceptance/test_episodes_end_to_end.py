"""Episodes from a manifest to an adapter on a real server: a guessing game, and an environment whose model calls tools.

Two GRPO steps each on a tiny random model, side by side, with baseline and final evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from nodus.server.lifecycle import DownOptions, down
from nodus.testing.hub import FakeHub
from tests.acceptance.test_grpo_end_to_end import Client, add_environment, create

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(300)]

GUESS = """
def tasks(split):
    count = {"train": 8, "test": 16}[split]
    return [{"prompt": f"{split} {number}: which digit is it?", "answer": number % 10} for number in range(count)]

def step(turns, answer):
    hits = [str(answer) in turn for turn in turns]
    if hits[-1]:
        return None, 1.0
    tried = sum(any(c.isdigit() for c in turn) for turn in turns)
    return f"no, turn {len(turns)}: guess a digit", 0.1 * tried
"""
TOOLS = """
import json

ADD = {
    "type": "function",
    "function": {
        "name": "spell",
        "description": "Spell a word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}

def tasks(split):
    count = {"train": 8, "test": 16}[split]
    return [{"prompt": f"{split} {number}", "answer": "a", "tools": [ADD]} for number in range(count)]

def step(turns, answer):
    vowels = sum(c in "aeiou" for turn in turns for c in turn)
    return [{"role": "tool", "name": "spell", "content": "-".join(turns[-1][:4])}], min(vowels / 4, 1.0)
"""
PARAMETERS = {
    "steps": 2,
    "numGenerations": 4,
    "batchSize": 8,
    "gradientAccumulation": 1,
    "maxCompletionLength": 8,
    "maxTurns": 3,
    "learningRate": 0.01,
    "evaluationBatchSize": 16,
    "sampling": {"temperature": 1.0},
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    from nodus.testing.models import tiny_llama

    root = tmp_path_factory.mktemp("episodes")
    letters = "0123456789abcdefghijklmnopqrstuvwxyz :,?-"
    with pytest.MonkeyPatch.context() as patch, FakeHub() as hub:
        for name, tools in (("tiny", False), ("tiny-tools", True)):
            model = tiny_llama(root / name, vocabulary=letters, tools=tools)
            hub.add(f"acme/{name}", {path.name: path.read_bytes() for path in model.iterdir()})
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("HF_HUB_OFFLINE", "0")
        (root / "data").mkdir()
        client = Client(root / "data")
        client.start()
        try:
            add_environment(client, "guess", GUESS)
            add_environment(client, "spell", TOOLS)
            yield client
        finally:
            client.http.close()
            down(DownOptions(data_dir=root / "data"))


def spec_of(environment: str, model: str, **parameters: Any) -> dict[str, Any]:
    return {
        "runtime": "nodus/grpo-lora",
        "model": {"uri": f"hf://acme/{model}"},
        "environment": {"name": f"{environment}@1.0.0", "trainTasks": 8, "heldOutTasks": 16},
        "parameters": {**PARAMETERS, **parameters},
        "resources": {"cpu": 1, "memory": "3Gi"},
    }


def results(client: Client, name: str) -> dict[str, Any]:
    path = f"/apis/nodus.dev/v1beta1/namespaces/default/trainingjobs/{name}/outputs/results.json"
    return dict(json.loads(httpx.get(client.http.get(path).headers["Location"]).content))


def test_games_and_tools_train_and_are_evaluated(client: Client) -> None:
    create(client, "game", spec_of("guess", "tiny"))
    create(client, "calls", spec_of("spell", "tiny-tools", maxEpisodeTokens=40))
    for name in ("game", "calls"):
        status = client.finished(name)
        assert status["summary"]["evaluation"]["tasks"] == 16
        assert status["summary"]["evaluation"]["errors"] == 0
        metrics = client.events(name, "Metrics")
        assert [event["step"] for event in metrics] == [1, 2]
        assert all(1 < event["turns"] <= 3 and event["environmentTokens"] > 0 for event in metrics)
        assert metrics[-1]["gradNorm"] > 0
        told = results(client, name)
        assert told["baseline"]["turns"] > 1 and told["evaluation"]["turns"] > 1
        shown = told["samples"][0]["before"]
        assert shown["messages"][-1]["role"] == "assistant"
        roles = {message["role"] for sample in told["samples"] for message in sample["after"]["messages"]}
        assert roles == {"assistant", "user" if name == "game" else "tool"}
    # Its episodes have no end of their own.
    assert told["evaluation"]["maxEpisodeTokensShare"] > 0
    assert told["evaluation"]["maxEpisodeTokensShare"] + told["evaluation"]["maxTurnsShare"] == 1.0

    # What was graded is what the environment itself says of the replies.
    namespace: dict[str, Any] = {}
    exec(GUESS, namespace)  # this file's own source
    answers = {f"test {number}:": number % 10 for number in range(16)}
    prompts = {sample["taskId"]: sample["prompt"] for sample in results(client, "game")["samples"]}
    held_out = [e for e in client.events("game", "Task") if e["phase"] == "Evaluation" and e["taskId"] in prompts]
    assert len(held_out) == 16
    for event in held_out:
        answer = next(value for start, value in answers.items() if prompts[event["taskId"]].startswith(start))
        assert event["reward"] == pytest.approx(namespace["step"](event["turns"], answer)[1])


def test_tools_need_a_chat_template_that_has_a_place_for_them(client: Client) -> None:
    body = {"apiVersion": "nodus.dev/v1beta1", "kind": "TrainingJob", "metadata": {"name": "blind"}}
    path = "/apis/nodus.dev/v1beta1/namespaces/default/trainingjobs"
    answer = client.http.post(path, json={**body, "spec": spec_of("spell", "tiny")})
    assert answer.status_code == 422, answer.text
    assert "chat template" in answer.text
