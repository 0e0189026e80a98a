"""Captured output: order, bound, tails and times."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodus.server.compute.local import logstore
from nodus.server.compute.local.logstore import LogWriter

KIB = 1024


def text(directory: Path, offset: int = 0) -> str:
    return b"".join(piece.data for piece in logstore.read_pieces(directory, offset)).decode()


def write(directory: Path, *parts: bytes, limit_bytes: int = 50 * KIB * KIB) -> LogWriter:
    writer = LogWriter(directory, limit_bytes=limit_bytes)
    for part in parts:
        writer.write(part)
    return writer


def test_output_reads_back_as_it_was_written_also_while_it_grows(tmp_path: Path) -> None:
    writer = write(tmp_path / "log", b"one\n", b"two")
    assert text(tmp_path / "log") == "one\ntwo"
    writer.write(b"!\n")
    assert text(tmp_path / "log", 7) == "!\n"
    assert logstore.size(tmp_path / "log") == writer.total_bytes == 9
    writer.close()


def test_nothing_written_yet_is_no_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert (text(missing), logstore.size(missing), logstore.tail_offset(missing, 5)) == ("", 0, 0)
    assert (logstore.since_offset(missing, 0), logstore.stamps(missing)) == (0, [])


def test_middle_is_dropped_and_the_gap_says_how_much(tmp_path: Path) -> None:
    limit = 64 * KIB
    lines = [b"%06d\n" % number for number in range(40_000)]
    writer = write(tmp_path / "log", *lines, limit_bytes=limit)
    writer.close()
    pieces = list(logstore.read_pieces(tmp_path / "log"))
    gaps = [piece for piece in pieces if piece.dropped]
    kept = sum(len(piece.data) for piece in pieces)
    assert pieces[0].data.startswith(lines[0]) and pieces[-1].data.endswith(lines[-1])
    assert len(gaps) == 1
    assert kept + gaps[0].dropped == writer.total_bytes == 280_000
    assert 0.8 * limit < kept <= limit
    assert sum(path.stat().st_size for path in (tmp_path / "log").glob("*.log")) <= limit


def test_pieces_continue_where_the_one_before_ended(tmp_path: Path) -> None:
    write(tmp_path / "log", *[b"x" * 1000] * 200, limit_bytes=32 * KIB).close()
    pieces = list(logstore.read_pieces(tmp_path / "log", block_bytes=777))
    assert [piece.offset for piece in pieces[1:]] == [piece.end for piece in pieces[:-1]]


@pytest.mark.parametrize(
    ("written", "lines", "expected"),
    [
        (b"a\nb\nc\n", 1, "c\n"),
        (b"a\nb\nc\n", 2, "b\nc\n"),
        (b"a\nb\nc", 2, "b\nc"),
        (b"a\nb\n", 9, "a\nb\n"),
        (b"a\nb\n", 0, ""),
        (b"\n\n\n", 2, "\n\n"),
        (b"", 3, ""),
    ],
)
def test_tail_starts_at_the_last_lines(tmp_path: Path, written: bytes, lines: int, expected: str) -> None:
    write(tmp_path / "log", written).close()
    assert text(tmp_path / "log", logstore.tail_offset(tmp_path / "log", lines)) == expected


def test_tail_reaches_over_chunks(tmp_path: Path) -> None:
    lines = [b"%05d\n" % number for number in range(5000)]
    write(tmp_path / "log", *lines, limit_bytes=100 * KIB).close()
    assert text(tmp_path / "log", logstore.tail_offset(tmp_path / "log", 4000)) == b"".join(lines[-4000:]).decode()


def test_time_of_output_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = [10**18]
    monkeypatch.setattr(logstore.time, "time_ns", lambda: now_ns[0])
    writer = write(tmp_path / "log")
    for second in range(5):
        writer.write(b"%d\n" % second)
        now_ns[0] += 10**9
    writer.close()
    directory = tmp_path / "log"
    assert logstore.stamps(directory) == [(2 * second, 10**18 + second * 10**9) for second in range(5)]
    assert text(directory, logstore.since_offset(directory, 10**18 + 3 * 10**9)) == "3\n4\n"
    assert text(directory, logstore.since_offset(directory, 10**18 + 9 * 10**9)) == ""
