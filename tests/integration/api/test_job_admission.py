"""What a Job may say: every mistake with its path, what is not built by name, what is fixed when it is created."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nodus.server.services import Services
from nodus.server.store import Object, volumes
from nodus.server.store.volumes import FileEntry
from tests.integration.api.conftest import Api
from tests.integration.api.helpers import JOBS, SECRETS, VOLUMES, causes, job

SECRET = {"kind": "Secret", "apiVersion": "nodus.dev/v1"}


async def refused(api: Api, reason: str = "Invalid", **spec: Any) -> dict[str, str]:
    return causes(await api.fails(422, reason, "POST", JOBS, json=job("j", **spec)))


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"distributed": {"nodes": 2}}, "spec.distributed.nodes"),
        ({"distributed": {"totalGPUs": 16}}, "spec.distributed.totalGPUs"),
        ({"distributed": {"totalGPUs": 4, "gpusPerNode": 2}}, "spec.distributed.totalGPUs"),
        ({"distributed": {"nodes": 1, "launcher": "Ray"}}, "spec.distributed.launcher"),
        ({"distributed": {"nodes": 1, "startupTimeout": "15m"}}, "spec.distributed.startupTimeout"),
        ({"distributed": {"nodes": 1}, "completions": 2}, "spec.completions"),
        ({"completions": 5000}, "spec.completions"),
        ({"sidecars": [{"command": ["x"]}]}, "spec.sidecars"),
        ({"imageRef": "built"}, "spec.imageRef"),
        ({"network": {"egress": {"policy": "Open"}}}, "spec.network.egress.policy"),
        ({"network": {"egress": {"allow": ["example.com"]}}}, "spec.network.egress.allow"),
        ({"placement": {"pool": "mine"}}, "spec.placement.pool"),
        ({"outputs": [{"name": "o", "path": "/workspace/o", "sink": "s3://x"}]}, "spec.outputs[0].sink"),
        ({"outputs": [{"name": "o", "path": "/workspace/o", "fromRanks": "1-3"}]}, "spec.outputs[0].fromRanks"),
        ({"resources": {"nodes": 2}}, "spec.resources.nodes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
async def test_what_is_not_built_is_unsupported_by_name(api: Api, spec: dict[str, Any], field: str) -> None:
    assert list(await refused(api, "Unsupported", **spec)) == [field]


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        ({"command": []}, "spec.command", "say what to run"),
        ({"initCommand": []}, "spec.initCommand", "is empty"),
        ({"workingDir": "/workspace/../etc"}, "spec.workingDir", ".."),
        ({"workingDir": "/nowhere"}, "spec.workingDir", "is not there in the run"),
        ({"command": ["echo", "x" * 140_000]}, "spec.command[1]", "140000 bytes"),
        ({"command": [""]}, "spec.command[0]", "is empty"),
        ({"env": [{"name": "A", "value": "x" * 140_000}]}, "spec.env[0].value", "is longer than"),
        ({"resources": {"memory": "1Ki"}}, "spec.resources.memory", "16Mi is the least"),
        ({"parallelism": 2}, "spec.parallelism", "set spec.completions too"),
        ({"timeout": "0s"}, "spec.timeout", "not between 0 and a year"),
        ({"timeout": "9999999h"}, "spec.timeout", "not between"),
        ({"ttlSecondsAfterFinished": 10**15}, "spec.ttlSecondsAfterFinished", "less than or equal"),
        ({"resources": {"cpu": "abc"}}, "spec.resources.cpu", "'abc' is no amount"),
        ({"resources": {"cpu": 0}}, "spec.resources.cpu", "'0' is no amount"),
        ({"completeByTime": "tomorrow"}, "spec.completeByTime", "is no time"),
        ({"completeByTime": "0001-01-01T00:00:00+10:00"}, "spec.completeByTime", "is no time"),
        ({"expectedDuration": "9" * 400 + "h"}, "spec.expectedDuration", "is not a duration"),
        ({"completeByTime": "2001-01-01T00:00:00Z"}, "spec.completeByTime", "has passed"),
        ({"image": "debian:12"}, "spec.image", "managed images are"),
        ({"env": [{"name": "A"}]}, "spec.env[0]", "exactly one"),
        ({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}, "spec.env[1].name", "set twice"),
        ({"env": [{"name": "NODUS_JOB", "value": "x"}]}, "spec.env[0].name", "Nodus sets"),
        ({"env": [{"name": "MASTER_PORT", "value": "1"}], "distributed": {"nodes": 1}}, "spec.env[0].name", "sets"),
        ({"secrets": ["nope"]}, "spec.secrets[0].name", "no secret 'nope'"),
        ({"secrets": [{"name": "s", "version": 9}]}, "spec.secrets[0].version", "no version 9"),
        (
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "NO"}}}]},
            "spec.env[0].valueFrom.secretKeyRef.key",
            "no 'NO': KEY",
        ),
        ({"volumes": [{"volume": "nope", "mountPath": "/d"}]}, "spec.volumes[0].volume", "no volume 'nope'"),
        ({"volumes": [{"volume": "v", "mountPath": "/d", "revision": 9}]}, "spec.volumes[0].revision", "it has 1 to 1"),
        ({"volumes": [{"volume": "v", "mountPath": "/usr/lib"}]}, "spec.volumes[0].mountPath", "belongs to the system"),
        ({"volumes": [{"volume": "v", "mountPath": "/nodus"}]}, "spec.volumes[0].mountPath", "would hide"),
        ({"volumes": [{"volume": "v", "mountPath": "/a/../etc"}]}, "spec.volumes[0].mountPath", "without '..'"),
        ({"volumes": [{"volume": "v", "mountPath": "/"}]}, "spec.volumes[0].mountPath", "not a path below /"),
        ({"volumes": [{"volume": "ro", "mountPath": "/d"}]}, "spec.volumes[0].readOnly", "ReadOnlyMany"),
        (
            {"volumes": [{"volume": "v", "mountPath": "/d"}, {"volume": "v", "mountPath": "/d/e"}]},
            "spec.volumes[1].mountPath",
            "overlaps /d",
        ),
        ({"source": {}}, "spec.source", "exactly one of blob and git"),
        ({"source": {"git": {"repo": "file:///etc"}}}, "spec.source.git.repo", "is no address"),
        ({"source": {"git": {"repo": "ext::sh -c true"}}}, "spec.source.git.repo", "is no address"),
        ({"source": {"git": {"repo": "https://u:p@example.com/x"}}}, "spec.source.git.repo", "must not hold"),
        (
            {"source": {"git": {"repo": "https://x.y/z", "ref": "--upload-pack=x"}}},
            "spec.source.git.ref",
            "is no commit",
        ),
        ({"source": {"git": {"repo": "https://x.y/z", "path": "../.."}}}, "spec.source.git.path", "leads out"),
        ({"source": {"blob": "sha256:" + "0" * 64}}, "spec.source.blob", "upload it first"),
        ({"inputs": [{"path": "/in/a", "blob": "sha256:" + "0" * 64}]}, "spec.inputs[0].blob", "upload it first"),
        ({"inputs": [{"path": "/in/a", "blob": "x"}]}, "spec.inputs[0].blob", "pattern"),
        ({"outputs": [{"name": "o", "path": "/tmp/o"}]}, "spec.outputs[0].path", "gone when the command ends"),
        ({"outputs": [{"name": "../o", "path": "/workspace/o"}]}, "spec.outputs[0].name", "is not a name"),
        ({"outputs": [{"name": "o", "path": "/workspace/../etc"}]}, "spec.outputs[0].path", ".."),
        (
            {"outputs": [{"name": "o", "path": "/workspace/a"}, {"name": "o", "path": "/workspace/b"}]},
            "spec.outputs[1].name",
            "used twice",
        ),
        ({"distributed": {}}, "spec.distributed", "exactly one of nodes and totalGPUs"),
        ({"distributed": {"nodes": 1, "launcher": "Bogus"}}, "spec.distributed.launcher", "'Bogus' is not one of"),
        ({"recovery": {"continuity": "Sometimes"}}, "spec.recovery.continuity", "Checkpointed"),
        ({"recovery": {"checkpoint": {"paths": ["/proc/x"]}}}, "spec.recovery.checkpoint.paths[0]", "system"),
        ({"placement": {"offerings": ["h100-x8"]}}, "spec.placement.offerings", "h100-x8 is not here"),
        ({"network": {"egres": {}}}, "spec.network.egres", "unknown field"),
        ({"state": "Stopped"}, "spec.state", "Running"),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
async def test_mistakes_are_told_with_their_path(
    api: Api, services: Services, put: Callable[..., Object], spec: dict[str, Any], field: str, words: str
) -> None:
    await api.ok("POST", SECRETS, json={**SECRET, "metadata": {"name": "s"}, "spec": {"stringData": {"KEY": "v"}}})
    volume = put("Volume", "v", {"accessMode": "ReadWriteOnce"}, status={"phase": "Ready", "revision": 1})
    put("Volume", "ro", {"accessMode": "ReadOnlyMany"}, status={"phase": "Ready", "revision": 0})
    digest = services.store.blobs.put_bytes(b"x")
    services.store.write_sync(volumes.commit, volume.uid, [FileEntry("a", digest, 1)])
    found = await refused(api, **spec)
    assert words in found[field], found


async def test_mistakes_and_what_is_not_built_come_in_one_answer(api: Api) -> None:
    found = await refused(api, distributed={"nodes": 4}, timeout="0s", secrets=["nope"])
    assert set(found) == {"spec.distributed.nodes", "spec.timeout", "spec.secrets[0].name"}


@pytest.mark.parametrize(
    "value",
    ["hf_" + "a" * 34, "ghp_" + "b" * 36, "AKIA" + "C" * 16, "nodus_" + "d" * 40, "-----BEGIN PRIVATE KEY-----"],
)
async def test_credentials_in_plain_env_are_refused_and_not_quoted(api: Api, value: str) -> None:
    status = await api.fails(422, "SecretValueInEnv", "POST", JOBS, json=job(env=[{"name": "T", "value": value}]))
    assert value not in str(status)
    assert "nodus create secret" in status["fix"]
    assert list(causes(status)) == ["spec.env[0].value"]


async def test_one_node_of_a_gang_is_taken(api: Api) -> None:
    for number, gang in enumerate(({"nodes": 1}, {"nodes": 1, "launcher": "Torchrun", "network": "Global"})):
        await api.ok("POST", JOBS, json=job(f"one-{number}", distributed=gang))
    made = await api.ok("POST", JOBS, json=job("gpus", distributed={"totalGPUs": 2}, resources={"gpu": "H100:2"}))
    shape = {"nodes": 1, "gpusPerNode": 2, "totalGPUs": 2, "network": "Colocated", "resolvedFrom": "totalGPUs"}
    assert made["status"]["topology"] == shape


async def test_volumes_are_fixed_to_their_revision_when_the_job_is_created(
    api: Api, put: Callable[..., Object]
) -> None:
    put("Volume", "now", status={"phase": "Ready", "revision": 3})
    put("Volume", "later", status={"phase": "Pending", "revision": 0})
    mounts = [{"volume": name, "mountPath": f"/{name}", "readOnly": True} for name in ("now", "later")]
    made = await api.ok("POST", JOBS, json=job(volumes=mounts))
    assert made["status"]["pinned"] == {"volumes": {"now": 3}}
    assert made["spec"]["volumes"] == mounts
    await api.ok("GET", f"{VOLUMES}/now")


async def test_estimate_is_kept_with_the_job_and_says_what_changes_nothing(api: Api) -> None:
    spec = {
        "placement": {"regions": ["us"], "profile": "Cost"},
        "resources": {"disk": "10Gi"},
        "expectedDuration": "5m",
    }
    made = await api.ok("POST", JOBS, json=job(**spec))
    estimate = made["status"]["estimate"]
    assert [warning["code"] for warning in estimate["warnings"]] == ["PlacementIgnored", "DiskNotLimited"]
    assert (estimate["costUSD"], estimate["duration"]["p50"]) == ({"p50": "0.00", "p90": "0.00"}, "5m")


async def test_changes_after_creation_are_not_checked_against_what_is_gone(
    api: Api, put: Callable[..., Object]
) -> None:
    put("Job", "j", {"command": ["x"], "secrets": ["deleted-since"], "completions": 4}, status={"phase": "Running"})
    for change in ({"state": "Suspended"}, {"parallelism": 3}, {"state": "Running"}, {"state": "Cancelled"}):
        assert (await api.patch(f"{JOBS}/j", {"spec": change})).status_code == 200
    assert (await api.patch(f"{JOBS}/j", {"spec": {"state": "Running"}})).status_code == 422
    assert (await api.patch(f"{JOBS}/j", {"spec": {"completions": 5}})).json()["reason"] == "FieldImmutable"
