"""The sandbox of a grader that is a program of an image: the image's files are all that it sees.

bubblewrap makes mount points by following what is there, so nothing is ever mounted at a path that an image decides:
each entry of the image's top directory is mounted by itself into an empty one, beside our /proc, /dev and /tmp. Then
``enterroot.py``, on the host's Python, makes that the root, gives up every privilege and runs the program.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from nodus.server.compute.graders import GraderRoot, GraderSpec
from nodus.server.compute.local import cgroups, pythons, seccomp
from nodus.server.compute.local.mounts import Mount, interpreter_mounts, system_mounts
from nodus.server.compute.local.sandboxspec import MIB, SANDBOX_UID, Mode, SandboxSpec, counts_by_namespace

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ROOT = "/image"
_OURS = ("proc", "dev", "tmp", "sys")
"""Top directories of which a sandbox has its own, or none."""
_ENTER, _PLAN = "/nodus/enterroot.py", "/nodus/plan.json"
_PROCESSES_BY_RLIMIT = 32
_DEFAULTS = {"PATH": DEFAULT_PATH, "HOME": "/tmp", "LANG": "C.UTF-8", "USER": "nodus", "LOGNAME": "nodus"}


_FIXED = {
    "NODUS_GRADING_SANDBOX": "1",  # Nodus's own runner then cleans up between completions
    "TMPDIR": "/tmp",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",  # each line is waited for
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    **dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1"),
}
"""Whatever the image says."""


def root_sandbox(spec: GraderSpec, root: GraderRoot, mode: Mode) -> SandboxSpec:
    """Return the sandbox of a grader in an image.

    Args:
        spec: What it runs.
        root: Where.
        mode: How sandboxes are started here: ``root`` or ``userns``.

    Raises:
        OSError: The image's files are not there.
    """
    python = pythons.own()
    by_namespace = mode == "userns" and cgroups.hierarchy() is None and counts_by_namespace()
    plan = {
        "root": _ROOT,
        "cwd": root.cwd,
        "uid": SANDBOX_UID,
        "drop": mode == "root",
        "env": {**_DEFAULTS, **root.env, **_FIXED},
        "argv": [root.program, *spec.arguments],
        # as a plain user without control groups, processes are bounded inside the user namespace alone
        "processes": _PROCESSES_BY_RLIMIT if by_namespace else None,
    }
    script = str(Path(__file__).with_name("enterroot.py"))
    return SandboxSpec(
        argv=(python.program, "-I", "-S", "-B", _ENTER, _PLAN),
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        mounts=(
            *system_mounts(),
            *interpreter_mounts(python.prefix, python.program),
            Mount(script, _ENTER),
            *_entries(root.directory),
        ),
        tmpfs={f"{_ROOT}/tmp": 64 * MIB, f"{_ROOT}/dev/shm": 16 * MIB},
        files={_PLAN: json.dumps(plan).encode()},
        cwd="/",
        hostname="grader",
        seccomp=seccomp.grader_profile(enters=True),
        memory_bytes=spec.memory_bytes,
        pids=128,
        file_bytes=64 * MIB,
        open_files=256,
        umask=0o077,
        enter=_ROOT,
    )


def _entries(directory: Path) -> list[Mount]:
    """Return the mounts of a root's top directory; links are made anew, so that they lead nowhere but inside."""
    found = []
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.name in _OURS:
            continue
        if entry.is_symlink():
            found.append(Mount(os.readlink(entry.path), f"{_ROOT}/{entry.name}", symlink=True))
        else:
            found.append(Mount(entry.path, f"{_ROOT}/{entry.name}"))
    return found
