"""Finished builds on the server's disk, each once under the digest of its content, and those in the making.

::

    builds/<64 hex>/build.json    what it is; a directory without it is no build
    builds/<64 hex>/...           what the recipe made
    builds/making/<uid>-.../      in the making; removed when the server starts
    builds/logs/<uid>/            what the build of an Image said

A build is put in place by one rename of a directory whose files are on the disk, so that it is there whole or not at
all. Nobody changes it then.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from nodus.core.digests import digest_of
from nodus.server.files import sync_directory, sync_filesystem
from nodus.server.grading.builds.base import Build, Built
from nodus.server.trees import entries, remove_tree

_HEX = re.compile(r"[0-9a-f]{64}")
_FACTS = "build.json"


class BuildStore:
    """Keeps builds.

    Args:
        root: Their directory; made when needed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, digest: str) -> Build | None:
        """Return the build of a digest, or None."""
        name = digest.removeprefix("sha256:")
        return self._read(self.root / name) if _HEX.fullmatch(name) else None

    def of_key(self, key: str) -> Build | None:
        """Return a finished build of a recipe's key, counting it as used now; None when there is none."""
        for directory in self._all():
            facts = _facts(directory)
            if facts is not None and facts.get("key") == key:
                with contextlib.suppress(OSError):
                    os.utime(directory / _FACTS)
                return self._read(directory)
        return None

    def begin(self, uid: str) -> Path:
        """Return an empty directory to build in, which the sandbox's user may enter."""
        work = self.root / "making"
        work.mkdir(parents=True, exist_ok=True)
        for place in (self.root, work):
            os.chmod(place, 0o711)
        directory = Path(tempfile.mkdtemp(prefix=f"{uid}-", dir=work))
        os.chmod(directory, 0o755)
        return directory

    def finish(self, key: str, work: Path, built: Built) -> Build:
        """Keep what was built in ``work``, or take what was kept of the same content before.

        Raises:
            OSError: The disk is full or out of order.
        TreeRefused: Directories are nested too deep.
        """
        digest = digest_of(built.content)
        size = _settle(work)
        noted = {
            "key": key, "digest": digest, "content": dict(built.content), "facts": dict(built.facts),
            "packages": dict(built.packages), "sizeBytes": size,
        }  # fmt: skip
        _write(work / _FACTS, json.dumps(noted, sort_keys=True))
        sync_directory(work)
        target = self.root / digest.removeprefix("sha256:")
        try:
            work.rename(target)
        except OSError:
            if self.find(digest) is None:
                raise
            with contextlib.suppress(OSError):
                os.utime(target / _FACTS)  # used again: a sweep must not take it before an Image names it
            remove_tree(work)
        sync_directory(self.root)
        found = self.find(digest)
        assert found is not None
        return found

    def log_directory(self, uid: str) -> Path:
        """Return where the log of an Image's build is."""
        return self.root / "logs" / uid

    def forget_log(self, uid: str) -> None:
        """Remove the log of an Image's build."""
        remove_tree(self.log_directory(uid))

    def clear_work(self) -> None:
        """Remove what builds of a server that was killed have left; what can't be removed stays and does no harm."""
        remove_tree(self.root / "making")

    def unused(self, keep_s: float) -> list[str]:
        """Return the digests (hex) of builds that were neither made nor used again within ``keep_s``."""
        before = time.time() - keep_s
        found = []
        for directory in self._all():
            with contextlib.suppress(OSError):
                if (directory / _FACTS).stat().st_mtime < before:
                    found.append(directory.name)
        return found

    def remove(self, digests: Collection[str]) -> int:
        """Remove builds by their digests (hex); return how many bytes that freed."""
        freed = 0
        for name in digests:
            if (build := self.find(name)) is None:
                continue
            gone = self.root / f".gone-{name}"
            with contextlib.suppress(OSError):
                build.directory.rename(gone)  # at once: a directory half removed must not look like a build
                freed += build.size_bytes
        for gone in self.root.glob(".gone-*"):
            remove_tree(gone)
        return freed

    def _all(self) -> Iterator[Path]:
        if self.root.is_dir():
            yield from (entry for entry in sorted(self.root.iterdir()) if _HEX.fullmatch(entry.name))

    def _read(self, directory: Path) -> Build | None:
        facts = _facts(directory)
        if facts is None:
            return None
        return Build(
            digest=str(facts["digest"]),
            directory=directory,
            facts=dict(facts.get("facts") or {}),
            packages={str(name): str(version) for name, version in (facts.get("packages") or {}).items()},
            size_bytes=int(facts.get("sizeBytes") or 0),
        )


def _facts(directory: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((directory / _FACTS).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "digest" in found else None


def _settle(root: Path) -> int:
    """Make a directory durable and readable for every sandbox; return its size.

    What a build leaves may be anything: only files, directories and links are kept, and links are followed by nobody
    but a sandbox, where they lead to nothing that was not mounted.
    """
    size = 0
    os.chmod(root, 0o755)
    for entry in entries(root):
        found = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            os.chmod(entry.path, 0o755)
        elif stat.S_ISREG(found.st_mode):
            os.chmod(entry.path, 0o755 if found.st_mode & stat.S_IXUSR else 0o644)
            size += found.st_size
        elif not stat.S_ISLNK(found.st_mode):
            os.unlink(entry.path)
    sync_filesystem(root)
    return size


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
