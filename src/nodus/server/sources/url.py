"""Import one file from a URL; what a broken connection left is gone on with where the server can do that."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import httpx

from nodus._version import __version__
from nodus.server.sources.archives import is_archive, unpack
from nodus.server.sources.base import (
    Collector,
    Fetched,
    ImportFailed,
    Order,
    check_disk,
    check_size,
    disk_failure,
)
from nodus.server.sources.guard import AddressRefused, Guard

REDIRECTS = 5
_SLOW_S, _SLOW_BYTES = 60.0, 60_000
_TIMEOUT = httpx.Timeout(60.0, connect=15.0)
_PARTIAL, _NOTE = "download", "download.json"


def fetch(order: Order) -> Fetched:
    """Download the file, check it, and unpack it where it is an archive.

    Raises:
        ImportFailed: With a reason and a fix.
    """
    url = str(order.spec["url"])
    label = url.partition("?")[0][:200]  # what follows may be a signature
    Guard(order.allowed).install()
    partial = order.directory / _PARTIAL
    final = _download(order, url, label, partial)
    with partial.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    wanted = order.spec.get("sha256")
    if wanted and sha256 != wanted:
        partial.unlink()
        raise ImportFailed(
            "SourceChecksumMismatch",
            f"{label} has sha256 {sha256}, and the volume wants {wanted}",
            "check that the address still serves that file",
        )
    collector = Collector(order, label)
    name = _name(url)
    if order.spec.get("extract", "Auto") == "Auto" and is_archive(name):
        unpack(partial, name, collector, label)
        partial.unlink()
    else:
        collector.move_in(name, partial, sha256)
    return Fetched(collector.finish(), {"url": label, "sha256": sha256, **final})


def _download(order: Order, url: str, label: str, partial: Path) -> dict[str, Any]:
    """Bring the whole file to ``partial``; return what the server says of it."""
    note = order.directory / _NOTE
    known = _read(note) if partial.is_file() else {}
    headers = {"User-Agent": f"nodus/{__version__}", "Accept-Encoding": "identity"}
    if known.get("url") == url and known.get("etag"):
        headers |= {"Range": f"bytes={partial.stat().st_size}-", "If-Range": known["etag"]}
    try:
        with (
            httpx.Client(timeout=_TIMEOUT, follow_redirects=False) as client,
            _open(client, url, headers, label) as answer,
        ):
            etag = answer.headers.get("etag", "")
            strong = etag if etag.startswith('"') else ""
            note.write_text(json.dumps({"url": url, "etag": strong}), encoding="utf-8")
            _save(order, answer, label, partial)
            return {"etag": etag} if etag else {}
    except AddressRefused as refused:
        raise refused.failure(label) from refused
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ImportFailed("SourceNotFound", f"{label} is no address: {error}", "check the address") from error
    except httpx.HTTPError as error:
        words = str(error) or type(error).__name__
        raise ImportFailed(
            "SourceUnavailable",
            f"{label} can't be reached or broke off ({words[:200]})",
            "check the address, and the server's way to it",
            transient=True,
        ) from error
    except OSError as error:
        raise disk_failure(label, error) from error


@contextlib.contextmanager
def _open(client: httpx.Client, url: str, headers: dict[str, str], label: str) -> Iterator[httpx.Response]:
    """Yield the first answer that is no redirect, body unread."""
    for _ in range(REDIRECTS + 1):
        answer = client.send(client.build_request("GET", url, headers=headers), stream=True)
        try:
            location = answer.headers.get("location")
            if not (answer.is_redirect and location):
                _check_status(answer, label)
                yield answer
                return
        finally:
            answer.close()
        url = _next(url, location, label)
    raise ImportFailed("SourceUnavailable", f"{label} redirects more than {REDIRECTS} times", "name its end")


def _next(url: str, location: str, label: str) -> str:
    target = urljoin(url, location)
    was, now = urlsplit(url).scheme, urlsplit(target).scheme
    if now not in ("http", "https") or (was == "https" and now == "http"):
        raise ImportFailed(
            "SourceAddressRefused", f"{label} redirects from {was} to {now or 'nowhere'}", "name an https address"
        )
    return target


def _check_status(answer: httpx.Response, label: str) -> None:
    code = answer.status_code
    if code in (200, 206, 416):
        return
    if code in (404, 410):
        raise ImportFailed("SourceNotFound", f"{label}: the server has no such file ({code})", "check the address")
    if code in (401, 403):
        raise ImportFailed(
            "SourceAccessDenied", f"{label}: the server refuses access ({code})", "use an address that needs no login"
        )
    transient = code == 429 or code >= 500
    raise ImportFailed("SourceUnavailable", f"{label}: the server answers {code}", "try later", transient=transient)


def _save(order: Order, answer: httpx.Response, label: str, partial: Path) -> None:
    if answer.status_code == 416 and partial.is_file():
        return  # it was whole already: nothing is left to send
    going_on = answer.status_code == 206 and partial.is_file()
    have = partial.stat().st_size if going_on else 0
    length = answer.headers.get("content-length", "")
    if length.isdecimal():
        check_size(label, have + int(length), order.limit_bytes)
        check_disk(order.directory, int(length))
    with partial.open("ab" if going_on else "wb") as file:
        for chunk in at_pace(_raw(answer), label):
            have += len(chunk)
            check_size(label, have, order.limit_bytes)
            file.write(chunk)


def at_pace(received: Iterable[bytes], label: str, clock: Callable[[], float] = time.monotonic) -> Iterator[bytes]:
    """Yield what comes for as long as it comes at a pace: an import must not keep its place for ever.

    Raises:
        ImportFailed: Within a minute came less than 60 kB.
    """
    begun, size = clock(), 0
    for chunk in received:
        yield chunk
        size += len(chunk)
        if clock() - begun >= _SLOW_S:
            if size < _SLOW_BYTES:
                message = f"{label} sent {size} bytes within {_SLOW_S:g} s, which is too slow"
                raise ImportFailed("SourceUnavailable", message, "use a faster server", transient=True)
            begun, size = clock(), 0


def _raw(answer: httpx.Response) -> Iterator[bytes]:
    """The bytes as the server sent them: a .tar.gz stays one, whatever Content-Encoding says of it."""
    yield from answer.iter_raw()


def _name(url: str) -> str:
    name = unquote(urlsplit(url).path).rstrip("/").rpartition("/")[2]
    return name if name not in ("", ".", "..") and name.isprintable() else "download"


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
