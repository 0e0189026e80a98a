"""Blob files."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import NoReturn

import pytest

from nodus.core.errors import NotFound, SHA256Mismatch
from nodus.server.store.blobs import BlobStore
from nodus.server.store.errors import StoreFull

DIGEST = hashlib.sha256(b"hello").hexdigest()


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def leftovers(blobs: BlobStore) -> list[Path]:
    return list(blobs.root.glob("incoming-*"))


def test_bytes_and_files_are_found_by_their_digest(blobs: BlobStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"hello")
    assert not blobs.exists(DIGEST)
    assert blobs.put_bytes(b"hello") == DIGEST
    assert blobs.put_file(tmp_path / "file") == DIGEST
    assert blobs.read_bytes("sha256:" + DIGEST) == b"hello"
    assert blobs.path(DIGEST).stat().st_mode & 0o777 == 0o600
    assert leftovers(blobs) == []


def test_pieces_make_a_blob_that_is_checked(blobs: BlobStore) -> None:
    with blobs.writer() as writer:
        for piece in (b"he", b"", b"llo"):
            writer.write(piece)
        assert writer.commit(expected="sha256:" + DIGEST) == DIGEST
    assert writer.size_bytes == 5


def test_a_wrong_digest_stores_nothing(blobs: BlobStore) -> None:
    with pytest.raises(SHA256Mismatch, match=f"have sha256 {DIGEST}"), blobs.writer() as writer:
        writer.write(b"hello")
        writer.commit(expected="0" * 64)
    assert not blobs.exists(DIGEST)
    assert leftovers(blobs) == []


def test_an_upload_cut_off_leaves_nothing(blobs: BlobStore) -> None:
    with pytest.raises(ConnectionError), blobs.writer() as writer:
        writer.write(b"hel")
        raise ConnectionError
    assert leftovers(blobs) == []


def test_a_blob_that_changed_on_disk_is_noticed(blobs: BlobStore) -> None:
    blobs.put_bytes(b"hello")
    assert blobs.verify(DIGEST)
    blobs.path(DIGEST).write_bytes(b"jello")
    assert not blobs.verify(DIGEST)
    blobs.remove(DIGEST)
    blobs.remove(DIGEST)
    assert not blobs.verify(DIGEST)
    with pytest.raises(NotFound):
        blobs.read_bytes(DIGEST)


@pytest.mark.parametrize("name", ["", "x", "../../etc/passwd", "sha256:" + "G" * 64, DIGEST + "0"])
def test_what_is_no_digest_names_no_file(blobs: BlobStore, name: str) -> None:
    with pytest.raises(NotFound, match="no sha256 digest"):
        blobs.path(name)


def test_a_full_disk_is_one_clear_line(blobs: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFull, match=r"no space left in .*blobs"):
        blobs.put_bytes(b"hello")
    assert leftovers(blobs) == []


def test_files_an_interrupted_server_left_are_swept(blobs: BlobStore) -> None:
    blobs.put_bytes(b"hello")
    (blobs.root / "incoming-abc").write_bytes(b"half")
    blobs.sweep()
    assert leftovers(blobs) == []
    assert blobs.exists(DIGEST)
