"""Every route against every credential that must not get through: of another project, expired, revoked, a viewer's, an
attempt's, a ServiceAccount's.

A project holds one object of each kind with a marker in it. Whoever reaches another project never gets a success that
names the object or holds the marker, and changes nothing. New routes and kinds are covered by themselves; a route with
a new path parameter has to say here what fills it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.kinds import API_KEY, BUDGET, EVENT, KINDS, MEMBER, SERVICE_ACCOUNT, SSH_KEY, Kind
from nodus.core.roles import OWN
from nodus.server.api.app import OPERATIONS, describe_routes
from nodus.server.api.routes import SUBRESOURCES
from nodus.server.billing.limits import limits_for
from nodus.server.services import Services
from nodus.server.store import Object, blobs, events, ledger, objects
from nodus.server.store.ledger import Charge, HoldRequest, Owner
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import V1

THEIRS = "zz-theirs"
"""The other project, and the name of everything in it."""
MARKER = "marker-of-theirs"
BLOB = MARKER.encode()
SHA256 = hashlib.sha256(BLOB).hexdigest()
FILLS = {"project": THEIRS, "sha256": SHA256, "version": "v1", "name": THEIRS, "verb": "commit"}
WRITES = ("POST", "PUT", "PATCH", "DELETE")
PATCH_TYPE = {"Content-Type": "application/merge-patch+json"}


@dataclass(frozen=True)
class Ask:
    """A request for something of the other project."""

    method: str
    path: str
    kind: Kind | None = None
    listing: bool = False
    """It asks for whatever may be seen; the others ask for their object."""

    @property
    def writes(self) -> bool:
        return self.method in WRITES


def base_of(kind: Kind, project: str | None) -> str:
    place = f"namespaces/{project}/" if kind.namespaced and project else ""
    return f"/apis/{kind.api_version}/{place}{kind.plural}"


def of_kind(kind: Kind, project: str | None = THEIRS, name: str = THEIRS) -> Iterator[Ask]:
    """Everything that can be asked about a kind and an object of it."""
    base = base_of(kind, project)
    yield Ask("GET", base, kind, listing=not kind.namespaced)
    yield Ask("GET", f"{base}?watch=true&timeoutSeconds=0", kind, listing=not kind.namespaced)
    yield Ask("POST", base, kind)
    if kind.namespaced:
        for query in ("", "?watch=true&timeoutSeconds=0", f"?fieldSelector=metadata.name={name}", "?limit=1"):
            yield Ask("GET", base_of(kind, None) + query, kind, listing=True)
    for method in ("GET", *WRITES[1:]):
        yield Ask(method, f"{base}/{name}", kind)
    for sub in SUBRESOURCES:
        if kind in sub.kinds:
            path = re.sub(r"\{[^}]*\}", "x", sub.path)
            yield Ask(sub.method, f"{base}/{name}/{path}", kind)


def of_operations() -> Iterator[Ask]:
    """Every route beside the kinds' own that needs a key."""
    for operation in OPERATIONS:
        if not operation.public:
            path = re.sub(r"\{(\w+)[^}]*\}", lambda found: FILLS[found[1]], operation.path)
            for method in operation.methods:
                yield Ask(method, path, listing="{project}" not in operation.path)


def everything() -> list[Ask]:
    return [*(ask for kind in KINDS.values() for ask in of_kind(kind)), *of_operations()]


async def send(client: Api, ask: Ask) -> Any:
    body = {"metadata": {"labels": {"hit": "yes"}}} if ask.kind is not None and ask.writes else {}
    options: dict[str, Any] = {"headers": PATCH_TYPE} if ask.method == "PATCH" else {}
    if ask.writes and ask.method != "DELETE":
        options["json"] = body
    return await client.call(ask.method, ask.path, **options)


@pytest.fixture
def theirs(services: Services, put: Callable[..., Object]) -> Callable[[], dict[str, int]]:
    """Fills the other project; called, it tells the version of each object there."""
    put("Project", THEIRS, {}, status={"phase": "Active"})
    marked = {"annotations": {"note": MARKER}, "status": {"phase": "Running"}}
    made = []
    for kind in KINDS.values():
        spec = dict(kind.example.get("spec", {}))
        if kind.namespaced:
            made.append(put(kind.name, THEIRS, spec, project=THEIRS, **marked))
        elif kind in (API_KEY, MEMBER, SSH_KEY):
            made.append(put(kind.name, THEIRS, spec | {"projects": [THEIRS], "member": THEIRS}, **marked))
        elif kind is BUDGET:
            made.append(put(kind.name, THEIRS, spec | {"scope": {"project": THEIRS}}, **marked))
    job = next(obj for obj in made if obj.kind == "Job")
    made.append(services.store.write_sync(events.record, job, "Normal", "Told", MARKER))
    services.store.write_sync(_spend, job)
    with services.store.blobs.writer() as writer:
        writer.write(BLOB)
        writer.commit(SHA256)
    services.store.write_sync(blobs.index, THEIRS, SHA256, len(BLOB), "text/plain")
    assert {obj.kind for obj in made} >= {kind.name for kind in KINDS.values() if kind.namespaced} | {EVENT.name}

    def versions(conn: Any) -> dict[str, int]:
        return {obj.uid: objects.get_by_uid(conn, obj.uid).resource_version for obj in made}

    return lambda: services.store.read_sync(versions)


def _spend(conn: Any, job: Object) -> None:
    """Lines of the other project in the books."""
    owner = Owner("Attempt", job.uid, THEIRS, THEIRS)
    ledger.hold(conn, HoldRequest("theirs", 1, owner, job.uid, limits_for(conn, job), reason=MARKER))
    ledger.settle(conn, "theirs", [Charge(f"compute/{MARKER}", 1)])


@pytest.fixture
async def outsiders(
    api: Api, app: Any, with_key: Callable[..., Api], put: Callable[..., Object], attempt: Api
) -> dict[str, Api]:
    """Credentials that reach project default, or a run in it, and no other."""
    put(MEMBER.name, "local", {"role": "Admin", "projects": ["default"]})
    await api.ok("POST", f"{V1}/namespaces/default/serviceaccounts", json={"metadata": {"name": "bot"}})
    bot = await api.ok("POST", f"{V1}/namespaces/default/serviceaccounts/bot/tokens", json={})
    return {
        "a key of another project": with_key("*", projects=["default"], name="narrow"),
        "a key of a member of another project": with_key("*", name="locals", member="local"),
        "a ServiceAccount of another project": Api(app, bot["token"]),
        "an attempt": attempt,
    }


def test_the_matrix_has_every_route(app: Any) -> None:
    generic = {
        f"/apis/nodus.dev/{{version}}/{place}{{plural}}{rest}"
        for place in ("", "namespaces/{project}/")
        for rest in ("", "/{name}", "/{name}/{sub:path}")
    }
    routes = {path for path, _ in describe_routes(app)} - {"/healthz", "/readyz"}
    assert routes == generic | {operation.path for operation in OPERATIONS}
    assert len(everything()) > 150


async def test_whoever_reaches_another_project_gets_and_changes_nothing(
    outsiders: dict[str, Api], theirs: Callable[[], dict[str, int]]
) -> None:
    before = theirs()
    for who, client in outsiders.items():
        for ask in everything():
            answer = await send(client, ask)
            told = f"{who}: {ask.method} {ask.path}: {answer.status_code} {answer.text[:300]}"
            assert answer.status_code < 500, told
            assert MARKER not in answer.text, told
            if ask.listing and not ask.writes:
                assert answer.status_code >= 400 or THEIRS not in answer.text, told
            elif ask.kind is not None and (ask.kind.namespaced or not ask.path.endswith(ask.kind.plural)):
                assert answer.status_code in (403, 404, 405), told
            elif "namespaces" in ask.path:
                assert answer.status_code in (400, 403, 404), told
        assert theirs() == before, who


async def test_names_tell_nothing_about_what_is_there(
    outsiders: dict[str, Api], theirs: Callable[[], dict[str, int]]
) -> None:
    """What exists elsewhere is answered like what exists nowhere."""
    for who, client in outsiders.items():
        for kind in KINDS.values():
            there, nowhere = of_kind(kind), of_kind(kind, "zz-nobody" if kind.namespaced else THEIRS, "zz-nobody")
            for ask, other in zip(there, nowhere, strict=True):
                answers = [await send(client, each) for each in (ask, other)]
                shown = [
                    (
                        answer.status_code,
                        re.sub(r"zz-\w+|req_\w+", "", answer.text) if answer.status_code >= 400 else "",
                    )
                    for answer in answers
                ]
                assert shown[0] == shown[1], f"{who}: {ask.method} {ask.path}"


async def test_expired_revoked_and_unknown_keys_open_nothing(
    api: Api, app: Any, clock: FakeClock, theirs: Callable[[], dict[str, int]]
) -> None:
    before = theirs()
    clients = {"unknown": Api(app, "nodus_" + "x" * 43)}
    for name in ("expired", "revoked"):
        made = await api.ok("POST", f"{V1}/apikeys", json={"metadata": {"name": name}, "spec": {"expires": "1h"}})
        clients[name] = Api(app, made["status"]["token"])
        await clients[name].ok("GET", "/auth/whoami")
    await api.ok("DELETE", f"{V1}/apikeys/revoked")
    clock.advance(3601)
    for who, client in clients.items():
        for ask in everything():
            answer = await send(client, ask)
            assert (answer.status_code, answer.json()["reason"]) == (401, "Unauthorized"), (who, ask)
            assert MARKER not in answer.text
    assert theirs() == before


async def test_viewer_reads_everything_and_changes_nothing(
    with_key: Callable[..., Api], put: Callable[..., Object], theirs: Callable[[], dict[str, int]]
) -> None:
    put(MEMBER.name, "viewer", {"role": "Viewer"})
    viewer = with_key("*", name="viewers", member="viewer")
    before = theirs()
    for ask in everything():
        answer = await send(viewer, ask)
        told = f"{ask.method} {ask.path}: {answer.status_code} {answer.text[:300]}"
        assert answer.status_code < 500, told
        if ask.kind is None:
            allowed = ask.path == "/auth/login-codes" or not ask.writes or ask.path.startswith("/metrics/")
            assert allowed or answer.status_code == 403, told
        elif ask.writes and ask.kind.plural in OWN:
            assert answer.status_code in (403, 404, 422), told  # the one named is somebody else's
        elif ask.writes:
            assert answer.status_code in (403, 405), told
        elif ask.path == f"{base_of(ask.kind, THEIRS)}/{THEIRS}" and ask.kind.namespaced:
            assert answer.status_code == 200, told
    assert theirs() == before


async def test_attempt_reaches_nothing_of_its_own_project_but_its_run(
    attempt: Api, put: Callable[..., Object], services: Services
) -> None:
    for kind in KINDS.values():
        if kind.namespaced:
            put(kind.name, "neighbour", dict(kind.example.get("spec", {})), status={"phase": "Running"})
    for kind in KINDS.values():
        for ask in of_kind(kind, "default", "neighbour"):
            answer = await send(attempt, ask)
            refused = (403, 404, 405) if kind is not SERVICE_ACCOUNT else (403, 405)
            assert answer.status_code in refused, f"{ask.method} {ask.path}: {answer.status_code} {answer.text[:200]}"


async def test_key_of_one_kind_reaches_no_other_kind(
    with_key: Callable[..., Api], theirs: Callable[[], dict[str, int]]
) -> None:
    client = with_key("jobs:read", name="jobs-only")
    for kind in KINDS.values():
        if kind.plural == "jobs":
            continue
        for ask in of_kind(kind):
            answer = await send(client, ask)
            assert answer.status_code in (403, 405), f"{ask.method} {ask.path}: {answer.status_code}"
