"""Environments from images on a real server, by the command line: applied, shown as Images, refused, failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up
from nodus.testing.eventually import eventually
from tests.acceptance.commands import Run, command_line, get
from tests.integration.grading.images import Image, Registry, layer, on_env_base, python_layer, running_registry

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(240)]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "training" / "custom-reward"
ENV = ["PATH=/usr/local/bin:/usr/bin:/bin", "NODUS_ENVIRONMENT_LOADER=task"]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    (tmp_path / "registry").mkdir()
    with running_registry(tmp_path / "registry") as running:
        yield running


@pytest.fixture
def nodus(tmp_path: Path) -> Iterator[Run]:
    started: Started = up(UpOptions(data_dir=tmp_path / "data", port=0, detach=True, issue_key=True))
    (tmp_path / "home").mkdir()
    yield command_line(started, tmp_path / "home")
    down(DownOptions(data_dir=tmp_path / "data"))


def manifest(tmp_path: Path, image: str, **more: Any) -> str:
    document = yaml.safe_load((EXAMPLE / "environment-image.yaml").read_text())
    document["spec"]["package"] = {"image": image, **more}
    (tmp_path / "environment.yaml").write_text(yaml.safe_dump(document))
    return str(tmp_path / "environment.yaml")


def settled(nodus: Run) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        status: dict[str, Any] = get(nodus, "environment/reverse-words")["status"]
        return status if status.get("phase") in ("Ready", "Failed") else None

    status = eventually(look, timeout_s=120)
    assert status is not None
    return status


def test_the_examples_image_is_ready_once_it_is_verified(nodus: Run, registry: Registry, tmp_path: Path) -> None:
    source = (EXAMPLE / "reverse_words.py").read_text()
    pushed = registry.push("acme/reverse-words", Image([python_layer(), layer(on_env_base(source))], env=ENV))
    for image, says in (
        (pushed.partition("@")[0] + ":1.0.0", "names a tag"),
        (f"acme/task@{pushed.partition('@')[2]}", "names no registry"),
    ):
        with pytest.raises(AssertionError, match=f"spec.package.image: .*{says}"):
            nodus("apply", "-f", manifest(tmp_path, image))
    with pytest.raises(AssertionError, match=r"spec\.package\.loader: an image says itself"):
        nodus("apply", "-f", manifest(tmp_path, pushed, loader="task"))
    nodus("apply", "-f", manifest(tmp_path, pushed))
    status = settled(nodus)
    assert status["phase"] == "Ready", status
    assert (status["splits"], status["image"]) == ({"train": 68, "test": 16}, "env-reverse-words-1.0.0")
    shown = nodus("describe", "image/env-reverse-words-1.0.0")
    for step in ("pull", "verify", "unpack", "check"):
        assert f"{step}   " in shown
    assert pushed in shown
    assert "== unpack: 2 layers" in nodus("logs", "image/env-reverse-words-1.0.0")


def test_an_image_that_is_not_there_fails_with_what_to_do(nodus: Run, registry: Registry, tmp_path: Path) -> None:
    nodus("apply", "-f", manifest(tmp_path, f"{registry.host}/acme/nothing@sha256:{'0' * 64}"))
    status = settled(nodus)
    assert (status["phase"], status["reason"]) == ("Failed", "ImageNotFound")
    assert "has no acme/nothing@sha256:000" in status["message"] and "Push the image" in status["message"]
    assert "pull     Failed" in nodus("describe", "image/env-reverse-words-1.0.0")
