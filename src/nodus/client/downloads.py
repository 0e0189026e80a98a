"""Downloads: written beside the target, checked, and put in its place whole; what broke off is gone on with.

A file whose sha256 is known goes into a partial file that is named after it. A download that is asked for again, by
this program or the next, begins where that one ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, BinaryIO

from nodus.client.http import Api, ConnectionFailed
from nodus.client.transport import Exchange, TransportError, off_loop, pause
from nodus.core.errors import NodusError, SHA256Mismatch

Locate = Callable[[], Awaitable[str]]
"""Asks for a link to the bytes; each is good for some minutes."""
TRIES = 6
"""Without a byte of progress in between."""
_READ_BYTES = 1024 * 1024


async def download(api: Api, locate: Locate, target: Path, name: str, sha256: str) -> Path:
    """Write a file, replacing it only when every byte is there and right.

    Args:
        api: The server.
        locate: Asks for a link to the bytes.
        target: Where they go; its directory must be there.
        name: What messages and the meter call it.
        sha256: Its digest, 64 hex digits.

    Raises:
        SHA256Mismatch: When other bytes arrived; the target stays as it was.
        ConnectionFailed: When it kept breaking off; what arrived is kept for the next try.
    """
    partial = target.with_name(f".{target.name}.{sha256[:16].lower()}.part")
    with partial.open("a+b") as file:
        if not _alone(file):
            raise NodusError(f"{target} is being downloaded by another program", fix="Wait for it.")
        await _fill(api, locate, file, name)
        found = await off_loop(_digest, partial)
        if found != sha256.lower():
            partial.unlink(missing_ok=True)
            raise mismatch(name, found, sha256)
        partial.replace(target)
    return target


async def _fill(api: Api, locate: Locate, file: BinaryIO, name: str) -> None:
    left = TRIES
    while True:
        have = file.seek(0, os.SEEK_END)
        link = await locate()  # which goes on for as long as the client does
        try:
            await _take(await api.fetch(link, name, have), file, have)
            return
        except TransportError as error:
            broken: Exception = error
        except NodusError as error:
            if error.status == 416:
                return  # nothing is left to send
            if not isinstance(error, ConnectionFailed):
                raise
            broken = error
        left = TRIES if file.seek(0, os.SEEK_END) > have else left - 1
        if not left:
            raise ConnectionFailed(f"downloading {name!r} broke off: {broken}", fix="Try again.") from broken
        await pause(min(5.0, 0.2 * 2 ** (TRIES - left)))


async def _take(exchange: Exchange, file: BinaryIO, have: int) -> None:
    """Write what arrives behind what is there; from the beginning where the server sends all of it again."""
    if have and exchange.status != 206:
        file.truncate(0)
    try:
        async for chunk in exchange.chunks():
            file.write(chunk)
    finally:
        file.flush()
        await exchange.close()


def _alone(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def save(exchange: Exchange, target: Path, name: str, digest: str | None) -> Path:
    """Write a body that can't be asked for again, by way of a temporary file, checked where its sha256 is given.

    Raises:
        SHA256Mismatch: When the digest differs; the target stays as it was.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    hashed = hashlib.sha256()
    try:
        with temporary.open("wb") as file:
            async for chunk in exchange.chunks():
                hashed.update(chunk)
                file.write(chunk)
        if digest is not None and hashed.hexdigest() != digest.lower():
            raise mismatch(name, hashed.hexdigest(), digest)
        temporary.replace(target)
    except TransportError as error:
        raise ConnectionFailed(f"downloading {name!r} broke off: {error}", fix="Try again.") from error
    finally:
        await exchange.close()
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
    return target


async def checked(exchange: Exchange, name: str, digest: str | None) -> AsyncGenerator[bytes, None]:
    """Yield a body as it arrives, and check it at its end.

    Raises:
        SHA256Mismatch: After the last piece, when the digest differs.
        ConnectionFailed: When it broke off.
    """
    hashed = hashlib.sha256()
    try:
        async with aclosing(exchange.chunks()) as chunks:
            async for chunk in chunks:
                hashed.update(chunk)
                yield chunk
    except TransportError as error:
        raise ConnectionFailed(f"downloading {name!r} broke off: {error}", fix="Try again.") from error
    finally:
        await exchange.close()
    if digest is not None and hashed.hexdigest() != digest.lower():
        raise mismatch(name, hashed.hexdigest(), digest)


async def whole(exchange: Exchange, name: str, digest: str | None) -> bytes:
    """Return a body, checked; for small files.

    Raises:
        SHA256Mismatch: When the digest differs.
        ConnectionFailed: When it broke off.
    """
    try:
        content = await exchange.read()
    except TransportError as error:
        raise ConnectionFailed(f"the download broke off: {error}", fix="Try again.") from error
    found = hashlib.sha256(content).hexdigest()
    if digest is not None and found != digest.lower():
        raise mismatch(name, found, digest)
    return content


def mismatch(name: str, found: str, expected: str) -> SHA256Mismatch:
    """Return the error for other bytes than were recorded."""
    details: dict[str, Any] = {"expected": expected, "found": found}
    return SHA256Mismatch(
        f"{name!r} has sha256 {found}, recorded was {expected}", fix="Download it again.", details=details
    )
