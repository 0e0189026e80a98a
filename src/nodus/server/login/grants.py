"""The end of every login: a key is made for who was approved, in the transaction that uses the login up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodus.core import roles
from nodus.core.errors import Unauthorized
from nodus.core.ids import slug
from nodus.core.kinds import API_KEY, ORGANIZATION
from nodus.server.api.auth import CREATED_BY, user_of
from nodus.server.kinds.identity import make_key, member_of
from nodus.server.login.proofs import stands
from nodus.server.services import Services
from nodus.server.store import audit, logins, objects
from nodus.server.store.context import lock_objects, org_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.store.objects import Object

KEY_LIFETIME = "2160h"
_DAYS = 90


def redeem(conn: Connection, services: Services, login: logins.Login, request_id: str) -> dict[str, Any]:
    """Make the key of an approved login and return the answer that clients expect; a login is redeemed once.

    Raises:
        Unauthorized: it was redeemed already, or whoever approved it has lost the right to.
    """
    lock_objects(conn)
    if not logins.consume(conn, login.digest):
        raise Unauthorized("the login was redeemed already", fix="Log in again with `nodus login`.")
    member = member_of(conn, login.member)
    if not stands(conn, login.grant.get("approver")):
        raise Unauthorized("the key that approved the login was revoked", fix="Log in again with `nodus login`.")
    projects = list(login.grant.get("projects") or [])
    spec = {
        "scopes": list(login.grant.get("scopes") or [roles.ANY]),
        "projects": projects,
        "member": member.name,
        "expires": KEY_LIFETIME,
        "description": f"made by `nodus login` on {login.client}"[:256],
    }
    labels = {CREATED_BY: user_of(member)}
    obj, key = make_key(conn, services, f"cli-{slug(login.client, 'login')[:40].strip('-')}-", spec, labels=labels)
    actor = audit.Actor(user_of(member), "nodus login", request_id)
    audit.record(conn, actor, "create", audit.Target(API_KEY.name, obj.name, uid=obj.uid))
    org = objects.find_by_uid(conn, org_of(conn))
    entry = {
        "key": key,
        "org": org.name if org is not None else slug(services.settings.org_name),
        "orgName": org_name(services, org),
        "name": obj.name,
        "project": _project(projects or member.spec.get("projects") or []),
    }
    return {"keys": [entry]}


def _project(projects: list[str]) -> str:
    return "default" if not projects or "default" in projects else projects[0]


def org_name(services: Services, org: Object | None) -> str:
    """The organization's name for people: its own, else the operator's."""
    if org is not None and org.kind == ORGANIZATION.name and org.spec.get("displayName"):
        return str(org.spec["displayName"])
    return services.settings.org_name
