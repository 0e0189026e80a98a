"""A server whose disk is almost full suspends its runs, says so, and lets them go on when there is room."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up
from nodus.testing.eventually import eventually
from tests.acceptance.commands import command_line, get

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(120)]


def test_runs_wait_for_room_on_the_disk(tmp_path: Path) -> None:
    data_dir, home = tmp_path / "data", tmp_path / "home"
    home.mkdir()
    started = up(UpOptions(data_dir=data_dir, port=0, detach=True, issue_key=True))
    try:
        nodus = command_line(started, home)
        nodus("run", "--name", "waits", "--detach", "--", "sh", "-c", "sleep 600")
        eventually(lambda: get(nodus, "job/waits")["status"]["phase"] == "Running", timeout_s=30)
        down(DownOptions(data_dir=data_dir))
        (data_dir / "nodus.toml").write_text('low_disk = "1000000Ti"\n')
        up(UpOptions(data_dir=data_dir, port=port(started), detach=True))
        found = eventually(lambda: now if (now := get(nodus, "job/waits")["status"])["phase"] == "Suspended" else None)
        assert (found["reason"], "MiB are free" in found["message"], bool(found["fix"])) == ("LowDisk", True, True)
        assert "disk: " in httpx.get(f"{started.url}/readyz").text
        down(DownOptions(data_dir=data_dir))
        (data_dir / "nodus.toml").write_text("")
        up(UpOptions(data_dir=data_dir, port=port(started), detach=True))
        eventually(lambda: get(nodus, "job/waits")["status"]["phase"] == "Running", timeout_s=30)
        nodus("cancel", "job/waits")
    finally:
        down(DownOptions(data_dir=data_dir))


def port(started: Started) -> int:
    return int(started.url.rsplit(":", 1)[1])
