"""A server whose disk is almost full suspends its runs, says so, and lets them go on when there is room."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up
from nodus.testing.eventually import eventually

NODUS = str(Path(sys.executable).parent / "nodus")
pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(120)]


def test_runs_wait_for_room_on_the_disk(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    started = up(UpOptions(data_dir=data_dir, port=0, detach=True, issue_key=True))
    try:
        nodus(started, tmp_path, "run", "--name", "waits", "--detach", "--", "sh", "-c", "sleep 600")
        eventually(lambda: status(started, tmp_path)["phase"] == "Running", timeout_s=30)
        down(DownOptions(data_dir=data_dir))
        (data_dir / "nodus.toml").write_text('low_disk = "1000000Ti"\n')
        again = up(UpOptions(data_dir=data_dir, port=port(started), detach=True))
        found = eventually(lambda: now if (now := status(started, tmp_path))["phase"] == "Suspended" else None)
        assert (found["reason"], "MiB are free" in found["message"], bool(found["fix"])) == ("LowDisk", True, True)
        assert "disk" in nodus(again, tmp_path, "status", "--data-dir", str(data_dir), check=False)
        down(DownOptions(data_dir=data_dir))
        (data_dir / "nodus.toml").write_text("")
        up(UpOptions(data_dir=data_dir, port=port(started), detach=True))
        eventually(lambda: status(started, tmp_path)["phase"] == "Running", timeout_s=30)
        nodus(started, tmp_path, "cancel", "job/waits")
    finally:
        down(DownOptions(data_dir=data_dir))


def port(started: Started) -> int:
    return int(started.url.rsplit(":", 1)[1])


def nodus(started: Started, tmp_path: Path, *args: str, check: bool = True) -> str:
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "NODUS_API_URL": started.url, "LANG": "C.UTF-8"}
    key = tmp_path / "key"
    if started.api_key:
        key.write_text(started.api_key)
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    done = subprocess.run(
        [NODUS, *args], env=env | {"NODUS_API_KEY": key.read_text()}, cwd=work, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done.stdout + done.stderr


def status(started: Started, tmp_path: Path) -> dict[str, Any]:
    return dict(json.loads(nodus(started, tmp_path, "get", "job/waits", "-o", "json"))["status"])
