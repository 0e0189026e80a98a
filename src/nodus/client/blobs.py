"""Content-addressed uploads."""

from __future__ import annotations

import hashlib

from nodus.client.http import Api, new_key


async def upload_blob(api: Api, project: str, content: bytes, content_type: str) -> str:
    """Store bytes on the server, unless it has them already, and return ``sha256:<hex>``.

    Args:
        api: The server.
        project: A project that the key may write to.
        content: The bytes.
        content_type: Their media type.
    """
    digest = hashlib.sha256(content).hexdigest()
    asked = {"sha256": digest, "size": len(content), "contentType": content_type}
    # A fresh key each time: a grant that was replayed could have expired.
    grant = await api.call(
        "POST", f"/blobs/v1/namespaces/{project}/uploads", body=asked, idempotency_key=new_key("blob")
    )
    if not grant.get("exists"):
        headers = {"Content-Type": content_type} | dict(grant.get("headers") or {})
        await api.put_grant(grant["url"], content, headers)
    return f"sha256:{digest}"
