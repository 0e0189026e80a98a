"""Rotation of the master key: nothing is lost by it, and what is dropped afterwards is said first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nodus.core.clock import SystemClock
from nodus.core.kinds import API_KEY, ATTEMPT, JOB, SECRET
from nodus.server import bootstrap, datadir
from nodus.server.kinds.storage import read_secret
from nodus.server.rotation import RotationRefused, drop_old_keys, rotate
from nodus.server.services import Services
from nodus.server.settings import Settings
from nodus.server.store import keys, objects, secret_values

VALUE = "the-value"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with an admin key and a Secret; no server runs."""
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    services = opened(directory, issue_key=True)

    def fill(conn: Any) -> None:
        secret = objects.create(conn, SECRET, "default", "s", {}, status={"version": 1})
        sealed = services.signer.encrypt(json.dumps({"K": VALUE}).encode(), secret.uid)
        secret_values.put(conn, secret.uid, 1, sealed)

    services.store.write_sync(fill)
    services.store.close()
    return directory


def opened(directory: Path, *, issue_key: bool = False) -> Services:
    settings = Settings(data_dir=directory, insecure_no_sync=True)
    return bootstrap.open_services(settings, SystemClock(), issue_key=issue_key)[0]


def secret_of(directory: Path) -> str:
    services = opened(directory)
    try:
        found = services.store.read_sync(objects.get, SECRET, "default", "s")
        return services.store.read_sync(read_secret, services, found)[1]["K"]
    finally:
        services.store.close()


def test_secrets_are_encrypted_with_the_new_key_and_open_without_the_old(data: Path) -> None:
    assert rotate(data).secrets == 1
    assert rotate(data).version == 3
    assert secret_of(data) == VALUE
    assert drop_old_keys(data, lambda names: True) == 1  # the admin key was not shown since
    assert list(json.loads((data / "keys.json").read_text())["keys"]) == ["3"]
    assert secret_of(data) == VALUE
    assert (data / "keys.json").stat().st_mode & 0o777 == 0o600


def test_keys_that_would_end_are_named_and_nothing_happens_without_consent(data: Path) -> None:
    rotate(data)
    asked: list[list[str]] = []
    with pytest.raises(RotationRefused, match="nothing was changed"):
        drop_old_keys(data, lambda names: bool(asked.append(names)))
    assert asked == [["admin"]]
    services = opened(data)
    assert services.signer.versions == [1, 2]
    assert services.store.read_sync(keys.versions) == {1: 1}
    services.store.close()


def test_dropping_ends_keys_and_a_new_one_is_made_at_the_next_start(data: Path) -> None:
    rotate(data)
    drop_old_keys(data, lambda names: True)
    settings = Settings(data_dir=data, insecure_no_sync=True)
    services, key = bootstrap.open_services(settings, SystemClock())
    assert key is not None
    assert [k.name for k in services.store.read_sync(objects.list_, API_KEY, None).items] == ["admin"]
    services.store.close()
    with pytest.raises(RotationRefused, match="one master key only"):
        drop_old_keys(data, lambda names: True)


def test_attempts_with_tokens_of_before_hold_the_old_key(data: Path) -> None:
    services = opened(data)

    def start(conn: Any) -> None:
        job = objects.create(conn, JOB, "default", "j", {"command": ["true"]})
        objects.create(conn, ATTEMPT, "default", "j-1", {"job": "j"}, owner=job, status={"phase": "Running"})

    services.store.write_sync(start)
    services.store.close()
    rotate(data)
    with pytest.raises(RotationRefused, match="j-1"):
        drop_old_keys(data, lambda names: True)


def test_a_running_server_and_a_missing_key_file_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(RotationRefused, match="there is no"):
        rotate(tmp_path / "nowhere")
    lock = datadir.DataDirLock.acquire(data)
    lock.release()
    (data / "keys.json").write_text("{}")
    with pytest.raises(RotationRefused, match="damaged"):
        rotate(data)
