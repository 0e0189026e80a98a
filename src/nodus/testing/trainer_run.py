"""Start the trainer as a Job would, without a server: directories, params.json, environment variables, fake socket."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nodus.core.digests import digest_of
from nodus.testing.attempt_server import Answer, AttemptServer, Grade

PROJECT, NAME = "default", "test-run"


class TrainerRun:
    """One TrainingJob's directories, any number of attempts of which can be run one after the other.

    Args:
        directory: Holds inputs, state, outputs and termination messages; made when missing.
        model_dir: The model's directory.
        parameters: ``spec.parameters``, with the runtime's defaults left to the trainer.
        params: Keys of params.json that differ from the ones made here.
    """

    def __init__(
        self,
        directory: Path,
        model_dir: Path,
        parameters: Mapping[str, Any],
        **params: Any,
    ) -> None:
        self.directory = directory
        self.model_dir = model_dir
        self.params: dict[str, Any] = {
            "task": "GRPO",
            "mode": "Train",
            "trainingJob": NAME,
            "project": PROJECT,
            "parameters": dict(parameters),
            "environment": {"name": "nodus/test", "version": "1.0.0", "digest": "sha256:env", "seed": 42},
            "evaluation": {"baseline": False, "final": False, "minComparisonTasks": 16},
            "modelUri": "hf://test/tiny",
            "modelRevision": None,
            "modelDigest": "sha256:model",
            "runtime": {"name": "nodus/grpo-lora", "image": "nodus/grpo-lora:2.0.0", "digest": "sha256:runtime"},
            **params,
        }
        self.params.setdefault("configurationDigest", digest_of({k: self.params[k] for k in sorted(self.params)}))
        # Unix socket paths are short; temporary directories of tests are not.
        self.socket = Path(tempfile.mkdtemp(prefix="nodus-")) / "api.sock"
        for name in ("params", "state", "outputs"):
            (directory / name).mkdir(parents=True, exist_ok=True)

    def server(
        self,
        train: Sequence[Mapping[str, Any]],
        test: Sequence[Mapping[str, Any]],
        grade: Grade,
        answer: Answer | None = None,
    ) -> AttemptServer:
        """The fake server that this run's attempts talk to; a context manager."""
        return AttemptServer(self.socket, train, test, grade, answer)

    def environ(self, attempt: str) -> dict[str, str]:
        """The environment variables of an attempt, params.json written."""
        (self.directory / "params" / "params.json").write_text(json.dumps(self.params))
        termination = self.directory / "termination" / attempt
        termination.mkdir(parents=True, exist_ok=True)
        return {
            "NODUS_ATTEMPT": attempt,
            "NODUS_PROJECT": PROJECT,
            "NODUS_TRAINING_JOB": NAME,
            "NODUS_INPUT_PARAMS": str(self.directory / "params"),
            "NODUS_INPUT_MODEL": str(self.model_dir),
            "NODUS_STATE_DIR": str(self.directory / "state"),
            "NODUS_OUTPUT_DIR": str(self.directory / "outputs"),
            "NODUS_RUNTIME_SOCKET": str(self.socket),
            "NODUS_TERMINATION_DIR": str(termination),
            "HF_HUB_OFFLINE": "1",
            "PYTHONHASHSEED": "0",
            # A tiny model gains nothing from a second thread, and loses much where cores are busy.
            "OMP_NUM_THREADS": "1",
        }

    def start(self, attempt: str = "att1", *, launcher: Sequence[str] = (), **env: str) -> subprocess.Popen[str]:
        """Start an attempt in a process of its own; its output is in ``<directory>/<attempt>.log``.

        Args:
            attempt: The attempt's name.
            launcher: Arguments of ``python`` that start a launcher, whose own last arguments name the trainer.
            env: Further environment variables.
        """
        with (self.directory / f"{attempt}.log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, *launcher, "-m", "nodus.trainer"],
                env={**os.environ, **self.environ(attempt), **env},
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def start_warm(self, attempt: str = "att1", **env: str) -> WarmProcess:
        """Start an attempt in a process forked from one that has imported the training stack, seconds sooner."""
        return WarmProcess({**self.environ(attempt), **env}, self.directory / f"{attempt}.log")

    def message(self, attempt: str = "att1") -> dict[str, Any]:
        """The message.json that a failed attempt left."""
        return json.loads((self.directory / "termination" / attempt / "message.json").read_text())

    def output(self, name: str) -> Any:
        """The JSON of an output file."""
        return json.loads((self.directory / "outputs" / name).read_text())

    def log(self, attempt: str = "att1") -> str:
        """What an attempt printed."""
        return (self.directory / f"{attempt}.log").read_text()


class WarmProcess:
    """An attempt in a process of its own that did not have to import torch; used like a ``subprocess.Popen``."""

    def __init__(self, environ: Mapping[str, str], log: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["nodus.trainer.tasks.grpo", "nodus.trainer.tasks.evaluate"])
        self._process = context.Process(target=_attempt, args=(dict(environ), str(log)))
        self._process.start()

    def poll(self) -> int | None:
        """The exit code, negative for a signal, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout_s: float) -> int:
        """Wait for the end and return the exit code.

        Raises:
            TimeoutError: When it still runs after ``timeout_s``.
        """
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            self._process.kill()
            raise TimeoutError(f"the attempt still ran after {timeout_s} s")
        return self._process.exitcode

    def kill(self) -> None:
        """Kill it without warning."""
        self._process.kill()


def _attempt(environ: dict[str, str], log: str) -> None:
    import torch

    from nodus.trainer.main import main

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.environ.update(environ)
    torch.set_num_threads(int(environ["OMP_NUM_THREADS"]))
    code = main([])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
