"""Unpacking layers: the specification's rules, and images made to get out of their directory or fill the disk."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import zstandard

from nodus.server.grading.oci import layers as unpacking
from nodus.server.grading.oci.layers import BadImage, Limits, RootDirectory

Member = tuple[str, str | bytes | None]
"""A name, and what it is: a file's content, ``-> `` or ``= `` and a link's target, or None: a directory."""


def tar(*members: Member | tarfile.TarInfo) -> bytes:
    """A layer of these members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            name, content = member
            info, data = tarfile.TarInfo(name), b""
            if content is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(content, str) and content.startswith("-> "):
                info.type, info.linkname = tarfile.SYMTYPE, content.removeprefix("-> ")
            elif isinstance(content, str) and content.startswith("= "):
                info.type, info.linkname = tarfile.LNKTYPE, content.removeprefix("= ")
            else:
                data = content.encode() if isinstance(content, str) else content
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


class Tree:
    """A root in a directory whose other files must stay what they are."""

    def __init__(self, place: Path) -> None:
        self.outside = place / "outside"
        self.outside.mkdir()
        (self.outside / "secret").write_text("host")
        self.root = place / "root"
        self.root.mkdir()
        self.number = 0

    def apply(self, layers: Iterable[bytes], limits: Limits | None = None) -> RootDirectory:
        tree = RootDirectory(self.root, limits or Limits())
        for layer in layers:
            self.number += 1
            blob = self.root.parent / f"layer{self.number}"
            blob.write_bytes(layer)
            tree.apply(blob)
        return tree

    def untouched(self) -> bool:
        kept = {path.name: path.read_text() for path in self.outside.iterdir()}
        beside = {path.name for path in self.root.parent.iterdir() if not path.name.startswith("layer")}
        return kept == {"secret": "host"} and beside == {"outside", "root"}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_files_directories_and_links_are_there(tree: Tree) -> None:
    tree.apply([tar(("./usr/", None), ("usr/a", "x"), ("usr/b", "= usr/a"), ("lib", "-> usr"), ("lib/c", "y"))])
    assert (tree.root / "usr/b").read_text() == "x"
    assert os.path.samefile(tree.root / "usr/a", tree.root / "usr/b")
    assert (tree.root / "usr/c").read_text() == "y"  # through the link, as a process inside would
    assert os.readlink(tree.root / "lib") == "usr"


def test_setuid_bits_owners_and_devices_are_left_out(tree: Tree) -> None:
    program, device, pipe, private = (tarfile.TarInfo(name) for name in ("su", "dev/sda", "pipe", "key"))
    program.mode, program.uid, private.mode = 0o6755, 0, 0o600
    device.type, device.devmajor, device.devminor, pipe.type = tarfile.BLKTYPE, 8, 0, tarfile.FIFOTYPE
    tree.apply([tar(program, device, pipe, private)])
    assert stat.S_IMODE((tree.root / "su").lstat().st_mode) == 0o755
    assert stat.S_IMODE((tree.root / "key").lstat().st_mode) == 0o644
    assert not (tree.root / "dev/sda").exists() and not (tree.root / "pipe").exists()
    assert (tree.root / "su").stat().st_uid == os.getuid()


def test_times_stay(tree: Tree) -> None:
    info = tarfile.TarInfo("a.py")
    info.mtime = 1_600_000_000
    tree.apply([tar(info)])
    assert (tree.root / "a.py").stat().st_mtime == 1_600_000_000


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_layers_are_packed_in_three_ways(tree: Tree, pack: Callable[[bytes], bytes]) -> None:
    tree.apply([pack(tar(("a", "x")))])
    assert (tree.root / "a").read_text() == "x"


def test_whiteouts_remove_what_layers_below_left(tree: Tree) -> None:
    below = tar(("d/a", "1"), ("d/b", "2"), ("e/deep/c", "3"), ("link", "-> d"))
    tree.apply([below, tar(("d/.wh.a", ""), (".wh.e", ""), (".wh.link", ""), (".wh.nothing", ""))])
    assert sorted(os.listdir(tree.root)) == ["d"]
    assert os.listdir(tree.root / "d") == ["b"]


def test_an_opaque_directory_keeps_its_own_layers_files_whatever_the_order(tree: Tree) -> None:
    above = tar(("d/new", "n"), ("d/sub/new", "n"), ("d/.wh..wh..opq", ""), ("d/later", "l"))
    tree.apply([tar(("d/old", "1"), ("d/sub/old", "2")), above])
    assert sorted(os.listdir(tree.root / "d")) == ["later", "new", "sub"]
    assert os.listdir(tree.root / "d/sub") == ["new"]


def test_a_whiteout_is_not_about_its_own_layer(tree: Tree) -> None:
    tree.apply([tar(("a", "old")), tar(("a", "new"), (".wh.a", ""))])
    assert (tree.root / "a").read_text() == "new"


def test_kinds_replace_each_other(tree: Tree) -> None:
    tree.apply([tar(("a/b", "1"), ("c", "2"), ("d", "-> c")), tar(("a", "file"), ("c", None), ("d", None))])
    assert (tree.root / "a").read_text() == "file"
    assert (tree.root / "c").is_dir() and (tree.root / "d").is_dir() and not (tree.root / "d").is_symlink()


def test_a_file_that_replaces_one_leaves_its_other_names_alone(tree: Tree) -> None:
    tree.apply([tar(("a", "1"), ("b", "= a")), tar(("a", "2"))])
    assert ((tree.root / "a").read_text(), (tree.root / "b").read_text()) == ("2", "1")


@pytest.mark.parametrize("name", ["../outside/secret", "a/../../outside/secret", "/../outside/secret"])
def test_names_that_lead_out_are_refused(tree: Tree, name: str) -> None:
    for members in ([(name, "evil")], [("ok", "x"), ("link", f"= {name}")]):
        with pytest.raises(BadImage, match="leads out"):
            tree.apply([tar(*members)])
    assert tree.untouched()


@pytest.mark.parametrize("target", ["OUTSIDE", "../outside", "/../../outside", "../../../../../../../../OUTSIDE"])
def test_links_are_followed_inside_only(tree: Tree, target: str) -> None:
    where = target.replace("OUTSIDE", str(tree.outside))
    tree.apply([tar(("link", f"-> {where}")), tar(("link/secret", "evil"), ("link/new", "evil"), ("link/d/", None))])
    assert tree.untouched()
    assert len(list(tree.root.rglob("secret"))) == 1  # where the link leads inside


def test_what_links_lead_to_is_neither_removed_nor_linked(tree: Tree) -> None:
    link = ("link", f"-> {tree.outside}")
    tree.apply([tar(link), tar(("link/.wh.secret", ""), ("link/.wh..wh..opq", ""), ("link", None))])
    assert tree.untouched()
    for target in (f"link{tree.outside}/secret", "link/secret", "secret-link"):
        members = [link, ("secret-link", f"-> {tree.outside}/secret"), ("hard", f"= {target}")]
        try:
            tree.apply([tar(*members)])
        except BadImage as refused:
            assert "is no file of the image" in refused.message
        assert tree.untouched()
        assert not (tree.root / "hard").exists() or (tree.root / "hard").is_symlink()


def test_a_file_written_over_a_link_replaces_the_link(tree: Tree) -> None:
    tree.apply([tar(("passwd", f"-> {tree.outside}/secret")), tar(("passwd", "evil"))])
    assert tree.untouched()
    assert not (tree.root / "passwd").is_symlink()


def test_a_hard_link_to_a_link_does_not_open_its_target(tree: Tree) -> None:
    tree.apply([tar(("s", f"-> {tree.outside}/secret"), ("h", "= s")), tar(("h", "evil"))])
    assert tree.untouched()


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([("a", "-> b"), ("b", "-> a"), ("a/x", "1")], "circle"),
        ([("a", "x"), ("a/b", "1")], "no directory"),
        ([("h", "= missing")], "no file of the image"),
        ([("d", None), ("h", "= d")], "no file of the image"),
        ([(".wh...", "")], "deletes"),
        ([("s", "-> ")], "link to nothing"),
        ([("a/" * 200 + "b", "1")], "deep"),
        ([("a" * 300, "1")], "too long"),
        ([("abc/" * 600 + "b", "1")], "too long"),
    ],
)
def test_what_makes_no_sense_is_refused(tree: Tree, members: list[Member], says: str) -> None:
    with pytest.raises(BadImage) as refused:
        tree.apply([tar(*members)])
    assert says in refused.value.message
    assert tree.untouched()


def test_links_that_multiply_depth_are_bounded(tree: Tree) -> None:
    deep = "/".join(["d"] * 100)
    members: list[Member] = [(f"{deep}/x", "1"), ("l1", f"-> {deep}"), ("l1/l2", f"-> ./{'e/' * 90}")]
    with pytest.raises(BadImage, match="deep"):
        tree.apply([tar(*members, (f"l1/{'e/' * 90}x", "1"), ("l1/l2/y", "2"))])


def test_bounds_hold_for_files_and_bytes_over_all_layers(tree: Tree) -> None:
    layers = [tar(*((f"{number}-{index}", "x" * 100) for index in range(10))) for number in range(3)]
    with pytest.raises(BadImage, match="more than 25 files"):
        tree.apply(layers, Limits(files=25))
    with pytest.raises(BadImage, match="unpacks to more than"):
        tree.apply(layers, Limits(bytes=2500))


def test_paths_of_a_layer_are_bounded_together(tree: Tree) -> None:
    long = "/".join("x" * 200 for _ in range(5))
    layers = [tar(*((f"{number}/{long}/{index}", None) for index in range(5))) for number in range(3)]
    tree.apply(layers, Limits(path_bytes=12_000))
    with pytest.raises(BadImage, match="paths have more than"):
        tree.apply([tar(*((f"{number}/{long}", None) for number in range(5)))], Limits(path_bytes=12_000))
    assert tree.untouched()


def test_more_directories_than_are_remembered_are_found_again(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "_KNOWN_DIRECTORIES", 3)
    tree.apply([tar(*((f"d{index % 7}/{index}", str(index)) for index in range(70)))])
    assert all((tree.root / f"d{index % 7}" / str(index)).read_text() == str(index) for index in range(70))


def test_a_small_layer_of_gigabytes_is_stopped_early(tree: Tree) -> None:
    info = tarfile.TarInfo("zeros")
    info.size = 1 << 40
    header = info.tobuf()
    with pytest.raises(BadImage, match="unpacks to more than"):
        tree.apply([header], Limits(bytes=1 << 20))
    bomb = gzip.compress(header[:0] + tar(("a", "x"))[:1024] + b"\0" * (1 << 26))
    tree.apply([bomb], Limits(bytes=1 << 20, files=16))  # what is behind the archive is not even read
    many = gzip.compress(b"".join(tarfile.TarInfo(f"d{n}").tobuf() for n in range(2000)))
    with pytest.raises(BadImage, match="more than 100 files"):
        tree.apply([many], Limits(files=100))


def test_a_header_of_gigabytes_is_not_read(tree: Tree) -> None:
    info = tarfile.TarInfo("long")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 32
    with pytest.raises(BadImage, match="header"):
        tree.apply([info.tobuf() + b"x" * 4096])


def test_time_is_bounded(tree: Tree) -> None:
    with pytest.raises(BadImage, match="too long to unpack"):
        tree.apply([tar(("a", "x"))], Limits(unpack_s=-1.0))


@pytest.mark.parametrize(
    "layer",
    [
        b"no archive at all" * 100,
        gzip.compress(b"no archive at all" * 100),
        gzip.compress(tar(("a", "x" * 100_000)))[:100],
        b"\x28\xb5\x2f\xfd" + b"\xff" * 100,
        b"\x1f\x8b" + b"\xff" * 100,
        tar(("a", "x" * 100_000))[:20_000],
    ],
)
def test_what_is_no_archive_is_refused(tree: Tree, layer: bytes) -> None:
    with pytest.raises(BadImage):
        tree.apply([layer])


def test_a_line_is_added_to_a_file_of_the_image_alone(tree: Tree) -> None:
    tree.apply([tar(("etc", f"-> {tree.outside}"), ("b/passwd", "root:x:0:0"))])
    root = RootDirectory(tree.root, Limits())
    root.append("/etc/secret", "evil\n", unless="zz")
    root.append("/b/passwd", "nodus:x:10001:\n", unless=":10001:")
    root.append("/b/passwd", "nodus:x:10001:\n", unless=":10001:")
    assert tree.untouched()
    assert (tree.root / "b/passwd").read_text() == "root:x:0:0\nnodus:x:10001:\n"


def test_a_line_is_not_added_below_what_is_no_directory(tree: Tree) -> None:
    tree.apply([tar(("etc", "a file"))])
    with pytest.raises(BadImage, match="its /etc is no directory"):
        RootDirectory(tree.root, Limits()).append("/etc/passwd", "nodus\n", unless="nodus")
