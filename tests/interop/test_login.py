"""The published command line logs in to our server, asks who it is, and logs out, each way it knows."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from nodus.testing.eventually import eventually
from tests._browser import approve
from tests.interop.conftest import Desk, cells

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]


@pytest.fixture
def stranger(desk: Desk, tmp_path: Path) -> Desk:
    """A desk that nobody has logged in at; what opens a browser writes the address down instead."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("xdg-open", "x-www-browser", "www-browser"):
        (tools / name).write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/opened\n')
        (tools / name).chmod(0o755)
    variables = {"NODUS_API_KEY": "", "PATH": f"{tools}:{desk.bin}:/usr/local/bin:/usr/bin:/bin", "DISPLAY": ":0"}
    return replace(desk, variables=variables)


def address(desk: Desk) -> str:
    """The page that a browser was opened with."""
    file = desk.home / "opened"
    return eventually(lambda: file.read_text().strip() if file.exists() else "")


Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def started(stranger: Desk) -> Iterator[Start]:
    """Start a login, which waits for a person."""
    begun: list[subprocess.Popen[str]] = []

    def start(command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["bash", "-c", command], env=stranger.environment, cwd=stranger.home, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def test_login_with_a_token(stranger: Desk) -> None:
    stranger.ok("nodus login --with-token", stdin=stranger.key)
    shown = stranger.ok("nodus whoami")
    assert re.search(r"Principal:\s+APIKey usr_admin", shown)
    assert re.search(r"Role:\s+Owner", shown)
    assert stranger.ok("nodus auth can-i create jobs") == "yes\n"
    assert stranger.fails("nodus auth can-i create jobs -p elsewhere") == ""
    token = json.loads(stranger.ok("nodus auth token"))
    assert token["status"]["token"] == stranger.key
    assert "nodus" in stranger.ok("nodus config get-contexts")
    stranger.ok("nodus logout")
    assert "not logged in" in stranger.fails("nodus whoami")
    assert stranger.fails("nodus login --with-token", code=2) != ""
    assert "Unauthorized" in stranger.fails("nodus login --with-token", stdin="nodus_wrong")


def test_login_in_the_browser_and_logout_that_revokes(stranger: Desk, started: Start, desk: Desk) -> None:
    login = started("nodus login")
    approve(address(stranger), stranger.key)
    said, _ = login.communicate(timeout=30)
    assert login.returncode == 0, said
    assert "Logged in to org nodus" in said
    assert stranger.ok("nodus get sshkeys -o name").startswith("sshkey")
    key = json.loads((stranger.home / ".nodus" / "credentials").read_text())["nodus"]
    context = yaml.safe_load((stranger.home / ".nodus" / "config").read_text())["contexts"][0]["context"]
    name = context["extensions"][0]["extension"]["key"]
    assert name in [row[0] for row in cells(desk.ok("nodus get apikeys"))]
    stranger.ok("nodus logout")
    assert name not in [row[0] for row in cells(desk.ok("nodus get apikeys"))]
    assert "Unauthorized" in replace(desk, key=key).fails("nodus whoami")


def test_denied_in_the_browser(stranger: Desk, started: Start) -> None:
    login = started("nodus login")
    approve(address(stranger), "", decision="deny")
    said, _ = login.communicate(timeout=30)
    assert login.returncode == 1
    assert "denied in the browser" in said


def test_login_with_a_device_code(stranger: Desk, started: Start) -> None:
    login = started("nodus login --device")
    assert login.stdout is not None
    lines = [login.stdout.readline(), login.stdout.readline()]
    code = re.search(r"code (\S+)", lines[0])
    assert code is not None, lines
    approve(lines[1].split()[-1], stranger.key, user_code=code[1])
    said, _ = login.communicate(timeout=30)
    assert login.returncode == 0, said
    assert re.search(r"Role:\s+Owner", stranger.ok("nodus whoami"))


def test_keys_and_tokens_from_flags(desk: Desk, ours: Desk) -> None:
    made = desk.run("nodus create apikey interop --scopes jobs:read --projects default --expires 720h --description ci")
    assert made.returncode == 0, made.stderr
    limited = replace(desk, key=made.stdout.strip())
    assert limited.ok("nodus auth can-i get jobs") == "yes\n"
    limited.fails("nodus auth can-i create jobs")
    assert "Forbidden" in limited.fails("nodus create volume v")
    ours.ok("nodus create serviceaccount bot")
    token = desk.ok("nodus create token sa/bot --duration 1h --scope jobs:read").strip()
    assert "ServiceAccount" in replace(desk, key=token).ok("nodus whoami")
    bound = desk.ok("nodus create apikey bots --service-account bot").strip()
    assert "ServiceAccount" in replace(desk, key=bound).ok("nodus whoami")
