"""What Jobs can ask for beyond a command, with real controllers, supervisors and sandboxes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodus.core.kinds import JOB
from nodus.server.compute.local import logstore
from nodus.server.store import Object, objects, volumes

from .test_job_references import add_volume, output
from .test_jobs import Server

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("jobs") / "data")
    made.up()
    yield made
    made.close()


def ended(server: Server, job: Object) -> dict[str, Any]:
    return server.in_phase(job, "Succeeded", "Failed", timeout_s=60).status


def test_every_index_runs_with_its_number_and_state_and_leaves_its_outputs(server: Server) -> None:
    script = (
        "[ $NODUS_INDEX != 1 ] || [ -e /nodus/state/tried ] || { touch /nodus/state/tried; exit 5; };"
        "ls /nodus/state; echo $NODUS_INDEX/$NODUS_COMPLETIONS > /nodus/outputs/r"
    )
    job = server.add("many", "sh", "-c", script, completions=3, parallelism=2, backoffLimit=1)
    status = ended(server, job)
    assert (status["phase"], status["indexes"]["succeeded"]) == ("Succeeded", "0-2")
    found = {item["index"]: server.store.blobs.read_bytes(item["sha256"]) for item in status["outputs"]}
    assert found == {0: b"0/3\n", 1: b"1/3\n", 2: b"2/3\n"}
    logs = {(a.spec["slot"], a.spec["epoch"]): server.log(a) for a in server.attempts(job)}
    assert logs == {(0, 1): "", (1, 1): "", (1, 2): "tried\n", (2, 1): ""}


def test_failed_index_ends_the_others(server: Server) -> None:
    job = server.add("one-fails", "sh", "-c", "[ $NODUS_INDEX = 0 ] && exit 9; exec sleep 91234", completions=2)
    status = ended(server, job)
    assert (status["reason"], status["exitCode"], status["message"]) == (
        "BackoffLimitExceeded",
        9,
        "index 0: the command exited with code 9",
    )
    assert {a.status["phase"] for a in server.attempts(job)} <= {"Failed", "Cancelled"}
    assert [a.status.get("exitCode") for a in server.attempts(job) if a.spec["slot"] == 1] == [None]


def test_init_command_runs_first_and_its_failure_is_told(server: Server) -> None:
    job = server.add("init", "cat", "made", initCommand=["sh", "-c", "echo 'it is' > made"])
    assert output(server, job) == "it is\n"
    job = server.add("init-fails", "echo", "never", initCommand=["sh", "-c", "echo trying; exit 6"])
    status = ended(server, job)
    assert (status["exitCode"], "initCommand failed" in status["message"]) == (6, True)
    assert server.log(server.attempts(job)[0]) == "trying\n"
    for name, first, command in (("init-then-nothing", "true", "no-such"), ("init-of-nothing", "no-such", "true")):
        job = server.add(name, command, initCommand=[first])
        assert (ended(server, job)["exitCode"], server.log(server.attempts(job)[0])) == (
            127,
            "no-such: command not found\n",
        )


def test_checkpoint_directories_go_from_attempt_to_attempt(server: Server) -> None:
    recovery = {"checkpoint": {"paths": ["/workspace/ckpt"]}}
    script = "echo x >> ckpt/n; wc -l < ckpt/n; echo restored=$NODUS_RESTORED; [ $(wc -l < ckpt/n) = 2 ]"
    job = server.add("ckpt", "sh", "-c", script, recovery=recovery, backoffLimit=1)
    assert output(server, job) == "2\nrestored=1\n"


def test_restartable_run_begins_anew(server: Server) -> None:
    script = "echo x >> /nodus/state/n; wc -l < /nodus/state/n; exit 1"
    job = server.add("anew", "sh", "-c", script, recovery={"continuity": "Restartable"}, backoffLimit=1)
    assert ended(server, job)["phase"] == "Failed"
    assert [server.log(attempt) for attempt in server.attempts(job)] == ["1\n", "1\n"]


def test_ephemeral_run_is_not_started_again(server: Server) -> None:
    job = server.add("ephemeral", "sleep", "60", recovery={"continuity": "Ephemeral"})
    server.in_phase(job, "Running")
    os.kill(server.supervisor(server.attempts(job)[0]), signal.SIGKILL)
    assert (ended(server, job)["reason"], len(server.attempts(job))) == ("AttemptLost", 1)


def test_fifty_megabytes_of_log_are_there_after_a_failure(server: Server) -> None:
    line = "x" * 99
    script = f"import sys\nfor n in range(500_000): sys.stdout.write('{line}\\n')\nsys.stdout.flush(); sys.exit(3)"
    job = server.add("chatty", "python3", "-c", script)
    assert ended(server, job)["exitCode"] == 3
    pieces = list(logstore.read_pieces(server.directory(server.attempts(job)[0]).log))
    assert (sum(len(piece.data) for piece in pieces), sum(piece.dropped for piece in pieces)) == (50_000_000, 0)


def test_volume_below_the_workspace_and_outputs_from_it(server: Server) -> None:
    add_volume(server, "below", **{"a.txt": b"one\n"})
    mounts = [{"volume": "below", "mountPath": "/workspace/data/v"}]
    outputs = [{"name": "kept", "path": "/workspace/data/v/b.txt"}, {"name": "never", "path": "/workspace/no"}]
    script = "cat data/v/a.txt; cp data/v/a.txt data/v/b.txt"
    job = server.add("below", "sh", "-c", script, volumes=mounts, outputs=outputs)
    assert output(server, job) == "one\n"
    status = ended(server, job)
    assert [(item["name"], item["path"]) for item in status["outputs"]] == [("kept", "/workspace/data/v/b.txt")]


def test_two_jobs_that_wrote_to_one_volume_undo_nothing(server: Server) -> None:
    volume = add_volume(server, "shared", **{"base.txt": b"b"})
    server.store.write_sync(objects.update, volume, spec={"accessMode": "ReadWriteMany"})
    mounts = [{"volume": "shared", "mountPath": "/v"}]
    wait = "echo $NODUS_JOB > /v/$NODUS_JOB; while [ ! -e /nodus/state/go ]; do sleep 0.05; done"
    small = {"cpu": 0.2, "memory": "64Mi"}
    jobs = [server.add(name, "sh", "-c", wait, volumes=mounts, resources=small) for name in ("one", "two")]
    for job in jobs:
        server.in_phase(job, "Running")
        assert server.get(job).status["pinned"] == {"volumes": {"shared": 1}}
    for job in jobs:
        (server.data_dir / "jobs" / job.uid / "state" / "go").touch()
        assert ended(server, job)["phase"] == "Succeeded"
    tree = server.store.read_sync(volumes.tree, volume.uid, 3)
    assert [entry.path for entry in tree] == ["base.txt", "one", "two"]


def test_revision_is_the_one_fixed_when_the_job_was_created(server: Server) -> None:
    volume = add_volume(server, "moving", **{"a.txt": b"old\n"})
    status = {"phase": "Queued", "pinned": {"volumes": {"moving": 1}}}
    newer = [volumes.FileEntry("a.txt", server.store.blobs.put_bytes(b"new\n"), 4)]
    server.store.write_sync(volumes.commit, volume.uid, newer)
    server.store.write_sync(objects.update_status, volume.uid, {"phase": "Ready", "revision": 2})
    spec = {
        "command": ["cat", "/v/a.txt"],
        "volumes": [{"volume": "moving", "mountPath": "/v", "readOnly": True}],
        "resources": {"memory": "256Mi"},
    }
    job = server.store.write_sync(objects.create, JOB, "default", "reads-old", spec, status=status)
    assert output(server, job) == "old\n"


def test_time_to_live_deletes_an_ended_job_with_its_files(server: Server) -> None:
    from nodus.testing.eventually import eventually

    job = server.add("short-lived", "true", ttlSecondsAfterFinished=0)
    eventually(lambda: server.store.read_sync(objects.find_by_uid, job.uid) is None, timeout_s=40)
    eventually(lambda: not Path(server.data_dir / "jobs" / job.uid).exists())
