"""Blobs: content-addressed files. A client asks for a grant, then puts the bytes at the URL it got.

Grants and downloads are signed URLs: whoever holds one may use it until it expires, and needs no key for it.
"""

from __future__ import annotations

import re
from urllib.parse import quote

import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response

from nodus.core.errors import BadRequest, Forbidden, NotFound, RequestEntityTooLarge
from nodus.server.api.call import Call
from nodus.server.api.http import json_response, read_object
from nodus.server.api.reading import require_project
from nodus.server.services import Services
from nodus.server.store import blobs

BLOB_LIMIT_BYTES = 64 * 1024**3
GRANT_SECONDS = 15 * 60
DOWNLOAD_SECONDS = 15 * 60
UPLOAD_PATH = "/blobs/v1/signed/uploads/"
DOWNLOAD_PATH = "/blobs/v1/signed/blobs/"
_HOST = re.compile(r"([A-Za-z0-9.-]{1,253}|\[[0-9a-fA-F:.]{2,45}\])(:[0-9]{1,5})?")
_HEX = re.compile(r"[0-9a-f]{64}")


async def grant_upload(call: Call) -> Response:
    """``POST /blobs/v1/namespaces/{project}/uploads``: where to put a blob, or that it is there already."""
    project = call.params["project"]
    call.principal.require_project("write", project)
    body = await read_object(call.request)
    sha256 = str(body.get("sha256", "")).removeprefix("sha256:")
    size = body.get("size")
    if not _HEX.fullmatch(sha256):
        raise BadRequest(f"sha256 is {str(body.get('sha256'))[:80]!r}; 64 hex digits are expected")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise BadRequest("size is the number of bytes, as a JSON integer")
    if size > BLOB_LIMIT_BYTES:
        raise RequestEntityTooLarge(f"a blob may have {BLOB_LIMIT_BYTES} bytes; this one has {size}")
    media_type = body.get("contentType") or "application/octet-stream"
    if not isinstance(media_type, str) or len(media_type) > 253:
        raise BadRequest("contentType is a media type")
    store = call.services.store
    await store.read(require_project, project)
    # What another project has is uploaded again: who reaches this one alone must not learn that it is there.
    if await store.read(blobs.find, project, sha256) is not None and store.blobs.claim(sha256):
        await store.write(blobs.touch, project, sha256)
        return json_response({"exists": True})
    await call.services.storage.require(size)
    params = {"project": project, "size": str(size), "type": media_type}
    url = signed_url(call.request, call.services, "PUT", UPLOAD_PATH + sha256, params, GRANT_SECONDS)
    return json_response({"exists": False, "url": url, "method": "PUT", "headers": {}})


async def put_upload(request: Request, services: Services) -> Response:
    """``PUT`` to a granted URL: the bytes themselves."""
    sha256 = request.path_params["sha256"]
    params = verified(request, services, UPLOAD_PATH + sha256)
    size = int(params["size"])
    await receive_blob(request, services, params["project"], sha256, size, params["type"])
    return json_response({"sha256": sha256, "size": size}, 201)


async def receive_blob(
    request: Request,
    services: Services,
    project: str | None,
    sha256: str | None,
    size: int | None,
    media_type: str,
    limit_bytes: int = BLOB_LIMIT_BYTES,
) -> tuple[str, int]:
    """Stream a request's body into the blob store.

    Args:
        request: the request; its body is consumed.
        services: the server.
        project: whose blob it becomes.
        sha256: the digest it must have, if known.
        size: the number of bytes it must have, if known.
        media_type: kept with the blob.
        limit_bytes: the most bytes it may have, where ``size`` is not known.

    Returns:
        Digest and size in bytes.

    Raises:
        BadRequest: there are fewer or more bytes than announced.
        SHA256Mismatch: other bytes than announced.
        RequestEntityTooLarge: more than ``limit_bytes``.
        QuotaExceeded: more than the server stores.
    """
    await services.storage.require(int(request.headers.get("content-length") or 0) if size is None else size)
    limit = min(BLOB_LIMIT_BYTES, limit_bytes) if size is None else size
    with services.store.blobs.writer() as writer:
        try:
            async for chunk in request.stream():
                if writer.size_bytes + len(chunk) > limit:
                    if size is None:
                        raise RequestEntityTooLarge(f"the body has more than the {limit} bytes that fit here")
                    raise BadRequest(f"the body has more than the {limit} bytes announced")
                await anyio.to_thread.run_sync(writer.write, chunk)
        except ClientDisconnect as error:
            raise BadRequest("the upload ended early; nothing was stored") from error
        if size is not None and writer.size_bytes != size:
            raise BadRequest(f"the body has {writer.size_bytes} bytes and {size} were announced; nothing was stored")
        total = writer.size_bytes
        digest = await anyio.to_thread.run_sync(writer.commit, sha256)
    await services.store.write(blobs.index, project, digest, total, media_type)
    services.storage.added(total)
    return digest, total


async def get_blob(call: Call) -> Response:
    """``GET /blobs/v1/namespaces/{project}/blobs/{sha256}``: a redirect to the bytes."""
    project, store = call.params["project"], call.services.store
    call.principal.require_project("read", project)
    sha256 = call.params["sha256"].removeprefix("sha256:")
    known = await store.read(blobs.find, project, sha256) if _HEX.fullmatch(sha256) else None
    if known is None or not store.blobs.exists(sha256):
        raise NotFound(f"blob {sha256[:80]!r} not found")
    return redirect(call.request, call.services, sha256)


def redirect(request: Request, services: Services, sha256: str, filename: str | None = None) -> Response:
    """A 302 to a signed download, with the digest the client checks the bytes against."""
    return Response(b"", 302, {"Location": link(request, services, sha256, filename), "X-Nodus-SHA256": sha256})


def link(request: Request, services: Services, sha256: str, filename: str | None = None) -> str:
    """A signed URL of a blob's bytes."""
    params = {"name": filename} if filename else {}
    return signed_url(request, services, "GET", DOWNLOAD_PATH + sha256, params, DOWNLOAD_SECONDS)


async def get_signed(request: Request, services: Services) -> Response:
    """``GET`` of a signed URL: the bytes; ranges are served."""
    sha256 = request.path_params["sha256"]
    params = verified(request, services, DOWNLOAD_PATH + sha256)
    if not services.store.blobs.exists(sha256):
        raise NotFound(f"blob {sha256} not found; it was deleted")
    headers = {"X-Nodus-SHA256": sha256, "Cache-Control": "private, immutable"}
    if name := params.get("name"):
        headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(name.rpartition('/')[2])}"
    return FileResponse(services.store.blobs.path(sha256), headers=headers, media_type="application/octet-stream")


def signed_url(
    request: Request, services: Services, method: str, path: str, params: dict[str, str], seconds: int
) -> str:
    """An absolute URL that needs no credentials."""
    expires_at_s = int(services.clock.now().timestamp()) + seconds
    return f"{origin(request, services)}{path}?{services.signer.sign_query(method, path, params, expires_at_s)}"


def origin(request: Request, services: Services) -> str:
    """Where the sender of a request reaches this server: what the operator said, else the host it asked for."""
    host = request.headers.get("host", "")
    if services.settings.public_url or not _HOST.fullmatch(host):
        return services.base_url
    return f"{request.url.scheme}://{host}"


def verified(request: Request, services: Services, path: str) -> dict[str, str]:
    """The parameters of a signed URL.

    Raises:
        Forbidden: the signature is wrong or too old.
    """
    method = "GET" if request.method == "HEAD" else request.method
    params = services.signer.verify_query(method, path, request.url.query, services.clock.now().timestamp())
    if params is None:
        raise Forbidden("the link is not valid (any more)", fix="Ask for a new one.")
    return params
