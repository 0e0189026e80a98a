"""Makes the archive that becomes an Environment: the reward, the tasks and the packages that go along.

The archive is deterministic: the same code, tasks and packages give the same bytes, and so the same Environment.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodus.recipes.bundling import PackagedReward, package_reward
from nodus.recipes.errors import RewardError, TasksError
from nodus.recipes.local_check import REWARD_MODULE, try_reward
from nodus.recipes.tasks import Task

LIMIT_BYTES = 512 * 1024
TASK_MODULE = "nodus_task"
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?==[A-Za-z0-9][A-Za-z0-9.!+_-]*")
# Written by the installer about the installation, not part of the package; some of it differs from run to run.
_NOT_PACKAGED = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})

_TASK_MODULE_TEXT = '''"""Tasks and reward, as nodus.recipes.rl packaged them."""

import json
from pathlib import Path

from {module} import {name} as reward

_TASKS = json.loads(Path(__file__).with_name("nodus_task_data.json").read_text(encoding="utf-8"))


def tasks(split):
    return _TASKS[split]
'''


@dataclass(frozen=True, slots=True)
class Bundle:
    """An archive ready to be uploaded."""

    archive: bytes
    """A tar.gz."""
    digest: str
    """sha256 of its uncompressed content, 64 hex digits."""
    train: int
    """Tasks to train on."""
    test: int
    """Held-out tasks."""

    @property
    def sha256(self) -> str:
        """sha256 of the archive, 64 hex digits."""
        return hashlib.sha256(self.archive).hexdigest()

    @property
    def environment_name(self) -> str:
        """The Environment's name: the same for the same content."""
        return f"rl-{self.digest[:12]}"


def make_bundle(reward: Any, train: Sequence[Task], test: Sequence[Task], pip: Sequence[str] = ()) -> Bundle:
    """Package a reward with its tasks, having tried it on one of them.

    Args:
        reward: A function ``reward(completion, answer)``.
        train: Tasks to train on, checked.
        test: Held-out tasks, checked.
        pip: Requirements that go along, ``name==version``.

    Raises:
        RewardError: When the reward can't be packaged or does not work on this machine.
        TasksError: When code, tasks and packages together are over the limit of 512 KiB.
    """
    check_requirements(pip)
    vendored = vendor(pip)
    packaged = package_reward(reward, top_level_modules(vendored))
    files = _files(packaged, train, test) | vendored
    try_reward(packaged, train[0]["answer"], files)
    content = _tar(files)
    # The time in a gzip header would make every archive differ.
    archive = gzip.compress(content, compresslevel=9, mtime=0)
    if len(archive) > LIMIT_BYTES:
        raise TasksError(
            f"reward, tasks and packages are {len(archive) // 1024} KiB packed; at most {LIMIT_BYTES // 1024} fit: "
            f"{_largest(files)}",
            fix="Pass fewer or shorter tasks, leave packages out, or publish the environment as a pip package.",
        )
    return Bundle(archive, hashlib.sha256(content).hexdigest(), len(train), len(test))


def check_requirements(pip: Sequence[str]) -> None:
    """Refuse requirements that aren't pinned.

    Raises:
        RewardError: For the first that isn't ``name==version``.
    """
    if isinstance(pip, str):
        raise RewardError(f"pip is the text {pip!r}", fix=f'Pass a list: pip=["{pip}"].')
    for requirement in pip:
        if not _REQUIREMENT.fullmatch(str(requirement)):
            name = re.split(r"[=<>!~ ]", str(requirement))[0]
            raise RewardError(
                f"pip={requirement!r} is not an exact version",
                fix=f'Write it like "{name}==1.2.3", so that a run can be repeated.',
            )


def vendor(pip: Sequence[str]) -> dict[str, bytes]:
    """Return the files of packages and of what they need, below ``site/``; wheels only, nothing is built.

    Raises:
        RewardError: When pip can't get them; with pip's last line.
    """
    if not pip:
        return {}
    with tempfile.TemporaryDirectory(prefix="nodus-pip-") as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-compile",
            "--only-binary=:all:",
            "--target",
            folder,
            *pip,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            errors = [line for line in lines if "ERROR" in line] or lines or ["pip said nothing"]
            raise RewardError(
                f"pip={list(pip)!r} can't be fetched: {errors[0].strip()}",
                fix="Check names and versions; packages need wheels, and pip needs its index.",
            )
        root = Path(folder)
        found = sorted(path for path in root.rglob("*") if path.is_file() and _is_packaged(path.relative_to(root)))
        return {f"site/{path.relative_to(root).as_posix()}": path.read_bytes() for path in found}


def top_level_modules(vendored: Collection[str]) -> set[str]:
    """Return the modules that vendored files can be imported as."""
    first = {name.split("/")[1] for name in vendored}
    return {name.split(".")[0] for name in first if not name.endswith((".dist-info", ".data"))}


def _is_packaged(path: Path) -> bool:
    return path.parts[0] != "bin" and "__pycache__" not in path.parts and path.name not in _NOT_PACKAGED


def _files(packaged: PackagedReward, train: Sequence[Task], test: Sequence[Task]) -> dict[str, bytes]:
    data = {"train": list(train), "test": list(test)}
    task_module = _TASK_MODULE_TEXT.format(module=REWARD_MODULE, name=packaged.name)
    return {
        f"{TASK_MODULE}.py": task_module.encode(),
        f"{REWARD_MODULE}.py": packaged.text.encode(),
        "nodus_task_data.json": json.dumps(data, ensure_ascii=False, indent=0, sort_keys=True).encode(),
    }


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(files[name]), 0o644
            archive.addfile(entry, io.BytesIO(files[name]))
    return buffer.getvalue()


def _largest(files: Mapping[str, bytes]) -> str:
    sizes: dict[str, int] = {}
    for name, content in files.items():
        parts = name.split("/")
        group = "/".join(parts[:2]) if parts[0] == "site" else parts[0]
        sizes[group] = sizes.get(group, 0) + len(gzip.compress(content))
    top = sorted(sizes, key=lambda group: -sizes[group])[:3]
    return ", ".join(f"{group} {sizes[group] // 1024} KiB" for group in top)
