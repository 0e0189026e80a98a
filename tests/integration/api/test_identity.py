"""Members and their roles, keys that never exceed them, ServiceAccounts, SSH keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from nodus.core.clock import FakeClock
from nodus.core.kinds import API_KEY, ATTEMPT, MEMBER
from nodus.server import bootstrap
from nodus.server.api import streaming
from nodus.server.services import Services
from nodus.server.signing import Signer
from nodus.server.store import Object, housekeeping, keys, objects
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import JOBS, SECRETS, V1, causes, job

KEYS, MEMBERS, PROJECTS, SSH = f"{V1}/apikeys", f"{V1}/members", f"{V1}/projects", f"{V1}/sshkeys"
ACCOUNTS = f"{V1}/namespaces/default/serviceaccounts"
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f laptop"


def named(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec}


@pytest.fixture
def as_member(api: Api, app: Any, put: Callable[..., Object]) -> Callable[..., Any]:
    """The client of a new member with a role, and a key for everything it may do."""

    async def make(role: str, name: str = "", projects: list[str] | None = None, **key: Any) -> Api:
        name = name or ("boss" if role == "Admin" else role.lower())  # the first Owner is called admin
        put(MEMBER.name, name, {"role": role, "projects": projects or []}, status={"phase": "Active"})
        made = await api.ok("POST", KEYS, json=named(f"k-{name}", member=name, **key))
        return Api(app, made["status"]["token"])

    return make


# Roles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("Owner", {"read", "job", "own key", "member", "project", "account", "organization"}),
        ("Admin", {"read", "job", "own key", "member", "project", "account"}),
        ("Developer", {"read", "job", "own key"}),
        ("Viewer", {"read", "own key"}),
    ],
)
async def test_roles_bound_a_key_with_every_scope(as_member: Callable[..., Any], role: str, may: set[str]) -> None:
    client = await as_member(role)
    org = (await client.ok("GET", f"{V1}/organizations"))["items"][0]["metadata"]["name"]
    tried = {
        "read": await client.call("GET", JOBS),
        "job": await client.call("POST", JOBS, json=job()),
        "own key": await client.call("POST", KEYS, json=named("mine", scopes=["jobs:read"])),
        "member": await client.call("POST", MEMBERS, json=named("new", role="Viewer")),
        "project": await client.call("POST", PROJECTS, json=named("research")),
        "account": await client.call("POST", ACCOUNTS, json=named("bot")),
        "organization": await client.patch(f"{V1}/organizations/{org}", {"spec": {"displayName": "Acme"}}),
    }
    assert {what for what, answer in tried.items() if answer.status_code < 300} == may
    refused = [answer for answer in tried.values() if answer.status_code >= 300]
    assert all(
        answer.json()["reason"] == "Forbidden" and answer.json()["details"]["missingScope"] for answer in refused
    )


async def test_change_of_role_counts_at_once(api: Api, as_member: Callable[..., Any]) -> None:
    client = await as_member("Developer")
    await client.ok("POST", JOBS, json=job())
    assert (await api.patch(f"{MEMBERS}/developer", {"spec": {"role": "Viewer"}})).status_code == 200
    status = await client.fails(403, "Forbidden", "POST", JOBS, json=job("j2"))
    assert "Viewer" in status["message"]
    assert (await client.ok("GET", "/auth/whoami"))["role"] == "Viewer"


async def test_the_last_owner_stays(api: Api) -> None:
    await api.fails(409, "Conflict", "DELETE", f"{MEMBERS}/admin")
    answer = await api.patch(f"{MEMBERS}/admin", {"spec": {"role": "Admin"}})
    assert (answer.status_code, answer.json()["reason"]) == (409, "Conflict")
    await api.ok("POST", MEMBERS, json=named("second", role="Owner"))
    assert (await api.patch(f"{MEMBERS}/admin", {"spec": {"role": "Admin"}})).status_code == 200
    await api.fails(403, "Forbidden", "DELETE", f"{MEMBERS}/second")  # admin is no Owner any more


async def test_key_made_on_the_machine_is_of_an_owner_who_stays(api: Api, app: Any, services: Services) -> None:
    await api.ok("POST", MEMBERS, json=named("second", role="Owner"))
    await api.patch(f"{MEMBERS}/admin", {"metadata": {"finalizers": ["example.com/hold"]}})
    await api.ok("DELETE", f"{MEMBERS}/admin")
    await api.fails(401, "Unauthorized", "GET", JOBS)
    key = services.store.write_sync(bootstrap.issue_admin_key, services)
    assert (await Api(app, key).ok("GET", "/auth/whoami"))["member"] == "second"


async def test_admins_leave_owners_alone(api: Api, as_member: Callable[..., Any]) -> None:
    boss = await as_member("Admin")
    await boss.fails(403, "Forbidden", "POST", MEMBERS, json=named("x", role="Owner"))
    assert (await boss.patch(f"{MEMBERS}/admin", {"spec": {"role": "Viewer"}})).status_code == 403
    assert (await boss.patch(f"{MEMBERS}/admin", {"spec": {"displayName": "x"}})).status_code == 403
    assert (await boss.patch(f"{MEMBERS}/admin", {"metadata": {"labels": {"a": "b"}}})).status_code == 403
    await boss.fails(403, "Forbidden", "DELETE", f"{MEMBERS}/admin")
    assert (await boss.patch(f"{MEMBERS}/boss", {"spec": {"role": "Owner"}})).status_code in (403, 404)
    await boss.fails(403, "Forbidden", "POST", KEYS, json=named("theirs", member="admin"))
    await boss.fails(403, "Forbidden", "DELETE", f"{KEYS}/admin")
    assert (await boss.patch(f"{KEYS}/admin", {"spec": {"expires": "1h"}})).status_code == 403
    await boss.ok("POST", MEMBERS, json=named("dev", role="Developer"))
    await boss.ok("POST", KEYS, json=named("devs", member="dev"))
    await boss.ok("DELETE", f"{MEMBERS}/dev")


async def test_member_leaves_with_all_keys_at_once(api: Api, as_member: Callable[..., Any]) -> None:
    client = await as_member("Developer")
    for propagation in ("Orphan", "Background"):
        await api.ok("DELETE", f"{MEMBERS}/developer", json={"propagationPolicy": propagation})
        await client.fails(401, "Unauthorized", "GET", JOBS)
        # Somebody else of that name later has nothing of it.
        await api.ok("POST", MEMBERS, json=named("developer", role="Owner"))
        await client.fails(401, "Unauthorized", "GET", JOBS)


async def test_member_of_a_project_reaches_no_other_and_knows_nobody(
    api: Api, as_member: Callable[..., Any], put: Callable[..., Object]
) -> None:
    await api.ok("POST", PROJECTS, json=named("research"))
    put("Job", "theirs")
    client = await as_member("Developer", projects=["research"])
    await client.fails(403, "Forbidden", "GET", JOBS)
    assert (await client.ok("GET", f"{V1}/jobs"))["items"] == []
    assert [item["metadata"]["name"] for item in (await client.ok("GET", MEMBERS))["items"]] == ["developer"]
    await client.fails(404, "NotFound", "GET", f"{MEMBERS}/admin")
    assert (await client.ok("GET", "/auth/whoami"))["projects"] == ["research"]
    status = await client.fails(422, "Invalid", "POST", KEYS, json=named("k", projects=["default"]))
    assert causes(status) == {
        "spec.projects[0]": "there is no project 'default'",
        "spec.projects": "member developer reaches only research",
    }
    key = await client.ok("POST", KEYS, json=named("own"))
    assert "projects" not in key["spec"]  # the member bounds it
    await api.fails(409, "Conflict", "DELETE", f"{PROJECTS}/research")


async def test_member_of_a_project_sees_and_ends_all_their_own_keys(api: Api, as_member: Callable[..., Any]) -> None:
    client = await as_member("Developer", projects=["default"])
    await client.ok("POST", KEYS, json=named("lost"))  # names no project, as those of `nodus login` do
    assert [item["metadata"]["name"] for item in (await client.ok("GET", KEYS))["items"]] == ["k-developer", "lost"]
    await api.ok("POST", PROJECTS, json=named("research"))
    assert (await api.patch(f"{MEMBERS}/developer", {"spec": {"projects": ["default", "research"]}})).status_code == 200
    narrow = Api(client.app, (await client.ok("POST", KEYS, json=named("n", projects=["default"])))["status"]["token"])
    await narrow.fails(404, "NotFound", "DELETE", f"{KEYS}/lost")  # it reaches further than the key that asks
    await client.ok("DELETE", f"{KEYS}/lost")


async def test_name_that_is_taken_shows_nothing_of_what_may_not_be_seen(
    api: Api, as_member: Callable[..., Any]
) -> None:
    await api.ok("POST", KEYS, json=named("taken", scopes=["jobs:read"], description="the merger"))
    client = await as_member("Developer")
    for query in ("", "?dryRun=All"):
        status = await client.fails(409, "AlreadyExists", "POST", KEYS + query, json=named("taken"))
        assert "merger" not in str(status), query
        assert "diff" not in status["details"], query
    assert (await api.fails(409, "AlreadyExists", "POST", KEYS, json=named("taken")))["details"]["diff"]


async def test_key_of_a_project_leaves_the_organization_alone(api: Api, with_key: Callable[..., Api]) -> None:
    (org,) = (await api.ok("GET", f"{V1}/organizations"))["items"]
    path = f"{V1}/organizations/{org['metadata']['name']}"
    await api.ok("POST", MEMBERS, json=named("second", role="Owner"))
    narrow = with_key("*", projects=["default"])
    for target, change in (
        (path, {"spec": {"displayName": "Mine"}}),
        (f"{MEMBERS}/admin", {"metadata": {"labels": {"a": "b"}}}),
    ):
        answer = await narrow.patch(target, change)
        assert (answer.status_code, answer.json()["reason"]) == (403, "Forbidden"), target
    await narrow.fails(403, "Forbidden", "DELETE", f"{MEMBERS}/admin")  # whose key it is


async def test_key_and_member_that_share_no_project_reach_nothing(api: Api, as_member: Callable[..., Any]) -> None:
    await api.ok("POST", PROJECTS, json=named("research"))
    client = await as_member("Developer", projects=["default"], scopes=["*"])
    made = await api.ok("POST", KEYS, json=named("narrow", member="developer", projects=["default"]))
    narrow = Api(client.app, made["status"]["token"])
    await narrow.ok("GET", JOBS)
    assert (await api.patch(f"{MEMBERS}/developer", {"spec": {"projects": ["research"]}})).status_code == 200
    for path in (JOBS, f"{V1}/namespaces/research/jobs", f"{V1}/jobs", "/auth/whoami"):
        await narrow.fails(403, "Forbidden", "GET", path)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"role": "King"}, "spec.role"), ({"email": "nobody"}, "spec.email"),
        ({"projects": ["nope"]}, "spec.projects[0]"),
        ({"role": "Owner", "projects": ["default"]}, "spec.projects"), ({"projects": None}, "spec.projects"),
    ],
)  # fmt: skip
async def test_members_with_mistakes_are_refused(api: Api, spec: dict[str, Any], field: str) -> None:
    status = await api.fails(422, "Invalid", "POST", MEMBERS, json=named("m", **spec))
    assert field in causes(status)
    await api.fails(422, "Invalid", "POST", MEMBERS, json=named("m" * 60))


# Keys ---------------------------------------------------------------------------------------------------------


async def test_key_belongs_to_who_makes_it_and_gets_its_scopes(api: Api, with_key: Callable[..., Api]) -> None:
    made = await api.ok("POST", KEYS, json=named("ci"))
    assert made["spec"] == {"scopes": ["*"], "member": "admin"}
    assert made["metadata"]["ownerReferences"][0]["kind"] == "Member"
    limited = with_key("jobs:read", "apikeys:write", projects=["default"])
    made = await limited.ok("POST", KEYS, json=named("less"))
    assert (made["spec"]["scopes"], made["spec"]["projects"]) == (["jobs:read", "apikeys:write"], ["default"])


async def test_nobody_makes_a_key_that_may_do_more(api: Api, with_key: Callable[..., Api]) -> None:
    await api.ok("POST", PROJECTS, json=named("other"))
    limited = with_key("jobs:read", "apikeys:write", projects=["default"])
    for spec, field in (
        ({"scopes": ["*"]}, "spec.scopes[0]"),
        ({"scopes": ["jobs:read", "jobs:write"]}, "spec.scopes[1]"),
        ({"scopes": ["jobs:read"], "projects": []}, "spec.projects"),
        ({"scopes": ["jobs:read"], "projects": ["other"]}, "spec.projects[0]"),
    ):
        status = await limited.fails(422, "Invalid", "POST", KEYS, json=named("more", **spec))
        assert field in causes(status), (spec, causes(status))


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"expires": "yesterday"}, "spec.expires"), ({"expires": "2020-01-01"}, "spec.expires"),
        ({"expirationTime": "720h"}, "spec.expirationTime"),
        ({"expirationTime": "2020-01-01T00:00:00Z"}, "spec.expirationTime"),
        ({"expires": "1h", "expirationTime": "2027-01-01T00:00:00Z"}, "spec.expirationTime"),
        ({"scopes": ["jobs"]}, "spec.scopes[0]"), ({"member": "nobody"}, "spec.member"),
        ({"project": "default"}, "spec.project"),
        ({"attempt": "a"}, "spec.attempt"), ({"serviceAccountName": "bot"}, "spec.project"),
        ({"serviceAccountName": "bot", "project": "default"}, "spec.serviceAccountName"),
        ({"serviceAccountName": "bot", "project": "nope"}, "spec.serviceAccountName"),
    ],
)  # fmt: skip
async def test_keys_with_mistakes_are_refused(api: Api, spec: dict[str, Any], field: str) -> None:
    status = await api.fails(422, "Invalid", "POST", KEYS, json=named("k", **spec))
    assert field in causes(status), causes(status)


async def test_expiry_is_a_duration_a_date_or_a_time(api: Api, app: Any, clock: FakeClock, services: Services) -> None:
    ends = {
        "a": ({"expires": "24h"}, "2026-01-02T00:00:00Z"),
        "b": ({"expires": "2026-01-01"}, "2026-01-02T00:00:00Z"),
        "c": ({"expirationTime": "2026-01-02T01:00:00+01:00"}, "2026-01-02T00:00:00Z"),
    }
    clients = []
    for name, (spec, end) in ends.items():
        made = await api.ok("POST", KEYS, json=named(name, **spec))
        assert made["status"]["expirationTime"] == end
        clients.append(Api(app, made["status"]["token"]))
    clock.advance(86_399)
    for client in clients:
        await client.ok("GET", JOBS)
    clock.advance(1)
    for client in clients:
        status = await client.fails(401, "Unauthorized", "GET", JOBS)
        assert "expired" in status["message"]
    assert (await api.ok("GET", f"{KEYS}/a"))["status"]["phase"] == "Expired"
    await housekeeping.prune_once(services.store)
    listed = await api.ok("GET", KEYS, params={"fieldSelector": "status.phase=Expired"})
    assert [item["metadata"]["name"] for item in listed["items"]] == ["a", "b", "c"]
    answer = await api.patch(f"{KEYS}/a", {"spec": {"expires": "48h"}})
    assert answer.status_code == 409, "an expired key does not come back"


async def test_expiry_can_move_and_go(api: Api, app: Any, clock: FakeClock) -> None:
    made = await api.ok("POST", KEYS, json=named("k", expires="1h"))
    client = Api(app, made["status"]["token"])
    assert (await api.patch(f"{KEYS}/k", {"metadata": {"labels": {"a": "b"}}})).status_code == 200
    clock.advance(3000)
    moved = (await api.patch(f"{KEYS}/k", {"spec": {"expires": "2h"}})).json()
    assert moved["status"]["expirationTime"] == "2026-01-01T02:50:00Z"
    clock.advance(3000)
    await client.ok("GET", JOBS)
    gone = (await api.patch(f"{KEYS}/k", {"spec": {"expires": None}})).json()
    assert "expirationTime" not in gone["status"]
    clock.advance(10**7)
    await client.ok("GET", JOBS)
    assert (await api.patch(f"{KEYS}/k", {"spec": {"scopes": ["jobs:read"]}})).json()["reason"] == "FieldImmutable"


async def test_every_key_may_end_itself_and_others_end_their_own(
    api: Api, as_member: Callable[..., Any], with_key: Callable[..., Api]
) -> None:
    reader = with_key("jobs:read", name="reader")
    await reader.fails(403, "Forbidden", "DELETE", f"{KEYS}/admin")
    await reader.ok("DELETE", f"{KEYS}/reader")
    await reader.fails(401, "Unauthorized", "GET", JOBS)
    dev, other = await as_member("Developer"), await as_member("Developer", "other")
    await dev.fails(404, "NotFound", "DELETE", f"{KEYS}/k-other")
    assert [item["metadata"]["name"] for item in (await dev.ok("GET", KEYS))["items"]] == ["k-developer"]
    await api.ok("DELETE", f"{KEYS}/k-other")
    await other.fails(401, "Unauthorized", "GET", JOBS)


async def test_watch_ends_soon_after_its_key(api: Api, app: Any, clock: FakeClock, put: Callable[..., Object]) -> None:
    made = await api.ok("POST", KEYS, json=named("k", scopes=["jobs:read"]))
    client = Api(app, made["status"]["token"])
    async with client.stream(f"{JOBS}?watch=true") as stream:
        put("Job", "a")
        assert (await stream.event())[0] == "ADDED"
        await api.ok("DELETE", f"{KEYS}/k")
        clock.advance(11)
        put("Job", "b")
        type_, status = await stream.event()
        while type_ == "ADDED" and status["metadata"]["name"] == "b":  # read before the check
            clock.advance(11)
            put("Job", f"c{clock.monotonic():.0f}")
            type_, status = await stream.event()
        assert (type_, status["reason"]) == ("ERROR", "Unauthorized")


async def test_watch_ends_when_its_key_may_see_less(
    api: Api, as_member: Callable[..., Any], clock: FakeClock, put: Callable[..., Object]
) -> None:
    await api.ok("POST", PROJECTS, json=named("research"))
    client = await as_member("Developer")
    async with client.stream(f"{V1}/jobs?watch=true") as stream:
        put("Job", "a")
        assert (await stream.event())[0] == "ADDED"
        assert (await api.patch(f"{MEMBERS}/developer", {"spec": {"projects": ["research"]}})).status_code == 200
        clock.advance(11)
        put("Job", "b")
        type_, status = await stream.event()
        while type_ == "ADDED":  # read before the check
            clock.advance(11)
            put("Job", f"c{clock.monotonic():.0f}")
            type_, status = await stream.event()
        assert (type_, status["reason"]) == ("ERROR", "Forbidden")


async def test_watch_without_news_ends_soon_after_its_key(
    api: Api, app: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "LOOK_S", 0.01)
    made = await api.ok("POST", KEYS, json=named("k", scopes=["jobs:read"]))
    async with Api(app, made["status"]["token"]).stream(f"{JOBS}?watch=true") as stream:
        await api.ok("DELETE", f"{KEYS}/k")
        clock.advance(11)
        type_, status = await stream.event()
        assert (type_, status["reason"]) == ("ERROR", "Unauthorized")


async def test_keys_are_hashed_anew_under_a_newer_master_key(
    api: Api, services: Services, opened: tuple[Services, str]
) -> None:
    old = services.signer
    services.signer = Signer({**old._keys, 2: b"n" * 32})
    assert services.store.read_sync(keys.versions) == {1: 1}
    await api.ok("GET", JOBS)
    assert services.store.read_sync(keys.versions) == {2: 1}
    services.signer = Signer({2: b"n" * 32})
    await api.ok("GET", JOBS)
    services.signer = old
    await api.fails(401, "Unauthorized", "GET", JOBS)


async def test_keys_of_before_there_were_members_become_the_owners(api: Api, services: Services) -> None:
    def make_old(conn: Any) -> None:
        obj = objects.create(conn, API_KEY, None, "old", {"projects": []}, status={"phase": "Active"})
        hashed = services.signer.hash_api_key("nodus_old")
        conn.execute(
            text(
                "INSERT INTO api_keys (uid, org, digest, key_version) "
                f"VALUES ('{obj.uid}', '{services.store.org}', '{hashed.digest}', 1)"
            )
        )

    services.store.write_sync(make_old)
    client = Api(api.app, "nodus_old")
    await client.fails(401, "Unauthorized", "GET", JOBS)
    for _ in range(2):
        services.store.write_sync(bootstrap.ensure_identity, services)
    who = await client.ok("GET", "/auth/whoami")
    assert (who["member"], who["scopes"]) == ("admin", ["*"])


# ServiceAccounts ----------------------------------------------------------------------------------------------


async def account(api: Api, name: str = "bot", **spec: Any) -> None:
    await api.ok("POST", ACCOUNTS, json=named(name, **spec))


async def token(api: Api, name: str = "bot", **body: Any) -> str:
    made = await api.ok("POST", f"{ACCOUNTS}/{name}/tokens", json=body)
    found: str = made["status"]["token"]
    return found


async def test_service_account_works_in_its_project_and_manages_nobody(api: Api, app: Any) -> None:
    await api.ok("POST", PROJECTS, json=named("other"))
    await account(api)
    bot = Api(app, await token(api))
    who = await bot.ok("GET", "/auth/whoami")
    assert (who["kind"], who["user"], who["projects"]) == ("ServiceAccount", "sa_default_bot", ["default"])
    made = await bot.ok("POST", JOBS, json=job())
    assert made["metadata"]["labels"]["nodus.dev/created-by"] == "sa_default_bot"
    await bot.fails(403, "Forbidden", "GET", f"{V1}/namespaces/other/jobs")
    for path in (KEYS, MEMBERS, SSH, f"{V1}/auditevents"):
        await bot.fails(403, "Forbidden", "GET", path)
    for path in (KEYS, MEMBERS, PROJECTS, ACCOUNTS, f"{ACCOUNTS}/bot/tokens", "/auth/login-codes"):
        await bot.fails(403, "Forbidden", "POST", path, json={})


async def test_keys_of_an_account_keep_to_its_scopes(api: Api, app: Any) -> None:
    await account(api, scopes=["jobs:read", "jobs:write", "secrets:read"])
    status = await api.fails(422, "Invalid", "POST", f"{ACCOUNTS}/bot/tokens", json={"scopes": ["volumes:read"]})
    assert "spec.scopes[0]" in causes(status)
    reader = Api(app, await token(api, scopes=["jobs:read"]))
    await reader.ok("GET", JOBS)
    await reader.fails(403, "Forbidden", "GET", SECRETS)
    whole = Api(app, await token(api))
    await whole.ok("GET", SECRETS)
    assert (await api.patch(f"{ACCOUNTS}/bot", {"spec": {"scopes": ["jobs:read"]}})).status_code == 200
    await whole.fails(403, "Forbidden", "GET", SECRETS)
    await account(api, "other")
    status = await api.fails(422, "Invalid", "POST", ACCOUNTS, json=named("x", scopes=["members:write"]))
    assert "never gets" in causes(status)["spec.scopes[0]"]


async def test_key_of_an_account_ends_with_it_and_by_itself(api: Api, app: Any, clock: FakeClock) -> None:
    await account(api)
    day, ninety = Api(app, await token(api, duration="24h")), Api(app, await token(api))
    clock.advance(86_401)
    await day.fails(401, "Unauthorized", "GET", JOBS)
    await ninety.ok("GET", JOBS)
    await api.ok("DELETE", f"{ACCOUNTS}/bot")
    await ninety.fails(401, "Unauthorized", "GET", JOBS)
    assert not [k for k in (await api.ok("GET", KEYS))["items"] if k["spec"].get("serviceAccountName")]
    await account(api)
    await ninety.fails(401, "Unauthorized", "GET", JOBS)


async def test_key_bound_to_an_attempt_ends_with_the_attempt(
    api: Api, app: Any, attempt: Api, services: Services
) -> None:
    await account(api)
    status = await api.fails(422, "Invalid", "POST", f"{ACCOUNTS}/bot/tokens", json={"attempt": "nope"})
    assert "spec.attempt" in causes(status)
    bot = Api(app, await token(api, attempt="run-1", duration="1h"))
    await bot.ok("GET", JOBS)

    def end(conn: Any) -> None:
        found = objects.get(conn, ATTEMPT, "default", "run-1")
        objects.update_status(conn, found.uid, {"phase": "Succeeded"})

    services.store.write_sync(end)
    await bot.fails(401, "Unauthorized", "GET", JOBS)


async def test_only_managers_make_accounts_and_their_keys_give_no_more_than_they_have(
    api: Api, as_member: Callable[..., Any], with_key: Callable[..., Api]
) -> None:
    await account(api)
    dev = await as_member("Developer")
    await dev.fails(403, "Forbidden", "POST", f"{ACCOUNTS}/bot/tokens", json={})
    await dev.fails(403, "Forbidden", "POST", KEYS, json=named("k", serviceAccountName="bot", project="default"))
    limited = with_key("serviceaccounts:write", "jobs:read")
    made = await limited.ok("POST", f"{ACCOUNTS}/bot/tokens", json={})
    assert made["spec"]["scopes"] == ["serviceaccounts:write", "jobs:read"]
    await limited.fails(422, "Invalid", "POST", f"{ACCOUNTS}/bot/tokens", json={"scopes": ["jobs:write"]})


async def test_account_is_not_given_more_than_its_giver_has(api: Api, with_key: Callable[..., Api]) -> None:
    await account(api, scopes=["jobs:read", "volumes:read"])
    limited = with_key("serviceaccounts:read", "serviceaccounts:write", "jobs:read")
    before = (await api.ok("GET", f"{ACCOUNTS}/bot"))["spec"]["scopes"]
    for scopes in (["*"], ["*:write"], ["jobs:write", "secrets:read"], None):
        answer = await limited.patch(f"{ACCOUNTS}/bot", {"spec": {"scopes": scopes}})
        assert answer.status_code == 422, (scopes, answer.text)
    assert (await api.ok("GET", f"{ACCOUNTS}/bot"))["spec"]["scopes"] == before
    # What it has already, it may keep, and lose.
    assert (await limited.patch(f"{ACCOUNTS}/bot", {"spec": {"description": "nightly"}})).status_code == 200
    assert (await limited.patch(f"{ACCOUNTS}/bot", {"spec": {"scopes": before[:1]}})).status_code == 200


@pytest.mark.parametrize(
    "body", [{"duration": "9000h"}, {"duration": "0s"}, {"duration": 5}, {"scopes": "x"}, {"scopes": [1]}, {"extra": 1}]
)
async def test_account_keys_with_mistakes_are_refused(api: Api, body: dict[str, Any]) -> None:
    await account(api)
    await api.fails(422, "Invalid", "POST", f"{ACCOUNTS}/bot/tokens", json=body)


async def test_account_key_is_replayed_sealed(api: Api, services: Services) -> None:
    await account(api)
    headers = {"Idempotency-Key": "once"}
    first = await api.ok("POST", f"{ACCOUNTS}/bot/tokens", json={}, headers=headers)
    assert await api.ok("POST", f"{ACCOUNTS}/bot/tokens", json={}, headers=headers) == first
    kept = services.store.read_sync(lambda conn: conn.execute(text("SELECT body FROM idempotency")).scalar())
    assert first["token"].encode() not in kept


# SSH keys -----------------------------------------------------------------------------------------------------


async def test_ssh_keys_are_their_members(api: Api, as_member: Callable[..., Any]) -> None:
    dev = await as_member("Developer")
    made = await dev.ok("POST", SSH, json=named("laptop", publicKey=PUBLIC_KEY + "\n", displayName="Laptop"))
    assert made["spec"]["member"] == "developer"
    assert made["status"]["fingerprint"].startswith("SHA256:")
    await api.ok("POST", SSH, json=named("theirs", publicKey=PUBLIC_KEY))
    assert [item["metadata"]["name"] for item in (await dev.ok("GET", SSH))["items"]] == ["laptop"]
    await dev.fails(404, "NotFound", "DELETE", f"{SSH}/theirs")
    await dev.fails(403, "Forbidden", "POST", SSH, json=named("x", publicKey=PUBLIC_KEY, member="admin"))
    private = "-----BEGIN OPENSSH PRIVATE KEY-----"
    status = await dev.fails(422, "Invalid", "POST", SSH, json=named("x", publicKey=private))
    assert private not in str(status)
    await dev.ok("DELETE", f"{SSH}/laptop")


async def test_admins_leave_the_ssh_keys_of_owners_alone(api: Api, as_member: Callable[..., Any]) -> None:
    boss = await as_member("Admin")
    await boss.fails(403, "Forbidden", "POST", SSH, json=named("x", publicKey=PUBLIC_KEY, member="admin"))
    await api.ok("POST", SSH, json=named("theirs", publicKey=PUBLIC_KEY))
    assert (await boss.patch(f"{SSH}/theirs", {"spec": {"displayName": "x"}})).status_code == 403
    await boss.fails(403, "Forbidden", "DELETE", f"{SSH}/theirs")
    await boss.ok("POST", MEMBERS, json=named("dev", role="Developer"))
    await boss.ok("POST", SSH, json=named("devs", publicKey=PUBLIC_KEY, member="dev"))
    await boss.ok("DELETE", f"{SSH}/devs")


# The organization ---------------------------------------------------------------------------------------------


async def test_organization_has_a_name_for_people(api: Api) -> None:
    (org,) = (await api.ok("GET", f"{V1}/organizations"))["items"]
    path = f"{V1}/organizations/{org['metadata']['name']}"
    assert (await api.patch(path, {"spec": {"displayName": "Acme Research"}})).status_code == 200
    who = await api.ok("GET", "/auth/whoami")
    assert (who["org"], who["orgName"]) == (org["metadata"]["uid"], "Acme Research")
    await api.fails(405, "MethodNotAllowed", "POST", f"{V1}/organizations", json=named("second"))
    await api.fails(405, "MethodNotAllowed", "DELETE", path)
