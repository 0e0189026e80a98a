"""Files of Volumes, straight through the API: revisions and what is in them. Writing is in ``volumeuploads``.

::

    GET .../volumes/{N}/revisions                          every committed state
    GET .../volumes/{N}/files[?path=a/&revision=3]         list, or a redirect to one file
    GET .../volumes/{N}/files?links=true                   list, with a link to the bytes of each
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from nodus.core.clock import rfc3339
from nodus.core.errors import NotFound
from nodus.core.kinds import VOLUME
from nodus.server import revisions as revision_rules
from nodus.server.api.blobs import link, redirect
from nodus.server.api.call import Call, checked_name
from nodus.server.api.http import json_response
from nodus.server.api.reading import find
from nodus.server.store import volumes
from nodus.server.store.volumes import FileEntry

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object


async def revisions(call: Call) -> Response:
    """``GET .../volumes/{N}/revisions``: every committed state, newest first."""
    obj = await volume_of(call, "get", "revisions")
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
    obj = await volume_of(call, "get", "files")
    revision, limit = call.number("revision", 1), call.number("limit", 1)
    tree = await call.services.store.read(_tree, obj.uid, revision)
    path = (call.query("path") or "").strip("/")
    for entry in tree:
        if path and entry.path == path:
            return redirect(call.request, call.services, entry.sha256, entry.path)
    below = [entry for entry in tree if not path or entry.path.startswith(path + "/")]
    if path and not below:
        raise NotFound(f"the volume has no file {path[:200]!r}")
    after = call.query("after")
    start = bisect.bisect_right([entry.path for entry in below], after) if after else 0
    shown = below[start : start + limit] if limit else below[start:]
    more = start + len(shown) < len(below)
    items = [_shown(entry) for entry in shown]
    if call.flag("links"):
        for item in items:
            item["url"] = link(call.request, call.services, item["sha256"], item["path"])
    return json_response({"items": items, **({"continue": shown[-1].path} if more and shown else {})})


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
        return revision_rules.newest_tree(conn, uid)
    return volumes.tree(conn, uid, revision)


async def volume_of(call: Call, verb: str, sub: str) -> Object:
    """Return the Volume that a call's path names, for a caller who may do that with it.

    Raises:
        NotFound: there is none.
        Forbidden: the caller may not.
    """
    name = checked_name(VOLUME, call.params["name"])
    call.principal.require(verb, VOLUME, call.project, name, sub)
    return await call.services.store.read(find, call, VOLUME, name)
