"""What a Job refers to, found and made ready on this host: secret values, Volumes' directories, the attempt's token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nodus.core.errors import Unavailable
from nodus.core.kinds import SECRET, VOLUME
from nodus.server import revisions
from nodus.server.compute.local.prepare import own_directory
from nodus.server.controllers import memberspec, workingcopies
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

    def check(self, conn: Connection, job: Object) -> None:
        """Check that a Job's references can be had now; nothing is taken.

        Raises:
            VolumeBusy: Another Job writes to one of the Volumes that it writes to.
            NotFound: As :meth:`find`.
            Unavailable: Likewise.
        """
        for name in memberspec.written_volumes(job.spec):
            revisions.require_free(conn, objects.get(conn, VOLUME, job.project, name), job.uid)
        self.find(conn, job)

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
                directory = workingcopies.make(self._work(job, volume.name), directory)
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
        return [(name, self.written_to(job, name)) for name in memberspec.written_volumes(job.spec)]

    def written_to(self, job: Object, name: str) -> list[FileEntry]:
        """Return the files of one Volume that a Job can write, stored as blobs. Blocking file work."""
        return list(workingcopies.tree(self._work(job, name), self._services.store.blobs))

    def commit(self, conn: Connection, job: Object, name: str, tree: list[FileEntry]) -> int:
        """Make what a Job changed of a Volume its newest revision, unless it changed nothing; return the newest.

        The files it wrote or removed are taken over; others stay as they are in the newest revision, so that a commit
        that came meanwhile is not undone.

        Raises:
            RequestEntityTooLarge: It wrote more than the Volume may hold.
        """
        volume = objects.find(conn, VOLUME, job.project, name)
        if volume is None:
            return 0
        newest = _tree_at(conn, volume.uid, None)
        merged = workingcopies.merge(self._base(conn, job, volume), tree, newest)
        if sorted(merged) == sorted(newest):
            return int(volume.status.get("revision") or 0)
        for entry in tree:
            blobs.index(conn, job.project, entry.sha256, entry.size_bytes)
        return revisions.commit(conn, volume.uid, merged).revision

    def note_committed(self, job: Object, name: str, tree: list[FileEntry]) -> None:
        """Note that a Volume has what a Job wrote so far; what it writes next is compared with that."""
        workingcopies.note_base(self._work(job, name), tree)

    def newest(self, conn: Connection, job: Object, name: str) -> tuple[list[FileEntry], list[FileEntry], int]:
        """Return what a Job's copy of a Volume last agreed with, the newest revision's files, and its number."""
        volume = objects.get(conn, VOLUME, job.project, name)
        found = volumes.latest(conn, volume.uid)
        return self._base(conn, job, volume), _tree_at(conn, volume.uid, None), found.revision if found else 0

    def reload(self, job: Object, name: str, base: list[FileEntry], newest: list[FileEntry]) -> None:
        """Give a Job's copy of a Volume what others have committed, beside what it wrote. Blocking file work."""
        directory, store = self._work(job, name), self._services.store.blobs
        now = self.written_to(job, name)
        workingcopies.bring_up(directory, now, workingcopies.merge(base, now, newest), store)
        workingcopies.note_base(directory, newest)

    def _base(self, conn: Connection, job: Object, volume: Object) -> list[FileEntry]:
        noted = workingcopies.base_of(self._work(job, volume.name))
        return noted if noted is not None else _tree_at(conn, volume.uid, _pinned_revision(job, volume.name))

    def _work(self, job: Object, volume: str) -> Path:
        return self._jobs / job.uid / "volumes" / volume


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
