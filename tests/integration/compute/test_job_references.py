"""Jobs that refer to Secrets, Volumes and uploaded sources, from the objects to what the command finds."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodus.core.kinds import SECRET, VOLUME
from nodus.server.signing import Signer
from nodus.server.store import Object, objects, secret_values, volumes
from nodus.server.store.volumes import FileEntry
from nodus.testing.eventually import eventually

from .test_jobs import Server

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "data")
    made.up()
    yield made
    made.close()


def add_secret(server: Server, name: str, **values: str) -> Object:
    secret = server.store.write_sync(objects.create, SECRET, "default", name, {}, status={"phase": "Ready"})
    sealed = Signer.open(server.data_dir / "keys").encrypt(json.dumps(values).encode(), secret.uid)
    server.store.write_sync(secret_values.put, secret.uid, 1, sealed)
    return secret


def add_volume(server: Server, name: str, **files: bytes) -> Object:
    status = {"phase": "Ready", "revision": 1 if files else 0}
    volume = server.store.write_sync(objects.create, VOLUME, "default", name, {}, status=status)
    tree = [FileEntry(path, server.store.blobs.put_bytes(data), len(data)) for path, data in files.items()]
    if tree:
        server.store.write_sync(volumes.commit, volume.uid, tree)
    return volume


def output(server: Server, job: Object) -> str:
    done = server.in_phase(job, "Succeeded", "Failed")
    assert done.status["phase"] == "Succeeded", done.status
    return server.log(server.attempts(job)[-1])


def test_secrets_become_variables(server: Server) -> None:
    add_secret(server, "hf", HF_TOKEN="tok-1", OTHER="x")
    reference = {"secretKeyRef": {"name": "hf", "key": "OTHER"}}
    env = [{"name": "PLAIN", "value": "a b"}, {"name": "NAMED", "valueFrom": reference}]
    job = server.add("env", "sh", "-c", 'echo "$HF_TOKEN $PLAIN $NAMED"', env=env, secrets=["hf"])
    assert output(server, job) == "tok-1 a b x\n"


def test_mounted_secret_is_read_only_files_of_the_version_asked_for(server: Server) -> None:
    secret = add_secret(server, "tls", CERT="old")
    sealed = Signer.open(server.data_dir / "keys").encrypt(json.dumps({"CERT": "new"}).encode(), secret.uid)
    server.store.write_sync(secret_values.put, secret.uid, 2, sealed)
    script = 'cat /run/secrets/tls/CERT; echo " $OLD ${CERT-unset}"; ! echo x 2>/dev/null >/run/secrets/tls/CERT'
    env = [{"name": "OLD", "valueFrom": {"secretKeyRef": {"name": "tls", "key": "CERT", "version": 1}}}]
    job = server.add("mounted", "sh", "-c", script, env=env, secrets=[{"name": "tls", "mount": True}])
    assert output(server, job) == "new old unset\n"


def test_missing_secret_fails_the_job_with_its_name(server: Server) -> None:
    job = server.add("env", "true", secrets=["absent"], backoffLimit=3)
    status = server.in_phase(job, "Failed").status
    assert (status["reason"], "absent" in status["message"]) == ("StartFailed", True)


def test_volume_is_read_and_a_written_one_gets_a_revision_when_the_job_succeeds(server: Server) -> None:
    add_volume(server, "model", **{"weights.bin": b"w"})
    data = add_volume(server, "data", **{"a.txt": b"one\n"})
    mounts = [
        {"volume": "model", "mountPath": "/model", "readOnly": True},
        {"volume": "data", "mountPath": "/data"},
    ]
    failing = server.add("fails", "sh", "-c", "echo lost > /data/a.txt; exit 1", volumes=mounts)
    server.in_phase(failing, "Failed")
    assert server.get(data).status["revision"] == 1
    script = (
        "cat /model/weights.bin /data/a.txt; mkdir /data/sub; echo two > /data/sub/b.txt; ! touch /model/x 2>/dev/null"
    )
    job = server.add("writes", "sh", "-c", script, volumes=mounts)
    assert output(server, job) == "wone\n"
    assert server.get(data).status["revision"] == 2
    tree = server.store.read_sync(volumes.tree, data.uid, 2)
    assert {entry.path: server.store.blobs.read_bytes(entry.sha256) for entry in tree} == {
        "a.txt": b"one\n",
        "sub/b.txt": b"two\n",
    }
    pinned = [{"volume": "data", "mountPath": "/data", "revision": 1}]
    job = server.add("pinned", "ls", "/data", volumes=pinned)
    assert output(server, job) == "a.txt\n"


def test_one_job_at_a_time_writes_to_a_volume(server: Server) -> None:
    data = add_volume(server, "data", **{"a.txt": b"one\n"})
    mounts = [{"volume": "data", "mountPath": "/data"}]
    first = server.add("first", "sh", "-c", "echo 1 > /data/first; sleep 600", volumes=mounts)
    eventually(lambda: (server.get(data).status.get("holder") or {}).get("name") == "first")
    second = server.add("second", "sh", "-c", "ls /data; echo 2 > /data/second", volumes=mounts)
    eventually(lambda: "job/first writes to it" in server.get(second).status.get("message", ""))
    reading = [{**mounts[0], "readOnly": True}]
    assert output(server, server.add("reader", "cat", "/data/a.txt", volumes=reading)) == "one\n"

    server.store.write_sync(objects.update, server.get(first), spec={**first.spec, "state": "Cancelled"})
    assert output(server, second) == "a.txt\n"
    assert server.get(data).status["revision"] == 2
    server.in_phase(first, "Cancelled")


def test_job_that_writes_more_than_fits_fails_with_the_sizes(server: Server) -> None:
    volume = add_volume(server, "data")
    server.store.write_sync(objects.update, server.get(volume), spec={"size": "1Ki"})
    mounts = [{"volume": "data", "mountPath": "/data"}]
    job = server.add("large", "sh", "-c", "head -c 2000 /dev/zero > /data/a", volumes=mounts)
    status = server.in_phase(job, "Failed").status
    assert (status["reason"], "spec.size is 1024" in status["message"]) == ("VolumeNotCommitted", True)


def test_volume_that_is_not_ready_is_waited_for(server: Server) -> None:
    volume = add_volume(server, "model", **{"weights.bin": b"w"})
    server.store.write_sync(objects.update_status, volume.uid, {"phase": "Pending"})
    job = server.add(
        "waits", "cat", "/m/weights.bin", volumes=[{"volume": "model", "mountPath": "/m", "readOnly": True}]
    )
    other = server.add("other", "true")
    server.in_phase(other, "Succeeded")
    eventually(lambda: "'model' is Pending" in server.get(job).status.get("message", ""))
    server.store.write_sync(objects.update_status, volume.uid, {"phase": "Ready", "revision": 1})
    assert output(server, job) == "w"


def test_uploaded_source_and_inputs_are_there(server: Server) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        data = b"import sys; print(open(sys.argv[1]).read())"
        member = tarfile.TarInfo("main.py")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    source = f"sha256:{server.store.blobs.put_bytes(buffer.getvalue())}"
    params = f"sha256:{server.store.blobs.put_bytes(b'{}')}"
    inputs = [{"name": "params", "path": "/nodus/inputs/params/params.json", "blob": params}]
    command = ("python", "main.py", "/nodus/inputs/params/params.json")
    assert output(server, server.add("source", *command, source={"blob": source}, inputs=inputs)) == "{}\n"


def test_values_leave_the_disk_when_the_command_runs(server: Server) -> None:
    add_secret(server, "s", KEY="tok-on-disk")
    secrets = ["s", {"name": "s", "mount": True}]
    job = server.add("long", "sh", "-c", "cat /run/secrets/s/KEY; sleep 600", secrets=secrets)
    server.in_phase(job, "Running")

    def holding() -> list[str]:
        files = [path for path in server.data_dir.rglob("*") if path.is_file() and "log" not in path.parts]
        return [str(path) for path in files if b"tok-on-disk" in path.read_bytes()]

    eventually(lambda: not holding())
    server.store.write_sync(objects.update, server.get(job), spec={**job.spec, "state": "Cancelled"})
    server.in_phase(job, "Cancelled")
