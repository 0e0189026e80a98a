"""`nodus env test` and `audit` of an Environment on a server of this machine: its files, from its data directory."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodus.client.blobs import upload_blob
from nodus.client.blocking import run_blocking
from nodus.client.client import Client
from nodus.client.config import Connection
from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up
from tests.acceptance.commands import NODUS, Run, command_line, is_in

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(120)]
SOURCE = b"""
def tasks(split):
    return [(f"say {split} {n}", f"{split} {n}") for n in range(4)]

def reward(completion, answer):
    return float(answer in completion)
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    root = tmp_path_factory.mktemp("env")
    yield up(UpOptions(data_dir=root / "data", port=0, detach=True, issue_key=True))
    down(DownOptions(data_dir=root / "data"))


@pytest.fixture
def nodus(started: Started, tmp_path: Path) -> Run:
    return command_line(started, tmp_path, NODUS_DATA_DIR=str(started.data_dir))


def bundle() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo("nodus_task.py")
        member.size = len(SOURCE)
        archive.addfile(member, io.BytesIO(SOURCE))
    return buffer.getvalue()


def test_a_servers_environment_is_tested_and_audited_on_its_machine(
    started: Started, nodus: Run, tmp_path: Path
) -> None:
    client = Client(connection=Connection(started.url, started.api_key, "default"))
    blob = run_blocking(upload_blob(client.api, "default", bundle(), "application/gzip"))
    (tmp_path / "env.yaml").write_text(
        "apiVersion: nodus.dev/v1\nkind: Environment\nmetadata: {name: saying}\n"
        f'spec: {{version: 1.0.0, package: {{source: {{blob: "{blob}", module: nodus_task}}}}}}\n'
    )
    nodus("apply", "-f", "env.yaml")
    digest = is_in(nodus, "environment/saying", "Ready")["status"]["digest"]

    report = json.loads(nodus("env", "test", "saying@1.0.0", "-o", "json"))
    assert {check["name"]: check["found"] for check in report["checks"]}["digest"] == digest

    def fails(*words: str, **variables: str) -> str:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "NODUS_API_URL": started.url}
        environment |= {"NODUS_API_KEY": str(started.api_key), "NODUS_DATA_DIR": str(started.data_dir), **variables}
        done = subprocess.run([NODUS, "env", *words], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "is at version 1.0.0 now, not 2.0.0" in fails("test", "saying@2.0.0")
    assert "whose files are not in" in fails("test", "saying", NODUS_DATA_DIR=str(tmp_path))
    paid = fails("audit", "saying", "--tasks", "1", "--skip", "fork-bomb", "--skip", "endless-loop")
    assert "1 attack was paid 1: echo-the-prompt" in paid
