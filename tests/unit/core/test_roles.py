"""Scopes and roles, alone and together; expiries and SSH keys as text."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from nodus.core import roles
from nodus.core.kinds import KINDS
from nodus.core.validity import expiry_of, ssh_fingerprint

PLURALS = [kind.plural for kind in KINDS.values()]
START = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f laptop"


@pytest.mark.parametrize("text", ["*", "jobs:read", "*:write", "inference:invoke"])
def test_scopes_are_recognised(text: str) -> None:
    assert roles.is_scope(text)


@pytest.mark.parametrize(
    "text", ["", "jobs", "jobs:", ":read", "jobs:delete", "Jobs:read", "jobs:read ", "jobs:*", "**"]
)
def test_what_is_no_scope_is_not(text: str) -> None:
    assert not roles.is_scope(text)


@pytest.mark.parametrize(
    ("own", "wanted", "covered"),
    [
        (["*"], "*", True), (["*"], "jobs:read", True), (["*:read"], "*", False), (["*:read"], "*:read", True),
        (["*:read"], "jobs:read", True), (["jobs:read"], "*:read", False), (["jobs:read"], "jobs:write", False),
        ([], "jobs:read", False),
    ],
)  # fmt: skip
def test_covering(own: list[str], wanted: str, covered: bool) -> None:
    assert roles.covers(own, wanted) is covered


def test_common_scopes_are_the_intersection() -> None:
    assert roles.common_scopes(["*"], ["jobs:read", "*:write"]) == ["jobs:read", "*:write"]
    assert roles.common_scopes(["*:read", "jobs:write"], ["jobs:read", "jobs:write", "secrets:write"]) == [
        "jobs:read", "jobs:write",
    ]  # fmt: skip
    assert roles.common_scopes(["jobs:read"], ["secrets:read"]) == []
    assert roles.common_scopes(["*"], ["*"]) == ["*"]


def test_effective_scopes_say_just_what_is_allowed() -> None:
    assert roles.effective_scopes(["*"], "Owner", PLURALS) == ["*"]
    for role in (*roles.ROLES, roles.SERVICE_ACCOUNT):
        for scopes in (["*"], ["*:read"], ["jobs:read", "jobs:write", "apikeys:write"], ["members:write"], []):
            shown = roles.effective_scopes(scopes, role, PLURALS)
            for plural in PLURALS:
                for access in ("read", "write"):
                    allowed = roles.allows(scopes, plural, access) and roles.role_allows(role, plural, access)
                    assert roles.allows(shown, plural, access) is allowed, (role, scopes, plural, access)
    assert roles.effective_scopes(["*:read"], "Viewer", PLURALS) == ["*:read"]
    assert roles.effective_scopes(["inference:invoke"], "Developer", PLURALS) == ["inference:invoke"]
    assert roles.effective_scopes(["inference:invoke"], "Viewer", PLURALS) == []


def test_only_owners_decide_over_owners() -> None:
    assert [(a, b) for a in roles.ROLES for b in roles.ROLES if roles.outranks(a, b)] == [
        *(("Owner", role) for role in roles.ROLES), ("Admin", "Admin"), ("Admin", "Developer"), ("Admin", "Viewer"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("720h", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("90d", datetime(2026, 4, 1, 12, tzinfo=UTC)),
        ("1h30m", datetime(2026, 1, 1, 13, 30, tzinfo=UTC)),
        ("2026-02-28", datetime(2026, 3, 1, tzinfo=UTC)),
        ("2026-12-31T00:00:00+02:00", datetime(2026, 12, 30, 22, tzinfo=UTC)),
    ],
)
def test_expiries(text: str, end: datetime) -> None:
    assert expiry_of(text, START) == end


@pytest.mark.parametrize(
    "text", ["", "soon", "0s", "-1h", "2026-13-01", "2026-01-01T00:00:00", "99999999h", "9999-12-31", "1h 2m", "h"]
)
def test_what_says_no_end_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="720h or 90d"):
        expiry_of(text, START)


def test_fingerprints_are_ssh_keygens() -> None:
    assert ssh_fingerprint(KEY) == ssh_fingerprint(KEY.removesuffix(" laptop") + "\n")
    assert ssh_fingerprint(KEY).startswith("SHA256:")
    assert "=" not in ssh_fingerprint(KEY)


@pytest.mark.parametrize(
    "text",
    [
        "", "ssh-ed25519", "ssh-ed25519 !!!", "ssh-rsa " + KEY.split()[1], "ssh-ed25519 AAAA", KEY + "\n" + KEY,
        "-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n-----END OPENSSH PRIVATE KEY-----", "ssh-ed25519 " + "A" * 40,
    ],
)  # fmt: skip
def test_what_is_no_public_key_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ValueError) as raised:
        ssh_fingerprint(text)
    assert "secret" not in str(raised.value)
