"""Recovery state under ``$NODUS_STATE_DIR``: what belongs to it, when a checkpoint is whole, which one to resume from.

    binding.json                    the digests this state belongs to
    baseline.json                   the baseline evaluation, once it is complete
    initial.json                    the digest of the weights before the first step
    checkpoints/checkpoint-25/      as transformers' Trainer writes it
    checkpoints/checkpoint-25/complete.json
                                    written last, with every file's sha256: without it the checkpoint does not count

A process may be killed between any two writes; what it leaves is either whole or ignored. Loads no torch.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodus.core.errors import StateMismatch
from nodus.trainer.files import manifest_of, read_json, sync_directory, write_json

_COMPLETE = "complete.json"


class State:
    """The state directory of one run.

    Args:
        directory: Made when missing.
        binding: The digests of this run, by name; None where the compiler gave none.
        keep: Complete checkpoints that are kept, newest first; at least 1.
    """

    def __init__(self, directory: Path, binding: Mapping[str, str | None], keep: int) -> None:
        self._directory = directory
        self._binding = dict(binding)
        self._keep = keep

    @property
    def checkpoint_dir(self) -> Path:
        """Where transformers' Trainer writes its checkpoints."""
        return self._directory / "checkpoints"

    def open(self) -> None:
        """Bind a new state directory to this run, or check that it is this run's.

        Raises:
            StateMismatch: Naming every digest that differs, with both values.
        """
        self.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        found = read_json(self._directory / "binding.json")
        if found is None:
            # Without a binding nothing below can be trusted to be this run's: a first start, or one killed within it.
            self._clear()
            write_json(self._directory / "binding.json", self._binding)
            return
        differing = [
            f"{name}: the state has {found.get(name)}, this run has {value}"
            for name, value in self._binding.items()
            if found.get(name) != value
        ]
        if differing:
            raise StateMismatch(
                "the state directory belongs to another run; " + "; ".join(differing),
                fix="start a new TrainingJob, or restore the configuration, runtime, model and environment it had",
            )

    def _clear(self) -> None:
        for name in ("baseline.json", "initial.json"):
            (self._directory / name).unlink(missing_ok=True)
        for path in self._checkpoints():
            shutil.rmtree(path)

    def load(self, name: str) -> Any | None:
        """The JSON value kept as ``name``, or None."""
        return read_json(self._directory / f"{name}.json")

    def keep(self, name: str, value: Any) -> None:
        """Keep a JSON value as ``name``, whole or not at all."""
        write_json(self._directory / f"{name}.json", value)

    def complete(self, checkpoint: Path) -> None:
        """Declare a checkpoint whole: its files are made durable, then hashed into a marker; older ones are removed."""
        for path in (p for p in checkpoint.rglob("*") if p.is_file()):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(checkpoint)
        write_json(checkpoint / _COMPLETE, {"files": manifest_of(checkpoint, leave_out=frozenset({_COMPLETE}))})
        # Only now: a crash before the marker must still find the one before.
        complete = [path for path in self._checkpoints() if (path / _COMPLETE).exists()]
        for old in complete[: -self._keep]:
            shutil.rmtree(old)

    def latest(self) -> Path | None:
        """The newest whole checkpoint; newer ones that are partial or damaged are named on stderr and removed."""
        for path in reversed(self._checkpoints()):
            damage = _damage(path)
            if damage is None:
                return path
            sys.stderr.write(f"nodus.trainer: {path.name} is not whole ({damage}); using the one before it\n")
            shutil.rmtree(path)
        return None

    def _checkpoints(self) -> list[Path]:
        """Checkpoint directories, oldest first."""
        found = (p for p in self.checkpoint_dir.glob("checkpoint-*") if p.is_dir() and step_of(p) >= 0)
        return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """The optimizer step a checkpoint was saved after; -1 for a directory of another name."""
    number = checkpoint.name.removeprefix("checkpoint-")
    return int(number) if number.isdigit() else -1


def _damage(checkpoint: Path) -> str | None:
    marker = read_json(checkpoint / _COMPLETE)
    if not isinstance(marker, Mapping) or not isinstance(marker.get("files"), Mapping):
        return "it was never completed"
    there = manifest_of(checkpoint, leave_out=frozenset({_COMPLETE}))
    for name, recorded in marker["files"].items():
        if name not in there:
            return f"{name} is missing"
        if there[name] != recorded:
            return f"{name} is not what was written"
    return None
