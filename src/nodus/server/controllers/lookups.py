"""What a Job refers to, found and made ready on this host: secret values, Volumes' directories, the attempt's token."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nodus.core.errors import Unavailable
from nodus.core.kinds import SECRET, VOLUME
from nodus.server import revisions
from nodus.server.compute.local.prepare import own_directory
from nodus.server.compute.local.sandbox import host_owner
from nodus.server.controllers import memberspec
from nodus.server.kinds.storage import read_secret
from nodus.server.store import blobs, objects, volumes
from nodus.server.store.volumes import FileEntry
from nodus.server.volumes import VolumeFiles

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.services import Services
    from nodus.server.store.objects import Object


@dataclass(frozen=True, slots=True)
class FoundVolume:
    """A Volume that a Job mounts, as the store knows it."""

    uid: str
    name: str
    revision: int
    tree: tuple[FileEntry, ...]
    read_only: bool


@dataclass(frozen=True, slots=True)
class Found:
    """What the store knows of a Job's references."""

    secrets: Mapping[memberspec.SecretKey, Mapping[str, str]] = field(default_factory=dict)
    volumes: tuple[FoundVolume, ...] = ()


class Lookups:
    """Finds and prepares what attempts need.

    A Volume that a Job may write is given to it as a copy, which lives as long as the Job does; when the Job succeeds,
    what it wrote becomes the Volume's next revision.

    Args:
        services: The server's parts: settings, store and signer.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        data_dir = services.settings.data_dir
        self._files = VolumeFiles(data_dir / "volumes", services.store.blobs)
        self._jobs = data_dir / "jobs"

    def find(self, conn: Connection, job: Object) -> Found:
        """Read a Job's Secrets and Volumes.

        Raises:
            NotFound: One of them, or a version or revision, is not there.
            Unavailable: A Volume's files are still being imported.
        """
        secrets = {}
        for name, version in memberspec.secret_keys(job.spec):
            secret = objects.get(conn, SECRET, job.project, name)
            secrets[name, version] = read_secret(conn, self._services, secret, version)[1]
        return Found(secrets, tuple(_find_volumes(conn, job)))

    def hold(self, conn: Connection, job: Object, attempt: Object) -> None:
        """Make a Job the writer of the ReadWriteOnce Volumes that it mounts for writing.

        Raises:
            VolumeBusy: Another Job is.
            NotFound: One of them is not there.
        """
        revisions.hold(conn, job, attempt, memberspec.written_volumes(job.spec))

    def prepare(self, job: Object, attempt: Object, found: Found) -> memberspec.Resolved:
        """Make the directories of the Volumes, and return all that the attempt's member needs. Blocking file work."""
        directories = []
        for volume in found.volumes:
            directory = self._revision(volume)
            if not volume.read_only or directory is None:
                directory = _working_copy(self._work(job, volume.name), directory)
            directories.append(str(directory))
        token = self._services.signer.attempt_token(attempt.uid)
        home, state = self._jobs / job.uid, memberspec.state_name(job.spec, attempt.spec)
        kept = {}
        for number, path in enumerate(memberspec.kept_paths(job.spec)):
            directory = home / "kept" / state.replace("/", "-") / str(number)
            directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            own_directory(directory)
            kept[path] = str(directory)
        source = (job.status.get("pinned") or {}).get("source") or {}
        return memberspec.Resolved(
            found.secrets, directories, str(home / state), token, kept=kept, source=source.get("blob")
        )

    def _revision(self, volume: FoundVolume) -> Path | None:
        """Return the directory of a Volume's revision; None for an empty Volume."""
        if volume.tree:
            return self._files.directory(volume.uid, volume.revision, volume.tree)
        # An imported model has a directory before it has a tree.
        imported = self._files.path(volume.uid, volume.revision)
        return imported if imported.is_dir() else None

    def written(self, job: Object) -> list[tuple[str, list[FileEntry]]]:
        """Return the name and the files of each Volume a Job could write, stored as blobs. Blocking file work."""
        return [(name, list(self._tree(self._work(job, name)))) for name in memberspec.written_volumes(job.spec)]

    def commit(self, conn: Connection, job: Object, name: str, tree: list[FileEntry]) -> None:
        """Make what a Job changed of a Volume its newest revision, unless it changed nothing; it writes no more.

        The files it wrote or removed are taken over; others stay as they are in the newest revision, so that a commit
        that came meanwhile is not undone.

        Raises:
            RequestEntityTooLarge: It wrote more than the Volume may hold.
        """
        volume = objects.find(conn, VOLUME, job.project, name)
        if volume is None:
            return
        newest = _tree_at(conn, volume.uid, None)
        merged = merge(_tree_at(conn, volume.uid, _pinned_revision(job, name)), tree, newest)
        if sorted(merged) == sorted(newest):
            return
        for entry in tree:
            blobs.index(conn, job.project, entry.sha256, entry.size_bytes)
        revisions.commit(conn, volume.uid, merged)

    def _work(self, job: Object, volume: str) -> Path:
        return self._jobs / job.uid / "volumes" / volume

    def _tree(self, directory: Path) -> Iterator[FileEntry]:
        """Store the plain files below a directory as blobs; links and special files are left out."""
        for parent, names, files, fd in os.fwalk(directory, follow_symlinks=False):
            names.sort()
            for name in sorted(files):
                try:
                    opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
                except OSError:
                    continue
                try:
                    info = os.fstat(opened)
                    if stat.S_ISREG(info.st_mode):
                        sha256 = self._services.store.blobs.put_file(Path(f"/proc/self/fd/{opened}"))
                        path = Path(parent, name).relative_to(directory).as_posix()
                        yield FileEntry(path, sha256, info.st_size, 0o755 if info.st_mode & 0o100 else 0o644)
                finally:
                    os.close(opened)


def merge(base: Sequence[FileEntry], changed: Sequence[FileEntry], newest: Sequence[FileEntry]) -> list[FileEntry]:
    """Return ``newest`` with what ``changed`` has done to ``base``: files written, and files removed."""
    before = {entry.path: entry for entry in base}
    now = {entry.path: entry for entry in changed}
    kept = {entry.path: entry for entry in newest if entry.path not in before or entry.path in now}
    written = {path: entry for path, entry in now.items() if before.get(path) != entry}
    for path in written:
        # A file where a directory was, or the other way round: what was written wins.
        for other in [name for name in kept if name.startswith(f"{path}/") or path.startswith(f"{name}/")]:
            del kept[other]
    return list({**kept, **written}.values())


def _tree_at(conn: Connection, volume_uid: str, revision: int | None) -> list[FileEntry]:
    """Return the files of a revision, or of the newest one; none where there is no such revision."""
    known = [found.revision for found in volumes.list_(conn, volume_uid)]
    wanted = revision if revision is not None else (known[-1] if known else 0)
    return volumes.tree(conn, volume_uid, wanted) if wanted in known else []


def _pinned_revision(job: Object, volume: str) -> int | None:
    pinned = (job.status.get("pinned") or {}).get("volumes") or {}
    return int(pinned[volume]) if volume in pinned else None


def _find_volumes(conn: Connection, job: Object) -> Iterator[FoundVolume]:
    for mount in job.spec.get("volumes") or ():
        volume = objects.get(conn, VOLUME, job.project, mount["volume"])
        if volume.status.get("phase") != "Ready":
            raise Unavailable(f"the volume {volume.name!r} is {volume.status.get('phase') or 'not ready'}")
        pinned = _pinned_revision(job, volume.name)
        revision = int(mount.get("revision") or (pinned if pinned is not None else volume.status.get("revision")) or 0)
        tree = tuple(_tree_at(conn, volume.uid, revision))
        yield FoundVolume(volume.uid, volume.name, revision, tree, not memberspec.is_writable(mount))


def _working_copy(target: Path, source: Path | None) -> Path:
    """Return a directory that the sandbox's user may write, made from ``source`` where it is not there yet."""
    if target.is_dir():
        return target
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    if source is None:
        draft.mkdir()
    else:
        shutil.copytree(source, draft, symlinks=True, copy_function=shutil.copyfile)
    uid, gid = host_owner()
    os.chmod(draft, 0o755)
    os.chown(draft, uid, gid)
    for directory, names, files in os.walk(draft):
        for name in (*names, *files):
            path = Path(directory, name)
            os.chown(path, uid, gid, follow_symlinks=False)
            path.chmod(0o755 if path.is_dir() else 0o644)
    os.rename(draft, target)
    return target
