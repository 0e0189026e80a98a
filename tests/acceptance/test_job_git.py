"""Jobs whose source is a git repository, from `nodus run` to the files the command finds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up
from tests.integration.sources.conftest import FileServer

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(120)]
Run = Callable[..., subprocess.CompletedProcess[str]]


def git(*words: str, at: Path) -> str:
    identity = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", *words], cwd=at, env={"PATH": os.environ["PATH"], "HOME": str(at), **identity},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("git") / "repositories" / "code"
    (root / "sub").mkdir(parents=True)
    git("init", "-q", "-b", "main", at=root)
    (root / "main.sh").write_text("cat version sub/x\n")
    (root / "sub" / "x").write_text("x\n")
    for version in ("one", "two"):
        (root / "version").write_text(f"{version}\n")
        git("add", ".", at=root)
        git("commit", "-q", "-m", version, at=root)
        git("tag", version, at=root)
    return root


@pytest.fixture(scope="module")
def remote(repository: Path) -> Iterator[FileServer]:
    with FileServer() as server:
        server.repositories = repository.parent
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    data_dir = tmp_path_factory.mktemp("server") / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NODUS_SERVER_SOURCE_HOSTS", "127.0.0.1")
        started = up(UpOptions(data_dir=data_dir, port=0, detach=True, issue_key=True))
    yield started
    down(DownOptions(data_dir=data_dir))


@pytest.fixture
def nodus(server: Started, tmp_path: Path) -> Run:
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "NODUS_API_URL": server.url,
           "NODUS_API_KEY": str(server.api_key)}  # fmt: skip
    program = str(Path(sys.executable).parent / "nodus")

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *args], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    return run


def test_run_takes_a_repository_and_fixes_its_commit(nodus: Run, remote: FileServer, repository: Path) -> None:
    address = f"{remote.url}/code/.git"
    newest = nodus("run", "--name", "newest", "--git", address, "--", "sh", "main.sh")
    assert (newest.returncode, newest.stdout) == (0, "two\nx\n"), newest.stderr
    commit = nodus("get", "job/newest", "-o", "jsonpath={.status.pinned.source.commit}").stdout.strip()
    assert commit == git("rev-parse", "HEAD", at=repository)
    tagged = nodus("run", "--git", address, "--git-ref", "one", "--", "sh", "main.sh")
    assert tagged.stdout == "one\nx\n"
    inside = nodus("run", "--git", address, "--git-path", "sub", "--", "ls")
    assert inside.stdout == "x\n"


@pytest.mark.heavy
def test_what_can_not_be_fetched_fails_the_job_with_its_reason(nodus: Run, remote: FileServer) -> None:
    for flags, reason in (
        (("--git", f"{remote.url}/nope/.git"), "(SourceNotFound)"),
        (("--git", f"{remote.url}/code/.git", "--git-ref", "absent"), "(SourceNotFound)"),
        (("--git", "http://10.0.0.1/code.git"), "(SourceAddressRefused)"),
    ):
        done = nodus("run", *flags, "--", "true")
        assert (done.returncode, reason in done.stderr, "fix:" in done.stderr) == (125, True, True), done.stderr
