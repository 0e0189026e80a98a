"""Runs of the trainer on a tiny random model against the fake server, in this process or in one of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodus.testing.attempt_server import AttemptServer
from nodus.testing.models import tiny_llama
from nodus.testing.trainer_run import NAME, PROJECT, TrainerRun

TRAIN = [{"taskId": f"t{i}", "prompt": f"say {i}", "metadata": {}} for i in range(16)]
HELD_OUT = [{"taskId": f"h{i}", "prompt": f"say {100 + i}", "metadata": {}} for i in range(8)]
PARAMETERS: dict[str, Any] = {
    "steps": 4,
    "batchSize": 4,
    "gradientAccumulation": 2,
    "numGenerations": 4,
    "learningRate": 0.01,
    "lrScheduler": "constant",
    "warmupRatio": 0,
    "maxCompletionLength": 8,
    "sampling": {"temperature": 1.0},
    "gradientCheckpointing": False,
    "lora": {"r": 4, "dropout": 0.0},
}


def letters(task_id: str, completion: str) -> float:
    """The reward of these tests: half a point a letter from the alphabet's first half, full from two on."""
    return min(sum(c in "abcdefghijklm" for c in completion) / 2, 1.0)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """A tiny model gains nothing from a second thread, and loses much where cores are busy."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@dataclass
class Session:
    """A trainer made ready in this process, and the fake server it talks to."""

    session: Any
    server: AttemptServer

    @property
    def trainer(self) -> Any:
        return self.session.trainer


@pytest.fixture
def prepare(tmp_path: Path, tiny_dir: Path) -> Iterator[Callable[..., Session]]:
    """Make a GRPO run ready up to its first step; the environment, the model and every parameter can be given."""
    from nodus.trainer.attempt import AttemptClient
    from nodus.trainer.checkpoints import State
    from nodus.trainer.grpo_config import KEEP_CHECKPOINTS
    from nodus.trainer.models import detect_device
    from nodus.trainer.run import Run
    from nodus.trainer.tasks import grpo

    with ExitStack() as stack:
        made = []

        def make(
            grade: Any = letters,
            *,
            answer: Any = None,
            tasks: tuple[list[Any], list[Any]] = (TRAIN, HELD_OUT),
            model_dir: Path = tiny_dir,
            world: dict[str, str] | None = None,
            **parameters: Any,
        ) -> Session:
            directory = tmp_path / f"run{len(made)}"
            run = TrainerRun(directory, model_dir, {**PARAMETERS, **parameters})
            server = stack.enter_context(run.server(*tasks, grade, answer))
            spec = Run.load({**run.environ("att1"), **(world or {})})
            attempt = AttemptClient(spec.socket, PROJECT, NAME, spec.attempt)
            state = State(spec.state_dir, spec.binding(), spec.parameters["saveTotalLimit"] or KEEP_CHECKPOINTS)
            state.open()
            train, held_out = attempt.tasks()
            session = grpo.prepare(spec, attempt, state, detect_device(1), train, held_out)
            made.append(session)
            return Session(session, server)

        yield make


@pytest.fixture
def runs(tmp_path: Path, tiny_dir: Path) -> Callable[..., TrainerRun]:
    """Make the directories of a run whose attempts are processes; parameters and keys of params.json can be given."""

    def make(name: str = "run", parameters: dict[str, Any] | None = None, **params: Any) -> TrainerRun:
        return TrainerRun(tmp_path / name, tiny_dir, {**PARAMETERS, **(parameters or {})}, **params)

    return make
