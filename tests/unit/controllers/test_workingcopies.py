"""Working copies of Volumes: made, brought up to what others committed, and never a way out for who writes in them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from nodus.core.errors import Invalid
from nodus.server.controllers import workingcopies
from nodus.server.store.blobs import BlobStore
from nodus.server.store.volumes import FileEntry


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "a").write_text("1")
    (source / "d" / "run.sh").write_text("2")
    (source / "d" / "run.sh").chmod(0o555)
    return workingcopies.make(tmp_path / "work" / "v", source)


def entry(blobs: BlobStore, path: str, content: str, mode: int = 0o644) -> FileEntry:
    return FileEntry(path, blobs.put_bytes(content.encode()), len(content), mode)


def content(directory: Path) -> dict[str, str]:
    return {p.relative_to(directory).as_posix(): p.read_text() for p in directory.rglob("*") if p.is_file()}


def test_what_can_be_executed_still_can_and_nothing_counts_as_changed(copy: Path, blobs: BlobStore) -> None:
    base = [entry(blobs, "a", "1", 0o444), entry(blobs, "d/run.sh", "2", 0o555)]
    now = list(workingcopies.tree(copy, blobs))
    assert [(item.path, oct(item.mode)) for item in now] == [("a", "0o644"), ("d/run.sh", "0o755")]
    assert workingcopies.merge(base, now, base) == base


def test_indexes_that_start_together_share_one_whole_copy(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    expected = {f"f{number:03}": str(number) for number in range(200)}
    for name, text in expected.items():
        (source / name).write_text(text)
    for round_ in range(5):
        target, found = tmp_path / f"work{round_}" / "v", []
        at_once = threading.Barrier(8)

        def start(target: Path = target, found: list[Path] = found, at_once: threading.Barrier = at_once) -> None:
            at_once.wait()
            found.append(workingcopies.make(target, source))

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [target] * 8
        assert content(target) == expected


def test_an_empty_copy_that_a_run_has_is_never_replaced(tmp_path: Path) -> None:
    first = workingcopies.make(tmp_path / "work" / "v", None).stat().st_ino
    assert workingcopies.make(tmp_path / "work" / "v", None).stat().st_ino == first


def test_a_file_that_grows_while_it_is_stored_has_the_size_of_what_was_stored(copy: Path, blobs: BlobStore) -> None:
    class Growing(BlobStore):
        def put_file(self, source: Path) -> str:
            with source.open("ab") as file:
                file.write(b"more")
            return super().put_file(source)

    for item in workingcopies.tree(copy, Growing(blobs.root)):
        assert item.size_bytes == blobs.path(item.sha256).stat().st_size


def test_base_is_kept_beside_the_copy(copy: Path, blobs: BlobStore) -> None:
    assert workingcopies.base_of(copy) is None
    base = [entry(blobs, "a", "1")]
    workingcopies.note_base(copy, base)
    assert workingcopies.base_of(copy) == base
    assert sorted(content(copy)) == ["a", "d/run.sh"]


def test_brought_up_to_what_others_committed(copy: Path, blobs: BlobStore) -> None:
    now = list(workingcopies.tree(copy, blobs))
    wanted = [entry(blobs, "a", "11"), entry(blobs, "new/deep/run", "3", 0o755)]
    workingcopies.bring_up(copy, now, wanted, blobs)
    assert content(copy) == {"a": "11", "new/deep/run": "3"}
    assert os.access(copy / "new/deep/run", os.X_OK)
    assert list(workingcopies.tree(copy, blobs)) == wanted


@pytest.mark.parametrize("trap", ["directory", "file", "gone"])
def test_links_that_the_command_planted_lead_nowhere(copy: Path, blobs: BlobStore, tmp_path: Path, trap: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("untouched")
    now = list(workingcopies.tree(copy, blobs))
    if trap == "directory":
        (copy / "trap").symlink_to(outside)
        with pytest.raises(OSError, match="trap"):
            workingcopies.bring_up(copy, now, [*now, entry(blobs, "trap/victim", "!")], blobs)
    elif trap == "file":
        (copy / "trap").symlink_to(outside / "victim")
        workingcopies.bring_up(copy, now, [*now, entry(blobs, "trap", "!")], blobs)
        assert not (copy / "trap").is_symlink()
    else:
        (copy / "d" / "run.sh").unlink()
        (copy / "d").rmdir()
        (copy / "d").symlink_to(outside)
        (outside / "run.sh").write_text("untouched")
        with pytest.raises(OSError, match="d"):
            workingcopies.bring_up(copy, now, [], blobs)
        assert (outside / "run.sh").exists()
    assert (outside / "victim").read_text() == "untouched"


def test_files_that_no_volume_holds_are_refused(copy: Path, blobs: BlobStore) -> None:
    odd = Path(os.fsdecode(os.fsencode(copy) + b"/\xff"))
    for path in (odd, copy / "a\nb"):
        path.touch()
        with pytest.raises(Invalid, match="can't be the path"):
            list(workingcopies.tree(copy, blobs))
        path.unlink()
    deep = copy / "/".join("d" * 300)
    deep.mkdir(parents=True)
    with pytest.raises(Invalid, match="deep"):
        list(workingcopies.tree(copy, blobs))
