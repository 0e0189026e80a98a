"""``nodus run`` and ``nodus logs`` against a real server: what they print, what they exit with, what survives."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodus.server.datadir import holder
from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up
from nodus.testing.eventually import eventually

NODUS = str(Path(sys.executable).parent / "nodus")
# Tests that run in the background have SIGINT ignored, and what they start inherits that.
RUN = ("env", "--default-signal=INT", NODUS, "run", "--no-source", "--name")
pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(120)]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    data_dir = tmp_path_factory.mktemp("run") / "data"
    yield up(UpOptions(data_dir=data_dir, port=0, detach=True, issue_key=True))
    down(DownOptions(data_dir=data_dir))


@pytest.fixture
def environment(server: Started, tmp_path: Path) -> dict[str, str]:
    return {
        "HOME": str(tmp_path), "PATH": os.environ["PATH"], "NODUS_API_URL": server.url, "LANG": "C.UTF-8",
        "NODUS_API_KEY": str(server.api_key),
    }  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "hello.txt").write_text("hello\n")
    (folder / "secret.log").write_text("not for the run\n")
    (folder / ".gitignore").write_text("*.log\n")
    return folder


@pytest.fixture
def nodus(environment: dict[str, str], project: Path) -> Run:
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [NODUS, *args], env=environment, cwd=project, capture_output=True, text=True, timeout=60, check=False
        )

    return run


def test_output_is_the_commands_and_the_rest_is_beside_it(nodus: Run) -> None:
    done = nodus("run", "--name", "hi", "--", "sh", "-c", "ls -A; cat hello.txt; echo error >&2")
    assert (done.returncode, done.stdout) == (0, ".gitignore\nhello.txt\nhello\nerror\n")
    created, provisioned, runs, ended = done.stderr.splitlines()
    assert created.startswith("job/hi created · ")
    assert created.endswith(" · Ctrl+C to cancel, -d to detach")
    assert "✓ Provisioning" in provisioned
    assert "▶ Running" in runs
    assert ended.startswith(" ✓ Succeeded in ")
    assert "$0.00" in ended


@pytest.mark.parametrize(
    ("flags", "command", "code", "words"),
    [
        ([], "exit 7", 7, "(BackoffLimitExceeded)"),
        (["--timeout", "1s"], "sleep 60", 124, "(DeadlineExceeded)"),
        (["--memory", "64Mi"], "exec python3 -c 'x = bytearray(500 << 20)'", 137, "fix: Ask for more"),
        (["--secret", "nope"], "true", 125, "there is no secret 'nope'"),
        (["--nodes", "2"], "true", 125, "(Unsupported)"),
        (["--env", "A"], "true", 2, "is not K=V"),
        (["--timeout", "soon"], "true", 2, "not a duration"),
    ],
)
def test_exit_code_is_the_commands_or_says_what_else_happened(
    nodus: Run, flags: list[str], command: str, code: int, words: str
) -> None:
    done = nodus("run", "--no-source", *flags, "--", "sh", "-c", command)
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr


def test_detached_run_is_followed_by_name(nodus: Run) -> None:
    done = nodus("run", "-d", "--no-source", "--label", "a=b", "--", "sh", "-c", "echo one; echo two")
    name = done.stdout.strip()
    assert (done.returncode, name.startswith("job/run-")) == (0, True)
    assert nodus("logs", name, "-f").stdout == "one\ntwo\n"
    assert nodus("logs", name, "--tail", "1").stdout == "two\n"
    assert nodus("get", "jobs", "-l", "a=b", "-o", "name").stdout == f"job.nodus.dev/{name.removeprefix('job/')}\n"
    assert "ttlSecondsAfterFinished: 2592000" in nodus("get", name, "-o", "yaml").stdout


def test_dry_run_says_what_it_would_take_and_creates_nothing(nodus: Run) -> None:
    done = nodus("run", "--dry-run", "--name", "dry", "--gpu", "H100:8", "--", "true")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("job/dry (dry run) · 1 node × 8 GPUs · est. $0.00 · ")
    assert "blocked: no machine here has 8 x H100" in done.stderr
    assert nodus("get", "job/dry").returncode == 1


def test_every_index_is_told_apart(nodus: Run) -> None:
    script = "echo start; echo $NODUS_INDEX > /nodus/outputs/n"
    done = nodus("run", "--no-source", "--name", "sweep", "--completions", "3", "--", "sh", "-c", script)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["[0] start", "[1] start", "[2] start"])
    assert nodus("logs", "job/sweep", "--index", "2").stdout == "start\n"
    assert nodus("logs", "job/sweep", "--all-indexes").stdout == "[0] start\n[1] start\n[2] start\n"
    assert "3 of 3 succeeded (0-2)" in nodus("describe", "job/sweep").stdout
    assert "has no index 3" in nodus("logs", "job/sweep", "--index", "3").stderr
    assert "OutputIndexRequired" in nodus("cp", "job/sweep:outputs/n", "./n").stderr
    assert nodus("cp", "--index", "2", "job/sweep:outputs/n", "./n").returncode == 0


def test_functions_and_files_are_told_how_to_run(nodus: Run) -> None:
    for words in (["app.py::main"], ["train.py"], []):
        done = nodus("run", *words)
        assert (done.returncode, "nodus run" in done.stderr) == (2, True)


def test_ctrl_c_without_a_terminal_cancels(nodus: Run, environment: dict[str, str]) -> None:
    command = [*RUN, "stop-me", "--", "sh", "-c", "echo up; exec sleep 60"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert (process.returncode, "Canceling job/stop-me" in told) == (130, True)
    assert nodus("wait", "job/stop-me", "--for=jsonpath={.status.phase}=Cancelled", "--timeout=30s").returncode == 0


@pytest.mark.parametrize(("answer", "words"), [("n\n", "goes on"), ("y\n", "Canceling")])
def test_ctrl_c_at_a_terminal_asks(environment: dict[str, str], answer: str, words: str) -> None:
    name = f"ask-{answer[0]}"
    parent, child = pty.openpty()
    command = [*RUN, name, "--", "sh", "-c", "echo up; exec sleep 60"]
    process = subprocess.Popen(
        command, env={**environment, "TERM": "dumb"}, stdin=child, stdout=child, stderr=child, start_new_session=True
    )
    os.close(child)
    seen = b""

    def shown(text: bytes) -> bool:
        nonlocal seen
        if text not in seen:
            seen += os.read(parent, 4096)
        return text in seen

    eventually(lambda: shown(b"\r\nup\r\n"))
    process.send_signal(signal.SIGINT)
    eventually(lambda: shown(b"[y/N]"))
    os.write(parent, answer.encode())
    eventually(lambda: shown(words.encode()))
    assert process.wait(timeout=30) == 130
    os.close(parent)


def test_log_goes_on_where_it_was_when_the_server_is_killed(
    server: Started, environment: dict[str, str], project: Path, nodus: Run
) -> None:
    script = "for n in 1 2 3; do echo line $n; while [ ! -e /nodus/state/$n ]; do sleep 0.05; done; done; exit 3"
    command = [NODUS, "run", "--no-source", "--name", "through", "--", "sh", "-c", script]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "line 1\n"
    uid = nodus("get", "job/through", "-o", "jsonpath={.metadata.uid}").stdout.strip()
    state = server.data_dir / "jobs" / uid / "state"
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: holder(server.data_dir) is None)
    (state / "1").touch()
    again = up(UpOptions(data_dir=server.data_dir, port=int(server.url.rpartition(":")[2]), detach=True))
    assert again.url == server.url
    (state / "2").touch()
    (state / "3").touch()
    rest, told = process.communicate(timeout=60)
    assert (process.returncode, rest) == (3, "line 2\nline 3\n"), told
