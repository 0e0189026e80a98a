"""The parts of builds that need no sandbox: names, settings of pip, what is kept, what pip's words mean."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodus.core.clock import SystemClock
from nodus.core.kinds.environment import Package, PipPackage
from nodus.core.kinds.image import image_name
from nodus.grader.cache import Mirror
from nodus.server.compute.builds import BuildCommand, BuildEnded
from nodus.server.compute.local import pipsettings
from nodus.server.compute.local.buildhost import _excess
from nodus.server.compute.local.logstore import LogWriter
from nodus.server.grading.builds import (
    BuildFailed,
    Builds,
    BuildStopped,
    BuildStore,
    Built,
    Report,
    installed,
    pipfailures,
)
from nodus.server.kinds.pippackages import problems
from nodus.server.trees import MAX_DEPTH, TreeRefused, entries, remove_tree

WHERE = "the default index"


def test_an_image_is_named_after_environment_and_version() -> None:
    assert image_name("words", "1.0.0") == "env-words-1.0.0"
    odd = image_name("words", "1.0.0+Local")
    assert odd.startswith("env-words-1.0.0-local-")
    assert odd != image_name("words", "1.0.0+local")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": "../a"}, "pip.name"),
        ({"name": "a==1"}, "pip.name"),
        ({"name": "-r"}, "pip.name"),
        ({"version": "1.*"}, "pip.version"),
        ({"version": ""}, "pip.version"),
        ({"index": "https://a:b@example.com/"}, "pip.index"),
        ({"index": "https://token@example.com/"}, "pip.index"),
        ({"index": "http://example.com/"}, "pip.index"),
        ({"index": "file:///etc"}, "pip.index"),
        ({"index": "https://example.com/?a=b"}, "pip.index"),
        ({"index": "https://exa mple.com/"}, "pip.index"),
        ({"index": "https://[bad/"}, "pip.index"),
    ],
)
def test_what_no_package_can_be(fields: dict[str, str], field: str) -> None:
    pip = PipPackage.model_validate({"name": "a", "version": "1.0", **fields})
    assert [path for path, _ in problems(Package(pip=pip), ())] == [field]


@pytest.mark.parametrize("index", [None, "https://example.com/simple/", "http://10.1.2.3/simple", "http://lan/simple"])
def test_what_a_package_can_be(index: str | None) -> None:
    pip = PipPackage(name="My.Pkg_1", version="1.0rc1", index=index)
    assert list(problems(Package(pip=pip, loader="a.b:c"), ("10.1.0.0/16", "lan"))) == []


def test_settings_of_pip() -> None:
    listing = "\n".join(
        [
            ":env:.index-url='https://user:word@mirror.example/simple'",
            "global.index-url='https://other.example/simple'",
            "install.trusted-host='a b'",
            "global.find-links='/absent'",
            "global.user-agent='x'",
            "nonsense",
        ]
    )
    found = pipsettings.parse(listing, ["default.example"])
    assert found.env == {
        "PIP_INDEX_URL": "https://user:word@mirror.example/simple",
        "PIP_TRUSTED_HOST": "a b",
        "PIP_FIND_LINKS": "/absent",
    }
    assert (list(found.hosts), list(found.readable), found.secret) == ([("mirror.example", 443)], [], True)
    assert list(pipsettings.parse("", ["default.example"]).hosts) == [("default.example", 443)]


def test_modules_of_an_installation(tmp_path: Path) -> None:
    (tmp_path / "my_pkg.py").touch()
    assert installed.module_of(tmp_path, "My-Pkg") == "my_pkg"
    info = tmp_path / "other_name-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(
        "thing/__init__.py,,\nthing/a.py,,\nother_name-1.0.dist-info/METADATA,,\ntests/a.py,,\n"
    )
    assert installed.module_of(tmp_path, "other-name") == "thing"
    with pytest.raises(BuildFailed, match="it brings no module"):
        installed.module_of(tmp_path, "absent")


def test_a_digest_is_of_every_byte_name_link_and_mode(tmp_path: Path) -> None:
    changes: list[Callable[[Path], object]] = [
        lambda root: None,
        lambda root: (root / "a" / "b").write_text("y"),
        lambda root: (root / "a" / "b").rename(root / "a" / "c"),
        lambda root: (root / "a" / "b").chmod(0o755),
        lambda root: os.symlink("b", root / "a" / "l"),
        lambda root: os.symlink("c", root / "a" / "l"),
    ]
    digests = []
    for number, change in enumerate(changes):
        root = tmp_path / str(number)
        (root / "a").mkdir(parents=True)
        (root / "a" / "b").write_text("x")
        (root / "a" / "b").chmod(0o644)
        change(root)
        digests.append(installed.tree_digest(root))
    assert len(set(digests)) == len(changes)


def test_a_build_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    store = BuildStore(tmp_path / "builds")
    work = store.begin("u")
    (work / "site").mkdir()
    (work / "site" / "a.py").write_text("x")
    os.mkfifo(work / "site" / "pipe")
    os.symlink("/etc/passwd", work / "site" / "link")
    build = store.finish("key", work, Built({"a": 1}, {"loader": "a"}, {"a": "1"}))
    assert not work.exists()
    assert (build.facts, build.packages, build.size_bytes) == ({"loader": "a"}, {"a": "1"}, 1)
    assert sorted(os.listdir(build.directory / "site")) == ["a.py", "link"]
    assert store.of_key("key") == build
    again = store.begin("u")
    assert store.finish("other", again, Built({"a": 1})).directory == build.directory
    store.begin("left over")
    (tmp_path / "builds" / ("0" * 64)).mkdir()
    assert store.find("0" * 64) is None
    store.clear_work()
    assert not (tmp_path / "builds" / "making").exists()
    assert store.find("../../etc") is None


def nest(root: Path, levels: int, name: str = "d" * 8) -> None:
    """Make nested directories, the deepest beyond what any path can name."""
    root.mkdir(parents=True, exist_ok=True)
    place = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=place)
        place, above = os.open(name, os.O_RDONLY, dir_fd=place), place
        os.close(above)
    os.close(os.open("file", os.O_CREAT, dir_fd=place))
    os.close(place)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory that is removed whatever is in it: the test runner's own removal recurses."""
    yield tmp_path
    remove_tree(tmp_path)


async def test_nested_directories_are_refused_and_removed(place: Path) -> None:
    store = BuildStore(place / "builds")
    work = store.begin("u")
    nest(work / "cache", 1500)
    (place / "linked").mkdir()
    (place / "linked" / "kept").touch()
    os.symlink(place / "linked", work / "cache" / "link")
    for look in (installed.tree_digest, installed.drop_locks, installed.drop_bytecode):
        with pytest.raises(TreeRefused, match=f"more than {MAX_DEPTH} deep"):
            look(work / "cache")
    with pytest.raises(TreeRefused):
        store.finish("key", work, Built({}))
    await Builds(store, {}, LogWriter).start()
    assert not (place / "builds" / "making").exists()
    assert (place / "linked" / "kept").exists()
    assert remove_tree(place / "absent")


async def test_builds_start_beside_what_cannot_be_removed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BuildStore(place / "builds")
    nest(store.begin("u"), 1500)
    monkeypatch.setenv("PATH", str(place))  # no rm, and the library's own removal recurses
    await Builds(store, {}, LogWriter).start()
    assert store.begin("u").is_dir()
    monkeypatch.undo()
    store.clear_work()
    assert not (place / "builds" / "making").exists()


def test_bounds_of_what_a_command_writes(place: Path) -> None:
    root = place / "cache"
    command = BuildCommand(argv=[], writable={"/cache": root}, disk_bytes=1 << 20)
    assert _excess(command) == ""
    nest(root, 3)
    assert _excess(command) == ""
    assert len(list(entries(root, 4))) == 4
    with pytest.raises(TreeRefused, match="more than 3 files"):
        list(entries(root, 3))
    with (root / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    assert "wrote more than" in _excess(command)
    (root / "sparse").unlink()
    nest(root / "long", 15, "n" * 250)
    assert "paths of more than" in _excess(command)
    assert remove_tree(root / "long")
    nest(root / "deep", 1500)
    assert "nested directories more than" in _excess(command)


def test_hashing_ends_when_it_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(bytes(3 << 20))
    report = Report(("load",), lambda data: None, SystemClock())
    looks: list[bool] = []

    def check() -> None:
        report.check()
        looks.append(True)
        if len(looks) == 2:
            report.stopping.set()

    with pytest.raises(BuildStopped):
        installed.tree_digest(tmp_path, check)
    assert len(looks) == 2
    with pytest.raises(BuildStopped):
        installed.mentions(tmp_path, b"text", report.check)


def test_a_text_is_found_across_pieces_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(bytes((1 << 20) - 3) + b"the text" + bytes(2 << 20))
    (tmp_path / "b.txt").write_bytes(b"other text")
    assert installed.mentions(tmp_path, b"the text")
    assert not installed.mentions(tmp_path, b"other text")


def test_a_cache_is_shown_again_as_the_build_left_it(tmp_path: Path) -> None:
    source, target = tmp_path / "build", tmp_path / "home"
    (source / "d").mkdir(parents=True)
    (source / "d" / "data").write_text("x")
    (source / "d" / "x.lock").touch()
    os.symlink("data", source / "d" / "same")
    target.mkdir()
    mirror = Mirror(str(source), str(target))
    assert sorted(os.listdir(target / "d")) == ["data", "same"]
    assert (target / "d" / "same").read_text() == "x"
    (target / "d" / "loaded.lock").touch()
    mirror.settle()
    assert mirror.keep()
    assert (target / "d" / "loaded.lock").exists()
    (target / "d" / "data").unlink()
    (target / "d" / "data").write_text("planted")
    (target / "new").mkdir()
    assert mirror.keep()
    assert (target / "d" / "data").read_text() == "x"
    assert not (target / "new").exists()


@pytest.mark.parametrize(
    ("said", "refused", "message", "transient"),
    [
        ("ReadTimeoutError: Read timed out. NewConnectionError", (), "can't be reached", True),
        ("", ("x leads to 10.0.0.1, which is not a public address: a build",), "is not a public address", False),
        ("ERROR: HTTP error 403 while getting", (), "refuses to be read", False),
        ("503 Server Error: x", (), "failed (503)", True),
        ("a\nERROR: something odd", (), "something odd", False),
        ("", (), "it said nothing", False),
    ],
)
def test_what_pip_said_becomes_a_sentence(said: str, refused: tuple[str, ...], message: str, transient: bool) -> None:
    failure = pipfailures.of_download("a", "1", WHERE, BuildEnded(1, refused=refused), said)
    assert message in failure.message
    assert failure.transient == transient
    assert failure.fix


def test_a_module_that_is_missing_is_to_be_a_dependency() -> None:
    missing = pipfailures.of_load("a.b:c", BuildEnded(1), "ModuleNotFoundError: No module named 'numpy'", "")
    assert "'numpy'" in missing.message and "add it to the package's dependencies" in missing.fix
    assert "dependencies" not in pipfailures.of_load("a.b:c", BuildEnded(1), "ValueError: x", "").fix
