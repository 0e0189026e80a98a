"""The client's half of logging in: the browser that comes back, and polls that keep to their pace."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from nodus.client import login
from nodus.client.blocking import run_blocking
from nodus.client.config import Connection
from nodus.client.http import PROMPT, Api
from nodus.core.errors import NodusError, NodusTimeout, Unauthorized
from tests.unit.client.fake_server import FakeServer, Reply, serving

ENTRY = {"key": "nodus_k", "org": "acme", "orgName": "Acme", "name": "cli-x", "project": "default"}


def api_of(server: FakeServer) -> Api:
    return Api(Connection(url=server.url, api_key=None, project="default"), retry=PROMPT)


def visit(url: str) -> int:
    """Open an address as a browser does; return the status."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def browsing(answer: Callable[[dict[str, str]], str]) -> Callable[[str], None]:
    """A person who opens the page; ``answer`` makes the query of the callback from the page's."""

    def show(address: str) -> None:
        given = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        back = f"http://127.0.0.1:{given['port']}/callback?{answer(given)}"
        threading.Thread(target=visit, args=(back,)).start()

    return show


def test_browser_brings_the_code_and_the_verifier_fits_the_challenge() -> None:
    shown: list[str] = []
    with serving() as server:
        server.script = lambda asked: Reply({"keys": [ENTRY]})
        person = browsing(lambda given: f"code=c1&state={given['state']}")

        def show(address: str) -> None:
            shown.append(address)
            person(address)

        (granted,) = run_blocking(login.with_browser(api_of(server), "http://console", show))
        body = server.asked[0].json
    assert granted == login.Granted("nodus_k", "cli-x", "acme", "Acme", "default")
    assert body["code"] == "c1"
    assert shown[0].startswith("http://console/cli-auth?code_challenge=")
    assert body["codeVerifier"] not in shown[0]


def test_denial_in_the_browser_is_said_so() -> None:
    with serving() as server, pytest.raises(Unauthorized, match="denied"):
        person = browsing(lambda given: f"error=access_denied&state={given['state']}")
        run_blocking(login.with_browser(api_of(server), "http://console", person))


def test_only_the_callback_with_the_right_state_counts() -> None:
    with login.CallbackServer("right") as server:
        base = f"http://127.0.0.1:{server.port}"
        for path in (
            "/",
            "/callback?code=x",
            "/callback?code=x&state=wrong",
            "/other?code=x&state=right",
            "/" + "y" * 9000,
        ):
            assert visit(base + path) == 404
        with pytest.raises(NodusTimeout):
            server.wait(0)
        assert visit(f"{base}/callback?code=good&state=right") == 200
        assert server.wait(5) == "good"


def test_answer_without_a_key_is_an_error() -> None:
    with pytest.raises(NodusError):
        login.Granted.of({"name": "x"})


# Device -------------------------------------------------------------------------------------------------------


def device(replies: list[Any], monkeypatch: pytest.MonkeyPatch) -> tuple[list[login.Granted], list[float]]:
    """Log in against scripted polls; return what was granted and how long each wait was."""
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(login, "pause", wait)
    started = {"device_code": "d", "user_code": "BBBB-CCCC", "verification_uri": "http://h/device", "interval": 5}

    def script(asked: Any) -> Reply:
        if asked.path == "/auth/device/code":
            return Reply(started)
        reply = replies.pop(0)
        return reply if isinstance(reply, Reply) else Reply({"error": reply}, 400)

    with serving() as server:
        server.script = script
        return run_blocking(login.with_device(api_of(server), lambda *shown: None)), waits


def test_polls_wait_their_interval_and_longer_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Reply({"kind": "Status", "reason": "TooManyRequests"}, 429)
    replies = ["authorization_pending", "slow_down", busy, "authorization_pending", Reply({"keys": [ENTRY]})]
    granted, waits = device(replies, monkeypatch)
    assert granted[0].key == "nodus_k"
    assert waits == [5, 5, 10, 10, 10]


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("access_denied", Unauthorized), ("expired_token", NodusTimeout), ("invalid_grant", NodusError),
        (Reply([], 200), NodusError),
    ],
)  # fmt: skip
def test_device_login_ends_with_the_reason(
    reply: Any, error: type[NodusError], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(error):
        device([reply], monkeypatch)


@pytest.mark.parametrize(
    ("environ", "may"),
    [
        ({}, False), ({"DISPLAY": ":0"}, True), ({"WAYLAND_DISPLAY": "w"}, True), ({"BROWSER": "firefox"}, True),
        ({"SSH_CONNECTION": "x", "BROWSER": "w3m"}, False), ({"SSH_CONNECTION": "x", "DISPLAY": ":10"}, True),
    ],
)  # fmt: skip
def test_browser_is_opened_where_one_can_be_seen(
    environ: dict[str, str], may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    assert login.may_open_browser(environ) is may


@pytest.mark.parametrize("console", ["--renderer-cmd-prefix=x", "file:///etc/passwd", "javascript:alert(1)", "//h"])
def test_approval_page_is_a_web_page(server: FakeServer, console: str) -> None:
    server.script = lambda asked: Reply({"consoleURL": console})
    with pytest.raises(NodusError, match="no address of a web page"):
        run_blocking(login.console_of(api_of(server)))
