"""`nodus doctor`'s canaries: held in both sandboxes, and they sing where there is no sandbox."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nodus.cli.main import main
from nodus.server.envtools import canaries
from nodus.testing.eventually import eventually

pytestmark = pytest.mark.sandbox


def doctor(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, Any]]]:
    code = main(["doctor", "-o", "json"])
    return code, {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}


def test_both_sandboxes_hold(capsys: pytest.CaptureFixture[str]) -> None:
    _, checks = doctor(capsys)
    names = [f"{kind} ({place})" for kind in ("escape", "time-out", "orphan") for place in ("grader", "code")]
    assert all(checks[name]["ok"] for name in names), [checks[name] for name in names]
    assert checks["isolation"]["found"].startswith("bubblewrap-")


def test_doctor_refuses_a_machine_that_cannot_isolate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, checks = doctor(capsys)
    assert code == 1
    assert not checks["isolation"]["ok"] and "bubblewrap" in checks["isolation"]["found"]
    assert checks["isolation"]["fix"].startswith("apt-get install -y bubblewrap")
    assert "escape (grader)" not in checks


def test_an_escape_is_noticed_where_there_is_no_sandbox(tmp_path: Path) -> None:
    with canaries._bait(tmp_path) as given:
        given["fixed"] = [str(tmp_path)]
        program = tmp_path / "canary.py"
        program.write_text(
            f"{canaries._ESCAPE}\nimport json\nprint(json.dumps(canary(json.loads({json.dumps(given)!r}))))"
        )
        # behind a shell of its own: a canary that can, traces its parent
        done = subprocess.run(
            ["/bin/sh", "-c", f"{sys.executable} {program}; true"], capture_output=True, text=True, check=True
        )
    found = json.loads(done.stdout)
    assert f"reads {tmp_path / 'secret'}" in found
    assert f"writes to {tmp_path}" in found
    assert "reaches the host by AF_INET" in found and "reaches the host by AF_UNIX" in found


def test_a_process_that_stays_is_noticed() -> None:
    orphan = subprocess.Popen(["nodus-canary-test", "60"], executable="/bin/sleep")
    try:
        eventually(lambda: canaries._process_with("nodus-canary-test") == orphan.pid)
    finally:
        orphan.kill()
        orphan.wait()
    assert canaries._stays("nodus-canary-test") is None
