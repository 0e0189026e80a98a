"""What a Volume may become and who may write to it: the one place where revisions are committed.

Functions of a write transaction. Uploads, imports and finished Jobs all commit through :func:`commit`, so that a
Volume never holds more than its size, nor a path that is a file and a directory.

A ReadWriteOnce Volume has at most one writing Job, its *holder*, from the start of the Job's first attempt to the
Job's end. The holder stands in the Volume's status and counts for as long as that very Job is there and unfinished:
nothing has to be given back for the next one to take it, so that no crash can leave a Volume locked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nodus.core.clock import rfc3339
from nodus.core.errors import BadRequest, RequestEntityTooLarge, VolumeBusy
from nodus.core.kinds import JOB, VOLUME
from nodus.core.sizes import quantity, size_text
from nodus.server.store import objects, volumes
from nodus.server.store.context import lock_objects
from nodus.server.store.volumes import FileEntry, Revision
from nodus.server.uploads import parents

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object

FILES_LIMIT = 100_000
DEFAULT_SIZE = "10Gi"


def limit_bytes(volume: Object) -> int:
    """How many bytes a revision of a Volume may hold."""
    return int(quantity(volume.spec.get("size") or DEFAULT_SIZE))


def check_fits(volume: Object, size_bytes: int, files: int) -> None:
    """Refuse what is more than a Volume may hold.

    Raises:
        RequestEntityTooLarge: naming both sizes.
    """
    limit = limit_bytes(volume)
    if size_bytes > limit:
        raise RequestEntityTooLarge(
            f"volume {volume.name} would hold {size_bytes} bytes, and its spec.size is {limit} ({size_text(limit)})",
            fix=f'Raise it: nodus patch volume/{volume.name} -p \'{{"spec": {{"size": "..."}}}}\'; or send less.',
            details={"limitBytes": limit, "bytes": size_bytes},
        )
    if files > FILES_LIMIT:
        raise RequestEntityTooLarge(
            f"volume {volume.name} would hold {files} files; {FILES_LIMIT} fit", fix="Pack small files into archives."
        )


def check_paths(tree: Iterable[FileEntry]) -> None:
    """Refuse a tree in which a path would be a file and a directory.

    Raises:
        BadRequest: naming both paths.
    """
    paths = {entry.path for entry in tree}
    for path in paths:
        if above := next((parent for parent in parents(path) if parent in paths), None):
            raise BadRequest(f"{above!r} would be a file and a directory, with {path!r} in it", fix="Remove one first.")


def newest_tree(conn: Connection, volume_uid: str) -> list[FileEntry]:
    """Return the files of the newest revision; none of an empty Volume."""
    newest = volumes.latest(conn, volume_uid)
    return volumes.tree(conn, volume_uid, newest.revision) if newest is not None else []


def commit(conn: Connection, volume_uid: str, tree: Sequence[FileEntry], **status: Any) -> Revision:
    """Make a tree the newest revision of a Volume, and the Volume Ready.

    Args:
        conn: a write transaction.
        volume_uid: of the Volume.
        tree: all of its files.
        status: further fields of its status; None removes one.

    Raises:
        NotFound: the Volume was deleted.
        RequestEntityTooLarge: the tree is more than the Volume may hold.
        BadRequest: a path would be a file and a directory.
    """
    lock_objects(conn)  # before the object is read: its status is written back whole
    volume = objects.get_by_uid(conn, volume_uid)
    check_paths(tree)
    check_fits(volume, sum(entry.size_bytes for entry in tree), len(tree))
    revision = volumes.commit(conn, volume_uid, tree)
    now = {
        **volume.status, "phase": "Ready", "revision": revision.revision, "digest": revision.snapshot,
        "used": str(revision.size_bytes), "storage": {"bytes": revision.size_bytes},
        "lastCommitTime": rfc3339(revision.created_at), **status,
    }  # fmt: skip
    objects.update_status(conn, volume_uid, {key: value for key, value in now.items() if value is not None})
    return revision


# Who writes ---------------------------------------------------------------------------------------------------


def holder(conn: Connection, volume: Object) -> dict[str, Any] | None:
    """Return who writes to a ReadWriteOnce Volume: ``kind``, ``name``, ``uid``, ``attempt`` and ``epoch``, or None."""
    noted: dict[str, Any] | None = volume.status.get("holder")
    if not noted:
        return None
    job = objects.find_by_uid(conn, str(noted.get("uid")))
    if job is None or job.deleted_at is not None or JOB.is_terminal(job.status.get("phase")):
        return None
    return noted


def require_free(conn: Connection, volume: Object, writer_uid: str | None = None) -> None:
    """Refuse a write to a Volume that a Job holds.

    Args:
        conn: a transaction; a write one where the write follows in it.
        volume: as it is now.
        writer_uid: the Job that would write; None for an upload.

    Raises:
        VolumeBusy: another one holds it; ``details.holder`` names it.
    """
    if volume.spec.get("accessMode", "ReadWriteOnce") != "ReadWriteOnce":
        return
    held = holder(conn, volume)
    if held is None or held.get("uid") == writer_uid:
        return
    kind, name = str(held["kind"]).lower(), held["name"]
    raise VolumeBusy(
        f"volume {volume.name} is ReadWriteOnce, and {kind}/{name} writes to it (attempt {held.get('attempt')})",
        fix=f"Wait for it (nodus wait {kind}/{name}), cancel it, or use a Volume with accessMode ReadWriteMany.",
        details={"holder": {key: value for key, value in held.items() if key != "uid"}},
    )


def hold(conn: Connection, job: Object, attempt: Object, names: Iterable[str]) -> None:
    """Make a Job the holder of the ReadWriteOnce Volumes that it writes to, all or none.

    Args:
        conn: a write transaction.
        job: the Job.
        attempt: the attempt that is about to start.
        names: the Volumes.

    Raises:
        VolumeBusy: another Job holds one of them.
        NotFound: there is no such Volume.
    """
    lock_objects(conn)
    mine = {"kind": "Job", "name": job.name, "uid": job.uid, "attempt": attempt.name, "epoch": attempt.spec["epoch"]}
    found = [objects.get(conn, VOLUME, job.project, name) for name in dict.fromkeys(names)]
    for volume in found:
        require_free(conn, volume, job.uid)
    for volume in found:
        if volume.spec.get("accessMode", "ReadWriteOnce") == "ReadWriteOnce" and volume.status.get("holder") != mine:
            objects.update_status(conn, volume.uid, {**volume.status, "holder": mine})
