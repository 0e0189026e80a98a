"""Pip packages become builds: each from its own index, its dependencies from the default one, all code in sandboxes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.errors import ImageNotReady
from nodus.server.compute.builds import PipSettings
from nodus.server.compute.local.buildhost import LocalBuilds
from nodus.server.compute.local.graders import LocalGraders
from nodus.server.compute.local.logstore import LogWriter, read_pieces
from nodus.server.grading import EnvironmentLibrary, GradingService, MemoryManifests
from nodus.server.grading.builds import Build, Builds, BuildState, BuildStore, Order
from nodus.server.grading.builds.base import BuildFailed, Report
from nodus.server.grading.builds.pip import Limits, PipRecipe
from nodus.server.grading.selfcheck import check
from nodus.server.grading.verdicts import Completion
from nodus.server.trees import remove_tree
from tests.integration.grading.packageindex import TASKS, Index, sdist, wheel
from tests.interop._published import cache, run

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(180)]

DATASET = """
import os, urllib.request

PLACE = os.path.join(os.environ["HOME"], ".cache", "words", "data.txt")

def load_environment():
    if not os.path.exists(PLACE):
        os.makedirs(os.path.dirname(PLACE), exist_ok=True)
        with urllib.request.urlopen("%s") as answer, open(PLACE, "wb") as file:
            file.write(answer.read())
    open(PLACE + ".lock", "a").close()  # as dataset libraries do, whether they may write the data or not
    with open(PLACE) as file:
        words = file.read().split()

    class Words:
        def tasks(self, split):
            return [{"prompt": f"{split} {word}", "answer": word} for word in words]

        def reward(self, completion, answer):
            return float(completion == answer)

    return Words()
"""


class World:
    """A top index, a default index, and what builds from them."""

    def __init__(self, root: Path, limits: Limits | None = None) -> None:
        self.own, self.default = Index(), Index()
        settings = PipSettings({"PIP_INDEX_URL": self.default.url}, [("127.0.0.1", self.default.port)])
        host = LocalBuilds(("127.0.0.1",), settings=lambda: settings)
        self.store = BuildStore(root / "builds")
        self.builds = Builds(self.store, {"pip": PipRecipe(host, limits)}, LogWriter)

    def order(self, name: str = "pkg", version: str = "1.0.0", *, uid: str = "u1", **package: Any) -> Order:
        pip = {"name": name, "version": version, "index": self.own.url, **package.pop("pip", {})}
        return Order(uid, f"env-{uid}-1.0.0", f"env-{uid}", "1.0.0", {"pip": pip, **package})

    async def build(self, order: Order) -> BuildState:
        self.builds.begin(order)
        await self.builds.wait(order.uid, 120)
        state = self.builds.state(order.uid)
        assert state is not None
        return state

    def log(self, uid: str = "u1") -> str:
        return b"".join(piece.data for piece in read_pieces(self.store.log_directory(uid))).decode()


Make = Callable[..., World]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    worlds: list[World] = []

    def made(limits: Limits | None = None) -> World:
        worlds.append(World(tmp_path / str(len(worlds)), limits))
        return worlds[-1]

    yield made
    for world in worlds:
        await world.builds.close()
        world.own.close()
        world.default.close()
    remove_tree(tmp_path)  # the test runner's own removal recurses


@pytest.fixture
def world(make: Make) -> World:
    return make()


@pytest.fixture
async def graders() -> AsyncIterator[LocalGraders]:
    found = LocalGraders()
    yield found
    await found.close()


def finished(state: BuildState) -> Build:
    assert state.failure is None, (state.failure, state.log_tail)
    assert state.build is not None
    return state.build


def failed(state: BuildState) -> tuple[str, str]:
    """The step that failed, and why."""
    assert state.failure is not None
    return next(step.name for step in state.steps if step.phase == "Failed"), state.failure.message


async def test_built_listed_and_graded_without_the_graders_own_libraries(
    world: World, graders: LocalGraders, tmp_path: Path
) -> None:
    source = (
        "import helper\n" + TASKS + "\ndef reward(completion, answer):\n    return helper.score(completion, answer)\n"
    )
    source += "\ntry:\n    import numpy\nexcept ImportError:\n    numpy = None\nassert numpy is None\n"
    world.own.add(wheel("My.Pkg", "1.0.0", {"my_pkg.py": source}, requires=["helper>=1"]))
    score = "def score(completion, answer):\n    return float(answer in completion)\n"
    world.default.add(wheel("helper", "1.5", {"helper.py": score}))
    state = await world.build(world.order("my-pkg"))
    build = finished(state)
    assert [(step.name, step.phase) for step in state.steps] == [
        ("download", "Succeeded"), ("install", "Succeeded"), ("load", "Succeeded"),
    ]  # fmt: skip
    assert build.packages == {"My.Pkg": "1.0.0", "helper": "1.5"}
    assert build.facts["loader"] == "my_pkg"
    assert not any("helper" in path for path in world.own.asked)

    library = EnvironmentLibrary(tmp_path / "e", lambda blob: Path(blob), world.store)
    service = GradingService(library, MemoryManifests(), graders, FakeClock())
    spec = {"version": "1.0.0", "package": {"pip": {"name": "my-pkg", "version": "1.0.0"}}}
    with pytest.raises(ImageNotReady, match="no finished image env-words-1"):
        await service.resolve("words", spec)
    spec |= {"build": {"digest": build.digest}}
    found = await check(service, "words", spec, "check")
    assert found.splits == {"train": 4, "test": 4}
    environment = await service.resolve("words", spec)
    manifest = await service.tasks(environment, "test", 0)
    items = [Completion(task.task_id, 0, str(task.prompt)) for task in manifest.tasks]
    assert {verdict.verdict for verdict in await service.grade("k", environment, items)} == {"Correct"}
    await service.close()


async def test_a_dependency_is_never_taken_from_the_packages_own_index(world: World) -> None:
    """Dependency confusion: whoever has the package's index offers a newer version of a name that is another's."""
    world.own.add(wheel("pkg", "1.0.0", {"pkg.py": TASKS}, requires=["helper"]))
    world.own.add(wheel("helper", "99.0", {"helper.py": "raise SystemExit('stolen')"}))
    world.default.add(wheel("helper", "1.0", {"helper.py": ""}))
    world.default.add(wheel("pkg", "1.0.0", {"pkg.py": "raise SystemExit('not from its own index')"}))
    build = finished(await world.build(world.order()))
    assert build.packages == {"helper": "1.0", "pkg": "1.0.0"}
    assert not any("helper" in path for path in world.own.asked)
    assert not any("pkg" in path for path in world.default.asked)


@pytest.mark.heavy
async def test_what_is_missing_on_the_default_index_is_not_looked_up_elsewhere(world: World) -> None:
    world.own.add(wheel("pkg", "1.0.0", {"pkg.py": TASKS}, requires=["helper"]), wheel("helper", "1.0", {}))
    assert failed(await world.build(world.order())) == (
        "install", "the default index has no helper, which pkg-1.0.0-py3-none-any.whl depends on",
    )  # fmt: skip


async def test_data_fetched_while_it_loads_is_what_grading_reads(
    world: World, graders: LocalGraders, tmp_path: Path
) -> None:
    world.own.files["words.txt"] = ("words.txt", b"alpha beta")
    world.own.add(wheel("pkg", "1.0.0", {"pkg.py": DATASET % f"http://127.0.0.1:{world.own.port}/words.txt"}))
    build = finished(await world.build(world.order()))
    world.own.files["words.txt"] = ("words.txt", b"changed since")
    library = EnvironmentLibrary(tmp_path / "e", lambda blob: Path(blob), world.store)
    service = GradingService(library, MemoryManifests(), graders, FakeClock())
    package = {"pip": {"name": "pkg", "version": "1.0.0"}}
    environment = await service.resolve(
        "w", {"version": "1.0.0", "package": package, "build": {"digest": build.digest}}
    )
    manifest = await service.tasks(environment, "test", 0)
    assert sorted(str(task.prompt) for task in manifest.tasks) == ["test alpha", "test beta"]
    await service.close()


async def test_the_same_content_is_built_once_and_shared(world: World) -> None:
    world.own.add(wheel("pkg", "1.0.0", {"pkg.py": TASKS}))
    orders = [world.order(uid="u1"), world.order("PKG", uid="u2")]
    states = await asyncio.gather(*(world.build(order) for order in orders))
    one, other = map(finished, states)
    assert one.digest == other.digest
    assert sorted(states[0].steps[0].phase for states in [[state] for state in states]) == ["Skipped", "Succeeded"]
    assert len([path for path in world.own.asked if path.endswith(".whl")]) == 1
    # the index serves other bytes under that version now: what was built stays what it is
    world.own.add(wheel("pkg", "1.0.0", {"pkg.py": TASKS + "\n# changed\n"}))
    assert finished(await world.build(world.order(uid="u3"))).digest == one.digest


@pytest.mark.heavy
async def test_unused_builds_are_swept_and_built_again(world: World) -> None:
    world.own.add(wheel("pkg", "1.0.0", {"pkg.py": TASKS}))
    build = finished(await world.build(world.order()))
    assert world.store.unused(3600) == []
    assert world.store.unused(-1) == [build.digest.removeprefix("sha256:")]
    assert world.store.remove(world.store.unused(-1)) == build.size_bytes
    assert world.store.find(build.digest) is None
    assert finished(await world.build(world.order(uid="u2"))).digest == build.digest


PRIVATE = (
    """
import socket, urllib.request
reached = []
for url in ("http://169.254.169.254/latest", "http://10.0.0.1/"):
    try:
        urllib.request.urlopen(url, timeout=5).read()
        reached.append(url)
    except OSError as error:
        assert "403" in str(error), error
try:
    socket.create_connection(("192.0.2.1", 80), 2)
    reached.append("direct")
except OSError:
    pass
assert not reached, reached
"""
    + TASKS
)


async def test_private_addresses_are_out_of_reach(world: World) -> None:
    world.own.add(wheel("pkg", "1.0.0", {"pkg.py": PRIVATE}))
    finished(await world.build(world.order()))


INTRUDER = (
    """
import json, os
seen = {
    "root": sorted(os.listdir("/")), "uid": os.getuid(), "env": dict(os.environ),
    "home": os.path.exists(os.path.expanduser("~root/.nodus")), "etc": os.path.exists("/etc/shadow"),
}
print(json.dumps(seen))
open(os.path.join(os.environ["HOME"], "seen.json"), "w").write(json.dumps(seen))
"""
    + TASKS
)


@pytest.mark.heavy
async def test_code_of_a_package_sees_nothing_of_the_host(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODUS_API_KEY", "not-for-builds")
    monkeypatch.setenv("HF_TOKEN", "not-for-builds")
    world.own.add(wheel("pkg", "1.0.0", {"pkg.py": INTRUDER}))
    build = finished(await world.build(world.order()))
    seen = json.loads((build.directory / "cache" / "seen.json").read_text())
    assert seen["uid"] == 10001
    assert not seen["etc"]
    assert not seen["home"]
    assert "not-for-builds" not in json.dumps(seen["env"])
    assert "work" not in seen["root"]


HANG = "def build_wheel(*args):\n    pass\ndef prepare_metadata_for_build_wheel(*args):\n    while True: pass\n"


REFUSALS = {
    "version": ([("pkg", "2.0", {"pkg.py": TASKS})], {}, "download", "has no pkg==1.0.0; it has 2.0"),
    "name": ([], {}, "download", "has no pkg, or no file of it for Python"),
    "import": ([("pkg", "1.0.0", {"pkg.py": "raise ValueError('no')"})], {}, "load", "pkg failed: ValueError: no"),
    "no environment": ([("pkg", "1.0.0", {"pkg.py": "x = 1"})], {}, "load", "module pkg has neither tasks"),
    "modules": ([("pkg", "1.0.0", {"a.py": "", "b.py": ""})], {}, "install", "pkg has no module 'pkg': it brings a, b"),
    "loader": ([("pkg", "1.0.0", {"pkg.py": TASKS})], {"loader": "pkg:absent"}, "load", "module pkg has neither"),
    "traversal": ([("pkg", "1.0.0", {"../../../cache/evil.py": "x"})], {}, "install", "outside"),
    "killed": ([("pkg", "1.0.0", {"pkg.py": "import os\nos.kill(os.getpid(), 9)"})], {}, "load", "exit code 137"),
}  # fmt: skip
ALWAYS = ("version", "traversal")


@pytest.mark.parametrize(
    ("files", "order", "step", "message"),
    [
        pytest.param(*case, id=name, marks=() if name in ALWAYS else pytest.mark.heavy)
        for name, case in REFUSALS.items()
    ],
)
async def test_refusals_name_the_step(
    world: World, files: list[tuple[str, str, dict[str, str]]], order: dict[str, Any], step: str, message: str
) -> None:
    for file in files:
        world.own.add(wheel(*file))
    found = failed(await world.build(world.order(**order)))
    assert found[0] == step
    assert message in found[1]
    assert "== " + step in world.log()


@pytest.mark.heavy
async def test_wheels_of_another_python(world: World) -> None:
    world.own.add(wheel("pkg", "1.0.0", {"pkg.py": TASKS}, python=">=3.99"))
    assert "needs Python >=3.99" in failed(await world.build(world.order()))[1]
    world.own.add(wheel("other", "1.0.0", {"other.py": TASKS}, tag="cp39-cp39-manylinux_2_17_x86_64"))
    step, message = failed(await world.build(world.order("other", uid="u2")))
    assert (step, "for cp39-cp39-manylinux_2_17_x86_64 alone" in message) == ("download", True)


@pytest.mark.heavy
async def test_yanked_and_refused(world: World) -> None:
    world.own.add(wheel("pkg", "1.0.0", {"pkg.py": TASKS}), yanked=True)
    assert "has yanked pkg==1.0.0" in failed(await world.build(world.order()))[1]
    world.own.status = 401
    state = await world.build(world.order(uid="u2"))
    assert "refuses to be read (401)" in failed(state)[1]
    assert state.failure is not None
    assert not state.failure.transient
    world.own.status = 503
    state = await world.build(world.order(uid="u3"))
    assert state.failure is not None
    assert state.failure.transient


@pytest.mark.heavy
async def test_limits_of_time_disk_and_output(make: Make) -> None:
    world = make(Limits(download_s=4, install_s=20, load_s=4, disk_bytes=40 << 20, memory_bytes=256 << 20))
    world.own.add(sdist("hang", "1.0.0", HANG))
    assert "took longer than 4 s" in failed(await world.build(world.order("hang")))[1]
    world.own.add(wheel("big", "1.0.0", {"big.py": TASKS, "data.bin": bytes(200 << 20)}))
    step, message = failed(await world.build(world.order("big", uid="u2")))
    assert step == "install"
    assert "wrote more than" in message or "could not install" in message
    loop = "import os\nwhile True:\n    os.write(2, b'x' * 65536)\n"
    world.own.add(wheel("loud", "1.0.0", {"loud.py": loop}))
    assert "printed more than" in failed(await world.build(world.order("loud", uid="u3")))[1]
    world.own.add(
        wheel("fat", "1.0.0", {"fat.py": "x = bytearray(1 << 30)\nfor i in range(0, 1 << 30, 4096): x[i] = 1\n"})
    )
    step, message = failed(await world.build(world.order("fat", uid="u4")))
    assert step == "load"


DEEP = """
import os, time
os.chdir(os.environ["HOME"])
for _ in range(3000):
    os.mkdir("deeper")
    os.chdir("deeper")
time.sleep(%s)
"""


async def test_nested_directories_end_the_build_and_are_removed(world: World) -> None:
    left = world.store.begin("left")  # by a server that was killed
    world.own.add(wheel("wait", "1.0.0", {"wait.py": DEEP % 600}))
    step, message = failed(await world.build(world.order("wait")))
    assert step == "load"
    assert "it nested directories more than 200 deep" in message
    world.own.add(wheel("quick", "1.0.0", {"quick.py": DEEP % 0 + TASKS}))
    assert "it nested directories more than 200 deep" in failed(await world.build(world.order("quick", uid="u2")))[1]
    assert list((world.store.root / "making").iterdir()) == [left]
    await Builds(world.store, {}, LogWriter).start()
    assert not (world.store.root / "making").exists()


async def test_a_stopped_build_leaves_nothing(world: World) -> None:
    world.own.add(wheel("pkg", "1.0.0", {"pkg.py": "while True: pass"}))
    order = world.order()
    world.builds.begin(order)

    async def loading() -> None:
        while (state := world.builds.state(order.uid)) is None or state.steps[2].phase != "Running":
            await asyncio.sleep(0.05)  # until it loads

    await asyncio.wait_for(loading(), 60)
    await world.builds.stop(order.uid)
    assert world.builds.state(order.uid) is None
    assert list((world.store.root / "making").iterdir()) == []


STEALER = """
import os
from pathlib import Path

if "s3cr3t-word" in repr(os.environ):
    Path("/build/stolen").touch()

def prepare_metadata_for_build_wheel(directory, *args):
    place = Path(directory, "stealer-1.0.0.dist-info")
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\\nName: stealer\\nVersion: 1.0.0\\n")
    return place.name
"""


@pytest.mark.parametrize("case", ["top", "by address", "of a dependency"])
async def test_no_code_of_a_package_runs_beside_credentials(case: str, tmp_path: Path) -> None:
    own, default = Index(), Index()
    address = f"http://user:s3cr3t-word@127.0.0.1:{default.port}/simple/"
    settings = PipSettings({"PIP_INDEX_URL": address}, [("127.0.0.1", default.port)], secret=True)
    own.add(sdist("stealer", "1.0.0", STEALER))
    direct = f"stealer @ http://127.0.0.1:{own.port}/files/stealer-1.0.0.tar.gz"
    own.add(wheel("pkg", "1.0.0", {"pkg.py": TASKS}, requires=["helper" if case == "of a dependency" else direct]))
    default.add(wheel("helper", "1.0", {"helper.py": ""}, requires=[direct]))
    name = "stealer" if case == "top" else "pkg"
    order = Order("u", "env", "e", "1.0.0", {"pip": {"name": name, "version": "1.0.0", "index": own.url}})
    recipe, written = PipRecipe(LocalBuilds(("127.0.0.1",), settings=lambda: settings)), bytearray()
    with pytest.raises(BuildFailed, match="is no wheel") as failure:
        await asyncio.to_thread(recipe.build, order, tmp_path, Report(recipe.steps, written.extend, FakeClock()))
    assert "Publish it as a wheel" in failure.value.fix
    assert not (tmp_path / "build" / "stolen").exists()
    own.close()
    default.close()


async def test_wheels_are_installed_with_credentials(tmp_path: Path) -> None:
    own, default = Index(), Index()
    address = f"http://user:s3cr3t-word@127.0.0.1:{default.port}/simple/"
    settings = PipSettings({"PIP_INDEX_URL": address}, [("127.0.0.1", default.port)], secret=True)
    own.add(wheel("pkg", "1.0.0", {"pkg.py": TASKS}, requires=["helper"]))
    default.add(wheel("helper", "1.0", {"helper.py": ""}))
    order = Order("u", "env", "e", "1.0.0", {"pip": {"name": "pkg", "version": "1.0.0", "index": own.url}})
    recipe, written = PipRecipe(LocalBuilds(("127.0.0.1",), settings=lambda: settings)), bytearray()
    report = Report(recipe.steps, written.extend, FakeClock())
    built = await asyncio.to_thread(recipe.build, order, tmp_path, report)
    assert built.packages == {"helper": "1.0", "pkg": "1.0.0"}
    assert b"s3cr3t-word" not in written
    own.close()
    default.close()


LIBRARY = """
import os
from datasets import load_dataset

def load_environment():
    rows = load_dataset("json", data_files=os.path.join(os.path.dirname(__file__), "rows.jsonl"), split="train")
    assert rows.cache_files[0]["filename"].startswith("/cache/"), rows.cache_files
    rows = rows.map(lambda row: {"answer": row["word"][::-1]})

    class Words:
        def tasks(self, split):
            return [{"prompt": f"{split} {row['word']}", "answer": row["answer"]} for row in rows]

        def reward(self, completion, answer):
            return float(completion == answer)

    return Words()
"""


@pytest.mark.heavy
@pytest.mark.timeout(600)
async def test_a_dataset_library_works_on_the_builds_copy(graders: LocalGraders, tmp_path: Path) -> None:
    """Hugging Face's ``datasets`` locks and writes beside what it reads."""
    wheels = cache() / "wheels-datasets-4.6.1"
    if not (wheels / ".ready").exists():
        run(sys.executable, "-m", "pip", "download", "--quiet", "-d", str(wheels), "datasets==4.6.1", "pyarrow")
        (wheels / ".ready").touch()
    settings = PipSettings({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}, readable=[wheels])
    own = Index()
    files = {"words_env/__init__.py": LIBRARY, "words_env/rows.jsonl": '{"word": "abc"}\n{"word": "xyz"}\n'}
    own.add(wheel("words-env", "1.0.0", files, requires=["datasets>=3"]))
    store = BuildStore(tmp_path / "builds")
    builds = Builds(store, {"pip": PipRecipe(LocalBuilds(("127.0.0.1",), settings=lambda: settings))}, LogWriter)
    pip = {"name": "words-env", "version": "1.0.0"}
    builds.begin(Order("u", "env-w-1.0.0", "w", "1.0.0", {"pip": {**pip, "index": own.url}}))
    await builds.wait("u", 500)
    state = builds.state("u")
    assert state is not None
    build = finished(state)
    assert (build.directory / "cache" / ".cache" / "huggingface" / "datasets" / "json").is_dir()
    service = GradingService(
        EnvironmentLibrary(tmp_path / "e", lambda blob: Path(blob), store), MemoryManifests(), graders, FakeClock()
    )
    found = await check(
        service, "w", {"version": "1.0.0", "package": {"pip": pip}, "build": {"digest": build.digest}}, "c"
    )
    assert found.splits == {"train": 2, "test": 2}
    await service.close()
    await builds.close()
    own.close()
