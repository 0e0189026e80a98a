"""Times before the lines of a log: the same however the output is cut into pieces, chunks and moments."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodus.server.api import runlogs
from nodus.server.compute.local import logstore

WRITES = st.lists(st.tuples(st.sampled_from([0, 10**7, 10**8, 10**9]), st.text("ab\n", max_size=60)), max_size=20)
START_NS = 10**18


@settings(max_examples=60, deadline=None)
@given(writes=WRITES, begin=st.integers(0, 30), block=st.sampled_from([1, 7, 1000]))
def test_every_line_has_the_time_at_which_its_first_byte_was_written(
    writes: list[tuple[int, str]], begin: int, block: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        directory, now_ns = Path(folder, "log"), START_NS
        patch.setattr("nodus.server.compute.local.logstore.time.time_ns", lambda: now_ns)
        writer = logstore.LogWriter(directory, limit_bytes=4000, chunk_bytes=100)
        for later_ns, text in writes:
            now_ns += later_ns
            writer.write(text.encode())
        writer.close()
        pieces = [p for p in logstore.read_pieces(directory, begin, block_bytes=block) if p.data]
        stamper = runlogs._Stamper(directory)
        found = b"".join(stamper.stamp(piece.offset, piece.data) for piece in pieces)
        assert found == one_by_one(directory, begin, b"".join(piece.data for piece in pieces))


def one_by_one(directory: Path, offset: int, data: bytes) -> bytes:
    stamps, lines = logstore.stamps(directory), []
    for line in data.split(b"\n"):
        moment_ns = max((ns for start, ns in stamps if start <= offset), default=0)
        lines.append(runlogs._rfc3339_ms(moment_ns) + b" " + line)
        offset += len(line) + 1
    if data.endswith(b"\n") or not data:
        lines.pop()
        return b"".join(line + b"\n" for line in lines)
    return b"\n".join(lines)
