"""What the server streams: every change of a collection, across a restart of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from nodus.cli.session import Session
from nodus.cli.targets import Target
from nodus.client.blocking import iterate_blocking
from nodus.client.http import ConnectionFailed
from nodus.client.resources import JsonObject
from nodus.core.errors import from_status


def changes(
    session: Session, target: Target, query: dict[str, Any], everywhere: bool, version: str | None, accept: str
) -> Iterator[JsonObject]:
    """Yield what the server streams: objects, or one-row Tables; ends when it closes the stream."""
    fields = [query["fieldSelector"], f"metadata.name={target.name}" if target.name else None]
    asked = query | {
        "watch": True,
        "resourceVersion": version,
        "fieldSelector": ",".join(part for part in fields if part) or None,
    }
    path = target.kind.path(None if everywhere else target.project or session.project)
    while True:
        try:
            lines = session.api.lines("GET", path, query=asked, headers={"Accept": accept}, timeout_s=None)
            for line in iterate_blocking(lines):
                change = json.loads(line)
                if change["type"] == "ERROR":
                    raise from_status(change["object"], int(change["object"].get("code") or 500))
                asked["resourceVersion"] = _seen(change["object"]) or asked["resourceVersion"]
                yield change["object"]
            return
        except ConnectionFailed:
            # The server was killed. If it comes back within the client's patience, go on where the stream broke.
            session.run(session.api.call("GET", "/readyz"))


def _seen(change: JsonObject) -> str | None:
    """Return the resourceVersion of a changed object, or of the object behind a Table's row."""
    rows = change.get("rows")
    shown = (rows[0].get("object") or {}) if rows else change
    version = (shown.get("metadata") or {}).get("resourceVersion")
    return str(version) if version else None


def newest_version(found: list[JsonObject]) -> str | None:
    """Return the resourceVersion to watch from: the newest of what was printed."""
    versions = [str((item.get("metadata") or {}).get("resourceVersion") or "") for item in found]
    return max((version for version in versions if version), key=lambda text: (len(text), text), default=None)
