"""The flags of `nodus run`, and logs, outputs and attempts, with the published command line."""

from __future__ import annotations

import pytest

from tests.interop.conftest import Desk, cells

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(300)]


def test_run_takes_its_flags(desk: Desk) -> None:
    desk.ok("nodus create secret run-secret --from-literal TOKEN=hush")
    desk.write("data.txt", "source")
    command = (
        "nodus run --name flagged -l team=x --env A=b --secret run-secret --cpu 1 --memory 256Mi "
        "--output m=/workspace/m --timeout 1m --keep "
        "-- sh -c 'echo $A ${#TOKEN} $(cat data.txt); echo out > /workspace/m'"
    )
    done = desk.run(command)
    assert done.returncode == 0 and "b 4 source\n" in done.stdout, done.stdout + done.stderr
    assert "hush" not in desk.ok("nodus get job/flagged -o yaml")
    desk.ok("nodus cp job/flagged:outputs/m ./m")
    assert (desk.home / "m").read_text() == "out\n"


def test_logs_outputs_and_attempts(desk: Desk) -> None:
    script = (
        "echo one; echo two; mkdir -p /nodus/outputs/sub; echo r > /nodus/outputs/r.txt; echo s > /nodus/outputs/sub/s"
    )
    desk.write(
        "job.yaml",
        f"""
        apiVersion: nodus.dev/v1
        kind: Job
        metadata: {{name: chatty}}
        spec:
          command: [sh, -c, "{script}"]
          outputs: [{{name: o, path: /nodus/outputs}}]
        """,
    )
    desk.ok("nodus apply -f job.yaml")
    assert desk.ok("nodus logs job/chatty -f") == "one\ntwo\n"
    assert desk.ok("nodus logs job/chatty --tail 1") == "two\n"
    stamped = desk.ok("nodus logs job/chatty --timestamps").splitlines()
    assert [line.split(" ", 1)[1] for line in stamped] == ["one", "two"] and "T" in stamped[0]
    desk.ok("nodus wait job/chatty --for=jsonpath='{.status.phase}'=Succeeded --timeout=60s")
    assert desk.ok("nodus get job/chatty -o jsonpath='{.status.outputs[*].name}'").split() == ["r.txt", "sub/s"]
    desk.ok("nodus cp job/chatty:outputs/ ./all")
    desk.ok("nodus cp job/chatty:outputs/sub/ ./part")
    assert (desk.home / "all" / "r.txt").read_text() == "r\n" and (desk.home / "all" / "sub" / "s").read_text() == "s\n"
    assert (desk.home / "part" / "s").read_text() == "s\n" or (desk.home / "part" / "sub" / "s").read_text() == "s\n"
    assert "OutputNotFound" in desk.fails("nodus cp job/chatty:outputs/none ./none")
    header, row = cells(desk.ok("nodus get attempts -l nodus.dev/job=chatty"))
    assert header[0] == "NAME" and row[:2] == ["chatty-1", "Succeeded"]
    described = desk.ok("nodus describe job/chatty")
    for words in (
        "Phase:     Succeeded",
        "Attempt:   1 of 1",
        "Image:     nodus/base @ sha256:",
        "Outputs:",
        "Events:",
    ):
        assert words in described
    assert "chatty" not in desk.ok("nodus top jobs")  # only what runs
