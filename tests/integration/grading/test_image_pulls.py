"""Images from a registry to an unpacked root: the distribution's registry, and one that lies."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nodus.core.clock import SystemClock
from nodus.server.grading.builds import Build, BuildFailed, BuildStopped, BuildStore, Built, Order, Report
from nodus.server.grading.oci import skopeo
from nodus.server.grading.oci.layers import Limits
from nodus.server.grading.oci.recipe import LOOPBACK, ROOT, ImageRecipe, image_root
from tests.integration.grading.images import (
    ARCHITECTURE,
    INDEX,
    MANIFEST,
    Image,
    Registry,
    index_of,
    layer,
    running_registry,
    sha256,
)

pytestmark = pytest.mark.timeout(120)

RUNNER = {"usr/local/bin/nodus-env": "#!/bin/sh\nexit 0\n"}
OTHER = "arm64" if ARCHITECTURE == "amd64" else "amd64"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


class Puller:
    """Builds images as the server does."""

    def __init__(self, store: BuildStore) -> None:
        self.store = store
        self.log = bytearray()
        self.report = self._report(ImageRecipe())

    def _report(self, recipe: ImageRecipe) -> Report:
        return Report(recipe.steps, self.log.extend, SystemClock())

    def pull(self, image: str, recipe: ImageRecipe | None = None) -> Build:
        recipe = recipe or ImageRecipe(LOOPBACK)
        self.report = self._report(recipe)
        order = Order("uid", "env-task-1.0.0", "task", "1.0.0", {"image": image})
        work = self.store.begin("uid")
        return self.store.finish(recipe.key(order), work, recipe.build(order, work, self.report))

    def failure(self, image: str, recipe: ImageRecipe | None = None) -> BuildFailed:
        with pytest.raises(BuildFailed) as failed:
            self.pull(image, recipe)
        return failed.value


@pytest.fixture
def puller(tmp_path: Path) -> Puller:
    return Puller(BuildStore(tmp_path / "builds"))


def test_an_image_is_pulled_checked_and_unpacked(registry: Registry, puller: Puller) -> None:
    image = Image(
        [layer({"etc/passwd": "root:x:0:0:::\n", "a": "1", "b": "2"}), layer({**RUNNER, ".wh.b": ""})], cwd="/x"
    )
    build = puller.pull(registry.push("acme/task", image))
    assert sorted(os.listdir(build.directory / ROOT)) == ["a", "etc", "usr"]
    root = image_root(build)
    assert (root.program, root.cwd, root.env["PATH"]) == (
        "/usr/local/bin/nodus-env",
        "/x",
        "/usr/local/bin:/usr/bin:/bin",
    )
    assert ":10001:" in (build.directory / ROOT / "etc/passwd").read_text()
    assert [step.name for step in puller.report.steps] == ["pull", "verify", "unpack", "check"]
    assert b"check" in puller.log and not (build.directory / "pulled").exists()
    again = puller.pull(registry.push("other/name", image))
    assert again.digest == build.digest  # the same image from another place is the same


def test_of_a_list_the_one_for_this_machine_is_taken(registry: Registry, puller: Puller) -> None:
    ours, other = Image([layer(RUNNER)]), Image([layer({**RUNNER, "other": "x"})], architecture=OTHER)
    registry.push("acme/many", ours), registry.push("acme/many", other)
    build = puller.pull(registry.push_manifest("acme/many", index_of([other, ours]), INDEX))
    assert os.listdir(build.directory / ROOT) == ["usr"] or not (build.directory / ROOT / "other").exists()
    failure = puller.failure(registry.push_manifest("acme/many", index_of([other]), INDEX))
    assert f"it is for linux/{OTHER}; this machine is linux/{ARCHITECTURE}" in failure.message
    assert f"--platform linux/{ARCHITECTURE}" in failure.fix


def test_another_machines_image_is_refused(registry: Registry, puller: Puller) -> None:
    failure = puller.failure(registry.push("acme/arm", Image([layer(RUNNER)], architecture=OTHER)))
    assert f"it is for linux/{OTHER}" in failure.message and not failure.transient


def test_an_image_without_the_runner_is_refused_with_what_to_do(registry: Registry, puller: Puller) -> None:
    for files in ({"a": "1"}, {"usr/local/bin/nodus-env": None}, {"bin/other": "x"}):
        failure = puller.failure(registry.push("acme/none", Image([layer(files)])))
        assert "no program nodus-env is on its PATH (/usr/local/bin:/usr/bin:/bin)" in failure.message
        assert "env-base" in failure.fix
    plain = layer(RUNNER, mode=0o644)
    assert "no program" in puller.failure(registry.push("acme/none", Image([plain]))).message


def test_what_the_registry_lacks_is_named(registry: Registry, puller: Puller) -> None:
    for name in ("acme/nothing", "acme/task"):
        failure = puller.failure(f"{registry.host}/{name}@sha256:{'0' * 64}")
        assert failure.reason == "ImageNotFound" and f"has no {name}@sha256:000" in failure.message


def test_a_registry_that_is_not_there_is_tried_again(puller: Puller) -> None:
    failure = puller.failure(f"127.0.0.1:1/acme/task@sha256:{'0' * 64}")
    assert failure.transient and failure.reason == "ImagePullFailed" and "refused" in failure.message


@pytest.mark.parametrize("host", ["127.0.0.1:5000", "localhost", "169.254.169.254", "10.0.0.1:5000", "[::1]:5000"])
def test_private_addresses_are_for_the_operator_to_allow(host: str, puller: Puller) -> None:
    failure = puller.failure(f"{host}/acme/task@sha256:{'0' * 64}", ImageRecipe())
    assert "not a public address" in failure.message and "NODUS_SERVER_SOURCE_HOSTS" in failure.fix


def test_without_skopeo_it_says_how_to_install_it(puller: Puller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skopeo, "PROGRAM", "skopeo-that-is-not-installed")
    failure = puller.failure(f"127.0.0.1:5000/acme/task@sha256:{'0' * 64}")
    assert "no skopeo" in failure.message and "apt-get install skopeo" in failure.fix and failure.transient


def test_bounds_hold_before_anything_large_is_fetched(registry: Registry, puller: Puller) -> None:
    image = registry.push("acme/large", Image([layer({**RUNNER, "big": os.urandom(3 << 20)})]))
    assert (
        "at most 1 MiB are pulled" in puller.failure(image, ImageRecipe(LOOPBACK, Limits(packed_bytes=1 << 20))).message
    )
    assert "unpacks to more than 1 MiB" in puller.failure(image, ImageRecipe(LOOPBACK, Limits(bytes=1 << 20))).message
    layers = [layer({**RUNNER, str(number): "x"}) for number in range(4)]
    few = ImageRecipe(LOOPBACK, Limits(layers=3))
    assert "at most 3" in puller.failure(registry.push("acme/layers", Image(layers)), few).message


def test_a_build_that_is_to_end_ends(registry: Registry, puller: Puller) -> None:
    image = registry.push("acme/task", Image([layer(RUNNER)]))

    class Stopping(ImageRecipe):
        def build(self, order: Order, work: Path, report: Report) -> Built:
            report.stopping.set()
            return super().build(order, work, report)

    with pytest.raises(BuildStopped):
        puller.pull(image, Stopping(LOOPBACK))


Answer = Callable[[str], tuple[int, bytes, str]]


@pytest.fixture
def lying() -> Iterator[Callable[[Answer], str]]:
    """A function from what a registry answers to its host."""
    servers = []

    def start(answer: Answer) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body, kind = answer(self.path)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                if status == 401:
                    self.send_header("WWW-Authenticate", 'Basic realm="private"')
                self.end_headers()
                self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def serving(image: Image, **instead: bytes) -> Answer:
    """A registry of one image that sends something else in places."""

    def answer(path: str) -> tuple[int, bytes, str]:
        if "/manifests/" in path:
            return 200, instead.get("manifest", image.manifest), MANIFEST
        digest = path.rpartition("/")[2]
        if digest in image.blobs:
            number = list(image.blobs).index(digest)
            return (
                200,
                instead.get("config" if number == 0 else "layer", image.blobs[digest]),
                "application/octet-stream",
            )
        return 200 if path == "/v2/" else 404, b"", "text/plain"

    return answer


def test_what_has_another_digest_is_never_unpacked(lying: Callable[[Answer], str], puller: Puller) -> None:
    image = Image([layer(RUNNER)])
    evil = Image([layer({**RUNNER, "evil": "x"})])
    for instead in ({"manifest": evil.manifest}, {"layer": evil.layers[0]}, {"config": b"{}"}, {"layer": b""}):
        host = lying(serving(image, **instead))
        failure = puller.failure(f"{host}/acme/task@{image.digest}")
        assert failure.reason in ("BadImage", "ImagePullFailed")
        assert "digest" in failure.message.lower(), failure.message
    assert puller.pull(f"{lying(serving(image))}/acme/task@{image.digest}").directory.is_dir()


def test_a_private_registry_is_said_to_be_one(lying: Callable[[Answer], str], puller: Puller) -> None:
    for status in (401, 403):
        host = lying(lambda path, status=status: (status, b"{}", "application/json"))  # type: ignore[misc]
        failure = puller.failure(f"{host}/acme/task@sha256:{'0' * 64}")
        assert "asks for a sign-in" in failure.message and "anyone may pull" in failure.fix
        assert not failure.transient


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b"not json",
        b"{}",
        b'{"layers": []}',
        b'{"layers": [{"digest": "sha256:../../../etc/passwd", "size": 1}]}',
        b'{"layers": [{"digest": "sha256:' + b"0" * 64 + b'", "size": -1}], "config": {}}',
        b'{"layers": [{"digest": "sha256:' + b"0" * 64 + b'", "size": 1, "urls": ["http://10.0.0.1/"]}], "config": {}}',
        b'{"mediaType": "application/vnd.docker.distribution.manifest.v1+json"}',
        b'{"manifests": [1, {"platform": []}]}',
        b"[" * 100_000,
        b" " * (5 << 20),
    ],
)
def test_a_manifest_is_a_strangers(manifest: bytes, lying: Callable[[Answer], str], puller: Puller) -> None:
    host = lying(lambda _: (200, manifest, MANIFEST))
    failure = puller.failure(f"{host}/acme/task@{sha256(manifest)}")
    assert failure.reason in ("BadImage", "ImagePullFailed") and len(failure.message) < 1500


def test_a_configuration_is_a_strangers(lying: Callable[[Answer], str], puller: Puller) -> None:
    odd = ["PATH=/usr/local/bin", "LD_PRELOAD=/evil.so", "A=B=C", "no-value", "9=x", "NUL=\0", "HALF=\ud800", "=x"]
    image = replace(Image([layer(RUNNER)], env=odd, cwd="relative"), blobs={})
    root = image_root(puller.pull(f"{lying(serving(image))}/acme/task@{image.digest}"))
    assert root.env == {"PATH": "/usr/local/bin", "LD_PRELOAD": "/evil.so", "A": "B=C"} and root.cwd == "/"
    large = Image([layer(RUNNER)], env=[f"A={'x' * 100_000}"])
    assert "larger than" in puller.failure(f"{lying(serving(large))}/acme/task@{large.digest}").message


def test_a_top_directory_that_no_sandbox_can_be_made_of_is_refused(registry: Registry, puller: Puller) -> None:
    many = Image([layer({**RUNNER, **{f"d{number}": "" for number in range(300)}})])
    assert "top directory has 301 entries" in puller.failure(registry.push("acme/top", many)).message
    odd = Image([layer({**RUNNER, "a\nb": "x"})])
    assert "can't be mounted" in puller.failure(registry.push("acme/top", odd)).message
