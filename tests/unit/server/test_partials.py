"""Files that arrive in pieces: finished by one request, and out of everybody's hands from then on."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from pathlib import Path

import pytest

from nodus.core.errors import Conflict, SHA256Mismatch
from nodus.server.store.blobs import BlobStore
from nodus.server.store.partials import Partials
from nodus.testing.eventually import eventually

OWNER = "01900000-0000-7000-8000-000000000000"
CONTENT = b"0123456789"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


@pytest.fixture
def partials(blobs: BlobStore) -> Partials:
    return Partials(blobs)


def send(partials: Partials, data: bytes, offset: int = 0) -> None:
    piece = partials.open(OWNER, SHA256, offset, len(CONTENT))
    piece.write(data)
    piece.close()


def test_pieces_become_a_blob(partials: Partials, blobs: BlobStore) -> None:
    send(partials, CONTENT[:4])
    assert partials.received(OWNER, SHA256) == 4
    with pytest.raises(Conflict, match="4 bytes have arrived"):
        partials.open(OWNER, SHA256, 5, len(CONTENT))
    send(partials, CONTENT[4:], 4)
    partials.finish(OWNER, SHA256, len(CONTENT))
    assert blobs.read_bytes(SHA256) == CONTENT


def test_other_bytes_than_announced_are_dropped(partials: Partials, blobs: BlobStore) -> None:
    send(partials, b"x" * len(CONTENT))
    with pytest.raises(SHA256Mismatch):
        partials.finish(OWNER, SHA256, len(CONTENT))
    assert not blobs.exists(SHA256)
    assert partials.received(OWNER, SHA256) == 0


def test_a_request_that_had_the_file_open_writes_nothing_into_the_blob(partials: Partials, blobs: BlobStore) -> None:
    late = partials.open(OWNER, SHA256, 0, len(CONTENT))
    send(partials, CONTENT)
    partials.finish(OWNER, SHA256, len(CONTENT))
    with pytest.raises(Conflict, match="finished"):
        late.write(b"poison")
    late.close()
    assert blobs.read_bytes(SHA256) == CONTENT


def test_a_request_that_finishes_second_does_not_cut_the_blob_short(partials: Partials, blobs: BlobStore) -> None:
    send(partials, CONTENT)
    path = blobs.root / "parts" / OWNER / SHA256
    found: list[BaseException] = []

    def finish() -> None:
        try:
            partials.finish(OWNER, SHA256, 3)
        except Conflict as error:
            found.append(error)

    with path.open("rb") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        second = threading.Thread(target=finish)
        second.start()
        waiting = f"-> FLOCK  ADVISORY  WRITE {os.getpid()} "
        eventually(lambda: waiting in Path("/proc/locks").read_text())
        blobs.put_in_place(path, SHA256)
    second.join()
    assert len(found) == 1
    assert blobs.read_bytes(SHA256) == CONTENT
