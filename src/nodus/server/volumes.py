"""Directories of Volume revisions, for read-only mounts: made from blobs by hard links, each appearing whole.

The store holds a revision as a tree of blobs; a run needs a directory. `VolumeFiles.directory` makes one where it is
missing and never changes one that is there, so that every run of a revision shares it. Files are synchronous and may
take long: call it in a thread.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from nodus.core.errors import Invalid, NotFound

if TYPE_CHECKING:
    from nodus.server.store.blobs import BlobStore
    from nodus.server.store.volumes import FileEntry


class VolumeFiles:
    """Directories below `<data>/volumes/<volume uid>/<revision>`.

    Args:
        root: `<data>/volumes`.
        blobs: where the files' contents are.
    """

    def __init__(self, root: Path, blobs: BlobStore) -> None:
        self._root = root
        self._blobs = blobs

    def path(self, volume_uid: str, revision: int) -> Path:
        """Where a revision's directory is or will be."""
        return self._root / volume_uid / str(revision)

    def directory(self, volume_uid: str, revision: int, tree: Iterable[FileEntry]) -> Path:
        """Return the directory of a revision, made from its tree where it is not there yet.

        Raises:
            NotFound: a blob of the tree is gone.
            Invalid: a path of the tree leads out of the Volume.
        """
        final = self.path(volume_uid, revision)
        if final.is_dir():
            return final
        final.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=final.parent, prefix=".draft-"))
        try:
            for entry in tree:
                self._place(draft, entry)
            draft.chmod(0o755)
            os.rename(draft, final)
        except FileExistsError:
            pass  # Another run made it in the meantime; theirs holds the same files.
        except OSError:
            if not final.is_dir():
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return final

    def take(self, source: Path, sha256: str) -> None:
        """Make a file that was hashed already a blob, by a hard link where the file system allows it.

        Args:
            source: the file; stays where it is.
            sha256: its digest, 64 hex digits.
        """
        if self._blobs.claim(sha256):
            return
        with self._blobs.draft() as draft:
            _link(source, draft)
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            self._blobs.put_in_place(draft, sha256)

    def forget(self, volume_uid: str) -> None:
        """Delete the directories of a Volume that is gone; its blobs are the index's matter."""
        shutil.rmtree(self._root / volume_uid, ignore_errors=True)

    def _place(self, root: Path, entry: FileEntry) -> None:
        parts = Path(entry.path).parts
        if not parts or ".." in parts or Path(entry.path).is_absolute():
            raise Invalid(f"the path {entry.path!r} leads out of the Volume")
        target = root.joinpath(*parts)
        for parent in reversed(target.relative_to(root).parents[:-1]):
            (root / parent).mkdir(exist_ok=True)
            (root / parent).chmod(0o755)
        blob = self._blobs.path(entry.sha256)
        try:
            if entry.mode & 0o100:
                # Modes belong to an inode, and the blob may be a plain file elsewhere.
                shutil.copyfile(blob, target)
                target.chmod(0o555)
                return
            # The inode is the blob store's, whose directory keeps others out; runs read it as another uid.
            blob.chmod(0o444)
            _link(blob, target)
        except FileNotFoundError:
            raise NotFound(f"the blob of {entry.path!r} is gone", fix="Import or upload the Volume again.") from None


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        # Another file system, or one without hard links.
        shutil.copyfile(source, target)
        target.chmod(0o444)
