"""Lists of output files: some of each stand in an object's status, the whole of a long one is a blob."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from nodus.core.errors import NotFound

if TYPE_CHECKING:
    from nodus.server.store.blobs import BlobStore

Item = dict[str, Any]

SHOWN_FILES, SHOWN_BYTES = 500, 96 * 1024
"""Most outputs in a status, and most bytes of them there: an object is read, watched and kept whole."""
MEDIA_TYPE = "application/zlib"
_REST_BYTES = 150
"""About what an output takes beside its name and path."""


@dataclass(frozen=True, slots=True)
class Carrier:
    """A status that lists outputs, and the completion index that they are of, if any."""

    status: Mapping[str, Any]
    index: int | None = None

    @property
    def files(self) -> int:
        """How many outputs it has."""
        return int(_total(self.status).get("files", 0)) or len(self.status.get("outputs") or ())


def shown(items: Iterable[Item]) -> list[Item]:
    """Return as many of the first outputs as fit a status."""
    found: list[Item] = []
    size_bytes = 0
    for item in islice(items, SHOWN_FILES):
        size_bytes += len(json.dumps([item.get("name"), item.get("path")])) + _REST_BYTES
        if size_bytes > SHOWN_BYTES:
            break
        found.append(item)
    return found


def status_of(items: Sequence[Item], written: Sequence[str]) -> tuple[dict[str, Any], bytes | None]:
    """Return the fields of a status that tell of outputs, and the whole list to keep where they don't hold it.

    ``outputsTotal`` gets its ``digest``, that of what is kept, from the caller.

    Args:
        items: All outputs.
        written: Names of the declared outputs that there is anything of.
    """
    if not items:
        return {}, None
    first = shown(items)
    if len(first) == len(items):
        return {"outputs": first}, None
    size_bytes = sum(int(item.get("size") or 0) for item in items)
    total = {"files": len(items), "bytes": size_bytes, "written": list(written)}
    return {"outputs": first, "outputsTotal": total}, zlib.compress(json.dumps(list(items)).encode())


def wrote(status: Mapping[str, Any], name: str, below: Iterable[bool]) -> bool:
    """Tell whether a declared output was written.

    Args:
        status: Of the attempt.
        name: The output's.
        below: Of each output in the status, whether it is one of that output's files.
    """
    total = _total(status)
    return name in total.get("written", ()) if total else any(below)


def whole(blobs: BlobStore, carriers: Iterable[Carrier], start: int = 0) -> Iterator[Item]:
    """Yield all outputs, one carrier after the other, without the first ``start``. Reads files.

    Of a list whose blob is gone what the status shows is all there is.
    """
    for carrier in carriers:
        if start >= (count := carrier.files):
            start -= count
            continue
        for item in _listed(blobs, carrier.status)[start:]:
            yield item if carrier.index is None else {**item, "index": carrier.index}
        start = 0


def _listed(blobs: BlobStore, status: Mapping[str, Any]) -> list[Item]:
    listed: list[Item] = status.get("outputs") or []
    digest = _total(status).get("digest")
    if not digest:
        return listed
    try:
        found: list[Item] = json.loads(zlib.decompress(blobs.read_bytes(str(digest))))
    except NotFound:
        return listed
    return found


def _total(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return status.get("outputsTotal") or {}
