"""Members of the local backend: what they see, how they end, and that nothing of them is left."""

from __future__ import annotations

import io
import os
import secrets
import signal
import tarfile
import threading
import time
from pathlib import Path

import pytest

from nodus.core.errors import Unsupported
from nodus.server.compute.base import InputFile, Mount, OutputRule, StartRefused
from nodus.server.compute.local import cgroups, logstore
from nodus.testing.eventually import eventually

from .conftest import MIB, Members, processes_with

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(60)]

# Starts a grandchild that left the session, ignores signals and outlives its parents.
DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", sys.argv[1]])
    os._exit(0)
"""


def mark() -> str:
    """Return a number of seconds that no other process sleeps."""
    return f"{100_000 + secrets.randbelow(900_000)}.{secrets.randbelow(10**6)}"


def test_command_runs_without_privileges_network_or_host_files(members: Members) -> None:
    state = members.script("id -u; pwd; ls /; cat /proc/net/dev; ls /root /home /etc/shadow 2>&1; exit 3")
    output = members.output()
    assert (state.phase, state.exit_code, state.reason) == ("Exited", 3, None)
    assert output.startswith("10001\n/workspace\n")
    assert "lo:" in output and "eth" not in output
    assert "/etc/shadow: No such file" in output.replace("'", "").replace("cannot access ", "")


def test_environment_and_secrets_reach_the_command_and_no_argv(members: Members) -> None:
    secret = "hunter2-" + secrets.token_hex(8)
    attempt = members.start("sh", "-c", 'echo "$PASSWORD" > /nodus/outputs/seen; sleep 60', env={"PASSWORD": secret})
    eventually(lambda: (attempt.outputs / "seen").exists())
    assert (attempt.outputs / "seen").read_text().strip() == secret
    assert processes_with(secret) == []
    assert (attempt.spec.stat().st_mode & 0o777, attempt.path.stat().st_mode & 0o777) == (0o600, 0o700)


def test_secrets_are_gone_from_the_disk_when_the_member_ended(members: Members) -> None:
    members.run("true", env={"PASSWORD": "hunter2"})
    attempt = members.backend.directory("attempt-1")
    eventually(lambda: b"hunter2" not in attempt.spec.read_bytes())
    eventually(lambda: b"the-token" not in attempt.spec.read_bytes())


def test_machine_without_bubblewrap_fails_the_member_and_says_so(
    members: Members, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "prlimit").symlink_to("/usr/bin/prlimit")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    state = members.script("echo ran > /nodus/outputs/ran")
    assert (state.reason, state.fix) == ("StartFailed", "Run `nodus doctor`.")
    assert "bwrap" in str(state.message)
    assert not (members.backend.directory("attempt-1").outputs / "ran").exists()


@pytest.mark.parametrize(
    ("program", "code", "line"),
    [
        ("no-such-program", 127, "no-such-program: command not found\n"),
        ("cd", 127, "cd: command not found\n"),
        ("/no/such/place", 127, "/no/such/place: no such file or directory\n"),
        ("/etc/hosts", 126, "/etc/hosts: permission denied\n"),
        ("/etc", 126, "/etc: is a directory\n"),
    ],
)
def test_command_that_cannot_be_run_says_so_in_one_line(members: Members, program: str, code: int, line: str) -> None:
    state = members.run(program, "--more", "*")
    assert (state.phase, state.exit_code, members.output()) == ("Exited", code, line)
    assert program in str(state.message)


def test_check_of_the_command_leaves_nothing_behind_for_it(members: Members) -> None:
    env = {"word": "mine", "folder": "mine", "IFS": "-"}
    members.run("sh", "-c", 'echo "$word $folder $*" a-b; ls /proc/self/fd | wc -l', "sh", "*", "x y", env=env)
    assert members.output() == "mine mine * x y a-b\n4\n"


def test_same_key_runs_once_however_often_it_is_started(members: Members) -> None:
    attempt = members.start("sh", "-c", "echo once >> /nodus/outputs/count")
    members.ended()
    for _ in range(3):
        members.start("sh", "-c", "echo again >> /nodus/outputs/count")
    members.backend._zygote.spawn(attempt.path)
    eventually(lambda: not attempt.alive())
    assert (attempt.outputs / "count").read_text() == "once\n"


def test_backends_that_race_for_one_attempt_start_it_once(members: Members) -> None:
    backends = [members.open() for _ in range(4)]
    spec = members.spec("sh", "-c", "echo once >> /nodus/outputs/count; sleep 0.2")
    barrier = threading.Barrier(len(backends))

    def race(number: int) -> None:
        barrier.wait()
        backends[number].start_sync(spec)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(len(backends))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    members.ended()
    for backend in backends:
        backend._zygote.close()
    assert (members.backend.directory("attempt-1").outputs / "count").read_text() == "once\n"


def test_supervisor_killed_makes_the_attempt_lost_and_leaves_no_process(members: Members) -> None:
    sleep = mark()
    members.start("python", "-c", DAEMON + f"\nos.execvp('sleep', ['sleep', '{sleep}'])", sleep)
    members.running()
    eventually(lambda: len(processes_with(sleep)) >= 2)
    os.kill(members.supervisor(), signal.SIGKILL)
    assert eventually(lambda: members.backend.read_state("attempt-1").phase == "Lost")
    assert eventually(lambda: processes_with(sleep) == [])
    again = members.backend.start_sync(members.spec("true"))
    assert again.phase == "Lost"


def test_supervisor_killed_at_any_moment_of_the_start_leaves_no_process(members: Members) -> None:
    sleep = mark()
    for number in range(20):
        attempt = members.start("sleep", sleep, key=f"attempt-{number}")
        eventually(lambda at=attempt: at.read_status(), every_s=0.0005)  # type: ignore[misc]
        time.sleep(number * 0.001)  # Each supervisor is killed a little later in its start.
        os.kill(members.supervisor(attempt.key), signal.SIGKILL)
        eventually(lambda at=attempt: not at.alive())  # type: ignore[misc]
        members.backend.finish_sync(attempt.key)
    assert eventually(lambda: processes_with(sleep) == [])
    assert {members.backend.read_state(f"attempt-{number}").phase for number in range(20)} == {"Lost"}


def test_timeout_kills_daemons_that_left_the_session(members: Members) -> None:
    sleep = mark()
    begun = time.monotonic()
    state = members.run("python", "-c", DAEMON + "\ntime.sleep(600)", sleep, timeout_s=1.5)
    assert (state.phase, state.reason) == ("Exited", "DeadlineExceeded")
    assert time.monotonic() - begun < 10
    assert processes_with(sleep) == []


def test_command_that_leaves_a_daemon_ends_with_it(members: Members) -> None:
    sleep = mark()
    state = members.run("python", "-c", DAEMON, sleep)
    assert (state.exit_code, processes_with(sleep)) == (0, [])


@pytest.mark.skipif(cgroups.hierarchy() is None, reason="no control groups: a process gets MemoryError instead")
def test_memory_over_the_limit_is_reported_as_such(members: Members) -> None:
    begun = time.monotonic()
    state = members.run("python", "-c", "x = [bytes(10**6) for _ in range(10**6)]", memory_bytes=64 * MIB)
    assert (state.reason, state.phase) == ("OOMKilled", "Exited")
    assert "64 MiB" in str(state.message)
    assert state.exit_code not in (0, None)
    assert time.monotonic() - begun < 10


def test_fork_bomb_ends_with_the_timeout_and_leaves_nothing(members: Members) -> None:
    sleep = mark()
    bomb = (
        f"import os, time\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep({sleep})"
    )
    state = members.run("python", "-c", bomb, timeout_s=3, memory_bytes=128 * MIB)
    assert state.reason in ("DeadlineExceeded", "OOMKilled")
    assert processes_with(sleep) == []


def test_output_over_the_bound_keeps_its_beginning_and_its_end(members: Members) -> None:
    text = (
        "i=0; while [ $i -lt 100 ]; do echo begin$i; i=$((i+1)); done; head -c 104857600 /dev/zero; echo; echo the-end"
    )
    state = members.script(text)
    directory = members.backend.log_directory("attempt-1")
    pieces = list(logstore.read_pieces(directory))
    kept, dropped = sum(len(p.data) for p in pieces), sum(p.dropped for p in pieces)
    assert state.exit_code == 0
    assert pieces[0].data.startswith(b"begin0\nbegin1\n")
    assert pieces[-1].data.endswith(b"the-end\n")
    assert kept + dropped == logstore.size(directory) > 100 * MIB
    assert 45 * MIB < kept <= 50 * MIB
    assert sum(path.stat().st_size for path in directory.iterdir()) < 51 * MIB


def test_stop_gives_time_to_save_and_then_kills(members: Members) -> None:
    saves = (
        "trap 'echo saved > /nodus/outputs/x; exit 5' TERM; echo up > /nodus/outputs/up; while :; do sleep 0.05; done"
    )
    deaf = "trap '' TERM; echo up > /nodus/outputs/up; while :; do sleep 0.05; done"
    states = {}
    for key, text in (("polite", saves), ("deaf", deaf)):
        attempt = members.start("sh", "-c", text, key=key, grace_s=1.0)
        eventually(lambda at=attempt: (at.outputs / "up").exists())  # type: ignore[misc]
        members.backend.stop_sync(key, "Cancelled")
        states[key] = members.ended(key)
    assert (states["polite"].exit_code, states["polite"].reason) == (5, "Cancelled")
    assert (members.backend.directory("polite").outputs / "x").read_text() == "saved\n"
    assert (states["deaf"].signal, states["deaf"].reason) == (9, "Cancelled")


def test_stop_before_the_start_means_that_nothing_starts(members: Members) -> None:
    members.backend.stop_sync("attempt-1", "Cancelled")
    state = members.backend.start_sync(members.spec("sh", "-c", "echo ran > /nodus/outputs/ran"))
    assert (state.phase, state.reason) == ("Exited", "Cancelled")
    assert not (members.backend.directory("attempt-1").outputs / "ran").exists()


def test_stop_at_any_moment_of_the_start_ends_the_member(members: Members) -> None:
    for number in range(12):
        key = f"attempt-{number}"
        members.start("sleep", "60", key=key, grace_s=0.0)
        time.sleep(number * 0.004)  # Each member is stopped a little later in its start.
        members.backend.stop_sync(key, "Cancelled", grace_s=0)
        assert members.ended(key).reason == "Cancelled"


def test_outputs_are_collected_without_following_links(members: Members) -> None:
    text = """
    cd /nodus/outputs; mkdir adapter; echo weights > adapter/model.bin; echo r > results.json; cd /workspace
    ln -s /etc/passwd /nodus/outputs/link; ln -s / /nodus/outputs/root; mkfifo /nodus/outputs/pipe
    echo kept > kept.txt; echo tmp > /tmp/tmp.txt; ln -s /workspace/kept.txt /workspace/alias"""
    assert members.script(text).exit_code == 0
    rules = [
        OutputRule("", "/nodus/outputs"),
        OutputRule("kept", "/workspace/kept.txt"),
        OutputRule("gone", "/tmp/tmp.txt"),
        OutputRule("alias", "/workspace/alias"),
        OutputRule("up", "/workspace/../../../etc/passwd"),
    ]
    from nodus.server.compute.local.collect import collect

    found = collect(members.backend.directory("attempt-1"), rules, members._put_file)
    assert [(item.name, item.path, item.size_bytes) for item in found] == [
        ("adapter/model.bin", "/nodus/outputs/adapter/model.bin", 8),
        ("kept", "/workspace/kept.txt", 5),
        ("results.json", "/nodus/outputs/results.json", 2),
    ]
    assert (members.blobs / found[0].sha256).read_text() == "weights\n"


def archive(*entries: tuple[str, bytes | str]) -> bytes:
    """Return a tar.gz of files; a text is a link to it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in entries:
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_source_is_unpacked_into_the_working_directory(members: Members) -> None:
    blob = members.put_blob(
        archive(("main.py", b"import os; print(open('data/x').read(), os.getcwd())"), ("data/x", b"42"))
    )
    state = members.run("sh", "-c", "python main.py && echo more > data/y", source=blob)
    assert (state.exit_code, members.output()) == (0, "42 /workspace\n")


@pytest.mark.parametrize("entry", [("../evil", b"x"), ("/evil", b"x"), ("link", "/etc/passwd"), ("link", "../../x")])
def test_source_that_leaves_its_directory_is_refused(members: Members, entry: tuple[str, bytes | str]) -> None:
    blob = members.put_blob(archive(entry, ("link/inside", b"x")))
    if entry[0] == "/evil":  # A leading slash is dropped, as tar does.
        assert members.run("ls", source=blob).exit_code == 0
        return
    with pytest.raises(StartRefused, match="source archive"):
        members.start("true", source=blob)
    assert not Path(members.data_dir, "attempts", "evil").exists()


def test_inputs_mounts_and_state_are_where_they_belong(members: Members, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "model.bin").write_text("weights")
    blob = members.put_blob(b'{"steps": 3}')
    more = {
        "mounts": [Mount(str(shared), "/nodus/inputs/model")],
        "inputs": [InputFile(blob, "/nodus/inputs/params/params.json")],
        "state_dir": str(members.backend.state_directory("job-1")),
    }
    text = "cd /nodus; cat inputs/model/model.bin inputs/params/params.json; echo $N >> state/n; cat state/n"
    for number in (1, 2):
        key = f"attempt-{number}"
        state = members.script(text + "; touch /nodus/inputs/model/x", key=key, env={"N": str(number)}, **more)
        assert state.exit_code != 0, "a read-only mount was written"
    assert members.output("attempt-2").startswith('weights{"steps": 3}1\n2\n')


def test_failing_command_gives_its_reason(members: Members) -> None:
    message = '{"reason": "StateMismatch", "message": "not this one", "fix": "Delete it.", "retryable": false}'
    state = members.script(f"echo '{message}' > /nodus/termination/message.json; exit 1")
    assert (state.reason, state.message, state.fix, state.retryable) == (
        "StateMismatch",
        "not this one",
        "Delete it.",
        False,
    )


def test_cpu_request_is_what_programs_count(members: Members) -> None:
    members.backend._shares.take("attempt-1", 1, 256 * MIB)
    members.script("nproc; python -c 'import os; print(len(os.sched_getaffinity(0)))'", cpu=1.0)
    assert members.output() == "1\n1\n"


def test_deep_data_directory_is_no_problem_for_its_sockets(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    made = Members(deep)
    attempt = made.start("sleep", "60")
    made.running()
    assert (attempt.run / "api.sock").is_socket()
    made.backend.stop_sync("attempt-1", "Cancelled", grace_s=0)
    assert made.ended(timeout_s=1.5).reason == "Cancelled"
    made.close()


def test_zygote_that_died_is_replaced(members: Members) -> None:
    members.backend._zygote.warm()
    process = members.backend._zygote._process
    assert process is not None
    process.kill()
    assert members.run("true").exit_code == 0


async def test_restart_finds_what_runs_and_counts_it(members: Members) -> None:
    members.backend._shares.take("attempt-1", 2, 256 * MIB)
    members.start("sleep", "60", cpu=2.0)
    members.run("true", key="attempt-2")
    members.running()
    other = members.open()
    states = {state.key: state.phase for state in await other.attach()}
    capacity = await other.capacity()
    assert states == {"attempt-1": "Running", "attempt-2": "Exited"}
    assert capacity.free_cpu == capacity.cpu - 2
    await other.release("attempt-1")
    assert not (members.data_dir / "attempts" / "attempt-1").exists()
    assert (await other.capacity()).free_cpu == capacity.cpu


def test_unknown_image_is_refused(members: Members) -> None:
    from dataclasses import replace

    with pytest.raises(Unsupported, match="ubuntu"):
        members.backend.start_sync(replace(members.spec("true"), image="ubuntu:24.04"))
