"""The published command line, as a black box, against a real server: the commands of the main job.

It lives in an environment of its own. Set ``NODUS_PUBLISHED_CLIENT`` to that environment's directory to run these::

    python3 -m venv /some/where && /some/where/bin/pip install nodus-compute
    NODUS_PUBLISHED_CLIENT=/some/where scripts/test --all
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up

PUBLISHED = os.environ.get("NODUS_PUBLISHED_CLIENT", "")
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not PUBLISHED, reason="NODUS_PUBLISHED_CLIENT names no environment with the published client"),
]

JOB = """
apiVersion: nodus.dev/v1
kind: Job
metadata: {name: hello}
spec:
  command: [sh, -c, "echo one; echo two; mkdir -p /nodus/outputs; echo result > /nodus/outputs/r.txt"]
  outputs: [{name: o, path: /nodus/outputs}]
  timeout: 2m
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    data_dir = tmp_path_factory.mktemp("published") / "data"
    yield up(UpOptions(data_dir=data_dir, port=0, detach=True, issue_key=True))
    down(DownOptions(data_dir=data_dir))


@pytest.fixture
def nodus(server: Started, tmp_path: Path) -> Run:
    """Runs the published ``nodus`` in an empty home; ``input`` goes to a manifest file named job.yaml."""
    env = {
        "HOME": str(tmp_path), "PATH": f"{PUBLISHED}/bin:/usr/bin:/bin", "NODUS_API_URL": server.url,
        "NODUS_API_KEY": str(server.api_key),
    }  # fmt: skip
    (tmp_path / "job.yaml").write_text(JOB)

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [f"{PUBLISHED}/bin/nodus", *args]
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=90)

    return run


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_discovery_identity_and_catalog(nodus: Run) -> None:
    assert "usr_admin" in ok(nodus("whoami"))
    assert "tj" in ok(nodus("api-resources"))
    rows = ok(nodus("get", "environments", "-n", "nodus")).splitlines()
    assert rows[0].split() == ["NAME", "VERSION", "CATEGORY", "MODES", "PHASE"]
    assert any(row.startswith("arithmetic ") for row in rows)
    assert "local-cpu" in ok(nodus("get", "gpus"))


def test_apply_wait_logs_outputs_describe(nodus: Run, tmp_path: Path) -> None:
    assert "estimate" in ok(nodus("apply", "-f", "job.yaml", "--dry-run", "-o", "yaml"))
    assert ok(nodus("apply", "-f", "job.yaml")) == "job/hello created\n"
    assert ok(nodus("apply", "-f", "job.yaml")) == "job/hello unchanged\n"
    ok(nodus("wait", "job/hello", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s"))
    assert ok(nodus("logs", "job/hello", "-f")) == "one\ntwo\n"
    assert ok(nodus("logs", "job/hello", "--tail", "1")) == "two\n"
    ok(nodus("cp", "job/hello:outputs/r.txt", "./r.txt"))
    assert (tmp_path / "r.txt").read_text() == "result\n"
    described = ok(nodus("describe", "job/hello"))
    assert "Succeeded" in described
    assert "Events:" in described
    assert "Started" in ok(nodus("events", "--for", "job/hello"))


def test_errors_keep_reason_causes_fix_and_request_id(nodus: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(
        JOB.replace("timeout: 2m", "timeOut: 2m\n  maxCostUSD: 5").replace("hello", "bad")
    )
    refused = nodus("apply", "-f", "bad.yaml")
    assert refused.returncode == 1
    for words in ("Error from server (Invalid)", "spec.timeOut:", "spec.maxCostUSD:", "fix:", "request-id: req_"):
        assert words in refused.stderr
    assert 'jobs "nope" not found' in nodus("get", "job/nope").stderr
    assert 'projects "other" not found' in nodus("get", "job/nope", "-n", "other").stderr


def test_secrets_keys_labels_and_deletion(nodus: Run) -> None:
    for _ in range(2):
        assert ok(nodus("create", "secret", "s", "--from-literal", "A=value")) == "secret/s created\n"
    assert "AlreadyExists" in nodus("create", "secret", "s", "--from-literal", "A=other").stderr
    assert "value" not in ok(nodus("get", "secret/s", "-o", "yaml"))
    assert ok(nodus("label", "secret/s", "a=b")) == "secret/s labeled\n"
    assert "s " in ok(nodus("get", "secrets", "-l", "a=b"))
    assert ok(nodus("delete", "secret/s", "--wait")) == "secret/s deleted\n"
    created = nodus("create", "apikey", "ci", "--scopes", "jobs:read", "--projects", "default")
    assert "nodus_" in ok(created)


def test_cancel_ends_a_running_job(nodus: Run, tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(JOB.replace("hello", "long").replace("echo one", "sleep 120"))
    ok(nodus("apply", "-f", "long.yaml"))
    ok(nodus("wait", "job/long", "--for=jsonpath={.status.phase}=Running", "--timeout=60s"))
    assert ok(nodus("cancel", "job/long")) == "job/long canceled\n"
    ok(nodus("wait", "job/long", "--for=jsonpath={.status.phase}=Cancelled", "--timeout=60s"))
