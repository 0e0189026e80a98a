"""Files of Volumes, straight through the API: upload, commit, list and download, by revision.

An upload is a set of changes, which are made to the newest revision there is when it is committed: two uploads at the
same time keep each other's files. Nothing of one is seen until it is committed, and then all of it at once::

    POST  .../volumes/{N}/uploads              {"mode": "Write"}   -> {"id", "revision", "grant": {"url"}}
    PUT   .../volumes/{N}/uploads/{id}/files?path=a/b.txt          the bytes
    DELETE .../volumes/{N}/uploads/{id}/files?path=a/b.txt         drop a file of the revision below
    PUT   .../volumes/{N}/uploads/{id}         {"commit": {}}      -> {"revision": 4}
    GET   .../volumes/{N}/files[?path=a/&revision=3]               list, or a redirect to one file
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from starlette.responses import Response

from nodus.core.clock import rfc3339
from nodus.core.errors import BadRequest, Conflict, NotFound, RequestEntityTooLarge
from nodus.core.kinds import VOLUME
from nodus.server.api import idempotent
from nodus.server.api.blobs import origin, receive_blob, redirect
from nodus.server.api.call import Call, checked_name
from nodus.server.api.http import json_bytes, json_response, read_object
from nodus.server.api.reading import find
from nodus.server.store import idempotency, objects, volumes
from nodus.server.store.context import lock_objects
from nodus.server.store.idempotency import Reply
from nodus.server.store.volumes import FileEntry
from nodus.server.training.resources import quantity
from nodus.server.uploads import Changes, Uploads, new_id, parents

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object

FILES_LIMIT = 100_000


async def revisions(call: Call) -> Response:
    """``GET .../volumes/{N}/revisions``: every committed state, newest first."""
    obj = await _volume(call, "get", "revisions")
    found = await call.services.store.read(volumes.list_, obj.uid)
    items = [
        {
            "revision": item.revision, "snapshotId": item.snapshot, "files": item.files, "bytes": item.size_bytes,
            "committedTime": rfc3339(item.created_at),
        }
        for item in reversed(found)
    ]  # fmt: skip
    return json_response({"items": items})


async def files(call: Call) -> Response:
    """``GET .../volumes/{N}/files``: the files of a revision; for the path of a file, a redirect to its bytes."""
    obj = await _volume(call, "get", "files")
    revision = call.number("revision", 1)
    tree = await call.services.store.read(_tree, obj.uid, revision)
    path = (call.query("path") or "").strip("/")
    for entry in tree:
        if path and entry.path == path:
            return redirect(call.request, call.services, entry.sha256, entry.path)
    below = [entry for entry in tree if not path or entry.path.startswith(path + "/")]
    if path and not below:
        raise NotFound(f"the volume has no file {path[:200]!r}")
    return json_response({"items": [_shown(entry) for entry in below]})


def _shown(entry: FileEntry) -> dict[str, Any]:
    return {
        "path": entry.path,
        "name": entry.path,
        "size": entry.size_bytes,
        "sha256": entry.sha256,
        "mode": f"{entry.mode:o}",
    }


def _tree(conn: Connection, uid: str, revision: int | None) -> list[FileEntry]:
    if revision is None:
        newest = volumes.latest(conn, uid)
        return volumes.tree(conn, uid, newest.revision) if newest is not None else []
    return volumes.tree(conn, uid, revision)


async def begin_upload(call: Call) -> Response:
    """``POST .../volumes/{N}/uploads``: begin to write; ``Clear`` commits an empty revision at once."""
    obj = await _volume(call, "create", "uploads")
    body = await read_object(call.request)
    mode = body.get("mode", "Write")
    if mode not in ("Write", "Clear", "Read"):
        raise BadRequest(f"mode {str(mode)[:40]!r} is not one of Write, Read, Clear")
    if mode != "Read":
        _require_writable(obj)
    if mode == "Clear":
        return await _clear(call, obj, idempotent.key_of(call, body))
    newest = await call.services.store.read(volumes.latest, obj.uid)
    base = newest.revision if newest is not None else 0
    upload_id = await anyio.to_thread.run_sync(_uploads(call).begin, obj.uid) if mode == "Write" else new_id()
    path = f"{call.request.url.path.rstrip('/')}/{upload_id}/files"
    grant = {"url": f"{origin(call.request, call.services)}{path}", "protocol": "nodus-files"}
    return json_response(
        {"id": upload_id, "revision": base, "snapshotId": newest.snapshot if newest else "", "grant": grant}, 201
    )


async def _clear(call: Call, obj: Object, request: idempotent.Keyed | None) -> Response:
    answer = await call.services.store.write(_commit_nothing, call, obj.uid, request)
    return idempotent.replayed(answer) if isinstance(answer, Reply) else json_response(answer, 201)


def _commit_nothing(conn: Connection, call: Call, uid: str, request: idempotent.Keyed | None) -> dict[str, Any] | Reply:
    if request is not None and (reply := idempotent.begin(conn, call, request)) is not None:
        return reply
    answer = {"revision": _commit(conn, uid, [])}
    if request is not None:
        idempotent.complete(conn, call, request, 201, answer)
    return answer


async def put_file(call: Call, upload_id: str) -> Response:
    """``PUT .../uploads/{id}/files?path=``: the bytes of one file."""
    obj = await _volume(call, "create", "uploads")
    path, mode = _file_path(call), _mode(call)
    await anyio.to_thread.run_sync(_uploads(call).check, obj.uid, upload_id)
    sha256, size = await receive_blob(
        call.request, call.services, obj.project, call.query("sha256"), None, "application/octet-stream"
    )
    await anyio.to_thread.run_sync(_uploads(call).put, upload_id, FileEntry(path, sha256, size, mode))
    return json_response({"path": path, "sha256": sha256, "size": size}, 201)


async def delete_file(call: Call, upload_id: str) -> Response:
    """``DELETE .../uploads/{id}/files?path=``: leave a file or directory of the revision below out."""
    obj = await _volume(call, "create", "uploads")
    path = _file_path(call)
    await anyio.to_thread.run_sync(_uploads(call).check, obj.uid, upload_id)
    await anyio.to_thread.run_sync(_uploads(call).remove, upload_id, path)
    return json_response({"path": path, "removed": True})


async def commit_upload(call: Call, upload_id: str) -> Response:
    """``PUT .../uploads/{id}``: make the upload the newest revision. Repeating it gives the same answer for a day."""
    obj = await _volume(call, "create", "uploads")
    body = await read_object(call.request)
    if not isinstance(body.get("commit"), dict):
        raise BadRequest('the body is {"commit": {}}')
    found: Changes | NotFound
    try:
        found = await anyio.to_thread.run_sync(_uploads(call).read, obj.uid, upload_id)
    except NotFound as missing:
        found = missing  # or committed already: then the answer was kept
    answer = await call.services.store.write(_commit_upload, obj, upload_id, found)
    await anyio.to_thread.run_sync(_uploads(call).drop, upload_id)
    return json_response(answer)


def _commit_upload(conn: Connection, volume: Object, upload_id: str, found: Changes | NotFound) -> dict[str, Any]:
    """Commit once: the answer is kept in the same transaction, so that a crash after it does no harm."""
    scope = f"upload/{volume.uid}"
    if (reply := idempotency.begin(conn, scope, upload_id, "commit")) is not None:
        return idempotent.body_of(reply)
    if isinstance(found, NotFound):
        raise found
    _require_writable(volume)
    newest = volumes.latest(conn, volume.uid)
    below = volumes.tree(conn, volume.uid, newest.revision) if newest is not None else []
    answer = {"revision": _commit(conn, volume.uid, found.apply(below)), "files": len(found.files)}
    idempotency.complete(conn, scope, upload_id, Reply(200, {}, json_bytes(answer)))
    return answer


def _commit(conn: Connection, uid: str, tree: list[FileEntry]) -> int:
    lock_objects(conn)  # before the object is read: its status is written back whole
    obj = objects.get_by_uid(conn, uid)
    paths = {entry.path for entry in tree}
    for path in paths:
        if above := next((parent for parent in parents(path) if parent in paths), None):
            raise BadRequest(f"{above!r} would be a file and a directory, with {path!r} in it", fix="Remove one first.")
    total = sum(entry.size_bytes for entry in tree)
    limit = int(quantity(obj.spec.get("size") or "10Gi"))
    if total > limit or len(tree) > FILES_LIMIT:
        raise RequestEntityTooLarge(
            f"the volume would hold {total} bytes in {len(tree)} files; {limit} bytes and {FILES_LIMIT} files fit",
            fix="Raise spec.size of the Volume, or upload less.",
        )
    revision = volumes.commit(conn, uid, tree)
    status = {
        **obj.status, "phase": "Ready", "revision": revision.revision, "digest": revision.snapshot, "used": str(total),
        "storage": {"bytes": total}, "lastCommitTime": rfc3339(revision.created_at),
    }  # fmt: skip
    objects.update_status(conn, uid, status)
    return revision.revision


async def _volume(call: Call, verb: str, sub: str) -> Object:
    name = checked_name(VOLUME, call.params["name"])
    call.principal.require(verb, VOLUME, call.project, name, sub)
    return await call.services.store.read(find, call, VOLUME, name)


def _require_writable(obj: Object) -> None:
    if obj.spec.get("accessMode") == "ReadOnlyMany" or obj.spec.get("source"):
        raise Conflict(f"volume {obj.name} is read-only", fix="Use a Volume with another accessMode and no source.")


def _file_path(call: Call) -> str:
    path = (call.query("path") or "").strip("/")
    parts = path.split("/")
    if not path or len(path) > 1024 or any(part in ("", ".", "..") for part in parts) or not path.isprintable():
        raise BadRequest(
            f"path={path[:80]!r} is not the path of a file in the volume", fix="Use one like data/train.jsonl."
        )
    return path


def _mode(call: Call) -> int:
    text = call.query("mode") or "644"
    if not re.fullmatch(r"[0-7]{3,4}", text):
        raise BadRequest(f"mode={text[:20]!r} is not octal, like 644")
    return int(text, 8) & 0o777


def _uploads(call: Call) -> Uploads:
    return Uploads(call.services.settings.data_dir / "uploads")
