"""Logging in: approval pages, PKCE, the device flow of RFC 8628, sign-in codes; what each refuses."""

from __future__ import annotations

import base64
import hashlib
import html
import logging
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from sqlalchemy import text

from nodus.core.clock import FakeClock
from nodus.core.kinds import MEMBER
from nodus.server.login.device import GRANT_TYPE
from nodus.server.services import Services
from nodus.server.store import Object, housekeeping
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import JOBS, V1

VERIFIER = "v" * 43
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).decode().rstrip("=")
CLI = {"code_challenge": CHALLENGE, "host": "lap<top>", "port": "4242", "state": "s-1"}
HTML = {"Accept": "text/html,application/xhtml+xml"}


class Browser:
    """A person's browser: keeps cookies, sends what a page's form holds."""

    def __init__(self, api: Api) -> None:
        self.http = api.http
        self.http.headers.update(HTML)

    async def open(self, path: str, **params: str) -> httpx.Response:
        return await self.http.get(path, params=params)

    async def send(self, page: httpx.Response, decision: str = "approve", **fields: str) -> httpx.Response:
        hidden = dict(re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', page.text))
        data = {name: html.unescape(value) for name, value in hidden.items()} | {"decision": decision} | fields
        path = re.search(r'action="([^"]*)"', page.text)
        assert path is not None
        headers = {"Origin": "http://nodus.test", "Sec-Fetch-Site": "same-origin"}
        return await self.http.post(path[1], data=data, headers=headers)


@pytest.fixture
def browser(app: Any) -> Browser:
    return Browser(Api(app, None))


@pytest.fixture
def key(opened: tuple[Services, str]) -> str:
    return opened[1]


async def approved_code(browser: Browser, key: str, **changes: str) -> str:
    answer = await browser.send(await browser.open("/cli-auth", **(CLI | changes)), credential=key)
    assert answer.status_code == 303, answer.text
    return parse_qs(urlsplit(answer.headers["Location"]).query)["code"][0]


def redeem(code: str, verifier: str = VERIFIER) -> dict[str, Any]:
    return {"json": {"code": code, "codeVerifier": verifier}}


# Browser ------------------------------------------------------------------------------------------------------


async def test_browser_login_ends_with_a_key_of_its_own(browser: Browser, key: str, anonymous: Api, app: Any) -> None:
    page = await browser.open("/cli-auth", **CLI)
    assert page.status_code == 200
    assert "lap&lt;top&gt;" in page.text
    answer = await browser.send(page, credential=f" {key}\n")
    back = urlsplit(answer.headers["Location"])
    assert (back.scheme, back.netloc, back.path) == ("http", "127.0.0.1:4242", "/callback")
    given = parse_qs(back.query)
    assert given["state"] == ["s-1"]

    reply = await anonymous.ok("POST", "/auth/cli-keys/redeem", **redeem(given["code"][0]))
    (entry,) = reply["keys"]
    assert (entry["org"], entry["orgName"], entry["project"]) == ("nodus", "nodus", "default")
    who = await Api(app, entry["key"]).ok("GET", "/auth/whoami")
    assert (who["name"], who["member"], who["role"], who["scopes"]) == (entry["name"], "admin", "Owner", ["*"])
    assert who["expirationTime"] == "2026-04-01T00:00:00Z"


async def test_code_is_redeemed_once_with_its_verifier_within_two_minutes(
    browser: Browser, key: str, anonymous: Api, clock: FakeClock
) -> None:
    code = await approved_code(browser, key)
    await anonymous.fails(401, "Unauthorized", "POST", "/auth/cli-keys/redeem", **redeem(code, "w" * 43))
    await anonymous.fails(401, "Unauthorized", "POST", "/auth/cli-keys/redeem", **redeem(code))  # used up by the guess

    code = await approved_code(browser, key)
    await anonymous.ok("POST", "/auth/cli-keys/redeem", **redeem(code))
    await anonymous.fails(401, "Unauthorized", "POST", "/auth/cli-keys/redeem", **redeem(code))

    code = await approved_code(browser, key)
    clock.advance(121)
    await anonymous.fails(401, "Unauthorized", "POST", "/auth/cli-keys/redeem", **redeem(code))


async def test_code_is_worth_nothing_once_its_approver_is_revoked(browser: Browser, api: Api, anonymous: Api) -> None:
    made = await api.ok("POST", f"{V1}/apikeys", json={"metadata": {"name": "mine"}})
    code = await approved_code(browser, made["status"]["token"])
    await api.ok("DELETE", f"{V1}/apikeys/mine")
    await anonymous.fails(401, "Unauthorized", "POST", "/auth/cli-keys/redeem", **redeem(code))


async def test_sign_in_code_is_worth_nothing_once_the_key_that_made_it_is_revoked(
    browser: Browser, api: Api, anonymous: Api, app: Any
) -> None:
    made = await api.ok("POST", f"{V1}/apikeys", json={"metadata": {"name": "leaked"}})
    leaked = Api(app, made["status"]["token"])
    first, second = [(await leaked.ok("POST", "/auth/login-codes", json={"duration": "168h"}))["code"] for _ in "12"]
    approved = await approved_code(browser, first)
    await api.ok("DELETE", f"{V1}/apikeys/leaked")
    answer = await browser.send(await browser.open("/cli-auth", **CLI), credential=second)
    assert answer.status_code == 401
    await anonymous.fails(401, "Unauthorized", "POST", "/auth/cli-keys/redeem", **redeem(approved))


async def test_login_key_may_do_no_more_than_the_key_that_approved(
    browser: Browser, with_key: Callable[..., Api], anonymous: Api, app: Any
) -> None:
    limited = with_key("jobs:read", "apikeys:write", projects=["default"])
    code = await approved_code(browser, limited.headers["Authorization"].removeprefix("Bearer "))
    (entry,) = (await anonymous.ok("POST", "/auth/cli-keys/redeem", **redeem(code)))["keys"]
    client = Api(app, entry["key"])
    who = await client.ok("GET", "/auth/whoami")
    assert (who["scopes"], who["projects"]) == (["jobs:read", "apikeys:write"], ["default"])
    await client.fails(403, "Forbidden", "GET", f"{V1}/namespaces/default/secrets")


async def test_references_on_a_key_make_nobody_somebody_else(
    browser: Browser, api: Api, app: Any, anonymous: Api, put: Callable[..., Object]
) -> None:
    put(MEMBER.name, "boss", {"role": "Admin"})
    made = await api.ok("POST", f"{V1}/apikeys", json={"metadata": {"name": "boss"}, "spec": {"member": "boss"}})
    boss = Api(app, made["status"]["token"])
    owner = await boss.ok("GET", f"{V1}/members/admin")
    reference = {"apiVersion": "nodus.dev/v1", "kind": "Member", "name": "admin", "uid": owner["metadata"]["uid"]}
    key = await boss.ok("GET", f"{V1}/apikeys/boss")
    references = [reference, *key["metadata"]["ownerReferences"]]
    answer = await boss.patch(f"{V1}/apikeys/boss", {"metadata": {"ownerReferences": references}})
    assert answer.json()["metadata"]["ownerReferences"][0]["name"] == "admin"
    code = await approved_code(browser, made["status"]["token"])
    (entry,) = (await anonymous.ok("POST", "/auth/cli-keys/redeem", **redeem(code)))["keys"]
    assert (await Api(app, entry["key"]).ok("GET", "/auth/whoami"))["member"] == "boss"
    answer = await boss.patch(f"{V1}/apikeys/boss", {"metadata": {"ownerReferences": [reference]}})
    assert answer.status_code == 422, "whose it is stays"


async def test_denial_sends_the_browser_back_without_a_code(browser: Browser, anonymous: Api) -> None:
    answer = await browser.send(await browser.open("/cli-auth", **CLI), decision="deny")
    assert answer.headers["Location"] == "http://127.0.0.1:4242/callback?error=access_denied&state=s-1"
    status = await anonymous.fails(401, "Unauthorized", "POST", "/auth/cli-keys/redeem", **redeem(""))
    assert "denied" in status["message"]


@pytest.mark.parametrize(
    "credential", ["", "nodus_wrong", "nodusin_wrong", "nodusat_1.x.y", "x" * 600, "\x00", "Bearer x", "é"]
)
async def test_wrong_credential_shows_the_form_again_and_never_the_credential(
    browser: Browser, credential: str
) -> None:
    answer = await browser.send(await browser.open("/cli-auth", **CLI), credential=credential)
    assert answer.status_code in (400, 401)
    assert 'role="alert"' in answer.text
    assert "<form" in answer.text
    assert not credential or credential not in answer.text


async def test_programs_and_keys_that_make_no_keys_can_not_approve(
    browser: Browser, with_key: Callable[..., Api], api: Api, attempt: Api
) -> None:
    await api.ok("POST", f"{V1}/namespaces/default/serviceaccounts", json={"metadata": {"name": "bot"}})
    bot = await api.ok("POST", f"{V1}/namespaces/default/serviceaccounts/bot/tokens", json={})
    reader = with_key("jobs:read")
    for token in (
        bot["token"],
        attempt.headers["Authorization"].removeprefix("Bearer "),
        reader.headers["Authorization"].removeprefix("Bearer "),
    ):
        answer = await browser.send(await browser.open("/cli-auth", **CLI), credential=token)
        assert answer.status_code == 403, answer.text


@pytest.mark.parametrize(
    "changes",
    [
        {"port": "0"}, {"port": "99999"}, {"port": "80@evil.example"}, {"port": "-1"}, {"port": ""},
        {"state": ""}, {"state": "a b"}, {"state": "x" * 600}, {"code_challenge": "short"},
        {"code_challenge": "!" * 43}, {"host": "h" * 300}, {"host": "a\nb"},
    ],
)  # fmt: skip
async def test_malformed_requests_for_approval_are_refused_before_anybody_types(
    browser: Browser, anonymous: Api, changes: dict[str, str]
) -> None:
    assert (await browser.open("/cli-auth", **(CLI | changes))).status_code == 400
    await anonymous.fails(400, "BadRequest", "GET", "/cli-auth", params=CLI | changes, headers={"Accept": "*/*"})


# Forms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "params"), [("/cli-auth", CLI), ("/device", {"user_code": '"><script>x'})])
async def test_pages_run_no_script_stand_in_no_frame_and_stay_in_no_cache(
    browser: Browser, path: str, params: dict[str, str]
) -> None:
    page = await browser.open(path, **params)
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["Cache-Control"] == "no-store"
    assert page.headers["X-Frame-Options"] == "DENY"
    assert page.headers["Referrer-Policy"] == "same-origin"
    assert "<script" not in page.text
    assert "HttpOnly" in page.headers["Set-Cookie"]
    assert "samesite=strict" in page.headers["Set-Cookie"].lower()
    style = re.search(r"<style>(.*)</style>", page.text)
    assert style is not None
    assert base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode() in policy


async def test_forms_of_other_sites_and_browsers_are_refused(browser: Browser, key: str, app: Any) -> None:
    page = await browser.open("/cli-auth", **CLI)
    hidden = dict(re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', page.text))
    data = {name: html.unescape(value) for name, value in hidden.items()}
    data |= {"credential": key, "decision": "approve"}

    async def post(client: httpx.AsyncClient, form: dict[str, str], **headers: str) -> int:
        return (await client.post("/cli-auth", data=form, headers=headers)).status_code

    assert await post(browser.http, data, Origin="https://evil.example") == 403
    assert await post(browser.http, data, Origin="null") == 403
    assert await post(browser.http, data, **{"Sec-Fetch-Site": "cross-site"}) == 403
    assert await post(browser.http, data | {"token": "0" * 64}) == 403
    assert await post(browser.http, data | {"port": "9999"}) == 403  # the token covers what was shown
    assert await post(browser.http, {k: v for k, v in data.items() if k != "token"}) == 403
    assert await post(Api(app, None).http, data) == 403  # another browser: no cookie
    assert await post(browser.http, data) == 303


@pytest.mark.parametrize(
    ("body", "media", "status"),
    [
        (b"{}", "application/json", 415),
        (b"decision=approve&decision=deny", "application/x-www-form-urlencoded", 400),
        (b"\xff=\xfe", "application/x-www-form-urlencoded", 400),
        (b"a=%ff", "application/x-www-form-urlencoded", 400),
        (b"x" * 20_000, "application/x-www-form-urlencoded", 413),
    ],
)
async def test_hostile_forms_get_the_right_error(browser: Browser, body: bytes, media: str, status: int) -> None:
    for path in ("/cli-auth", "/device"):
        answer = await browser.http.post(path, content=body, headers={"Content-Type": media})
        assert answer.status_code == status, answer.text


async def test_tries_are_limited_by_address(browser: Browser, clock: FakeClock) -> None:
    page = await browser.open("/device")
    codes = [(await browser.send(page, user_code="BBBB-BBBB", credential="nodus_x")).status_code for _ in range(12)]
    assert codes[:10] == [401] * 10
    assert codes[10:] == [429, 429]
    clock.advance(7)
    assert (await browser.send(page, user_code="BBBB-BBBB", credential="nodus_x")).status_code == 401


# Device -------------------------------------------------------------------------------------------------------


async def begin(anonymous: Api) -> dict[str, Any]:
    started: dict[str, Any] = await anonymous.ok("POST", "/auth/device/code", json={"client_id": "nodus-cli"})
    return started


async def poll(anonymous: Api, device_code: str, **changes: str) -> tuple[int, Any]:
    body = {"device_code": device_code, "grant_type": GRANT_TYPE} | changes
    answer = await anonymous.call("POST", "/auth/device/token", json=body)
    return answer.status_code, answer.json()


async def test_device_login_waits_for_a_person_and_works_once(
    browser: Browser, key: str, anonymous: Api, clock: FakeClock, app: Any
) -> None:
    started = await begin(anonymous)
    assert re.fullmatch(r"[BCDFGHJKLMNPQRSTVWXZ]{4}-[BCDFGHJKLMNPQRSTVWXZ]{4}", started["user_code"])
    assert started["verification_uri"] == "http://nodus.test/device"
    assert await poll(anonymous, started["device_code"]) == (400, {"error": "authorization_pending"})

    page = await browser.http.get(started["verification_uri_complete"])
    assert started["user_code"] in page.text
    answer = await browser.send(page, credential=key, user_code=started["user_code"].lower().replace("-", " "))
    assert answer.status_code == 200, answer.text
    assert "nodus-cli" in answer.text

    clock.advance(5)
    status, reply = await poll(anonymous, started["device_code"])
    assert status == 200
    await Api(app, reply["keys"][0]["key"]).ok("GET", JOBS)
    clock.advance(5)
    assert await poll(anonymous, started["device_code"]) == (400, {"error": "invalid_grant"})


async def test_device_polls_that_come_too_fast_are_slowed_down(anonymous: Api, clock: FakeClock) -> None:
    code = (await begin(anonymous))["device_code"]
    assert (await poll(anonymous, code))[1] == {"error": "authorization_pending"}
    clock.advance(2)
    assert (await poll(anonymous, code))[1] == {"error": "slow_down"}
    clock.advance(5)
    assert (await poll(anonymous, code))[1] == {"error": "slow_down"}  # the interval is ten seconds now
    clock.advance(16)
    assert (await poll(anonymous, code))[1] == {"error": "authorization_pending"}


async def test_device_login_ends_when_denied_or_late(
    browser: Browser, key: str, anonymous: Api, clock: FakeClock, services: Services
) -> None:
    first, second = await begin(anonymous), await begin(anonymous)
    page = await browser.open("/device")
    await browser.send(page, decision="deny", credential=key, user_code=first["user_code"])
    assert (await poll(anonymous, first["device_code"]))[1] == {"error": "access_denied"}
    again = await browser.send(page, credential=key, user_code=first["user_code"])
    assert again.status_code == 404

    clock.advance(601)
    assert (await poll(anonymous, second["device_code"]))[1] == {"error": "expired_token"}
    assert (await browser.send(page, credential=key, user_code=second["user_code"])).status_code == 404
    await housekeeping.prune_once(services.store)
    assert services.store.read_sync(lambda conn: conn.execute(text("SELECT count(*) FROM logins")).scalar()) == 0


async def test_device_requests_take_forms_and_refuse_nonsense(anonymous: Api) -> None:
    form = await anonymous.ok("POST", "/auth/device/code", data={"client_id": "other"})
    assert form["interval"] == 5
    await anonymous.fails(400, "BadRequest", "POST", "/auth/device/code", json={})
    await anonymous.fails(400, "BadRequest", "POST", "/auth/device/code", json={"client_id": "a\x01"})
    await anonymous.fails(400, "BadRequest", "POST", "/auth/device/code", json=[])
    assert (await poll(anonymous, "nope"))[1] == {"error": "invalid_grant"}
    assert (await poll(anonymous, "nope", grant_type="password"))[1] == {"error": "unsupported_grant_type"}


async def test_device_logins_begun_are_limited_by_address(anonymous: Api) -> None:
    answers = [
        (await anonymous.call("POST", "/auth/device/code", json={"client_id": "x"})).status_code for _ in range(12)
    ]
    assert answers[:10] == [200] * 10
    refused = await anonymous.fails(429, "TooManyRequests", "POST", "/auth/device/code", json={"client_id": "x"})
    assert refused["details"]["retryAfterSeconds"] > 0


# Sign-in codes ------------------------------------------------------------------------------------------------


async def test_sign_in_code_brings_a_new_member_in_once(
    browser: Browser, api: Api, anonymous: Api, app: Any, clock: FakeClock
) -> None:
    await api.ok("POST", f"{V1}/members", json={"metadata": {"name": "lin"}, "spec": {"role": "Viewer"}})
    made = await api.ok("POST", "/auth/login-codes", json={"member": "lin", "duration": "1h"})
    assert made["code"].startswith("nodusin_")
    code = await approved_code(browser, made["code"])
    (entry,) = (await anonymous.ok("POST", "/auth/cli-keys/redeem", **redeem(code)))["keys"]
    lin = Api(app, entry["key"])
    assert (await lin.ok("GET", "/auth/whoami"))["role"] == "Viewer"
    await lin.fails(403, "Forbidden", "POST", JOBS, json={"metadata": {"name": "x"}, "spec": {"command": ["true"]}})
    used = await browser.send(await browser.open("/cli-auth", **CLI), credential=made["code"])
    assert used.status_code == 401

    late = await api.ok("POST", "/auth/login-codes", json={"duration": "15m"})
    clock.advance(15 * 60 + 1)
    answer = await browser.send(await browser.open("/cli-auth", **CLI), credential=late["code"])
    assert answer.status_code == 401


async def test_sign_in_codes_are_made_for_oneself_or_by_managers(
    api: Api, with_key: Callable[..., Api], put: Callable[..., Object]
) -> None:
    for name, role in (("dev", "Developer"), ("boss", "Admin")):
        put(MEMBER.name, name, {"role": role})
    dev, boss = with_key("*", name="dev", member="dev"), with_key("*", name="boss", member="boss")
    assert (await dev.ok("POST", "/auth/login-codes"))["member"] == "dev"
    await dev.fails(403, "Forbidden", "POST", "/auth/login-codes", json={"member": "boss"})
    assert (await boss.ok("POST", "/auth/login-codes", json={"member": "dev"}))["member"] == "dev"
    await boss.fails(403, "Forbidden", "POST", "/auth/login-codes", json={"member": "admin"})
    await api.fails(404, "NotFound", "POST", "/auth/login-codes", json={"member": "nobody"})
    for scopes, projects in ((["apikeys:write"], []), (["*"], ["default"])):
        limited = with_key(*scopes, projects=projects, name=f"l{len(projects)}")
        await limited.fails(403, "Forbidden", "POST", "/auth/login-codes")
    await api.fails(422, "Invalid", "POST", "/auth/login-codes", json={"duration": "1000h"})
    await api.fails(422, "Invalid", "POST", "/auth/login-codes", json={"durations": "1h"})


# Nothing leaks ------------------------------------------------------------------------------------------------


async def test_nothing_that_opens_anything_is_logged_or_stored(
    browser: Browser, key: str, api: Api, anonymous: Api, services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    made = await api.ok("POST", "/auth/login-codes")
    code = await approved_code(browser, made["code"])
    login = (await anonymous.ok("POST", "/auth/cli-keys/redeem", **redeem(code)))["keys"][0]["key"]
    started = await begin(anonymous)
    await browser.send(await browser.open("/device"), credential=key, user_code=started["user_code"])
    pending = await approved_code(browser, key)
    secrets = [key, made["code"], code, login, started["device_code"], started["user_code"], pending, VERIFIER]

    def everything(conn: Any) -> str:
        tables = ("objects", "changes", "logins", "audit", "api_keys", "idempotency")
        return "\n".join(str(row) for table in tables for row in conn.execute(text(f"SELECT * FROM {table}")))

    stored = services.store.read_sync(everything)
    logged = "\n".join(str(vars(record)) for record in caplog.records if record.name.startswith("nodus"))
    assert "cli-auth" in logged
    for secret in secrets:
        assert secret not in stored
        assert secret not in logged
    assert services.signer.code_digest(pending) in stored
