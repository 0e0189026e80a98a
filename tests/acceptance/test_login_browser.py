"""The approval pages in a real browser, which follows content policies, cookies and redirects as people's do.

Needs chromium and playwright (`pip install '.[browser]'`, `apt-get install chromium`); without them it is skipped.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.test_cli import Machine
from tests.acceptance.test_login import login, url_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.heavy,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    found = Machine(tmp_path_factory.mktemp("server"))
    found.ok("up", "--detach", "--port", "0")
    yield found
    found.ok("down")


@pytest.fixture
def laptop(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Page]:
    """A tab of a browser without history; what its console complains about fails the test."""
    context = chromium.new_context()
    page = context.new_page()
    complaints: list[str] = []
    # The listener in the terminal answers once and is gone; a browser asks it for its icon all the same.
    page.on(
        "console", lambda said: None if said.location["url"].endswith("favicon.ico") else complaints.append(said.text)
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    context.close()
    assert [text for text in complaints if "status of 4" not in text] == []


def approve(page: Page, credential: str) -> None:
    page.get_by_label("Your API key, or a sign-in code").fill(credential)
    page.get_by_role("button", name="Approve").click()


def ended(started: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = started.communicate(timeout=30)
    return started.returncode, out + err


def test_login_ends_in_the_terminal_where_it_began(server: Machine, laptop: Machine, page: Page) -> None:
    server.ok("create", "member", "ada", "--role", "Viewer")
    code = server.ok("admin", "login-link", "--member", "ada").strip()
    started, lines = login(laptop, "--no-browser", "--api-url", url_of(server))
    page.goto(lines[1].strip())
    assert page.evaluate("getComputedStyle(document.body).maxWidth") != "none", "the policy lets the style in"
    approve(page, "nodus_wrong")
    assert "nodus_wrong" not in page.content()
    page.get_by_role("alert").wait_for()
    approve(page, code)
    page.wait_for_url(re.compile(r"http://(127\.0\.0\.1|localhost):\d+/"))
    assert "Logged in" in page.inner_text("body")
    assert code not in page.url
    assert ended(started)[0] == 0
    who = json.loads(laptop.ok("whoami", "-o", "json"))
    assert (who["member"], who["role"]) == ("ada", "Viewer")


def test_denial_in_the_browser_ends_the_command(server: Machine, laptop: Machine, page: Page) -> None:
    started, lines = login(laptop, "--no-browser", "--api-url", url_of(server))
    page.goto(lines[1].strip())
    page.get_by_role("button", name="Deny").click()
    code, said = ended(started)
    assert code == 1
    assert "denied" in said


def test_a_device_is_approved_by_the_code_it_shows(server: Machine, laptop: Machine, page: Page) -> None:
    code = server.ok("admin", "login-link").strip()
    started, lines = login(laptop, "--device", "--api-url", url_of(server))
    found = re.search(r"enter the code (\S+)", lines[0])
    assert found is not None
    page.goto(lines[1].removeprefix("or open ").strip())
    assert page.locator("input[name=user_code]").input_value() == found[1]
    approve(page, code)
    page.get_by_text("Approved").first.wait_for()
    assert ended(started)[0] == 0
    assert json.loads(laptop.ok("whoami", "-o", "json"))["role"] == "Owner"
