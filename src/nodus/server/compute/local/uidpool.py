"""Users of this machine for sandboxes, one each, where there are no control groups.

``RLIMIT_NPROC`` is then what bounds processes, and the kernel counts all of a user's, in every sandbox: with one user
for all, one sandbox's fork bomb would be another's failure to fork. Standard library only, importable alone.
"""

from __future__ import annotations

import os
import random
import threading
from dataclasses import replace
from pathlib import Path

from nodus.server.compute.local.sandboxspec import SandboxSpec

FIRST_UID, UIDS = 64_200, 1_000
_NAMES = ("/etc/passwd", "/etc/group")

_taken: set[int] = set()
_lock = threading.Lock()


def is_pooled(uid: int) -> bool:
    """Say whether a uid is one of the pool's."""
    return FIRST_UID <= uid < FIRST_UID + UIDS


def take() -> int:
    """Return a user that no process of this machine has, and that nobody else here is given until it is back.

    Raises:
        OSError: When there is none.
    """
    with _lock:
        free = set(range(FIRST_UID, FIRST_UID + UIDS)) - _taken - _in_use()
        if not free:
            raise OSError(f"all of the {UIDS} users for sandboxes, from {FIRST_UID} on, have processes")
        uid = random.choice(sorted(free))  # another server on this machine takes another one
        _taken.add(uid)
        return uid


def give_back(uid: int) -> None:
    """Let a user be taken again, once nothing of it runs."""
    with _lock:
        _taken.discard(uid)


def as_user(spec: SandboxSpec, uid: int) -> SandboxSpec:
    """Return a sandbox that runs as a user of the pool, which has a name in it."""
    lines = (f"sandbox:x:{uid}:{uid}:sandbox:/tmp:/bin/sh\n", f"sandbox:x:{uid}:\n")
    files = {name: spec.files.get(name, b"") + line.encode() for name, line in zip(_NAMES, lines, strict=True)}
    return replace(spec, uid=uid, files={**spec.files, **files})


def _in_use() -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add(os.stat(entry).st_uid)
            except OSError:
                continue  # it has ended meanwhile
    return found
