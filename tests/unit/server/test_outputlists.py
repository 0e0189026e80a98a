"""Lists of outputs: what stands in a status, what is kept beside it, and that nothing gets lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nodus.server import outputlists
from nodus.server.outputlists import SHOWN_BYTES, SHOWN_FILES, Carrier
from nodus.server.store.blobs import BlobStore


def items(count: int, name: str = "f{}") -> list[dict[str, Any]]:
    return [
        {"name": name.format(n), "path": f"/nodus/outputs/{name.format(n)}", "sha256": "0" * 64, "size": n}
        for n in range(count)
    ]


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def carrier(blobs: BlobStore, found: list[dict[str, Any]], index: int | None = None) -> Carrier:
    status, kept = outputlists.status_of(found, [])
    if kept is not None:
        status["outputsTotal"]["digest"] = blobs.put_bytes(kept)
    return Carrier(status, index)


def test_short_lists_stand_in_the_status_and_nowhere_else() -> None:
    assert outputlists.status_of([], []) == ({}, None)
    found = items(20)
    assert outputlists.status_of(found, ["a"]) == ({"outputs": found}, None)


@pytest.mark.parametrize("found", [items(10_000), items(10_000, "x" * 3000 + "{}"), items(600, "\u1234" * 255 + "{}")])
def test_a_status_stays_small_whatever_is_listed(found: list[dict[str, Any]]) -> None:
    status, kept = outputlists.status_of(found, ["report"])
    assert kept is not None and 0 < len(status["outputs"]) <= SHOWN_FILES
    assert len(json.dumps(status)) < 2 * SHOWN_BYTES
    size_bytes = sum(item["size"] for item in found)
    assert status["outputsTotal"] == {"files": len(found), "bytes": size_bytes, "written": ["report"]}


@pytest.mark.parametrize("start", [0, 1, 3, 702, 703, 704, 1402, 5000])
def test_lists_are_read_whole_from_wherever_one_begins(blobs: BlobStore, start: int) -> None:
    carriers = [carrier(blobs, items(3), 0), carrier(blobs, items(700), 1), carrier(blobs, items(700), 4)]
    everything = [(index, n) for index, count in ((0, 3), (1, 700), (4, 700)) for n in range(count)]
    found = [(item["index"], item["size"]) for item in outputlists.whole(blobs, carriers, start)]
    assert found == everything[start:]


def test_of_a_list_that_is_gone_the_status_shows_what_there_is(blobs: BlobStore) -> None:
    made = carrier(blobs, items(700))
    blobs.remove(made.status["outputsTotal"]["digest"])
    assert [item["size"] for item in outputlists.whole(blobs, [made])] == list(range(SHOWN_FILES))


@pytest.mark.parametrize(
    ("status", "below", "wrote"),
    [
        ({}, [False, True], True),
        ({}, [False], False),
        ({"outputsTotal": {"files": 600, "written": ["a"]}}, [], True),
        ({"outputsTotal": {"files": 600, "written": ["b"]}}, [True], False),
    ],
)
def test_declared_output_was_written_also_where_the_status_does_not_show_it(
    status: dict[str, Any], below: list[bool], wrote: bool
) -> None:
    assert outputlists.wrote(status, "a", below) is wrote
