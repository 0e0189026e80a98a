"""The trainer's entry point: read the run, call its task, report a failure with its reason."""

from __future__ import annotations

import importlib
import os
import sys

from nodus.trainer.failures import report
from nodus.trainer.torchrun import leave_group_of_one

USAGE = """usage: python -m nodus.trainer

Runs one training or evaluation of a TrainingJob. Everything is read from the environment that a Nodus Job sets:
NODUS_INPUT_PARAMS NODUS_INPUT_MODEL NODUS_STATE_DIR NODUS_OUTPUT_DIR NODUS_RUNTIME_SOCKET NODUS_TERMINATION_DIR
NODUS_ATTEMPT NODUS_PROJECT NODUS_TRAINING_JOB
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the trainer and return its exit code."""
    if arguments if arguments is not None else sys.argv[1:]:
        sys.stdout.write(USAGE)
        return 0
    return report(_train)


def _train() -> None:
    leave_group_of_one()
    # Threads that wait for the next kernel spin this short a while. libgomp's own default is a hundred times as long,
    # which costs a third of the step where the cores are shared with graders, a server or another run.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # Imported late: --help and a refused params.json need no torch.
    from nodus.core.errors import Unsupported
    from nodus.trainer.attempt import AttemptClient
    from nodus.trainer.run import Run

    run = Run.load()
    attempt = AttemptClient(run.socket, run.project, run.name, run.attempt)
    if run.mode == "Evaluate" or run.task == "Evaluate":
        module = "evaluate"
    elif run.task == "GRPO":
        module = "grpo"
    else:
        raise Unsupported(f"this trainer has no task {run.task!r}; it has GRPO and Evaluate")
    importlib.import_module(f"nodus.trainer.tasks.{module}").run(run, attempt)
