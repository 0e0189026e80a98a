"""The example under examples/training/custom-reward: its module, its package and its manifests."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from nodus.core.kinds import KINDS
from nodus.recipes.bundle import make_bundle
from nodus.recipes.tasks import check_tasks, split_tasks

EXAMPLE = Path(__file__).parents[3] / "examples" / "training" / "custom-reward"
MANIFESTS = sorted(EXAMPLE.glob("*.yaml"))


@pytest.fixture
def reverse_words(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The example's module."""
    monkeypatch.syspath_prepend(EXAMPLE)
    import reverse_words  # type: ignore[import-not-found]

    yield reverse_words
    sys.modules.pop("reverse_words")


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifest_is_valid(path: Path) -> None:
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    kind = KINDS[document["kind"]]
    assert document["apiVersion"] == kind.api_version
    kind.spec_model.model_validate(document["spec"])


def test_manifests_agree_with_the_module(reverse_words: ModuleType) -> None:
    spec = yaml.safe_load((EXAMPLE / "grpo.yaml").read_text())["spec"]["environment"]
    assert (spec["trainTasks"], spec["heldOutTasks"]) == (
        len(reverse_words.tasks("train")),
        len(reverse_words.tasks("test")),
    )
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    package = yaml.safe_load((EXAMPLE / "environment-pip.yaml").read_text())["spec"]["package"]["pip"]
    assert (project["name"], project["version"]) == (package["name"], package["version"])


def test_reward_scores_as_it_says(reverse_words: ModuleType) -> None:
    reward = reverse_words.reward
    assert reward("<answer>yellav</answer>", "yellav") == 1.0
    assert reward("<answer>a</answer> no, <answer> Yellav </answer>", "yellav") == 1.0
    assert reward("<answer>valley</answer>", "yellav") == 0.0
    assert reward("yellav", "yellav") is None
    assert reverse_words.load_environment() is reverse_words


def test_reward_can_be_packaged(reverse_words: ModuleType) -> None:
    tasks, held_out = check_tasks(reverse_words.tasks("train")), check_tasks(reverse_words.tasks("test"))
    bundle = make_bundle(reverse_words.reward, *split_tasks(tasks, held_out))
    assert (bundle.train, bundle.test) == (68, 16)
