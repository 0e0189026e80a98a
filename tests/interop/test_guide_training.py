"""The guide's whole program on a tiny model with the published client: packaged, trained, watched, downloaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up
from nodus.testing.hub import FakeHub
from tests.interop.conftest import Desk

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.heavy, pytest.mark.timeout(400)]

# As printed, but for WORDS, which it leaves to the reader, and a run of two steps with short replies.
PROGRAM = r"""
import re
from nodus.recipes import rl

WORDS = [a + b + c for a in ("ba", "co", "di", "fu") for b in ("ga", "lo", "mi", "ne") for c in ("ru", "sa", "te")]
ANSWER = re.compile(r"<answer>\s*([A-Za-z]+)\s*</answer>")
tasks = [(f"Spell the word backwards inside <answer></answer>.\n\nWord: {w}", w[::-1]) for w in WORDS]

def reward(completion, answer):
    found = ANSWER.findall(completion)
    return None if not found else float(found[-1].lower() == answer)

run = rl.train(tasks, reward, max_cost=2, steps=2, max_tokens=16)
run.watch()   # each stage, then the reward, loss and KL of every step
run.outputs.download("./outputs")   # the LoRA adapter and the before-and-after comparison
print(len(run.tasks(phase="Evaluation", outcome="Failed")), run.name)
"""


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A server whose hub has a tiny model under the name of the guide's default one."""
    from nodus.testing.models import tiny_llama

    root = tmp_path_factory.mktemp("guide")
    model = tiny_llama(root / "tiny")
    with pytest.MonkeyPatch.context() as patch, FakeHub() as hub:
        hub.add("Qwen/Qwen3-0.6B", {path.name: path.read_bytes() for path in model.iterdir()})
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("HF_HUB_OFFLINE", "0")
        yield up(UpOptions(data_dir=root / "data", port=0, detach=True, issue_key=True))
        down(DownOptions(data_dir=root / "data"))


def test_guide_trains_to_its_end(trainer: Started, published: Path, tmp_path: Path) -> None:
    desk = Desk(published / "bin", tmp_path, trainer.url, str(trainer.api_key))
    printed = desk.python(PROGRAM, timeout_s=300)
    failed, name = printed.split()[-2:]
    assert int(failed) == 16  # of a random model
    assert "step 2: reward" in printed
    outputs = desk.home / "outputs"
    assert (outputs / "adapter" / "adapter_model.safetensors").stat().st_size > 0
    assert {"results.json", "provenance.json", "manifest.json"} <= {path.name for path in outputs.iterdir()}
    run = json.loads(desk.ok(f"nodus get tj/{name} -o json"))["status"]
    assert (run["phase"], run["summary"]["evaluation"]["tasks"]) == ("Succeeded", 16)
    desk.ok(f"nodus cp tj/{name}:outputs/results.json ./results.json")
    desk.ok(f"nodus cp tj/{name}:outputs/adapter/ ./adapter")
    assert json.loads((desk.home / "results.json").read_text())
    listed = desk.ok(f"nodus get tj/{name} -o jsonpath='{{.status.outputs[*].name}}'").split()
    assert "adapter/adapter_model.safetensors" in listed
    described = desk.ok(f"nodus describe tj/{name}")
    assert "Summary:" in described and "Outputs:" in described
    assert desk.ok(f"nodus logs job/{name} -f")
    assert desk.ok(f"nodus logs tj/{name} --tail 1")
