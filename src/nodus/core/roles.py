"""Scopes and roles: what a key may do, what a member may do, and what is left when both must agree.

A scope is ``<plural>:read``, ``<plural>:write`` or ``<plural>:invoke``, with ``*`` for any plural, or ``*`` alone. A
key has scopes, its member a role; a call passes when both allow it. Nothing here knows an object: that members
change their own keys only, and that an Admin leaves Owners alone, is decided where the object is at hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

Role = Literal["Owner", "Admin", "Developer", "Viewer"]
Access = Literal["read", "write", "invoke"]
ROLES: tuple[Role, ...] = ("Owner", "Admin", "Developer", "Viewer")
"""From the one that may do most."""
MANAGERS: tuple[Role, ...] = ("Owner", "Admin")
"""Roles that manage members, projects and everybody's keys."""
SERVICE_ACCOUNT = "ServiceAccount"
"""Stands in a role's place for keys that belong to a ServiceAccount instead of a member."""

ANY = "*"
MANAGED = frozenset({"organizations", "projects", "members", "serviceaccounts", "budgets", "billingaccounts"})
"""Kinds that only an Owner or Admin changes."""
OWN = frozenset({"apikeys", "sshkeys"})
"""Kinds of which every member changes their own."""
PERSONAL = frozenset({"apikeys", "sshkeys", "members", "auditevents"})
"""Kinds about people, which a ServiceAccount neither reads nor changes."""
_SCOPE = re.compile(r"\*|(\*|[a-z]+):(read|write|invoke)")


def is_scope(text: str) -> bool:
    """Tell whether a text is written like a scope."""
    return _SCOPE.fullmatch(text) is not None


def allows(scopes: Iterable[str], plural: str, access: Access) -> bool:
    """Tell whether scopes allow an access to a kind."""
    return not {ANY, f"*:{access}", f"{plural}:{access}"}.isdisjoint(scopes)


def covers(scopes: Iterable[str], wanted: str) -> bool:
    """Tell whether everything that ``wanted`` allows is allowed by ``scopes``."""
    plural, _, access = wanted.partition(":")
    return not {ANY, f"*:{access}", f"{plural}:{access}"}.isdisjoint(scopes) if access else ANY in scopes


def common_scopes(one: Iterable[str], other: Iterable[str]) -> list[str]:
    """Return the scopes that two sets both allow."""
    others = list(other)
    found = (_common(first, second) for first in one for second in others)
    return list(dict.fromkeys(scope for scope in found if scope is not None))


def _common(one: str, other: str) -> str | None:
    """What two scopes both allow, as one scope."""
    parts = []
    for a, b in zip(_parts(one), _parts(other), strict=True):
        if ANY not in (a, b) and a != b:
            return None
        parts.append(b if a == ANY else a)
    return ANY if parts == [ANY, ANY] else ":".join(parts)


def _parts(scope: str) -> tuple[str, str]:
    plural, _, access = scope.partition(":")
    return plural, access or ANY


def role_allows(role: str, plural: str, access: Access) -> bool:
    """Tell whether a role, or ``ServiceAccount``, allows an access to a kind at all."""
    match role:
        case "Owner":
            return True
        case "Admin":
            return access != "write" or plural != "organizations"
        case "Developer":
            return access != "write" or plural not in MANAGED
        case "Viewer":
            return access == "read" or (access == "write" and plural in OWN)
        case "ServiceAccount":
            return plural not in PERSONAL and (access != "write" or plural not in MANAGED)
        case _:
            return False


def outranks(role: str, other: str) -> bool:
    """Tell whether whoever has ``role`` may decide over somebody who has ``other``: Admins leave Owners alone."""
    return role == "Owner" or (role == "Admin" and other != "Owner")


def effective_scopes(scopes: Sequence[str], role: str, plurals: Iterable[str]) -> list[str]:
    """What scopes and role allow together, written so that clients can compute permissions from it.

    Args:
        scopes: Of the key.
        role: Of its member, or ``ServiceAccount``.
        plurals: Of the kinds there are.

    Returns:
        ``["*"]`` for everything, else reads (``*:read`` for all of them), writes by kind, and what may be invoked.
    """
    if role == "Owner" and ANY in scopes:
        return [ANY]
    names = sorted(plurals)

    def allowed(access: Access) -> list[str]:
        return [name for name in names if allows(scopes, name, access) and role_allows(role, name, access)]

    readable = allowed("read")
    found = ["*:read"] if covers(scopes, "*:read") and readable == names else [f"{name}:read" for name in readable]
    found += [f"{name}:write" for name in allowed("write")]
    if role_allows(role, "inference", "invoke"):
        whole = covers(scopes, "*:invoke")
        found += ["*:invoke"] if whole else [scope for scope in scopes if scope.endswith(":invoke")]
    return found
