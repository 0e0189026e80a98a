"""`nodus run` and Jobs in Python by the published client, unmodified, beside ours: the same output and exit codes."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.interop.conftest import Desk

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(300)]

CASES = {
    "output": ("run --no-source -- sh -c 'echo out; echo err >&2'", 0),
    "exit code": ("run --no-source -- sh -c 'echo before; exit 7'", 7),
    "timeout": ("run --no-source --timeout 1s -- sh -c 'echo begins; sleep 60'", 124),
    "memory": ("run --no-source --memory 64Mi -- python3 -c 'x = bytearray(500 << 20)'", 137),
    "missing secret": ("run --no-source --secret nope -- true", 125),
    "gang": ("run --no-source --nodes 2 --launcher torchrun --startup-timeout 15m -- torchrun train.py", 125),
    "bad name": ("run --no-source --name Bad_Name -- true", 125),
    "bad env": ("run --no-source --env A -- true", 2),
    "bad volume": ("run --no-source --volume x -- true", 2),
    "nothing to run": ("run", 2),
    "dry run": ("run --no-source --dry-run --gpu H100:8 -- true", 0),
    "placement": ("run --no-source --region us --interruptible --profile cost --no-warm -- true", 0),
    "environment": ("run --no-source --env A=b --env C=d=e -- sh -c 'echo $A $C'", 0),
}


ALWAYS = ("output", "memory", "placement", "bad env")


@pytest.mark.parametrize(
    "case", [case if case in ALWAYS else pytest.param(case, marks=pytest.mark.heavy) for case in CASES]
)
def test_run_prints_and_exits_alike(desk: Desk, ours: Desk, case: str) -> None:
    command, code = CASES[case]
    theirs, mine = desk.run(f"nodus {command}"), ours.run(f"nodus {command}")
    assert (theirs.returncode, mine.returncode) == (code, code), theirs.stderr + mine.stderr
    assert theirs.stdout == mine.stdout
    for sign in (
        "✓ Provisioning",
        "▶ Running",
        "✓ Succeeded",
        "✗ Failed",
        "(DeadlineExceeded)",
        "(OOMKilled)",
        "blocked:",
    ):
        assert (sign in theirs.stderr) == (sign in mine.stderr), f"{sign}\n{theirs.stderr}{mine.stderr}"


def test_current_directory_goes_along_without_what_git_ignores(desk: Desk, ours: Desk) -> None:
    desk.ok("mkdir -p project/.git project/sub && echo '*.log' > project/.gitignore")
    desk.ok("cd project && echo x > sub/a && cp sub/a b.log")
    for user in (desk, ours):
        assert user.ok("cd project && nodus run -- find . -type f").splitlines() == ["./.gitignore", "./sub/a"]


@pytest.mark.heavy
def test_detached_run_and_its_log_outputs_and_indexes(desk: Desk) -> None:
    desk.ok("nodus run -d --no-source --name there --output n=/workspace/n -- sh -c 'echo one; echo two; echo 1 > n'")
    assert desk.ok("nodus logs job/there -f") == "one\ntwo\n"
    desk.ok("nodus wait job/there --for=jsonpath='{.status.phase}'=Succeeded")
    assert desk.ok("nodus logs job/there --tail 1") == "two\n"
    desk.ok("nodus cp job/there:outputs/n ./n")
    assert desk.ok("cat n") == "1\n"
    described = desk.ok("nodus describe job/there")
    assert "Attempt:" in described
    assert "1 of 1" in described
    script = "echo i$NODUS_INDEX; echo $NODUS_INDEX > /nodus/outputs/n"
    done = desk.run(f"nodus run --no-source --name many --completions 3 --parallelism 2 -- sh -c '{script}'")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["[0] i0", "[1] i1", "[2] i2"])
    assert desk.ok("nodus logs job/many --index 2") == "i2\n"
    assert desk.ok("nodus logs job/many --all-indexes") == "[0] i0\n[1] i1\n[2] i2\n"
    assert "OutputIndexRequired" in desk.fails("nodus cp job/many:outputs/n ./m")
    desk.ok("nodus cp --index 1 job/many:outputs/n ./m")
    assert desk.ok("cat m") == "1\n"


@pytest.mark.heavy
def test_states_that_make_no_sense_are_refused(desk: Desk) -> None:
    desk.ok("nodus run --no-source --name ended -- true")
    for verb in ("stop", "suspend"):
        assert "(Invalid)" in desk.fails(f"nodus {verb} job/ended")
    desk.ok("nodus run -d --no-source --name runs -- sleep 60")
    desk.ok("nodus suspend job/runs && nodus wait job/runs --for=jsonpath='{.status.phase}'=Suspended")
    desk.ok("nodus resume job/runs && nodus cancel job/runs")
    desk.ok("nodus wait job/runs --for=jsonpath='{.status.phase}'=Cancelled")


def test_interrupt_cancels(desk: Desk, ours: Desk) -> None:
    for number, user in enumerate((desk, ours)):
        nodus = str(user.bin / "nodus")
        # started by something in the background, tests have SIGINT ignored, and so has what they start
        run = ("env", "--default-signal=INT", nodus, "run", "--no-source", "--name")
        command = [*run, f"int-{number}", "--", "sh", "-c", "echo up; sleep 60"]
        process = subprocess.Popen(
            command, env=user.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
        assert (process.returncode, f"Canceling job/int-{number}" in told) == (130, True)
        user.ok(f"nodus wait job/int-{number} --for=jsonpath='{{.status.phase}}'=Cancelled")


@pytest.mark.heavy
def test_jobs_in_python(desk: Desk) -> None:
    desk.ok("mkdir -p code && echo 'echo from $WORD; echo 1 > out; exit $CODE' > code/main.sh")
    program = """
        import nodus

        def make(code):
            return nodus.Job.create(
                command=["sh", "main.sh"], source="code", env={"WORD": "python", "CODE": str(code)},
                outputs={"o": "/workspace/out"}, cpu=1, memory="256Mi", timeout=60, labels={"a": "b"},
            )

        job = make(0)
        print(list(job.logs(follow=True)), job.wait()["status"]["phase"], len(job.attempts()))
        print([output["name"] for output in job.outputs.list()])
        failing = make(3)
        try:
            failing.wait()
        except nodus.errors.JobFailed as error:
            print("failed:", error)
        try:
            nodus.Job.create(command=["true"], distributed=nodus.Distributed(nodes=2))
        except nodus.errors.Unsupported as error:
            print("unsupported")
        indexed = nodus.Job.create(command=["sh", "-c", "echo $NODUS_INDEX"], completions=2)
        indexed.wait()
        print(list(indexed.logs(index=1)))
    """
    lines = desk.python(program).splitlines()
    assert lines[:2] == ["['from python\\n'] Succeeded 1", "['o']"]
    assert "BackoffLimitExceeded" in lines[2]
    assert lines[3:] == ["unsupported", "['1\\n']"]
