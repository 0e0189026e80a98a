"""Environments from pip packages on a real server: built, shown as Images, graded; kill -9 in the middle of a build."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodus.server.datadir import holder
from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up
from nodus.testing.eventually import eventually
from tests.acceptance.commands import Run, command_line, get
from tests.integration.grading.packageindex import TASKS, Index, wheel

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(240)]

SLOW_ONCE = """
import os, time, urllib.request
DONE = os.path.expanduser("~/done")
if not os.path.exists(DONE):
    with urllib.request.urlopen("http://127.0.0.1:%d/files/wait") as answer:
        if answer.read() == b"wait":
            time.sleep(600)
    open(DONE, "w").close()
"""


@pytest.fixture
def index() -> Iterator[Index]:
    found = Index()
    yield found
    found.close()


@pytest.fixture
def server(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """A server whose default index is the test's."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    monkeypatch.setenv("NODUS_SERVER_SOURCE_HOSTS", "127.0.0.1")
    started = up(UpOptions(data_dir=tmp_path / "data", port=0, detach=True, issue_key=True))
    yield started
    down(DownOptions(data_dir=tmp_path / "data"))


@pytest.fixture
def nodus(server: Started, tmp_path: Path) -> Run:
    (tmp_path / "home").mkdir()
    return command_line(server, tmp_path / "home")


def refusal(nodus: Run, *words: str) -> str:
    """Return what a command says that must fail."""
    with pytest.raises(AssertionError) as failed:
        nodus(*words)
    return str(failed.value)


def manifest(tmp_path: Path, environment: str, at: str = "1.0.0", **pip: Any) -> str:
    path = tmp_path / f"{environment}-{at}.yaml"
    spec: dict[str, Any] = {"version": at, "package": {"pip": {"name": environment, "version": at, **pip}}}
    document = {"apiVersion": "nodus.dev/v1", "kind": "Environment", "metadata": {"name": environment}, "spec": spec}
    path.write_text(yaml.safe_dump(document))
    return str(path)


def settled(nodus: Run, name: str, kind: str = "environment") -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        status: dict[str, Any] = get(nodus, f"{kind}/{name}")["status"]
        return status if status.get("phase") in ("Ready", "Failed") else None

    found = eventually(look, timeout_s=90)
    assert found is not None
    return found


def test_a_build_outlives_the_server_it_began_on(server: Started, nodus: Run, index: Index, tmp_path: Path) -> None:
    index.files["wait"] = ("wait", b"wait")
    index.add(wheel("words", "1.0.0", {"words.py": SLOW_ONCE % index.port + TASKS}))
    nodus("apply", "-f", manifest(tmp_path, "words"))
    image = "image/env-words-1.0.0"

    def loading() -> bool:
        steps = get(nodus, image)["status"].get("steps") or []
        return any(step["name"] == "load" and step["phase"] == "Running" for step in steps)

    eventually(lambda: loading(), timeout_s=60)
    assert "env-words-1.0.0" in nodus("get", "images")
    eventually(lambda: "building image env-words-1.0.0: load" in nodus("get", "environment/words", "-o", "wide"))
    os.kill(server.pid, signal.SIGKILL)
    index.files["wait"] = ("wait", b"go on")
    port = int(server.url.rsplit(":", 1)[1])
    eventually(lambda: holder(server.data_dir) is None, timeout_s=30)
    up(UpOptions(data_dir=server.data_dir, port=port, detach=True))
    status = settled(nodus, "words")
    assert (status["phase"], status["image"], status["splits"]) == (
        "Ready", "env-words-1.0.0", {"train": 4, "test": 4},
    )  # fmt: skip
    built = get(nodus, image)["status"]
    assert built["phase"] == "Ready"
    assert {step["phase"] for step in built["steps"]} == {"Succeeded"}
    making = server.data_dir / "builds" / "making"
    assert not making.exists() or not list(making.iterdir())
    assert (server.data_dir / "builds" / built["digest"].removeprefix("sha256:") / "site" / "words.py").is_file()
    shown = nodus("describe", image)
    assert "download   Succeeded" in shown
    assert "words   1.0.0" in shown
    assert "== load" in nodus("logs", image)
    assert "is what words@1.0.0 runs from" in refusal(nodus, "delete", image)
    nodus("delete", "environment/words")
    eventually(lambda: "env-words" not in nodus("get", "images"))


def test_a_failed_build_says_why_and_is_begun_again_when_its_image_goes(
    nodus: Run, index: Index, tmp_path: Path
) -> None:
    index.add(wheel("broken", "1.0.0", {"broken.py": "import absent_module\n"}))
    nodus("apply", "-f", manifest(tmp_path, "broken"))
    status = settled(nodus, "broken")
    assert status["phase"] == "Failed"
    assert "step 'load' failed: importing broken failed: ModuleNotFoundError" in status["message"]
    shown = nodus("describe", "environment/broken")
    assert "nodus logs image/env-broken-1.0.0" in shown
    assert "import absent_module" in shown
    assert "load       Failed" in nodus("describe", "image/env-broken-1.0.0")
    made = tmp_path / "image.yaml"
    made.write_text("{kind: Image, apiVersion: nodus.dev/v1, metadata: {name: x}, spec: {}}")
    assert "create" in refusal(nodus, "create", "-f", str(made))
    first = get(nodus, "image/env-broken-1.0.0")["metadata"]["uid"]
    index.add(wheel("absent-module", "1.0", {"absent_module.py": ""}))
    index.add(wheel("broken", "1.0.0", {"broken.py": "import absent_module\n" + TASKS}, requires=["absent-module"]))
    nodus("delete", "image/env-broken-1.0.0")
    eventually(lambda: get(nodus, "environment/broken")["status"]["phase"] == "Ready", timeout_s=90)
    assert get(nodus, "image/env-broken-1.0.0")["metadata"]["uid"] != first


def test_what_can_not_be_a_package_is_refused_when_it_is_applied(nodus: Run, tmp_path: Path) -> None:
    for pip, words in (
        ({"index": "https://someone:hidden@example.com/simple/"}, "holds credentials"),
        ({"index": "http://example.com/simple/"}, "without TLS"),
        ({"index": "ftp://example.com/"}, "is no address"),
        ({"version": "1.*"}, "is no exact version"),
        ({"name": "a[extra]"}, "is no name of a package"),
    ):
        answer = refusal(nodus, "apply", "-f", manifest(tmp_path, "refused", **pip))
        assert words in answer
        assert "hidden" not in answer


def test_a_manifest_that_was_wrong_is_corrected_until_it_was_ready(nodus: Run, index: Index, tmp_path: Path) -> None:
    index.add(wheel("words", "1.0.0", {"words.py": TASKS}))

    def applied(version: str, loader: str) -> str:
        path = Path(manifest(tmp_path, "words", version=version))
        document = yaml.safe_load(path.read_text())
        document["spec"]["package"]["loader"] = loader
        path.write_text(yaml.safe_dump(document))
        return str(path)

    nodus("apply", "-f", applied("0.9.0", "words"))
    eventually(lambda: get(nodus, "environment/words")["status"]["phase"] == "Failed", timeout_s=60)
    uid = get(nodus, "image/env-words-1.0.0")["metadata"]["uid"]
    nodus("apply", "-f", applied("1.0.0", "words:absent"))
    eventually(lambda: "absent" in get(nodus, "environment/words")["status"].get("message", ""), timeout_s=60)
    assert settled(nodus, "words")["phase"] == "Failed"
    assert get(nodus, "image/env-words-1.0.0")["metadata"]["uid"] != uid
    nodus("apply", "-f", applied("1.0.0", "words"))
    eventually(lambda: get(nodus, "environment/words")["status"]["phase"] == "Ready", timeout_s=60)
    assert "version 1.0.0 of words is published" in refusal(nodus, "apply", "-f", applied("1.0.0", "words:absent"))
