"""Files of Sandboxes: read, written, listed and deleted with the Sandbox's own rights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import PurePosixPath
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from nodus.core.errors import BadRequest, FileTooLarge, Unavailable
from nodus.core.kinds import Kind
from nodus.server.api.call import Call, checked_name
from nodus.server.api.http import json_bytes, json_response
from nodus.server.api.processes import service_of
from nodus.server.api.reading import find
from nodus.server.compute.processes import FileEntry, OpenFile
from nodus.server.sandboxes import FILE_LIMIT_BYTES, Place

MOST_PATH_BYTES = 4096
OPEN_DIRECTORIES = ("/workspace", "/tmp")
"""What a key reads that may only read."""
MOST_LISTED = 10_000
"""Entries of a directory in one JSON document; JSON lines have no such bound."""
LINES = "application/x-ndjson"
_COMMAND_LINE = "nodus/"
"""User-Agent of the command line, which asks for JSON and reads a listing line by line."""


class _FileResponse(StreamingResponse):
    """Sends what is in a file, and lets go of it however that ends."""

    def __init__(self, file: OpenFile, body: AsyncIterator[bytes], headers: dict[str, str], media_type: str) -> None:
        super().__init__(body, 200, headers, media_type)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._file.close()


async def get(call: Call, kind: Kind) -> Response:
    """``GET .../files?path=``: a file's bytes, or what is in a directory.

    A directory is one JSON document, or JSON lines for ``Accept: application/x-ndjson``, and for the command line.
    """
    place, path = await _place(call, kind, "get")
    # Whoever may not run commands reads no Secret either: values are in /run/secrets and in processes' environments.
    within = () if call.principal.may(kind.plural, "write") else OPEN_DIRECTORIES
    file = await service_of(call).open_file(place, path, within=within)
    if file.is_directory:
        if LINES in call.request.headers.get("accept", ""):
            return _FileResponse(file, _listed_lines(file), {}, LINES)
        if call.request.headers.get("user-agent", "").startswith(_COMMAND_LINE):
            return _FileResponse(file, _listed_lines(file), {}, "application/json")
        try:
            return json_response(await _listed(file, path))
        finally:
            await file.close()
    headers = {"X-Nodus-Mode": file.mode, "X-Nodus-Modified": file.modified}
    if file.size is not None:
        headers["Content-Length"] = str(file.size)
    return _FileResponse(file, file.blocks(), headers, "application/octet-stream")


async def _listed(file: OpenFile, path: str) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    async for entry in file.entries():
        if len(items) == MOST_LISTED:
            raise FileTooLarge(f"{path[:200]} holds over {MOST_LISTED} entries", fix=f"Ask with Accept: {LINES}.")
        items.append(_wire(entry))
    return {"items": items}


async def _listed_lines(file: OpenFile) -> AsyncIterator[bytes]:
    """Lines of what can be copied: who walks a tree must not be led in circles by a link."""
    async for entry in file.entries():
        if entry.type != "other" and not entry.to_directory:
            yield json_bytes(_wire(entry)) + b"\n"


def _wire(entry: FileEntry) -> dict[str, Any]:
    # Names are bytes; those that are no UTF-8 are shown with what could not be read escaped.
    name = entry.name.encode("utf-8", "backslashreplace").decode()
    found: dict[str, Any] = {
        "name": name, "dir": entry.type == "directory", "type": entry.type, "size": entry.size,
        "mode": int(entry.mode, 8), "modTime": entry.modified,
    }  # fmt: skip
    if entry.target is not None:
        found["target"] = entry.target.encode("utf-8", "backslashreplace").decode()
    return found


async def put(call: Call, kind: Kind) -> Response:
    """``PUT .../files?path=``: write a file whole or not at all, with the directories above it."""
    mode = _mode(call)
    expected = (call.query("expectedSHA256") or "").lower().removeprefix("sha256:") or None
    if expected is not None and (len(expected) != 64 or not set(expected) <= set("0123456789abcdef")):
        raise BadRequest(f"expectedSHA256={expected[:80]!r} is not 64 hexadecimal digits")
    declared = call.request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > FILE_LIMIT_BYTES:
        raise FileTooLarge(f"the file has {declared} bytes; at most {FILE_LIMIT_BYTES} are taken")
    place, path = await _place(call, kind, "update")
    size, sha256 = await service_of(call).put_file(place, path, _body(call), mode=mode, expected_sha256=expected)
    return json_response({"path": path, "size": size, "sha256": sha256}, 201)


async def _body(call: Call) -> AsyncIterator[bytes]:
    try:
        async for block in call.request.stream():
            if block:
                yield block
    except ClientDisconnect as error:
        raise Unavailable("the upload ended early; the file stays as it was") from error


async def delete(call: Call, kind: Kind) -> Response:
    """``DELETE .../files?path=``: delete a file, or a directory; with ``recursive=true`` also what is in it."""
    recursive = call.flag("recursive")
    place, path = await _place(call, kind, "update")
    await service_of(call).delete_file(place, path, recursive=recursive)
    return json_response({})


async def _place(call: Call, kind: Kind, verb: str) -> tuple[Place, str]:
    name = checked_name(kind, call.params["name"])
    call.principal.require(verb, kind, call.project, name, "files")
    path = _path(call)
    await call.services.store.read(find, call, kind, name)
    return await service_of(call).running(call.project or "", name), path


def _path(call: Call) -> str:
    path = call.query("path")
    if path is None:
        raise BadRequest("the query parameter path is missing", fix="Name a file, such as path=/workspace/a.txt.")
    shown = ascii(path[:200])
    if not path.startswith("/") or len(path.encode("utf-8", "replace")) > MOST_PATH_BYTES:
        raise BadRequest(f"path={shown} is not an absolute path of at most {MOST_PATH_BYTES} bytes")
    if ".." in PurePosixPath(path).parts:
        raise BadRequest(f"path={shown} has '..' in it", fix="Write where the file is from / on.")
    return path


def _mode(call: Call) -> int | None:
    text = call.query("mode")
    if text is None:
        return None
    digits = text.removeprefix("0o")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 4 or not set(digits) <= set("01234567"):
        raise BadRequest(f"mode={text[:20]!r} is not an octal file mode", fix="Write it like mode=644.")
    return int(digits, 8) & 0o777
