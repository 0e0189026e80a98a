"""What a command leaves behind is hostile input: its outputs, its last words, its state."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodus.server.api.http import json_bytes
from nodus.server.compute.base import OutputRule
from nodus.server.compute.local.attemptdir import AttemptDir, write_json
from nodus.server.compute.local.backend import LocalBackend
from nodus.server.compute.local.collect import OutputsTooLarge, collect

RULES = [OutputRule("", "/nodus/outputs")]


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[AttemptDir]:
    made = AttemptDir(tmp_path / "attempts" / "a")
    made.outputs.mkdir(parents=True)
    yield made
    subprocess.run(["rm", "-rf", made.path], check=True)  # deeper than what pytest deletes


@pytest.fixture
def backend(tmp_path: Path, attempt: AttemptDir) -> LocalBackend:
    return LocalBackend(tmp_path, lambda digest: tmp_path / digest, put)


def nest(directory: Path, depth: int = 1100) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    at = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


def put(path: Path) -> tuple[str, int]:
    return "0" * 64, path.stat().st_size


def test_outputs_nested_deeper_than_any_walk_goes_are_refused(attempt: AttemptDir) -> None:
    nest(attempt.outputs)
    with pytest.raises(OutputsTooLarge, match="deep"):
        collect(attempt, RULES, put)


def test_names_that_are_no_text_are_shown(attempt: AttemptDir) -> None:
    Path(os.fsdecode(os.fsencode(attempt.outputs) + b"/\xff")).touch()
    found = collect(attempt, RULES, put)
    assert [item.name for item in found] == ["\\xff"]
    assert json_bytes(found[0].path)


def test_a_lone_surrogate_spoils_no_answer() -> None:
    assert json_bytes({"a": "\udcff", "b": "ä"}) == rb'{"a":"\udcff","b":"\u00e4"}'


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"reason": ["x"], "message": {"a": 1}, "fix": 3, "retryable": "no"}, (None, "told", None, None)),
        ({"reason": "\ud800", "message": "m" * 60_000, "retryable": False}, ("?", "m" * 8192, None, False)),
    ],
)
def test_last_words_are_taken_only_as_what_they_should_be(
    attempt: AttemptDir, backend: LocalBackend, said: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    status = {"phase": "Exited", "exitCode": 1, "message": "told", "termination": said}
    write_json(attempt.status, status)
    state = backend.read_state("a")
    assert (state.reason, state.message, state.fix, state.retryable) == expected


def test_state_nested_deeper_than_any_walk_goes_is_deleted(backend: LocalBackend) -> None:
    home = backend.state_directory("job-1")
    nest(home)
    asyncio.run(backend.release_state("job-1"))
    assert not home.parent.exists()
