"""Sandboxes as the published client uses them: `create sandbox`, `exec`, `cp`, `shell`, `stop`, `start`; in Python."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.conftest import Desk

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(120)]


@pytest.fixture
def sandbox(desk: Desk) -> Iterator[str]:
    said = desk.ok("nodus create sandbox place --cpu 1 --memory 256Mi --idle-timeout 10m")
    assert said == "sandbox/place created\n"
    yield "sb/place"
    desk.ok("nodus delete sb/place --ignore-not-found")


def test_exec_carries_both_streams_input_and_the_exit_code(desk: Desk, sandbox: str) -> None:
    done = desk.run(f"nodus exec {sandbox} -- sh -c 'echo out; echo err >&2; exit 3'")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert desk.run(f"nodus exec -i {sandbox} -- cat", stdin="typed\n").stdout == "typed\n"
    assert desk.run(f"nodus exec {sandbox} -- no-such-program").returncode == 127
    done = desk.run(f"script -qec \"nodus exec -it {sandbox} -- sh -c 'tty; exit 5'\" /dev/null </dev/null")
    assert (done.returncode, "/dev/pts/0" in done.stdout) == (5, True)
    assert "out\n" in desk.ok(f"nodus logs {sandbox} --process 1")
    assert desk.run(f"nodus attach {sandbox} --process 1").returncode == 3


def test_cp_takes_files_and_whole_directories_both_ways(desk: Desk, sandbox: str) -> None:
    desk.ok("mkdir -p data/below; echo one > data/1; chmod 755 data/1; echo two > data/below/2; echo x > file")
    desk.ok(f"nodus cp data {sandbox}:/workspace/data; nodus cp file {sandbox}:/workspace/")
    found = desk.ok(f"nodus exec {sandbox} -- find /workspace -type f -printf '%P %m\\n'")
    assert sorted(found.splitlines()) == ["data/1 755", "data/below/2 644", "file 644"]
    desk.ok(f"nodus cp {sandbox}:/workspace/data back; nodus cp {sandbox}:/workspace/file copy")
    assert desk.ok("cat back/1 back/below/2 copy") == "one\ntwo\nx\n"
    assert "no file /nowhere" in desk.fails(f"nodus cp {sandbox}:/nowhere here")


def test_stop_and_start_keep_the_workspace(desk: Desk, sandbox: str) -> None:
    desk.ok(f"nodus exec {sandbox} -- sh -c 'echo kept > /workspace/file'")
    assert desk.ok(f"nodus stop {sandbox}") == "sandbox/place stopped\n"
    desk.ok(f"nodus wait {sandbox} --for=jsonpath='{{.status.phase}}'=Stopped --timeout 30s")
    assert "SandboxNotRunning" in desk.fails(f"nodus exec {sandbox} -- true")
    assert desk.ok(f"nodus start {sandbox}") == "sandbox/place started\n"
    assert desk.ok(f"nodus exec {sandbox} -- cat /workspace/file") == "kept\n"
    assert "spec.state" in desk.fails(f"nodus cancel {sandbox}")


def test_shell_makes_a_sandbox_of_its_own_and_deletes_it(desk: Desk) -> None:
    shell = "nodus shell --memory 256Mi -- sh -c 'echo inside'"
    said = desk.ok(f'script -qec "{shell}" /dev/null </dev/null')
    assert "created" in said and "inside" in said and "deleted" in said


def test_describe_and_get_show_it(desk: Desk, sandbox: str) -> None:
    desk.ok(f"nodus exec {sandbox} -- true")
    assert desk.ok("nodus get sb").split()[:6] == ["NAME", "PHASE", "ACTIVITY", "REASON", "COST", "AGE"]
    shown = desk.ok(f"nodus describe {sandbox}")
    assert "Phase:      Running" in shown
    assert "nodus/agent-tools @ sha256:" in shown
    assert desk.ok("nodus get processes -o name").startswith("process.nodus.dev/sb-place-1")


def test_python(desk: Desk) -> None:
    program = """
        import nodus
        sandbox = nodus.Sandbox.create(name="python", cpu=1, memory="256Mi", idle_timeout="10m")
        process = sandbox.exec("echo out; echo err >&2; exit 4")
        print(repr(process.stdout.read()), repr(process.stderr.read()), process.wait(), process.returncode)
        process = sandbox.exec("cat", stdin=True)
        process.write("typed")
        process.stdin.write_eof()
        process.stdin.drain()
        print(process.stdout.read(), process.wait())
        sandbox.files.write("/workspace/a/b.txt", "hello")
        print(sandbox.files.read("/workspace/a/b.txt"), [f["name"] for f in sandbox.files.list("/workspace/a")])
        with sandbox.open("/workspace/c", "w") as file:
            file.write("x")
        sandbox.files.remove("/workspace/c")
        process = sandbox.exec("sleep", "100")
        process.signal("SIGTERM")
        print(process.wait())
        process = sandbox.exec("sh", pty=True, stdin=True)
        with process.attach(tty=True) as attached:
            attached.write("exit 7\\n")
            for _ in attached:
                pass
            print(attached.exit_code)
        sandbox.stop()
        while sandbox.status().phase != "Stopped":
            pass
        sandbox = nodus.Sandbox.from_name("python")
        print(sandbox.exec("cat", "/workspace/a/b.txt").stdout.read())
        sandbox.terminate()
    """
    assert desk.python(program).splitlines() == [
        "'out\\n' 'err\\n' 4 4",
        "typed 0",
        "b'hello' ['b.txt']",
        "143",
        "7",
        "hello",
    ]
