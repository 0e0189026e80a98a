"""Files of Volumes, straight through the API: upload, commit, list and download, by revision.

An upload is a set of changes on top of the newest revision. Nothing of it is seen until it is committed, and then all
of it at once::

    POST  .../volumes/{N}/uploads              {"mode": "Write"}   -> {"id", "revision", "grant": {"url"}}
    PUT   .../volumes/{N}/uploads/{id}/files?path=a/b.txt          the bytes
    DELETE .../volumes/{N}/uploads/{id}/files?path=a/b.txt         drop a file of the base revision
    PUT   .../volumes/{N}/uploads/{id}         {"commit": {}}      -> {"revision": 4}
    GET   .../volumes/{N}/files[?path=a/&revision=3]               list, or a redirect to one file
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from starlette.responses import Response

from nodus.core.clock import rfc3339
from nodus.core.errors import BadRequest, Conflict, NotFound, RequestEntityTooLarge
from nodus.core.kinds import VOLUME
from nodus.server.api.blobs import origin, receive_blob, redirect
from nodus.server.api.call import Call, checked_name
from nodus.server.api.http import json_response, read_object
from nodus.server.api.reading import find
from nodus.server.store import objects, volumes
from nodus.server.store.volumes import FileEntry
from nodus.server.training.resources import quantity

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object

FILES_LIMIT = 100_000
_UPLOAD_ID = re.compile(r"up_[0-9a-f]{24}")


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
        revision = await call.services.store.write(_commit, call, obj.uid, [])
        return json_response({"revision": revision}, 201)
    newest = await call.services.store.read(volumes.latest, obj.uid)
    base = newest.revision if newest is not None else 0
    upload_id = f"up_{secrets.token_hex(12)}"
    if mode == "Write":
        upload = {"volume": obj.uid, "base": base, "files": {}, "removed": []}
        await anyio.to_thread.run_sync(_save_upload, _upload_path(call, upload_id), upload)
    path = f"{call.request.url.path.rstrip('/')}/{upload_id}/files"
    grant = {"url": f"{origin(call.request, call.services)}{path}", "protocol": "nodus-files"}
    return json_response(
        {"id": upload_id, "revision": base, "snapshotId": newest.snapshot if newest else "", "grant": grant}, 201
    )


async def put_file(call: Call, upload_id: str) -> Response:
    """``PUT .../uploads/{id}/files?path=``: the bytes of one file."""
    obj = await _volume(call, "create", "uploads")
    path, mode = _file_path(call), _mode(call)
    await anyio.to_thread.run_sync(_load_upload, call, obj, upload_id)
    expected = call.query("sha256")
    sha256, size = await receive_blob(call.request, call.services, expected, None, "application/octet-stream")
    # Read again: other files may have come in while this one was on its way.
    upload = await anyio.to_thread.run_sync(_load_upload, call, obj, upload_id)
    upload["files"][path] = [sha256, size, mode]
    upload["removed"] = [gone for gone in upload["removed"] if gone != path]
    _save_upload(_upload_path(call, upload_id), upload)  # without a pause since it was read
    return json_response({"path": path, "sha256": sha256, "size": size}, 201)


async def delete_file(call: Call, upload_id: str) -> Response:
    """``DELETE .../uploads/{id}/files?path=``: leave a file or directory of the base revision out."""
    obj = await _volume(call, "create", "uploads")
    path = _file_path(call)
    upload = _load_upload(call, obj, upload_id)
    upload["files"] = {name: value for name, value in upload["files"].items() if not _is_at(name, path)}
    upload["removed"] = sorted({*upload["removed"], path})
    _save_upload(_upload_path(call, upload_id), upload)
    return json_response({"path": path, "removed": True})


async def commit_upload(call: Call, upload_id: str) -> Response:
    """``PUT .../uploads/{id}``: make the upload the newest revision. Repeating it gives the same revision."""
    obj = await _volume(call, "create", "uploads")
    body = await read_object(call.request)
    if not isinstance(body.get("commit"), dict):
        raise BadRequest('the body is {"commit": {}}')
    upload = await anyio.to_thread.run_sync(_load_upload, call, obj, upload_id)
    if "revision" not in upload:
        _require_writable(obj)
        upload["revision"] = await call.services.store.write(_commit_upload, call, obj.uid, upload)
        await anyio.to_thread.run_sync(_save_upload, _upload_path(call, upload_id), upload)
    return json_response({"revision": upload["revision"], "files": len(upload["files"])})


def _commit_upload(conn: Connection, call: Call, uid: str, upload: dict[str, Any]) -> int:
    base = {entry.path: entry for entry in (_tree(conn, uid, upload["base"]) if upload["base"] else [])}
    kept = {path: entry for path, entry in base.items() if not any(_is_at(path, gone) for gone in upload["removed"])}
    new = {path: FileEntry(path, value[0], value[1], value[2]) for path, value in upload["files"].items()}
    return _commit(conn, call, uid, list({**kept, **new}.values()))


def _commit(conn: Connection, call: Call, uid: str, tree: list[FileEntry]) -> int:
    obj = objects.get_by_uid(conn, uid)
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


def _is_at(path: str, place: str) -> bool:
    return path == place or path.startswith(place + "/")


def _upload_path(call: Call, upload_id: str) -> Path:
    if not _UPLOAD_ID.fullmatch(upload_id):
        raise NotFound(f"there is no upload {upload_id[:60]!r}")
    return call.services.settings.data_dir / "uploads" / f"{upload_id}.json"


def _load_upload(call: Call, obj: Object, upload_id: str) -> dict[str, Any]:
    try:
        upload: dict[str, Any] = json.loads(_upload_path(call, upload_id).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFound(f"there is no upload {upload_id}; it was dropped or never begun") from error
    if upload["volume"] != obj.uid:
        raise NotFound(f"there is no upload {upload_id} of this volume")
    return upload


def _save_upload(path: Path, upload: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(upload), encoding="utf-8")
    shutil.move(temporary, path)
