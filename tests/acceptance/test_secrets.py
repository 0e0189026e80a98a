"""A Secret's value, sent to a real server in every way there is, is found nowhere afterwards but sealed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up
from nodus.testing.eventually import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

VALUE = "hunter2-nowhere-to-be-seen"
V1 = "/apis/nodus.dev/v1"
SECRETS, JOBS = f"{V1}/namespaces/default/secrets", f"{V1}/namespaces/default/jobs"
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    yield up(UpOptions(data_dir=tmp_path / "data", port=0, detach=True, issue_key=True))
    down(DownOptions(data_dir=tmp_path / "data"))


def secret(name: str, **spec: Any) -> dict[str, Any]:
    manifest = {"apiVersion": "nodus.dev/v1", "kind": "Secret", "metadata": {"name": name}}
    return {**manifest, "spec": {"stringData": {"KEY": VALUE}, **spec}}


def replies(http: httpx.Client) -> Iterator[httpx.Response]:
    """Send the value in every way, most of them mistaken."""
    for _ in range(2):
        yield http.post(SECRETS, json=secret("s"), headers={"Idempotency-Key": "k"})
    yield http.post(SECRETS, json=secret("other"), headers={"Idempotency-Key": "k"})
    yield http.post(SECRETS, json=secret("s", stringData={"KEY": VALUE + "-2"}))
    yield http.post(SECRETS, json=secret("dry"), params={"dryRun": "All"})
    yield http.post(SECRETS, json=secret("typed", stringData={"KEY": [VALUE]}))
    yield http.post(SECRETS, json=secret("keyed", stringData={f"bad key {VALUE}"[:4]: VALUE}))
    yield http.post(SECRETS, json=secret("registry", type="Registry"))
    yield http.post(SECRETS, content=json.dumps(secret("cut"))[:-1])
    for media, body in (
        (MERGE, {"spec": {"stringData": {"MORE": VALUE}}}),
        (MERGE, {"spec": {"stringData": {"MORE": {"deep": VALUE}}}}),
        (MERGE, {"spec": {"stringData": VALUE}}),
        (MERGE, {"metadata": {"annotations": {"nodus.dev/last-applied": json.dumps(secret("s"))}}}),
        (JSON_PATCH, [{"op": "add", "path": "/spec/stringData", "value": {"THIRD": VALUE}}]),
        (JSON_PATCH, [{"op": "test", "path": "/spec/stringData/KEY", "value": VALUE}]),
        (JSON_PATCH, [{"op": "replace", "path": "/spec/stringData/nope", "value": VALUE}]),
    ):
        for dry in ({}, {"dryRun": "All"}):
            headers = {"Content-Type": media}
            yield http.patch(f"{SECRETS}/s", content=json.dumps(body), headers=headers, params=dry)
    yield http.put(f"{SECRETS}/s", json=secret("s", type="Opaque"))
    yield http.put(f"{SECRETS}/s", json=secret("s", type="Registry"))
    for path in (f"{SECRETS}/s", SECRETS, f"{V1}/events", f"{V1}/auditevents", "/metrics"):
        yield http.get(path)
    yield http.get(SECRETS, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    yield http.get(SECRETS, params={"fieldSelector": f"spec.stringData.KEY={VALUE}"})


def test_value_is_nowhere(started: Started, tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {started.api_key}"}
    with httpx.Client(base_url=started.url, headers=headers, timeout=30) as http:
        found = list(replies(http))
        assert {answer.status_code for answer in found} >= {200, 201, 400, 409, 422}
        assert all(answer.status_code < 500 for answer in found)
        assert [answer.text for answer in found if VALUE in answer.text] == []

        spec = {
            "command": ["sh", "-c", 'test "$KEY" = "$(cat /run/secrets/s/KEY)"'],
            "secrets": ["s", {"name": "s", "version": 1, "mount": True}],
        }
        created = http.post(JOBS, json={"metadata": {"name": "uses"}, "spec": spec})
        assert created.status_code == 201, created.text
        phase = eventually(
            lambda: (p := http.get(f"{JOBS}/uses").json()["status"].get("phase")) in ("Succeeded", "Failed") and p,
            timeout_s=60,
        )
        assert phase == "Succeeded"
        assert VALUE not in http.get(f"{V1}/namespaces/default/attempts").text

    environment = {**os.environ, "NODUS_API_URL": started.url, "NODUS_API_KEY": str(started.api_key)}
    environment |= {"HOME": str(tmp_path / "home"), "NODUS_CONFIG": str(tmp_path / "config")}
    (tmp_path / "s.yaml").write_text(json.dumps(secret("s", stringData={"KEY": VALUE, "EXTRA": VALUE})))
    for words in (
        ("-v", "create", "secret", "cli", "--from-literal", f"KEY={VALUE}", "-o", "yaml"),
        ("-v", "apply", "-f", str(tmp_path / "s.yaml")),
        ("diff", "-f", str(tmp_path / "s.yaml")),
        ("describe", "secret/s"),
        ("get", "secret/s", "-o", "yaml"),
    ):
        command = [sys.executable, "-m", "nodus.cli.main", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=60)
        assert VALUE not in done.stdout + done.stderr, words
        assert done.returncode == (1 if words[0] == "diff" else 0), done.stderr

    down(DownOptions(data_dir=tmp_path / "data"))
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [str(path) for path in files if VALUE.encode() in path.read_bytes()] == []
