"""Volumes from a git repository: one commit, its plain files, over http alone."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nodus.server.sources.git import _explain as explain_git
from tests.integration.sources.conftest import FileServer, Import


class Repository:
    """A repository below a directory that a server shows."""

    def __init__(self, root: Path) -> None:
        self.work, self.bare = root / "work", root / "served" / "acme.git"
        self.served = root / "served"
        self.git("init", "-q", "-b", "main", str(self.work), cwd=root)

    def git(self, *words: str, cwd: Path | None = None) -> str:
        environment = {
            **os.environ, "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
        }  # fmt: skip
        done = subprocess.run(["git", *words], cwd=cwd or self.work, env=environment, capture_output=True, check=True)
        return done.stdout.decode().strip()

    def commit(self, **files: bytes) -> str:
        for name, content in files.items():
            path = self.work / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "x")
        return self.git("rev-parse", "HEAD")

    def publish(self) -> None:
        if not self.bare.exists():
            self.git("clone", "-q", "--bare", str(self.work), str(self.bare))
            return
        self.git("push", "-q", "--force", "--all", str(self.bare))
        self.git("push", "-q", "--tags", str(self.bare))


@pytest.fixture
def repository(tmp_path: Path, server: FileServer) -> Repository:
    root = tmp_path / "git"
    root.mkdir()
    made = Repository(root)
    server.repositories = made.served
    return made


def source(server: FileServer, **spec: Any) -> dict[str, Any]:
    return {"repo": f"{server.url}/acme.git", **spec}


def test_branches_tags_commits_and_directories(server: FileServer, repository: Repository, run_import: Import) -> None:
    repository.commit(a=b"1", d__b=b"2", d__e__c=b"3")
    (repository.work / "run.sh").write_bytes(b"true")
    (repository.work / "run.sh").chmod(0o755)
    (repository.work / "link").symlink_to("d/b")
    second = repository.commit(a=b"11")
    repository.publish()

    found = run_import(git=source(server))
    assert found["content"] == {"a": b"11", "d/b": b"2", "d/e/c": b"3", "run.sh": b"true", "link": b"2"}
    assert (found["modes"]["run.sh"], found["modes"]["a"]) == ("0o755", "0o644")
    assert found["provenance"] == {"repo": f"{server.url}/acme.git", "commit": second}


@pytest.mark.parametrize("ref", ["v1", "main", "commit", "refs/heads/main"])
def test_ref_and_path_choose(server: FileServer, repository: Repository, run_import: Import, ref: str) -> None:
    commit = repository.commit(a=b"1", d__b=b"2", d__e__c=b"3")
    repository.git("tag", "-a", "v1", "-m", "x")
    repository.publish()
    found = run_import(git=source(server, ref=commit if ref == "commit" else ref, path="d"))
    assert found["content"] == {"b": b"2", "e/c": b"3"}
    assert found["provenance"]["commit"] == commit


@pytest.mark.parametrize("ref", ["first", "FIRST", "neither"])
def test_forty_hex_digits_are_a_commit_whatever_is_called_so(
    server: FileServer, repository: Repository, run_import: Import, ref: str
) -> None:
    first = repository.commit(a=b"1")
    second = repository.commit(a=b"2")
    repository.publish()
    # git itself makes no such branches; who writes to the repository's files does.
    for name in (first, "c" * 40):
        (repository.bare / "refs" / "heads" / name).write_text(f"{second}\n")
    repository.git("update-server-info", cwd=repository.bare)
    found = run_import(git=source(server, ref={"first": first, "FIRST": first.upper()}.get(ref, "c" * 40)))
    if ref == "neither":
        assert found["reason"] == "SourceNotFound"
    else:
        assert (found["content"], found["provenance"]["commit"]) == ({"a": b"1"}, first)


def test_the_next_try_takes_the_same_commit(server: FileServer, repository: Repository, run_import: Import) -> None:
    first = repository.commit(a=b"1" * 3000)
    repository.publish()
    assert run_import(git=source(server), limit=1000)["reason"] == "SourceTooLarge"
    repository.commit(a=b"2")
    repository.publish()
    assert run_import(git=source(server))["provenance"]["commit"] == first


def test_one_file_by_its_path(server: FileServer, repository: Repository, run_import: Import) -> None:
    repository.commit(a=b"1", d__b=b"2")
    repository.publish()
    assert run_import(git=source(server, path="d/b"))["content"] == {"b": b"2"}
    assert run_import(git=source(server, path="nope"))["reason"] == "SourceNotFound"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"ref": "nope"}, "SourceNotFound"),
        ({"ref": "0" * 40}, "SourceNotFound"),
        ({"repo": "/x.git"}, "SourceNotFound"),
    ],
)
def test_what_is_not_there(
    server: FileServer, repository: Repository, run_import: Import, spec: dict[str, str], reason: str
) -> None:
    repository.commit(a=b"1")
    repository.publish()
    if "repo" in spec:
        spec = {"repo": server.url + spec["repo"]}
    assert run_import(git=source(server, **spec))["reason"] == reason


def test_links_out_of_the_repository_are_refused(
    server: FileServer, repository: Repository, run_import: Import
) -> None:
    (repository.work / "link").symlink_to("/etc/passwd")
    repository.commit(a=b"1")
    repository.publish()
    failed = run_import(git=source(server))
    assert (failed["reason"], "'link'" in failed["message"]) == ("SourcePathRefused", True)


def test_large_files_elsewhere_are_said(server: FileServer, repository: Repository, run_import: Import) -> None:
    repository.commit(big=b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", d__a=b"1")
    repository.publish()
    assert "Git LFS" in run_import(git=source(server))["message"]
    assert run_import(git=source(server, path="d"))["content"] == {"a": b"1"}


def test_credentials_go_to_that_server_and_into_no_process_list(
    server: FileServer, repository: Repository, run_import: Import
) -> None:
    repository.commit(a=b"1")
    repository.publish()
    server.password = base64.b64encode(b"x-access-token:tok-1").decode()
    failed = run_import(git=source(server))
    assert (failed["reason"], "spec.source.git.secret" in failed["fix"]) == ("SourceAccessDenied", True)
    assert run_import(git=source(server), credentials={"TOKEN": "tok-1"})["content"] == {"a": b"1"}
    server.password = base64.b64encode(b"ada:pass").decode()
    assert run_import(git=source(server), credentials={"username": "ada", "password": "pass"})["ok"]


def test_other_protocols_hooks_and_addresses_are_refused(
    server: FileServer, repository: Repository, run_import: Import
) -> None:
    repository.commit(a=b"1")
    repository.publish()
    assert run_import(git=source(server), allowed=())["reason"] == "SourceAddressRefused"
    for address in (str(repository.bare), f"file://{repository.bare}", "ext::sh -c 'touch /tmp/x'"):
        assert not run_import(git={"repo": address})["ok"]


def test_redirects_are_not_followed(server: FileServer, run_import: Import) -> None:
    server.redirects["/acme.git/info/refs"] = "http://169.254.169.254/"
    assert run_import(git=source(server))["reason"] == "SourceAddressRefused"


@pytest.mark.parametrize(
    ("said", "reason", "transient"),
    [
        ("unable to access 'https://h:4040/redirect.git/': Failed to connect port 4040", "SourceUnavailable", True),
        (f"remote error: upload-pack: not our ref 403f{'0' * 36}", "SourceUnavailable", True),
        ("unable to access 'https://h/x.git/': The requested URL returned error: 403", "SourceAccessDenied", False),
        ("Authentication failed for 'https://h/x.git/'", "SourceAccessDenied", False),
        ("repository 'https://h/x.git/' not found", "SourceNotFound", False),
        ("unable to access 'https://h/x.git/': The requested URL returned error: 302", "SourceAddressRefused", False),
    ],
)
def test_names_are_not_taken_for_reasons(said: str, reason: str, transient: bool) -> None:
    failure = explain_git("https://h/x.git", f"fatal: {said}")
    assert (failure.reason, failure.transient) == (reason, transient)
