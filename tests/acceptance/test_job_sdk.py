"""``nodus.Job`` against a real server: created, followed, waited for, fetched, blocking and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import nodus
from nodus.client.client import Client
from nodus.core.errors import AlreadyExists, FileTooLarge, Invalid, JobFailed, NodusError, NodusTimeout, Unsupported
from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    data_dir = tmp_path_factory.mktemp("sdk") / "data"
    yield up(UpOptions(data_dir=data_dir, port=0, detach=True, issue_key=True))
    down(DownOptions(data_dir=data_dir))


@pytest.fixture
def client(server: Started) -> Iterator[Client]:
    with Client(api_url=server.url, api_key=str(server.api_key)) as made:
        yield made


def test_job_runs_with_everything_it_was_given(client: Client, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.sh").write_text('echo "$WORD $KEY $(cat /data/in.txt)"; mkdir made; echo 1 > made/x\n')
    (tmp_path / "in.txt").write_text("from the volume")
    volume = nodus.Volume.from_name("sdk-data", create_if_missing=True, client=client)
    volume.put(tmp_path / "in.txt", "in.txt")
    secret = nodus.Secret.create("sdk-secret", {"KEY": "s3cret"}, client=client)
    job = nodus.Job.create(
        command=["sh", "main.sh"],
        source=tmp_path / "code",
        env={"WORD": "hello"},
        secrets=[secret],
        volumes={"/data": f"{volume.name}:ro"},
        outputs={"made": "/workspace/made"},
        cpu=1,
        memory="512Mi",
        timeout=timedelta(minutes=2),
        labels={"team": "a"},
        client=client,
    )
    assert job.name.startswith("job-")
    assert job.spec.timeout == "120s"
    assert list(job.logs(follow=True)) == ["hello s3cret from the volume\n"]
    done = job.wait(timeout=60)
    assert (done.status.phase, job.exit_code, job.status().phase) == ("Succeeded", 0, "Succeeded")
    assert [attempt.status.exit_code for attempt in job.attempts()] == [0]
    assert job.outputs.list() == ["made/x"]
    assert [path.read_text() for path in job.outputs.download(tmp_path / "out")] == ["1\n"]
    assert job.estimate.hold_usd == "0.00"


def test_name_stands_for_one_job_and_that_it_was_there_is_said(client: Client) -> None:
    command = ["sh", "-c", "echo once"]
    first = nodus.Job.create(name="once", command=command, client=client)
    first.wait(timeout=60)
    with pytest.warns(UserWarning, match=r"Job 'once' is there already \(Succeeded\) and runs no second time"):
        again = nodus.Job.create(name="once", command=command, client=client)
    assert (again.metadata.uid, len(again.attempts())) == (first.metadata.uid, 1)
    with pytest.raises(AlreadyExists, match="once"):
        nodus.Job.create(name="once", command=["sh", "-c", "echo twice"], client=client)


def test_failure_has_reason_and_exit_code(client: Client) -> None:
    job = nodus.Job.create(command=["sh", "-c", "echo one; echo two; exit 9"], backoff_limit=1, client=client)
    with pytest.raises(JobFailed, match="BackoffLimitExceeded: the command exited with code 9") as caught:
        job.wait()
    assert caught.value.details == {"reason": "BackoffLimitExceeded", "phase": "Failed", "exitCode": 9}
    assert list(job.logs(tail=1)) == ["two\n"]
    assert list(job.logs(attempt=1)) == ["one\n", "two\n"]
    assert len(job.attempts()) == 2


def test_indexes_have_logs_and_outputs_of_their_own(client: Client, tmp_path: Path) -> None:
    script = "echo i$NODUS_INDEX; echo $NODUS_INDEX > /nodus/outputs/n"
    job = nodus.Job.create(command=["sh", "-c", script], completions=2, client=client)
    assert sorted(job.logs(follow=True)) == ["[0] i0\n", "[1] i1\n"]
    job.wait()
    assert list(job.logs(index=1)) == ["i1\n"]
    files = job.outputs.download(tmp_path)
    assert {file.relative_to(tmp_path).as_posix(): file.read_text() for file in files} == {"0/n": "0\n", "1/n": "1\n"}
    assert job.outputs.read("n", index=1) == b"1\n"


def test_many_outputs_are_listed_whole_and_the_status_stays_small(client: Client) -> None:
    script = "for n in $(seq 1000 1699); do echo $n > /nodus/outputs/$n; done; mkdir more; echo x > more/last"
    outputs = {"all": "/nodus/outputs", "more": "/workspace/more", "none": "/workspace/none"}
    job = nodus.Job.create(command=["sh", "-c", script], outputs=outputs, client=client)
    status = job.wait(timeout=60).status
    assert (len(status.outputs), status.outputs_total.files) == (500, 701)
    assert job.outputs.list() == [*map(str, range(1000, 1700)), "more/last"]
    assert (job.outputs.read("1699"), job.outputs.read("more/last")) == (b"1699\n", b"x\n")
    found = client.list("Event", fields={"involvedObject.name": job.name})
    missing = [event.message for event in found if event.reason == "OutputMissing"]
    assert missing == ["output 'none' (/workspace/none) was not written"]


def test_job_suspends_resumes_times_out_waiting_and_cancels(client: Client) -> None:
    job = nodus.Job.create(command=["sh", "-c", "echo x >> /nodus/state/n; exec sleep 60"], client=client)
    job.suspend()
    with pytest.raises(NodusTimeout):
        job.wait(timeout=0.2)
    job.resume()
    job.cancel()
    with pytest.raises(JobFailed, match="cancelled"):
        job.wait(timeout=30)
    with pytest.raises(Invalid, match=r"spec\.state"):
        job.resume()


async def test_awaited_twins(client: Client) -> None:
    job = await nodus.Job.create.aio(command=["sh", "-c", "echo a; sleep 0.3; echo b"], client=client)
    lines, _ = await asyncio.gather(_collect(job), asyncio.sleep(0))
    assert lines == ["a\n", "b\n"]
    assert (await job.wait.aio()).status.phase == "Succeeded"
    assert len(await job.attempts.aio()) == 1
    await job.cancel.aio()


async def _collect(job: nodus.Job) -> list[str]:
    return [line async for line in job.logs.aio(follow=True)]


def test_gangs_are_taken_with_one_node_and_refused_with_more(client: Client) -> None:
    script = "echo $NNODES $WORLD_SIZE $MASTER_ADDR"
    job = nodus.Job.create(command=["sh", "-c", script], distributed=nodus.Distributed(nodes=1), client=client)
    assert list(job.logs(follow=True)) == ["1 1 127.0.0.1\n"]
    with pytest.raises(Unsupported, match=r"spec\.distributed\.nodes"):
        nodus.Job.create(command=["true"], distributed=nodus.Distributed(nodes=2), client=client)
    with pytest.raises(Unsupported, match=r"spec\.distributed\.startupTimeout"):
        gang = nodus.Distributed(nodes=1, startup_timeout="15m")
        nodus.Job.create(command=["true"], distributed=gang, client=client)


def test_mistakes_are_told_before_anything_is_sent(client: Client, tmp_path: Path) -> None:
    with pytest.raises(NodusError, match="is the text 'echo hi'"):
        nodus.Job.create(command="echo hi", client=client)
    with pytest.raises(NodusError, match="there is no"):
        nodus.Job.create(command=["true"], source=tmp_path / "nope", client=client)
    assert issubclass(FileTooLarge, NodusError)


def test_run_prints_and_waits(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    job = nodus.Job.run(command=["echo", "hello"], client=client)
    assert (job.phase, capsys.readouterr().out) == ("Succeeded", "hello\n")
