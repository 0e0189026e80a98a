"""Real sandboxes: what is inside, what cannot be reached, that nothing stays behind; as root and as a plain user."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from nodus.server.compute.local import cgroups, uidpool
from nodus.server.compute.local.mounts import IDENTITY_FILES, Mount, interpreter, interpreter_mounts, package_root
from nodus.server.compute.local.probe import probe
from nodus.server.compute.local.sandbox import MIB, SandboxError, SandboxProcess, SandboxSpec, launch, system_mounts
from nodus.server.compute.local.seccomp import job_profile
from nodus.testing.eventually import eventually
from tests.integration.grading.conftest import nothing_left_of

pytestmark = pytest.mark.sandbox


def python(code: str, **changes: Any) -> SandboxSpec:
    """A sandbox that runs Python code."""
    fields: dict[str, Any] = {
        "argv": (interpreter(), "-S", "-B", "-c", textwrap.dedent(code)),
        "env": {"PATH": "/usr/bin:/bin", "HOME": "/tmp"},
        "mounts": (*system_mounts(), *interpreter_mounts()),
        "files": IDENTITY_FILES,
        "memory_bytes": 256 * MIB,
        "pids": 64,
    }
    return SandboxSpec(**{**fields, **changes})


def output_of(spec: SandboxSpec, **streams: Any) -> tuple[int, str]:
    process = launch(spec, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **streams)
    assert process.popen.stdout is not None
    with process.popen.stdout as stream:
        text = stream.read().decode()
    return process.wait(20), text


def no_group_left() -> None:
    place = cgroups.hierarchy()
    if place is not None:
        own = f"{cgroups.PREFIX}{cgroups._maker(os.getpid())}-*"
        eventually(lambda: not [path for parent in place.parents.values() for path in parent.glob(own)])


@pytest.mark.parametrize("init", [True, False])
def test_inside_there_is_only_what_was_named(init: bool) -> None:
    code, text = output_of(
        python(
            """
            import os, pwd, socket
            print(os.getuid(), os.getgid(), os.getgroups(), pwd.getpwuid(os.getuid()).pw_name, socket.gethostname())
            print(sorted(os.environ), os.getcwd(), os.getpid())
            print(sorted(set(os.listdir("/")) - {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "root", "opt"}))
            print(sorted(os.listdir("/proc/self/fd")))
            print(sorted(pid for pid in os.listdir("/proc") if pid.isdigit()))
            """,
            init=init,
            hostname="box",
        )
    )
    lines = text.splitlines()
    assert code == 0, text
    assert lines[0] == "10001 10001 [] nodus box"
    assert lines[1] == f"['HOME', 'LC_CTYPE', 'PATH', 'PWD'] /tmp {2 if init else 1}"
    assert lines[2] == "['dev', 'etc', 'proc', 'tmp', 'usr']"
    assert lines[3] == "['0', '1', '2', '3']"  # the last is of listing the directory
    assert lines[4] == ("['1', '2']" if init else "['1']")


def test_sandbox_reaches_no_listener_and_no_file_of_the_host(tmp_path: Path) -> None:
    database = tmp_path / "nodus.db"
    database.write_text("secret")
    abstract = f"\0nodus-test-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as api,
        socket.socket(socket.AF_UNIX) as hidden,
        socket.socket(socket.AF_UNIX) as named,
    ):
        hidden.bind(abstract)
        hidden.listen()
        named.bind(str(tmp_path / "s"))
        named.listen()
        port = api.getsockname()[1]
        program = f"""
            import os, socket
            def reaches(family, address):
                with socket.socket(family) as s:
                    s.settimeout(2)
                    try: s.connect(address)
                    except OSError as e: return type(e).__name__
                    return "reached"
            print(reaches(socket.AF_INET, ("127.0.0.1", {port})))
            print(reaches(socket.AF_UNIX, {abstract!r}), reaches(socket.AF_UNIX, {str(tmp_path / "s")!r}))
            print(os.path.exists({str(database)!r}), os.path.exists("/etc/shadow"), os.path.exists("/run"))
            """
        # the job's filter allows TCP sockets, so that it is the namespace alone that keeps the server out of reach
        code, text = output_of(python(program, seccomp=job_profile()))
    assert code == 0, text
    assert text.split() == ["ConnectionRefusedError"] * 2 + ["FileNotFoundError", "False", "False", "False"]


def test_mounts_are_what_they_were_said_to_be(tmp_path: Path) -> None:
    for name in ("ro", "rw"):
        (tmp_path / name).mkdir()
        os.chmod(tmp_path / name, 0o777)
    spec = python(
        """
        for place in ("/in/ro/x", "/in/rw/x", "/in/x", "/x", "/dev/x", "/usr/x", "/etc/x", "/tmp/x", "/dev/shm/x"):
            try: open(place, "w").close(); print("+" + place)
            except OSError: print("-" + place)
        """
    )
    spec = python(
        spec.argv[-1],
        mounts=(
            *spec.mounts,
            Mount(str(tmp_path / "ro"), "/in/ro"),
            Mount(str(tmp_path / "rw"), "/in/rw", readonly=False),
        ),
    )
    _, text = output_of(spec)
    assert text.split() == [
        "-/in/ro/x",
        "+/in/rw/x",
        "-/in/x",
        "-/x",
        "-/dev/x",
        "-/usr/x",
        "-/etc/x",
        "+/tmp/x",
        "+/dev/shm/x",
    ]
    assert (tmp_path / "rw" / "x").exists()


def test_environment_values_do_not_show_in_the_hosts_process_list() -> None:
    process = launch(python("import time; time.sleep(60)", env={"TOKEN": "very-secret-value"}))
    try:
        assert b"very-secret-value" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    finally:
        process.kill_tree()


def test_descriptors_of_the_launcher_stay_outside_unless_passed(tmp_path: Path) -> None:
    secret = os.open(tmp_path, os.O_RDONLY)
    read_end, write_end = os.pipe()
    os.set_inheritable(secret, True)
    try:
        code = "import os, sys; os.write(int(sys.argv[1]), b'hi'); print(sorted(os.listdir('/proc/self/fd'), key=int))"
        spec = python("")
        spec = python("", argv=(*spec.argv[:-1], code, str(write_end)))
        _, text = output_of(spec, pass_fds=[write_end])
        assert os.read(read_end, 10) == b"hi"
        assert str(secret) not in eval(text) and str(write_end) in eval(text)
    finally:
        for descriptor in (secret, read_end, write_end):
            os.close(descriptor)


def _daemon(marker: str) -> str:
    return f"""
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv("/bin/sh", ["sh", "-c", "sleep 300; : {marker}"])
            os._exit(0)
        time.sleep({{0}})
    """


@pytest.mark.parametrize("init", [True, False])
def test_daemons_end_with_their_command(init: bool) -> None:
    marker = f"daemon-{os.getpid()}-{init}"
    code, _ = output_of(python(_daemon(marker).format(0.2), init=init))
    assert code == 0
    nothing_left_of(marker)
    no_group_left()


@pytest.mark.parametrize("init", [True, False])
def test_kill_tree_ends_daemons_and_fork_bombs(init: bool) -> None:
    marker = f"killed-{os.getpid()}-{init}"
    bomb = "\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    process = launch(python(textwrap.dedent(_daemon(marker).format(0.3)) + bomb, init=init))
    eventually(lambda: process.usage().forks_refused > 0 or len(process.pids()) > 40, timeout_s=30)
    inside = process.pids()
    started = time.monotonic()
    assert process.kill_tree() == 128 + signal.SIGKILL
    assert time.monotonic() - started < 5
    nothing_left_of(marker)
    assert not [pid for pid in inside if _runs(pid)]
    no_group_left()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_memory_bomb_is_reported_as_out_of_memory() -> None:
    if cgroups.hierarchy() is None:
        pytest.skip("no control groups here")
    process = launch(python("x = []\nwhile True: x.append(bytearray(1 << 20))", memory_bytes=64 * MIB))
    assert process.wait(30) == 128 + signal.SIGKILL
    usage = process.usage()
    assert usage.oom_kills >= 1
    assert 32 * MIB < (usage.peak_memory_bytes or 0) <= 65 * MIB


def test_signal_reaches_the_command_and_exit_codes_come_back() -> None:
    program = (
        "import signal, sys, time\nsignal.signal(15, lambda *a: sys.exit(7))\nprint('up', flush=True)\ntime.sleep(60)"
    )
    process = launch(python(program), stdout=subprocess.PIPE)
    assert process.popen.stdout is not None
    with process.popen.stdout as stream:
        assert stream.readline() == b"up\n"
        assert process.signal(signal.SIGTERM)
        assert process.wait(20) == 7
    assert not process.signal(signal.SIGTERM)
    assert process.poll() == 7


def test_command_that_does_not_exist_is_an_exit_code_and_not_a_hang() -> None:
    code, text = output_of(SandboxSpec(argv=("/no/such/program",), mounts=system_mounts()))
    assert code != 0 and "/no/such/program" in text
    no_group_left()


def test_missing_bubblewrap_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for program in ("sh", "prlimit"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="bubblewrap could not start"):
        launch(SandboxSpec(argv=("/bin/true",), mounts=system_mounts()), stderr=subprocess.PIPE)
    isolation = probe()
    assert not isolation.ok
    assert isolation.problems == ("not installed: bubblewrap util-linux",) or "bubblewrap" in isolation.problems[0]
    assert isolation.fix is not None and isolation.fix.startswith("apt-get install -y bubblewrap")


def test_probe_reports_a_real_sandbox() -> None:
    isolation = probe()
    assert isolation.ok and isolation.net_ns and isolation.seccomp
    assert isolation.name.startswith(f"bubblewrap-{isolation.mode}+seccomp+")


@pytest.fixture
def _no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine have no control groups, as in many containers."""
    monkeypatch.setattr(cgroups, "create", lambda limits: None)


@pytest.mark.usefixtures("_no_groups")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user has one uid to give")
def test_without_control_groups_each_sandbox_is_a_user_of_its_own_and_its_fork_bomb_harms_no_other() -> None:
    bomb = """
        import os, pwd, time
        print(os.getuid(), pwd.getpwuid(os.getuid()).pw_name, flush=True)
        forks = 0
        try:
            while forks < 100:
                if os.fork() == 0: time.sleep(60)
                forks += 1
        except OSError: pass
        print(forks, flush=True)
        time.sleep(60)
        """
    running = [launch(python(bomb, pids_by_rlimit=8, init=False), stdout=subprocess.PIPE) for _ in range(3)]
    said = []
    for process in running:
        assert process.popen.stdout is not None and process.isolation.endswith("rlimits")
        said.append([process.popen.stdout.readline().decode().split() for _ in range(2)])
    for process in running:
        process.kill_tree()
        assert process.popen.stdout is not None
        process.popen.stdout.close()
    users = {int(first[0]) for first, _ in said}
    assert len(users) == 3 and all(map(uidpool.is_pooled, users))
    assert [(first[1], last) for first, last in said] == [("sandbox", ["7"])] * 3
    assert not users & uidpool._taken


def test_sandboxes_leave_no_zombie_however_they_end() -> None:
    """One under a lazy process 1 would count against its user's limit for ever."""
    inner = []
    for number in range(12):
        init = number % 2 == 0
        process = launch(python(_daemon(f"zombie-{os.getpid()}").format(0 if number < 6 else 60), init=init))
        inner.append(process.inner_pid)
        if number >= 6:
            if number % 3 == 0:
                process.popen.kill()  # the outer process first, which is the wrong way round
            process.kill_tree()
        else:
            process.wait(20)
    nothing_left_of(f"zombie-{os.getpid()}")
    eventually(lambda: not [pid for pid in inner if Path(f"/proc/{pid}").exists()])


def test_sweep_ends_what_a_killed_launcher_left_and_spares_the_living() -> None:
    if cgroups.hierarchy() is None:
        pytest.skip("no control groups here")
    code = """
        import sys, os
        from nodus.server.compute.local.sandbox import *
        spec = SandboxSpec(argv=("/bin/sleep", "300"), mounts=system_mounts(), init=False)
        print(launch(spec).inner_pid, flush=True)
        os.kill(os.getpid(), 9)
    """
    environment = {**os.environ, "PYTHONPATH": package_root()}
    alive: SandboxProcess = launch(SandboxSpec(argv=("/bin/sleep", "300"), mounts=system_mounts()))
    try:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, env=environment, text=True
        )
        left = int(done.stdout)
        cgroups.sweep()
        eventually(lambda: not _runs(left))
        assert alive.poll() is None
    finally:
        alive.kill_tree()
    no_group_left()


def test_plain_user_gets_a_user_namespace(tmp_path: Path) -> None:
    """The same library, run by another uid with the system's Python: root is not needed."""
    system_python = "/usr/bin/python3"
    version = subprocess.run(
        [system_python, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True
    )
    if os.geteuid() != 0 or version.stdout.strip() != b"True":
        pytest.skip("needs root and a system Python of 3.11 or newer")
    copy = tmp_path / "src"
    shutil.copytree(Path(package_root(), "nodus", "server", "compute"), copy / "nodus" / "server" / "compute")
    code = """
        import subprocess
        from nodus.server.compute.local.sandbox import *
        from nodus.server.compute.local.probe import probe
        print(probe().name)
        spec = SandboxSpec(argv=("/bin/sh", "-c", "id -u; cat /proc/self/uid_map; sleep 300"), mounts=system_mounts())
        process = launch(spec, stdout=subprocess.PIPE)
        print(process.popen.stdout.readline().decode().strip(), process.popen.stdout.readline().decode().split())
        print(process.kill_tree())
    """
    for path in [tmp_path, *tmp_path.parents]:
        if path != Path("/tmp") and path != Path("/"):
            os.chmod(path, 0o755)
    done = subprocess.run(
        [
            "setpriv",
            "--reuid",
            "12345",
            "--regid",
            "12345",
            "--clear-groups",
            system_python,
            "-B",
            "-c",
            textwrap.dedent(code),
        ],
        capture_output=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(copy)},
        text=True,
        timeout=50,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0].startswith("bubblewrap-userns+seccomp+")
    assert lines[1].startswith("10001 ['10001', ") and lines[1].endswith("'1']")
    assert lines[2:] == [str(128 + signal.SIGKILL)]
