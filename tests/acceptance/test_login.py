"""Logging in and out as a person does it, against a real server process; the browser is an HTTP client."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests._browser import approve
from tests.acceptance.test_cli import NODUS, Machine

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The machine that the server runs on."""
    found = Machine(tmp_path_factory.mktemp("server"))
    found.ok("up", "--detach", "--port", "0")
    yield found
    found.ok("down")


@pytest.fixture
def laptop(tmp_path: Path) -> Machine:
    """Another machine, which knows no server yet."""
    return Machine(tmp_path)


def url_of(server: Machine) -> str:
    url: str = json.loads(server.ok("status", "-o", "json"))["url"]
    return url


def login(laptop: Machine, *words: str) -> tuple[subprocess.Popen[str], list[str]]:
    """Start ``nodus login``; return it and the lines in which it says where to go."""
    started = subprocess.Popen(
        [NODUS, "login", *words], env=laptop.environment, cwd=laptop.home, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert started.stderr is not None
    lines = [started.stderr.readline(), started.stderr.readline()]
    return started, lines


def test_new_member_logs_in_with_a_sign_in_code_and_out_again(server: Machine, laptop: Machine) -> None:
    url = url_of(server)
    server.ok("create", "member", "ada", "--role", "Viewer")
    code = server.ok("admin", "login-link", "--member", "ada").strip()
    started, lines = login(laptop, "--no-browser", "--api-url", url)
    assert "Logged in" in approve(lines[1].strip(), code)
    out, err = started.communicate(timeout=30)
    assert started.returncode == 0, err
    assert "context 'nodus' is now the current one" in out

    who = json.loads(laptop.ok("whoami", "-o", "json"))
    assert (who["member"], who["role"]) == ("ada", "Viewer")
    assert laptop.ok("auth", "can-i", "get", "jobs") == "yes\n"
    assert laptop.run("auth", "can-i", "create", "jobs").stdout == "no\n"
    assert "Forbidden" in laptop.fails("create", "volume", "v")
    key = json.loads((laptop.home / ".nodus" / "credentials").read_text())["nodus"]

    assert laptop.ok("logout") == "Logged out of context 'nodus'; its key is revoked.\n"
    assert laptop.fails("logout").startswith("error: there is no current context")
    refused = laptop.run("whoami", NODUS_API_KEY=key, NODUS_API_URL=url)
    assert "may have been revoked" in refused.stderr
    trail = json.loads(server.ok("get", "auditevents", "-o", "json", "--field-selector", "spec.user=usr_ada"))
    assert [(item["spec"]["verb"], item["spec"]["object"]["kind"]) for item in trail["items"]] == [
        ("delete", "APIKey"), ("create", "APIKey"), ("approve", "Login"),
    ]  # fmt: skip
    log = next(server.home.rglob("server.log")).read_text()
    assert code not in log
    assert key not in log


def test_device_login_with_a_key_that_one_has(server: Machine, laptop: Machine) -> None:
    url = url_of(server)
    token = json.loads(server.ok("auth", "token"))["status"]["token"]
    started, lines = login(laptop, "--device", "--api-url", url)
    found = re.search(r"enter the code (\S+)", lines[0])
    assert found is not None
    assert "Approved" in approve(lines[1].removeprefix("or open ").strip(), token, user_code=found[1])
    _, err = started.communicate(timeout=30)
    assert started.returncode == 0, err
    assert json.loads(laptop.ok("whoami", "-o", "json"))["role"] == "Owner"
    assert laptop.ok("config", "current-context") == "nodus\n"


def test_token_login_keeps_the_key_when_logging_out(server: Machine, laptop: Machine) -> None:
    made = server.run("create", "apikey", "shared", "--expires", "1h")
    key = made.stdout.strip()
    laptop.ok("login", "--with-token", "--api-url", url_of(server), stdin=key + "\n")
    assert laptop.ok("logout") == "Logged out of context 'nodus'.\n"
    assert laptop.run("whoami", NODUS_API_KEY=key, NODUS_API_URL=url_of(server)).returncode == 0
    assert "no key on standard input" in laptop.fails("login", "--with-token", code=2)
    assert "Unauthorized" in laptop.fails("login", "--with-token", "--api-url", url_of(server), stdin="nodus_wrong")


def test_master_key_rotates_while_the_server_is_down(server: Machine) -> None:
    assert "runs" in server.fails("admin", "rotate-keys")
    server.ok("create", "secret", "s", "--from-literal", "K=v")
    port = urlsplit(url_of(server)).port
    server.ok("down")
    assert "Master key 2 is in use; 1 versions of secrets" in server.ok("admin", "rotate-keys")
    server.ok("up", "--detach", "--port", str(port))
    assert "usr_admin" in server.ok("whoami")
