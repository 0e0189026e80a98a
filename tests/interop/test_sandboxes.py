"""Sandboxes with the published client: made, used from shell and Python, stopped and started with their files kept."""

from __future__ import annotations

import re

import pytest

from tests.interop.conftest import Desk, cells

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(300)]


def test_commands_files_stop_and_start(desk: Desk) -> None:
    made = desk.ok("nodus create sandbox dev --cpu 0.5 --memory 512Mi --idle-timeout 10m")
    assert made == "sandbox/dev created\n"
    desk.ok("nodus wait sb/dev --for=jsonpath='{.status.phase}'=Running --timeout=60s")
    assert desk.ok("nodus exec sb/dev -- echo hi") == "hi\n"
    assert desk.run("nodus exec sb/dev -- sh -c 'exit 3'").returncode == 3
    assert desk.ok("nodus exec -i sb/dev -- cat", stdin="typed") == "typed"
    (desk.home / "data").mkdir()
    for name in ("a", "b"):
        desk.write(f"data/{name}", name)
    desk.ok("nodus cp ./data sb/dev:/workspace/data")
    assert desk.ok("nodus exec sb/dev -- cat /workspace/data/a /workspace/data/b") == "ab"
    desk.ok("nodus cp sb/dev:/workspace/data/a ./a")
    desk.ok("nodus cp sb/dev:/workspace/data ./back")
    assert ((desk.home / "a").read_text(), (desk.home / "back" / "b").read_text()) == ("a", "b")
    assert desk.ok("nodus logs sb/dev --process 1") == "hi\n"
    _, *rows = cells(desk.ok("nodus get processes"))
    assert rows[0][1:3] == ["Succeeded", "dev"] and len(rows) >= 3
    assert desk.run("nodus cp sb/dev:/workspace/../etc/shadow ./x").returncode != 0
    assert desk.ok("nodus stop sb/dev") == "sandbox/dev stopped\n"
    desk.ok("nodus wait sb/dev --for=jsonpath='{.status.phase}'=Stopped --timeout=60s")
    assert "SandboxNotRunning" in desk.run("nodus exec sb/dev -- true").stderr
    assert desk.ok("nodus start sb/dev") == "sandbox/dev started\n"
    desk.ok("nodus wait sb/dev --for=jsonpath='{.status.phase}'=Running --timeout=60s")
    assert desk.ok("nodus exec sb/dev -- cat /workspace/data/a") == "a"
    assert re.search(r"Phase: +Running", desk.ok("nodus describe sb/dev"))
    assert desk.ok("nodus delete sb/dev --wait") == "sandbox/dev deleted\n"


def test_python_uses_a_sandbox(desk: Desk) -> None:
    program = """
        import nodus

        sandbox = nodus.Sandbox.create(name="py", cpu=0.5, memory="512Mi")
        process = sandbox.exec("sh", "-c", "echo out; echo err >&2; exit 4")
        print(process.wait(), process.stdout.read().strip())
        sandbox.files.write("/workspace/a.txt", b"hello")
        print(sandbox.files.read("/workspace/a.txt"), [item["name"] for item in sandbox.files.list("/workspace")])
        again = nodus.Sandbox.from_name("py")
        print(again.exec("cat", "/workspace/a.txt").stdout.read())
        again.terminate()
        """
    assert desk.python(program).splitlines() == ["4 out", "b'hello' ['a.txt']", "hello"]
