"""Content-addressed uploads."""

from __future__ import annotations

import hashlib
from pathlib import Path

from nodus.client.http import Api, new_key

PIECE_BYTES = 1024 * 1024


async def upload_blob(api: Api, project: str, content: bytes | Path, content_type: str) -> str:
    """Store bytes on the server, unless it has them already, and return ``sha256:<hex>``.

    Args:
        api: The server.
        project: A project that the key may write to.
        content: The bytes, or the file that holds them.
        content_type: Their media type.
    """
    digest, size = _measure(content)
    asked = {"sha256": digest, "size": size, "contentType": content_type}
    # A fresh key each time: a grant that was replayed could have expired.
    grant = await api.call(
        "POST", f"/blobs/v1/namespaces/{project}/uploads", body=asked, idempotency_key=new_key("blob")
    )
    if not grant.get("exists"):
        headers = {"Content-Type": content_type} | dict(grant.get("headers") or {})
        await api.put_grant(grant["url"], content, headers)
    return f"sha256:{digest}"


def _measure(content: bytes | Path) -> tuple[str, int]:
    """Return the sha256 and the number of bytes."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest(), len(content)
    hashed, size = hashlib.sha256(), 0
    with content.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            hashed.update(piece)
            size += len(piece)
    return hashed.hexdigest(), size
