"""Lines that commands send: what is an event, what is ignored and counted, and what bounds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodus.server.compute.local import telemetry
from nodus.server.compute.local.reported import read_reported
from nodus.server.compute.local.telemetry import (
    MAX_LINE_BYTES,
    Lines,
    Malformed,
    OutputEvents,
    Telemetry,
    decode,
)


class Watch:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def line(**event: Any) -> bytes:
    return json.dumps(event).encode()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[1]",
        b"{",
        b'{"type":"progress"}',
        b'{"type":"progress","completed":"3"}',
        b'{"type":"progress","completed":true}',
        b'{"type":"progress","completed":-1}',
        b'{"type":"progress","completed":1e400}',
        b'{"type":"progress","completed":NaN}',
        b'{"type":"progress","completed":1,"total":-2}',
        b'{"type":"progress","completed":1,"id":7}',
        b'{"type":"progress","completed":1,"id":"' + b"x" * 254 + b'"}',
        b'{"type":"metrics","loss":"0.4"}',
        b'{"type":"metrics","loss":NaN}',
        b'{"type":"phase","name":""}',
        b'{"type":"phase","name":"a\\u0000b"}',
        b'{"type":"phase","name":"a\\u009b2J"}',
        b'{"type":"phase","name":"a\\u202eb"}',
        b'{"type":"phase","name":"' + b"x" * 101 + b'"}',
        b'{"type":"unit","unitId":"u"}',
        b'{"type":"task","phase":"p"}',
        b'{"type":"task","phase":"p","taskId":"t","taskKind":"Verdict"}',
        b'{"type":["phase"]}',
        b'{"type":"checkpoint.ready"}',
        b"[" * 50_000,
        b"\xff\xfe",
        b"9" * 10_000,
    ],
)
def test_line_that_is_no_event_is_malformed(text: bytes) -> None:
    with pytest.raises(Malformed):
        decode(text)


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["type", "id", "completed", "name", "step", "x"]), inner, max_size=4),
    max_leaves=10,
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_whatever_comes_is_an_event_or_malformed(data: bytes) -> None:
    try:
        event = decode(data)
    except Malformed:
        return
    json.dumps(event, allow_nan=False)


def test_metrics_keep_what_is_a_finite_number_and_has_a_plain_name() -> None:
    event = decode(b'{"type":"metrics","step":3.0,"loss":0.5,"nan":NaN,"text":"x","b c":1,"flag":true,"eval/acc":1}')
    assert event == {"type": "metrics", "step": 3, "values": {"loss": 0.5, "eval/acc": 1}}


def test_progress_is_the_newest_of_each_kind(tmp_path: Path) -> None:
    taken = Telemetry(tmp_path)
    taken.take([
        line(type="phase", name="A"), line(type="progress", completed=1, total=9), line(type="metrics", loss=0.5, n=1),
        line(type="phase", name="B"), line(type="progress", completed=2.5), line(type="metrics", loss=1 / 3, step=2),
        line(type="task", phase="e", taskId="t", taskKind="TaskStarted"),
        line(type="task", phase="e", taskId="t", outcome="Passed", reward=1.0, trace={"a": [1]}),
    ])  # fmt: skip
    assert read_reported(tmp_path).progress == {
        "stage": "B",
        "units": {"completed": 2.5, "total": 9},
        "metrics": {"loss": "0.333333", "n": "1", "step": "2"},
        "tasks": {"started": 1, "completed": 1, "passed": 1},
    }


def test_units_told_one_by_one_are_counted(tmp_path: Path) -> None:
    taken = Telemetry(tmp_path)
    taken.take([line(type="unit", id=str(n), unitId=f"u{n}", ms=1) for n in (1, 2, 2)])
    assert read_reported(tmp_path).progress == {"units": {"completed": 2}}


def test_event_with_a_known_id_changes_nothing(tmp_path: Path) -> None:
    taken = Telemetry(tmp_path)
    taken.take([line(id="a", type="progress", completed=5), line(id="a", type="progress", completed=1)])
    assert (taken.progress.completed, taken.counts.duplicate) == (5, 1)
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 1


def test_flood_is_cut_and_ends_with_what_was_said_last(tmp_path: Path) -> None:
    watch = Watch()
    taken = Telemetry(tmp_path, clock=watch)
    for start in range(0, 100_000, 1000):
        watch.now += 0.001
        taken.take([b'{"type":"progress","completed":%d}' % n for n in range(start, start + 1000)])
    assert taken.counts.accepted <= telemetry.BURST + telemetry.EVENTS_PER_S + 1
    taken.close()
    assert read_reported(tmp_path).progress["units"] == {"completed": 99_999}
    assert taken.counts.accepted + taken.counts.dropped == 100_000
    assert read_reported(tmp_path).progress["ignored"] == {"dropped": taken.counts.dropped}


def test_lines_that_wait_are_looked_at_in_their_order_when_there_is_time(tmp_path: Path) -> None:
    watch = Watch()
    taken = Telemetry(tmp_path, clock=watch)
    taken.take([line(type="progress", completed=n) for n in range(1200)])
    assert (taken.progress.completed, taken.waiting) == (999, True)
    watch.now += 0.5
    taken.drain()
    assert taken.progress.completed == 1099
    taken.close()
    assert (taken.progress.completed, taken.counts.dropped) == (1199, 0)


def test_history_ends_where_it_is_full_and_progress_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "HISTORY_BYTES", 500)
    taken = Telemetry(tmp_path)
    taken.take([line(type="progress", completed=n) for n in range(100)])
    assert (tmp_path / "events.jsonl").stat().st_size <= 500
    assert taken.counts.unkept > 80
    assert read_reported(tmp_path).progress == {"units": {"completed": 99}}


def test_names_of_metrics_are_bounded(tmp_path: Path) -> None:
    taken = Telemetry(tmp_path)
    taken.take([line(type="metrics", **{f"m{n}": n}) for n in range(500)])
    assert len(taken.progress.metrics) == telemetry.MAX_METRICS


def test_lines_that_were_too_long_show_though_nothing_else_came(tmp_path: Path) -> None:
    Telemetry(tmp_path).take([], oversized=3)
    assert read_reported(tmp_path).progress == {"ignored": {"oversized": 3}}


def test_disk_that_takes_nothing_stops_nobody(tmp_path: Path) -> None:
    taken = Telemetry(tmp_path / "missing")
    taken.take([line(type="progress", completed=1)])
    (tmp_path / "missing").mkdir()
    taken.close()
    assert read_reported(tmp_path / "missing").progress == {"units": {"completed": 1}}


@given(st.lists(st.binary(max_size=12)), st.integers(1, 8))
def test_lines_are_the_same_however_they_are_cut(parts: list[bytes], limit: int) -> None:
    whole = b"\n".join(parts) + b"\n"
    lines = Lines(limit)
    found = [one for n in range(len(whole)) for one in lines.feed(whole[n : n + 1])]
    at_once = Lines(limit)
    assert at_once.feed(whole) == found == [part for part in whole.split(b"\n")[:-1] if len(part) <= limit]
    assert lines.skipped == at_once.skipped == len(whole.split(b"\n")) - 1 - len(found)


def test_endless_line_holds_no_memory() -> None:
    lines = Lines()
    for _ in range(100):
        assert lines.feed(b"x" * MAX_LINE_BYTES) == []
        assert len(lines._rest) <= MAX_LINE_BYTES
    assert lines.feed(b"\nnext\n") == [b"next"]
    assert lines.skipped == 1


@given(
    st.lists(st.sampled_from([b'nodus.event {"a":1}', b"nodus.even", b"", b"n", b" nodus.event {}", b"text"])),
    st.lists(st.integers(1, 20)),
)
def test_events_are_found_in_output_however_it_comes(lines: list[bytes], sizes: list[int]) -> None:
    whole, found, output = b"".join(one + b"\n" for one in lines), [], OutputEvents()
    for size in [*sizes, max(1, len(whole))]:
        if whole:
            found += output.feed(whole[:size])
            whole = whole[size:]
    assert found == [b'{"a":1}'] * lines.count(b'nodus.event {"a":1}')


def test_output_without_line_ends_holds_no_memory() -> None:
    output = OutputEvents()
    for _ in range(50):
        output.feed(b"nodus.event " + b"x" * 100_000)
        assert len(output._rest) <= MAX_LINE_BYTES


def test_damaged_files_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_bytes(b"\0" * 40)
    (tmp_path / "checkpoint.json").write_bytes(b"")
    assert read_reported(tmp_path) == ({}, {})
