"""Secrets, keys and signing in with the published client."""

from __future__ import annotations

import pytest

from tests.interop.conftest import Desk, cells

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]


def test_secrets_are_written_and_never_read_back(desk: Desk) -> None:
    for _ in range(2):  # the same again is the same object
        assert desk.ok("nodus create secret db --from-literal PASSWORD=hush") == "secret/db created\n"
    assert "AlreadyExists" in desk.fails("nodus create secret db --from-literal PASSWORD=other")
    desk.write("hub.env", "HF_TOKEN=hush\nOTHER=hush\n")
    assert desk.ok("nodus secret create hub --from-env-file hub.env") == "secret/hub created\n"
    shown = desk.ok("nodus get secret/hub -o yaml") + desk.ok("nodus describe secret/db")
    assert "hush" not in shown and "- HF_TOKEN" in shown and "version: 1" in shown
    desk.python("import nodus; nodus.Secret.create('db', {'PASSWORD': 'new'})")
    assert desk.ok("nodus get secret/db -o jsonpath='{.status.version}'") == "2"
    desk.ok("nodus delete secret/db secret/hub")


def test_keys_are_shown_once_and_bound_by_their_scopes(desk: Desk) -> None:
    key = desk.ok("nodus create apikey ci --scopes jobs:read --projects default").split()[-1]
    assert key.startswith("nodus_")
    _, *rows = cells(desk.ok("nodus get apikeys"))
    assert "ci" in {row[0] for row in rows} and key not in desk.ok("nodus get apikey/ci -o yaml")
    desk.variables["NODUS_API_KEY"] = key
    assert "jobs:read" in desk.ok("nodus whoami")
    assert "Forbidden" in desk.fails("nodus get secrets")
    desk.variables["NODUS_API_KEY"] = ""
    assert desk.run("nodus get jobs").returncode != 0


def test_both_clients_read_one_configuration(desk: Desk, ours: Desk) -> None:
    for user in (desk, ours):
        user.variables |= {"NODUS_API_KEY": "", "NODUS_API_URL": ""}
    for signs_in, reads in ((desk, ours), (ours, desk)):
        signs_in.ok(f"nodus login --with-token --api-url {desk.url}", stdin=desk.key)
        assert "usr_admin" in reads.ok("nodus whoami")
        assert reads.ok("nodus config current-context") == "nodus\n"
        seen = reads.python("import nodus; print(len(nodus.Client().list('environments', project='nodus')) > 1)")
        assert seen == "True\n"
        signs_in.ok("nodus logout")
        assert reads.run("nodus whoami").returncode != 0
