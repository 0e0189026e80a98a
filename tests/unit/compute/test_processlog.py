"""What processes wrote: which stream each byte is of, and how little of the files a reader looks at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodus.server.compute.local.processlog import STDERR, STDOUT, ProcessLog, Written, read_output


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ProcessLog]:
    made = ProcessLog(tmp_path / "p")
    yield made
    made.close()


def test_output_is_cut_where_the_stream_changes(log: ProcessLog, tmp_path: Path) -> None:
    for stream, data in ((STDOUT, b"ab"), (STDOUT, b"c"), (STDERR, b"def"), (STDOUT, b"g")):
        log.write(stream, data)
    whole = [Written(0, STDOUT, b"abc"), Written(3, STDERR, b"def"), Written(6, STDOUT, b"g")]
    assert read_output(tmp_path / "p", 0) == whole
    for after in range(7):
        found = read_output(tmp_path / "p", after)
        streams = {piece.offset + n: piece.stream for piece in found for n in range(len(piece.data))}
        assert streams == {n: STDERR if 3 <= n < 6 else STDOUT for n in range(after, 7)}
    assert read_output(tmp_path / "p", 7) == []
    assert read_output(tmp_path / "nowhere", 0) == []


def test_a_new_byte_is_read_without_all_the_changes_before_it(
    log: ProcessLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5000):
        log.write(STDERR if number % 2 else STDOUT, b"x")
    looks: list[int] = []
    pread = os.pread

    def counted(fd: int, length: int, offset: int) -> bytes:
        looks.append(offset)
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", counted)
    assert read_output(tmp_path / "p", 4998) == [Written(4998, STDOUT, b"x"), Written(4999, STDERR, b"x")]
    assert 0 < len(looks) < 40
