"""env-base: the guide's Dockerfile builds on it unchanged, and what it makes is pulled, checked and graded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from nodus.core.clock import SystemClock
from nodus.server.grading import Completion, EnvironmentLibrary, GradingService, ResolvedEnvironment
from nodus.server.grading.builds import BuildStore, Order, Report
from nodus.server.grading.oci.recipe import LOOPBACK, ImageRecipe
from nodus.server.grading.selfcheck import check
from tests.integration.grading.images import Registry, python_layer, running_registry

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "training" / "custom-reward"
ENV_BASE = "ghcr.io/nodus-compute/catalog/env-base:1.0.0"
GUIDE = """\
FROM ghcr.io/nodus-compute/catalog/env-base:1.0.0
COPY reverse_words.py /opt/environment/
ENV NODUS_ENVIRONMENT_LOADER=reverse_words NODUS_ENVIRONMENT=reverse-words NODUS_ENVIRONMENT_VERSION=1.0.0
RUN nodus-env info
ENV HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1
"""


class Buildah:
    """Builds and pushes images as a user does, without a daemon."""

    def __init__(self, directory: Path) -> None:
        assert shutil.which("buildah"), "apt-get install buildah; scripts/setup --test does that"
        self.directory = directory
        self._storage = ["--storage-driver", "vfs", "--root", str(directory / "storage")]
        self._storage += ["--runroot", str(directory / "run")]

    def run(self, command: str, *arguments: str) -> str:
        env = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "TMPDIR": str(self.directory)}
        done = subprocess.run(
            ["buildah", *self._storage, command, *arguments], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def build(self, tag: str, context: Path, *arguments: str) -> str:
        return self.run("bud", "--isolation", "chroot", "-t", tag, *arguments, str(context))


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Buildah:
    """Buildah with env-base, made on this machine's own Python in place of the hub's image."""
    directory = tmp_path_factory.mktemp("buildah")
    made = Buildah(directory)
    context = directory / "python"
    context.mkdir()
    (context / "layer.tar.gz").write_bytes(python_layer())
    (context / "Dockerfile").write_text("FROM scratch\nADD layer.tar.gz /\nENV PATH=/usr/local/bin:/usr/bin:/bin\n")
    made.build("localhost/python:test", context)
    dockerfile = str(ROOT / "deploy" / "env-base" / "Dockerfile")
    made.build(ENV_BASE, ROOT, "-f", dockerfile, "--build-arg", "PYTHON_IMAGE=localhost/python:test")
    return made


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


Make = Callable[[str, Sequence[str]], dict[str, object]]


@pytest.fixture
def make(buildah: Buildah, registry: Registry, tmp_path: Path) -> Make:
    """A function from a module and further Dockerfile lines to the spec of an Environment whose image was built."""

    def specify(source: str, lines: Sequence[str] = ()) -> dict[str, object]:
        context = tmp_path / "context"
        context.mkdir()
        (context / "task.py").write_text(source)
        dockerfile = [f"FROM {ENV_BASE}", "COPY task.py /opt/environment/", "ENV NODUS_ENVIRONMENT_LOADER=task", *lines]
        (context / "Dockerfile").write_text("\n".join(dockerfile) + "\n")
        return built(buildah, registry, context, tmp_path)

    return specify


def built(buildah: Buildah, registry: Registry, context: Path, tmp_path: Path) -> dict[str, object]:
    """Build a context, push it, pull it as the server does; return the Environment's spec."""
    buildah.build("localhost/task:1", context)
    digest = tmp_path / "digest"
    target = f"docker://{registry.host}/acme/task:1"
    buildah.run("push", "--tls-verify=false", "--digestfile", str(digest), "localhost/task:1", target)
    image = f"{registry.host}/acme/task@{digest.read_text()}"
    recipe, store = ImageRecipe(LOOPBACK), BuildStore(tmp_path / "builds")
    order = Order("uid", "env-task-1.0.0", "task", "1.0.0", {"image": image})
    work = store.begin("uid")
    build = store.finish(
        recipe.key(order), work, recipe.build(order, work, Report(recipe.steps, bytearray().extend, SystemClock()))
    )
    return {"version": "1.0.0", "package": {"image": image}, "build": {"digest": build.digest}}


@pytest.fixture
def grading(service: GradingService, tmp_path: Path) -> GradingService:
    """The service, with the builds of the test."""
    service.library = EnvironmentLibrary(tmp_path, lambda blob: tmp_path / blob, BuildStore(tmp_path / "builds"))
    return service


async def graded(
    service: GradingService, environment: ResolvedEnvironment, *texts: str
) -> list[tuple[str, object, object]]:
    task = (await service.tasks(environment, "test", 0)).tasks[0]
    items = [Completion(task.task_id, number, text) for number, text in enumerate(texts)]
    verdicts = await service.grade("job", environment, items, 1)
    return [(verdict.verdict, verdict.reward, verdict.reason) for verdict in verdicts]


async def test_the_guides_dockerfile_builds_unchanged_and_grades(
    buildah: Buildah, registry: Registry, grading: GradingService, tmp_path: Path
) -> None:
    assert (EXAMPLE / "Dockerfile").read_text().endswith(GUIDE)
    context = tmp_path / "context"
    shutil.copytree(EXAMPLE, context)
    (context / "Dockerfile").write_text(GUIDE)
    spec = built(buildah, registry, context, tmp_path)
    found = await check(grading, "reverse-words", spec, "check")
    assert found.splits == {"train": 68, "test": 16} and found.facts["ecosystem"] == "functions"
    environment = await grading.resolve("reverse-words", spec)
    task = (await grading.tasks(environment, "test", 42)).tasks[0]
    word = str(task.prompt).rpartition(": ")[2]
    items = [Completion(task.task_id, n, text) for n, text in enumerate([f"<answer>{word[::-1]}</answer>", word])]
    verdicts = await grading.grade("job", environment, items, 1)
    assert [(verdict.verdict, verdict.reward) for verdict in verdicts] == [("Correct", 1.0), ("InvalidOutput", 0.0)]


ATTACKED = """
import os, time

def tasks(split):
    return [{"prompt": f"{split} {number}", "answer": "secret"} for number in range(3)]

def reward(completion, answer):
    names = {"answer": answer, "value": 0.0, "os": os, "time": time}
    exec(completion, names)
    return names["value"]
"""
FORGED = json.dumps({"taskId": "TASK", "verdict": "Correct", "reward": 1.0})


async def test_a_completion_reaches_neither_the_next_one_nor_standard_output(
    make: Make, grading: GradingService
) -> None:
    lines = ["RUN echo 0.75 > /opt/words && chmod 600 /opt/words", "ENV WORDS=/opt/words", "USER 0", "WORKDIR /opt"]
    environment = await grading.resolve("task", make(ATTACKED, lines))
    found = await graded(
        grading,
        environment,
        "open('/tmp/left', 'w').write('x'); value = 0.5",
        "value = float(os.path.exists('/tmp/left'))",
        "os.fork() or (os.setsid(), time.sleep(600)); value = 0.5",
        "value = float(len([p for p in os.listdir('/proc') if p.isdigit()]) > 3)",
        f"[os.write(fd, b'{FORGED}\\n') for fd in (1, 2)]; value = 0.0",
        "import task; task.reward = lambda *_: 1.0; value = 0.25",
        "value = 0.0",
        "os._exit(0)",
        "1 / 0",
        "value = float(open(os.environ['WORDS']).read())",  # of the Dockerfile, readable whatever its mode is
    )
    rewards = [0.5, 0.0, 0.5, 0.0, 0.0, 0.25, 0.0, None, None, 0.75]
    assert [reward for _, reward, _ in found] == rewards
    assert [verdict for verdict, _, _ in found][7:9] == ["InfrastructureFailure"] * 2
    assert "division by zero" in str(found[8][2])


def test_a_module_that_does_not_load_fails_the_docker_build(buildah: Buildah, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("import a_package_that_nobody_installed\n")
    lines = [
        f"FROM {ENV_BASE}",
        "COPY task.py /opt/environment/",
        "ENV NODUS_ENVIRONMENT_LOADER=task",
        "RUN nodus-env info",
    ]
    (tmp_path / "Dockerfile").write_text("\n".join(lines))
    with pytest.raises(AssertionError, match="a_package_that_nobody_installed"):
        buildah.build("localhost/broken:1", tmp_path)
