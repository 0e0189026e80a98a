"""``python -m nodus.trainer.torchrun``: torchrun, whose end is the trainer's end and leaves the trainer the last word.

It takes torchrun's own arguments and calls ``torch.distributed.run``; only what comes after the workers ended differs.
torchrun itself always exits with 1 and prints a traceback of its own, whatever the trainer exited with and said.

Also here: what a trainer that torchrun started as the only process does to be a process like any other.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping

NOT_EXECUTABLE, NOT_FOUND = 126, 127
VARIABLES = (
    "LOCAL_RANK",
    "RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "LOCAL_WORLD_SIZE",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)
"""What torchrun tells its workers, beside ``TORCHELASTIC_*``."""


def main(arguments: list[str] | None = None) -> int:
    """Run torchrun with these arguments, or the command line's.

    Returns:
        0, or the exit code of the worker that failed first; 128 plus the signal's number where a signal ended that
        worker or torchrun, 127 or 126 where its program can't be started, as a shell has it.
    """
    # The trainer has said what is wrong; "failed (exitcode: 1) local_rank: 0 of binary" and the like add nothing. What
    # goes wrong in torchrun itself is raised. Not by LOGLEVEL: the trainer would inherit it.
    logging.disable(logging.ERROR)
    # Imported late: it imports torch.
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    parsed = run.parse_args(arguments)
    try:
        run.run(parsed)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if parsed.nproc_per_node != "1":  # Several processes write to one log: say whose words count.
            sys.stderr.write(f"nodus.trainer: the process of rank {rank} failed first\n")
        return _as_exit_code(failure.exitcode)
    except SignalException as stopped:
        return _as_exit_code(-stopped.sigval)
    except (FileNotFoundError, PermissionError) as error:
        if error.filename != parsed.training_script:
            raise
        sys.stderr.write(f"{error.filename}: {error.strerror}\n")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    return 0


def leave_group_of_one(environ: MutableMapping[str, str] | None = None) -> None:
    """Forget torchrun's variables where it started one process: no group is joined, the model is not wrapped.

    accelerate and transformers take the mere presence of ``LOCAL_RANK`` for a distributed run: they open a gloo or NCCL
    group of one and wrap the model for gradients that nobody else has, which costs memory and time in every step. With
    more than one process nothing is changed. Call it before either is imported.

    Args:
        environ: The variables; this process's when None.
    """
    env = os.environ if environ is None else environ
    if env.get("WORLD_SIZE") != "1":
        return
    for name in [name for name in env if name in VARIABLES or name.startswith("TORCHELASTIC_")]:
        del env[name]


def _as_exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is over; taking torch down in order would only make the run's end half a second later.
    os._exit(code)
