"""Everyday commands against a real server: what changes objects, what waits for them, and what a terminal shows."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from nodus.testing.eventually import eventually
from tests.acceptance.test_cli import NODUS, Machine

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine on which ``nodus up --detach`` was run."""
    found = Machine(tmp_path_factory.mktemp("home"))
    found.ok("up", "--detach", "--port", "0")
    yield found
    found.ok("down")


def job(path: Path, name: str, command: str = "sleep 300", **spec: object) -> str:
    """Write a Job's manifest and return its path."""
    document = {
        "apiVersion": "nodus.dev/v1", "kind": "Job", "metadata": {"name": name, "labels": {"suite": "everyday"}},
        "spec": {"command": ["sh", "-c", command], "timeout": "5m", **spec},
    }  # fmt: skip
    (path / f"{name}.yaml").write_text(yaml.safe_dump(document))
    return str(path / f"{name}.yaml")


def on_terminal(machine: Machine, *words: str, **variables: str) -> str:
    """Run ``nodus WORDS`` on a terminal and return what it shows."""
    ours, theirs = pty.openpty()
    environment = machine.environment | {"TERM": "xterm"} | variables
    process = subprocess.Popen([NODUS, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # the terminal is gone with its last process
        pass
    os.close(ours)
    process.wait(timeout=60)
    return shown.decode()


def test_a_run_is_changed_paused_and_ended(machine: Machine, tmp_path: Path) -> None:
    path = job(tmp_path, "ev-run", maxCostUSD="1.00")
    assert "+kind: Job" in machine.run("diff", "-f", path).stdout
    machine.ok("apply", "-f", path)
    assert machine.run("diff", "-f", path).returncode == 0
    job(tmp_path, "ev-run", maxCostUSD="2.00")
    done = machine.run("diff", "-f", path)
    assert done.returncode == 1 and "+  maxCostUSD: '2.00'" in done.stdout and "status" not in done.stdout
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i \"s/'1.00'/'3.00'/\" $1\n")
    editor.chmod(0o755)
    assert machine.run("edit", "job/ev-run", EDITOR=str(editor)).stdout == "job/ev-run edited\n"
    assert machine.ok("get", "job/ev-run", "-o", "jsonpath={.spec.maxCostUSD}") == "3.00\n"
    machine.ok("label", "job/ev-run", "team=search", "suite-")
    machine.ok("annotate", "job/ev-run", "ticket=RL-7")
    assert machine.ok("get", "jobs", "-l", "team=search,!suite", "-o", "name") == "job.nodus.dev/ev-run\n"
    eventually(lambda: "Running" in machine.ok("get", "job/ev-run"), timeout_s=30)
    header, row = machine.ok("top", "jobs").splitlines()
    assert header.split()[0] == "NAME" and row.split()[0] == "ev-run" and row.split()[3].endswith("m")
    assert machine.ok("suspend", "job/ev-run") == "job/ev-run suspended\n"
    machine.ok("wait", "job/ev-run", "--for=jsonpath={.status.phase}=Suspended", "--timeout=30s")
    assert machine.ok("resume", "job/ev-run") == "job/ev-run resumed\n"
    assert machine.ok("cancel", "job/ev-run") == "job/ev-run canceled\n"
    machine.ok("wait", "job/ev-run", "--for=jsonpath={.status.phase}=Cancelled", "--timeout=30s")
    assert machine.ok("cancel", "job/ev-run") == "job/ev-run already ended: Cancelled\n"
    assert "has ended: Cancelled" in machine.fails("suspend", "job/ev-run")


def test_many_are_waited_for_and_deleted_at_once(machine: Machine, tmp_path: Path) -> None:
    for name, command in (("ev-a", "exit 0"), ("ev-b", "exit 0"), ("ev-bad", "exit 3")):
        machine.ok("apply", "-f", job(tmp_path, name, command))
    succeeded = "--for=jsonpath={.status.phase}=Succeeded"
    said = machine.ok("wait", "job/ev-a", "job/ev-b", succeeded, "--timeout=60s")
    assert sorted(said.splitlines()) == ["job/ev-a condition met", "job/ev-b condition met"]
    assert "job/ev-bad ended Failed" in machine.fails("wait", "job", "-l", "suite=everyday", succeeded)
    names = machine.ok("get", "jobs", "-l", "suite=everyday", "--sort-by", ".metadata.name", "--no-headers")
    assert [line.split()[0] for line in names.splitlines()] == ["ev-a", "ev-b", "ev-bad"]
    assert "ev-a deleted (server dry run)" in machine.ok("delete", "job/ev-a", "--dry-run")
    assert len(machine.ok("delete", "jobs", "-l", "suite=everyday", "--wait").splitlines()) == 3
    assert machine.run("delete", "jobs", "-l", "suite=everyday").stderr == "No resources found.\n"


def test_flags_make_objects(machine: Machine, tmp_path: Path) -> None:
    assert machine.ok("create", "volume", "ev-data", "--size", "1Gi") == "volume/ev-data created\n"
    assert "already" in machine.fails("create", "volume", "ev-data", "--size", "2Gi").lower()
    (tmp_path / "token").write_text("hush")
    done = machine.run("-v", "create", "secret", "ev-token", "--from-file", f"TOKEN={tmp_path / 'token'}")
    assert done.stdout == "secret/ev-token created\n" and "hush" not in done.stderr
    assert "Keys:           TOKEN" in machine.ok("describe", "secret/ev-token")
    key = machine.ok("create", "apikey", "ev-key", "--scopes", "volumes:read").strip()
    assert machine.run("get", "volumes", NODUS_API_KEY=key).returncode == 0
    assert "Forbidden" in machine.run("delete", "volume/ev-data", NODUS_API_KEY=key).stderr
    plan = machine.ok("create", "volume", "ev-plan", "--dry-run=client", "-o", "yaml")
    assert "created" in machine.ok("apply", "-f", "-", stdin=plan)


def test_a_terminal_gets_colours_and_a_pipe_none(machine: Machine, tmp_path: Path) -> None:
    assert "\x1b[31merror:\x1b[0m unknown command" in on_terminal(machine, "nope")
    assert "\x1b" not in on_terminal(machine, "nope", NO_COLOR="1")
    assert "\x1b" not in on_terminal(machine, "nope", TERM="dumb")
    assert "\x1b[32mReady" in on_terminal(machine, "get", "environments", "-n", "nodus")
    assert "\x1b" not in machine.ok("get", "environments", "-n", "nodus")
    path = job(tmp_path, "ev-colours")
    assert "\x1b[32m+kind: Job\x1b[0m" in on_terminal(machine, "diff", "-f", path)
    assert "\x1b" not in machine.run("diff", "-f", path).stdout + machine.fails("nope", code=2)


def test_waits_and_transfers_are_shown_on_a_terminal_only(machine: Machine, tmp_path: Path) -> None:
    machine.ok("apply", "-f", job(tmp_path, "ev-wait", "sleep 1"))
    arguments = ("wait", "job/ev-wait", "--for=jsonpath={.status.phase}=Succeeded")
    shown = on_terminal(machine, *arguments)
    assert "waiting for {.status.phase}=Succeeded" in shown and "job/ev-wait condition met" in shown
    large = tmp_path / "large.bin"
    large.write_bytes(os.urandom(3 * 1024 * 1024))
    assert "MiB" in on_terminal(machine, "volume", "put", "ev-bars", str(large), "--create")
    assert machine.run("volume", "get", "ev-bars", "large.bin", str(tmp_path / "back")).stderr == ""
    assert (tmp_path / "back").read_bytes() == large.read_bytes()


def test_completion_asks_the_server(machine: Machine) -> None:
    def completed(words: str, position: int) -> list[str]:
        variables = {"COMP_WORDS": words, "COMP_CWORD": str(position), "_NODUS_COMPLETE": "bash_complete"}
        return [line.partition(",")[2] for line in machine.run(**variables).stdout.splitlines()]

    assert completed("nodus desc", 1) == ["describe"]
    assert "environment/arithmetic" in completed("nodus describe -n nodus environment/", 4)
    assert "arithmetic" in completed("nodus -n nodus get environments ar", 5)
    assert completed("nodus get --field", 2) == ["--field-selector"]
    assert "_nodus_completion" in machine.ok("completion", "bash")
    assert machine.ok("version").startswith("client  ")
