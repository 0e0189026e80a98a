"""Writing to Volumes: an upload is a set of changes, made to the newest revision there is when it is committed.

Two uploads at the same time keep each other's files. Nothing of one is seen until it is committed, and then all of it
at once::

    POST   .../volumes/{N}/uploads                     {"mode": "Write"}  -> {"id", "revision", "grant": {"url"}}
    POST   .../volumes/{N}/uploads/{id}/files          {"files": [{"path", "size", "sha256"}]} -> those still to send
    PUT    .../volumes/{N}/uploads/{id}/files?path=    the bytes, whole or, with sha256, size and offset, in pieces
    POST   .../volumes/{N}/uploads/{id}/bundle         many small files: a line of JSON, then their bytes
    DELETE .../volumes/{N}/uploads/{id}/files?path=    drop a file or directory of the revision below
    PUT    .../volumes/{N}/uploads/{id}                {"commit": {}}     -> {"revision": 4}
    DELETE .../volumes/{N}/uploads/{id}                give it up

Bytes that arrived once are found by their digest, by any later upload to the same Volume: that is how an upload goes
on after its client was killed. Mode ``Clear`` commits an empty revision at once, ``Restore`` an earlier one again.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from nodus.core.errors import BadRequest, Cause, Conflict, Invalid, NotFound, SHA256Mismatch
from nodus.server import revisions
from nodus.server.api import idempotent
from nodus.server.api.blobs import BLOB_LIMIT_BYTES, origin, receive_blob
from nodus.server.api.call import Call
from nodus.server.api.http import json_bytes, json_response, parse_json, read_body, read_object
from nodus.server.api.volumes import volume_of
from nodus.server.store import blobs, idempotency, objects, volumes
from nodus.server.store.idempotency import Reply
from nodus.server.store.partials import Partials, PieceWriter
from nodus.server.store.volumes import FileEntry
from nodus.server.uploads import Changes, Uploads, new_id, path_problem

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object

DECLARED_LIMIT = 1000
"""Files in one declaration."""
BUNDLE_LIMIT_BYTES = 16 * 1024 * 1024
_WRITERS = 8
_BUFFER_BYTES = 1 << 20
_MODES = ("Write", "Read", "Clear", "Restore")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Which request writes to a file now, by Volume and digest; a newer one takes over from one whose client is gone.
_writing: dict[tuple[str, str], int] = {}
_turns = itertools.count(1)


async def begin_upload(call: Call) -> Response:
    """``POST .../volumes/{N}/uploads``: begin to write; ``Clear`` and ``Restore`` commit a revision at once."""
    obj = await volume_of(call, "create", "uploads")
    body = await read_object(call.request)
    mode = body.get("mode", "Write")
    if mode not in _MODES:
        raise BadRequest(f"mode {str(mode)[:40]!r} is not one of {', '.join(_MODES)}")
    if mode != "Read":
        _require_writable(obj)
        await call.services.store.read(revisions.require_free, obj)
    if mode in ("Clear", "Restore"):
        source = _number(body, "revision") if mode == "Restore" else None
        answer = await call.services.store.write(_commit_known, call, obj, source, idempotent.key_of(call, body))
        return idempotent.replayed(answer) if isinstance(answer, Reply) else json_response(answer, 201)
    if mode == "Write":
        revisions.check_fits(obj, _number(body, "bytes", 0), _number(body, "files", 0))
        await call.services.storage.require(0)  # how much of it is here already is found out file by file
    newest = await call.services.store.read(volumes.latest, obj.uid)
    base = newest.revision if newest is not None else 0
    if mode == "Write":
        upload_id = await anyio.to_thread.run_sync(_uploads(call).begin, obj.uid)
        await anyio.to_thread.run_sync(_partials(call).sweep)
    else:
        upload_id = new_id()
    path = f"{call.request.url.path.rstrip('/')}/{upload_id}/files"
    grant = {"url": f"{origin(call.request, call.services)}{path}", "protocol": "nodus-files"}
    return json_response(
        {"id": upload_id, "revision": base, "snapshotId": newest.snapshot if newest else "", "grant": grant}, 201
    )


def _commit_known(
    conn: Connection, call: Call, volume: Object, source: int | None, request: idempotent.Keyed | None
) -> dict[str, Any] | Reply:
    """Commit an empty revision, or an earlier one again."""
    if request is not None and (reply := idempotent.begin(conn, call, request)) is not None:
        return reply
    revisions.require_free(conn, objects.get_by_uid(conn, volume.uid))
    tree = volumes.tree(conn, volume.uid, source) if source is not None else []
    answer = {"revision": revisions.commit(conn, volume.uid, tree).revision}
    if request is not None:
        idempotent.complete(conn, call, request, 201, answer)
    return answer


async def declare_files(call: Call, upload_id: str) -> Response:
    """``POST .../uploads/{id}/files``: say which files will come; the answer has those still to send, and from where.

    Files whose bytes are there already are part of the upload at once.
    """
    obj = await volume_of(call, "create", "uploads")
    entries = _declared(await read_object(call.request))
    for entry in entries:
        revisions.check_fits(obj, entry.size_bytes, 1)
    await anyio.to_thread.run_sync(_uploads(call).check, obj.uid, upload_id)
    known = await call.services.store.write(blobs.present, obj.project, {entry.sha256 for entry in entries})
    here, missing = await anyio.to_thread.run_sync(_sort_out, call, obj, entries, known)
    if here:
        await anyio.to_thread.run_sync(lambda: _uploads(call).put(upload_id, *here))
    call.audited = True  # nothing has changed yet: the commit is noted
    return json_response({"items": missing})


def _sort_out(
    call: Call, volume: Object, entries: list[FileEntry], known: dict[str, int]
) -> tuple[list[FileEntry], list[dict[str, Any]]]:
    """The files that are here, and for each other one how much of it is. Looks at files."""
    here, missing = [], []
    partials, store = _partials(call), call.services.store.blobs
    for entry in entries:
        if entry.sha256 in known and store.claim(entry.sha256):
            if known[entry.sha256] != entry.size_bytes:
                raise BadRequest(f"{entry.path!r}: a file of that sha256 has {known[entry.sha256]} bytes")
            here.append(entry)
        else:
            offset = min(partials.received(volume.uid, entry.sha256), entry.size_bytes)
            missing.append({"path": entry.path, "sha256": entry.sha256, "offset": offset})
    return here, missing


async def put_file(call: Call, upload_id: str) -> Response:
    """``PUT .../uploads/{id}/files?path=``: the bytes of one file, or a piece of it."""
    obj = await volume_of(call, "create", "uploads")
    path, mode, sha256 = _file_path(call), _mode(call), call.query("sha256")
    size, offset = call.number("size", 0, BLOB_LIMIT_BYTES), call.number("offset", 0, BLOB_LIMIT_BYTES)
    await anyio.to_thread.run_sync(_uploads(call).check, obj.uid, upload_id)
    call.audited = True  # nothing has changed yet: the commit is noted
    if size is None or offset is None:
        limit = revisions.limit_bytes(obj)
        digest, size = await receive_blob(
            call.request, call.services, obj.project, sha256, None, "application/octet-stream", limit
        )
    else:
        if sha256 is None or not _SHA256.fullmatch(sha256):
            raise BadRequest("a piece needs sha256, the 64 hex digits of the whole file's digest")
        revisions.check_fits(obj, size, 1)
        digest = sha256
        if (reached := await _receive_piece(call, obj, digest, size, offset)) < size:
            return json_response({"path": path, "sha256": digest, "size": size, "offset": reached}, 202)
    await anyio.to_thread.run_sync(_uploads(call).put, upload_id, FileEntry(path, digest, size, mode))
    return json_response({"path": path, "sha256": digest, "size": size, "offset": size}, 201)


async def put_bundle(call: Call, upload_id: str) -> Response:
    """``POST .../uploads/{id}/bundle``: small files at once: one line of JSON as in a declaration, then their bytes."""
    obj = await volume_of(call, "create", "uploads")
    await anyio.to_thread.run_sync(_uploads(call).check, obj.uid, upload_id)
    head, newline, content = (await read_body(call.request, BUNDLE_LIMIT_BYTES)).partition(b"\n")
    declared = parse_json(head)
    if not newline or not isinstance(declared, dict):
        raise BadRequest('the body begins with a line {"files": [...]}')
    entries = _declared(declared)
    total = sum(entry.size_bytes for entry in entries)
    if total != len(content):
        raise BadRequest(f"{total} bytes are announced and {len(content)} came; nothing was stored")
    revisions.check_fits(obj, total, len(entries))
    await call.services.storage.require(total)
    await anyio.to_thread.run_sync(_store_bundle, call, entries, content)
    await call.services.store.write(_index, obj.project, entries)
    call.services.storage.added(total)
    await anyio.to_thread.run_sync(lambda: _uploads(call).put(upload_id, *entries))
    call.audited = True  # nothing has changed yet: the commit is noted
    return json_response({"files": len(entries)}, 201)


def _store_bundle(call: Call, entries: list[FileEntry], content: bytes) -> None:
    """Check every file, then write them all. Blocking file work."""
    view, start, found = memoryview(content), 0, []
    for entry in entries:
        data = view[start : start + entry.size_bytes]
        start += entry.size_bytes
        if (sha256 := hashlib.sha256(data).hexdigest()) != entry.sha256:
            raise SHA256Mismatch(
                f"{entry.path!r} has sha256 {sha256}, not {entry.sha256}", fix="Send it again; it changed meanwhile."
            )
        found.append((entry.sha256, data))
    store = call.services.store.blobs
    new = {sha256: data for sha256, data in found if not store.claim(sha256)}
    # At the same time: what takes long is that each waits for the disk.
    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="bundle") as pool:
        for written in [pool.submit(store.put_bytes, bytes(data)) for data in new.values()]:
            written.result()


def _index(conn: Connection, project: str | None, entries: list[FileEntry]) -> None:
    for entry in entries:
        blobs.index(conn, project, entry.sha256, entry.size_bytes)


async def _receive_piece(call: Call, volume: Object, sha256: str, size: int, offset: int) -> int:
    """Take in a piece; return how far the file has come: to its size when it is a blob now."""
    store = call.services.store
    known = await store.write(blobs.present, volume.project, {sha256})
    if known.get(sha256) == size and store.blobs.claim(sha256):
        async for _ in call.request.stream():  # the last piece, sent again because its answer was lost
            pass
        return size
    await call.services.storage.require(size - offset)
    partials, key, turn = _partials(call), (volume.uid, sha256), next(_turns)
    _writing[key] = turn
    try:
        piece = await anyio.to_thread.run_sync(partials.open, volume.uid, sha256, offset, size)
        try:
            await _write(call, piece, size, lambda: _writing.get(key) == turn)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(piece.close)
    finally:
        if _writing.get(key) == turn:
            del _writing[key]
    if not piece.whole:
        return piece.position
    await anyio.to_thread.run_sync(partials.finish, volume.uid, sha256, size)
    await store.write(blobs.index, volume.project, sha256, size)
    call.services.storage.added(size)
    return size


async def _write(call: Call, piece: PieceWriter, size: int, is_current: Callable[[], bool]) -> None:
    """Write a request's body; what came before it ended early stays."""
    buffer = bytearray()
    try:
        async for chunk in call.request.stream():
            buffer += chunk
            if piece.position + len(buffer) > size:
                raise BadRequest(f"the piece goes beyond the {size} bytes announced")
            if len(buffer) >= _BUFFER_BYTES:
                if not is_current():
                    raise Conflict("another request goes on with this file", fix="Ask how far it is, and go on there.")
                await anyio.to_thread.run_sync(piece.write, bytes(buffer))
                buffer.clear()
    except ClientDisconnect as error:
        raise BadRequest("the upload ended early; what arrived is kept") from error
    finally:
        if buffer and piece.position + len(buffer) <= size and is_current():
            await anyio.to_thread.run_sync(piece.write, bytes(buffer))


async def delete_file(call: Call, upload_id: str) -> Response:
    """``DELETE .../uploads/{id}/files?path=``: leave a file or directory of the revision below out."""
    obj = await volume_of(call, "create", "uploads")
    path = _file_path(call)
    await anyio.to_thread.run_sync(_uploads(call).check, obj.uid, upload_id)
    await anyio.to_thread.run_sync(_uploads(call).remove, upload_id, path)
    call.audited = True  # nothing has changed yet: the commit is noted
    return json_response({"path": path, "removed": True})


async def drop_upload(call: Call, upload_id: str) -> Response:
    """``DELETE .../uploads/{id}``: give an upload up. Bytes that arrived are kept a while for the next one."""
    obj = await volume_of(call, "create", "uploads")
    await anyio.to_thread.run_sync(_uploads(call).check, obj.uid, upload_id)
    await anyio.to_thread.run_sync(_uploads(call).drop, upload_id)
    return json_response({"id": upload_id, "dropped": True})


async def commit_upload(call: Call, upload_id: str) -> Response:
    """``PUT .../uploads/{id}``: make the upload the newest revision. Repeating it gives the same answer for a day."""
    obj = await volume_of(call, "create", "uploads")
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
    now = objects.get_by_uid(conn, volume.uid)
    _require_writable(now)
    revisions.require_free(conn, now)
    below = revisions.newest_tree(conn, volume.uid)
    if absent := sorted(gone for gone in found.removed - found.undone if not _holds(below, gone)):
        raise NotFound(f"the volume has nothing at {absent[0]!r}", fix=f"`nodus volume ls {volume.name}` lists it.")
    answer = {
        "revision": revisions.commit(conn, volume.uid, found.apply(below)).revision,
        "files": len(found.files),
    }
    idempotency.complete(conn, scope, upload_id, Reply(200, {}, json_bytes(answer)))
    return answer


def _holds(tree: list[FileEntry], path: str) -> bool:
    return any(entry.path == path or entry.path.startswith(f"{path}/") for entry in tree)


def _require_writable(obj: Object) -> None:
    if obj.spec.get("accessMode") == "ReadOnlyMany":
        raise Conflict(f"volume {obj.name} is ReadOnlyMany", fix="Use a Volume with another accessMode.")
    if obj.status.get("phase") != "Ready":
        message = obj.status.get("message") or "its files are still being imported"
        raise Conflict(f"volume {obj.name} is {obj.status.get('phase') or 'Pending'}: {message}")


def _declared(body: dict[str, Any]) -> list[FileEntry]:
    """The files of a declaration, checked."""
    files = body.get("files")
    if not isinstance(files, list) or not 0 < len(files) <= DECLARED_LIMIT:
        raise BadRequest(f'the body is {{"files": [...]}} with 1 to {DECLARED_LIMIT} files')
    causes: list[Cause] = []
    entries = []
    for number, item in enumerate(files):
        where = f"files[{number}]"
        if not isinstance(item, dict):
            causes.append(Cause(where, "FieldValueInvalid", "an object is expected"))
            continue
        given, size, sha256 = item.get("path"), item.get("size"), str(item.get("sha256", ""))
        path = given.strip("/") if isinstance(given, str) else ""
        if (why := path_problem(path)) is not None:
            causes.append(Cause(f"{where}.path", "FieldValueInvalid", f"{path[:80]!r} is no path of a volume: {why}"))
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= BLOB_LIMIT_BYTES:
            causes.append(Cause(f"{where}.size", "FieldValueInvalid", f"a number from 0 to {BLOB_LIMIT_BYTES}"))
        if not _SHA256.fullmatch(sha256):
            causes.append(Cause(f"{where}.sha256", "FieldValueInvalid", "64 lower-case hex digits are expected"))
        mode = str(item.get("mode", "644"))
        if not _OCTAL.fullmatch(mode):
            causes.append(Cause(f"{where}.mode", "FieldValueInvalid", "an octal mode such as 644 is expected"))
        if not causes:
            entries.append(FileEntry(path, sha256, int(item["size"]), int(mode, 8) & 0o777))
    if causes:
        told = "; ".join(f"{cause.field}: {cause.message}" for cause in causes[:3])
        raise Invalid(f"the files can't be uploaded: {told}", fix="Rename or leave them out.", causes=causes[:100])
    return entries


def _number(body: dict[str, Any], name: str, default: int | None = None) -> int:
    value = body.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadRequest(f"{name} is {str(value)[:40]!r}; a whole number is expected")
    return value


def _file_path(call: Call) -> str:
    path = (call.query("path") or "").strip("/")
    if (why := path_problem(path)) is not None:
        raise BadRequest(
            f"path={path[:80]!r} is not the path of a file in the volume: {why}", fix="Use one like data/train.jsonl."
        )
    return path


_OCTAL = re.compile(r"[0-7]{3,4}")


def _mode(call: Call) -> int:
    text = call.query("mode") or "644"
    if not _OCTAL.fullmatch(text):
        raise BadRequest(f"mode={text[:20]!r} is not octal, like 644")
    return int(text, 8) & 0o777


def _uploads(call: Call) -> Uploads:
    return Uploads(call.services.settings.data_dir / "uploads")


def _partials(call: Call) -> Partials:
    return Partials(call.services.store.blobs)
