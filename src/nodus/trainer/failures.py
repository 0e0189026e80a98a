"""How a trainer that fails says why: one line on stderr, ``message.json`` for the server, a non-zero exit.

Loads no torch, so that a run whose torch does not import still reports it.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nodus.core.errors import NodusError
from nodus.trainer.files import write_json

EXIT_REFUSED = 2
"""Exit code of a run that can't succeed by being tried again."""
EXIT_FAILED = 1
"""Exit code of every other failure."""

_FINAL = frozenset({"Invalid", "Unsupported", "StateMismatch", "BadRequest", "GraderFailed", "EnvironmentTasksFailed"})


def report(main: Callable[[], None], environ: Mapping[str, str] | None = None) -> int:
    """Run ``main`` and turn whatever escapes it into a message and an exit code.

    Returns:
        0, or ``EXIT_REFUSED`` when another attempt would fail the same way, or ``EXIT_FAILED``.
    """
    env = os.environ if environ is None else environ
    try:
        main()
    except Exception as error:  # noqa: BLE001 - the top of the process: everything becomes a reported reason
        message = describe(error)
        if message["reason"] in _FINAL:
            message["retryable"] = False
        if not isinstance(error, NodusError):
            traceback.print_exc()
        _write(env.get("NODUS_TERMINATION_DIR"), message)
        sys.stderr.write(f"nodus.trainer: {message['reason']}: {message['message']}\n")
        if message.get("fix"):
            sys.stderr.write(f"nodus.trainer: fix: {message['fix']}\n")
        return EXIT_REFUSED if message["reason"] in _FINAL else EXIT_FAILED
    return 0


def describe(error: BaseException) -> dict[str, Any]:
    """The ``{"reason", "message", "fix"}`` of an error, with one line per cause in the message."""
    if isinstance(error, NodusError):
        lines = [error.message, *(f"{cause.field}: {cause.message}" for cause in error.causes)]
        return {"reason": error.reason, "message": "\n".join(lines), "fix": error.fix}
    # safetensors and torch report a full disk in words of their own.
    if getattr(error, "errno", None) == errno.ENOSPC or "No space left on device" in str(error):
        return {
            "reason": "DiskFull",
            "message": f"no space left on the device while writing {getattr(error, 'filename', None) or 'a file'}",
            "fix": "free disk space or lower saveTotalLimit; the run resumes from its last checkpoint",
        }
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return {
            "reason": "OutOfMemory",
            "message": str(error).splitlines()[0] if str(error) else "the model and its batch don't fit in memory",
            "fix": "lower spec.parameters.batchSize or evaluationBatchSize, or raise spec.resources.memory",
        }
    text = str(error).strip() or "no message"
    return {"reason": "TrainerError", "message": f"{type(error).__name__}: {text}", "fix": "read the Job's log"}


def _write(directory: str | None, message: dict[str, Any]) -> None:
    if not directory:
        return
    try:
        write_json(Path(directory) / "message.json", {k: v for k, v in message.items() if v is not None})
    except OSError as error:
        sys.stderr.write(f"nodus.trainer: message.json could not be written: {error}\n")
