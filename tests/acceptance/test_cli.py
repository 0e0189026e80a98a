"""The command line as a user runs it, against a real server process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from nodus.testing.eventually import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]
PROJECT = "apiVersion: nodus.dev/v1\nkind: Project\nmetadata: {{name: {name}}}\nspec: {{}}\n"
NODUS = str(Path(sys.executable).with_name("nodus"))


@dataclass
class Machine:
    """A user's machine: a home, and a server on it."""

    home: Path

    @property
    def environment(self) -> dict[str, str]:
        """The user's environment."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("NODUS_")}
        return kept | {"HOME": str(self.home)}

    def run(
        self, *words: str, stdin: str = "", cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``nodus WORDS`` and return what came of it."""
        return subprocess.run(
            [NODUS, *words], input=stdin, capture_output=True, text=True, env=self.environment | variables,
            cwd=cwd or self.home, timeout=120, check=False,
        )  # fmt: skip

    def ok(self, *words: str, stdin: str = "", cwd: Path | None = None) -> str:
        """Run ``nodus WORDS``, which must succeed, and return its output."""
        done = self.run(*words, stdin=stdin, cwd=cwd)
        assert done.returncode == 0, f"nodus {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def fails(self, *words: str, code: int = 1, stdin: str = "") -> str:
        """Run ``nodus WORDS``, which must fail with that exit code, and return its errors."""
        done = self.run(*words, stdin=stdin)
        assert done.returncode == code, f"nodus {' '.join(words)} ended {done.returncode}: {done.stdout}{done.stderr}"
        return done.stderr


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine on which ``nodus up --detach`` was run."""
    found = Machine(tmp_path_factory.mktemp("home"))
    found.ok("up", "--detach", "--port", "0")
    yield found
    found.ok("down")


Manifest = Callable[..., Path]


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Write a Job's manifest and return its path."""

    def write(name: str, command: str = "true", **spec: object) -> Path:
        document = {
            "apiVersion": "nodus.dev/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"command": ["sh", "-c", command], "timeout": "5m", **spec},
        }  # fmt: skip
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    return write


# The server and its key
def test_up_leaves_a_key_that_works_and_only_its_owner_can_read(machine: Machine) -> None:
    assert "Organization: " in machine.ok("whoami")
    for name in ("config", "credentials"):
        assert stat.S_IMODE((machine.home / ".nodus" / name).stat().st_mode) == 0o600
    key = json.loads(machine.ok("auth", "token"))["status"]["token"]
    assert key.startswith("nodus_")
    assert key not in (machine.home / ".nodus" / "config").read_text()


def test_status_and_doctor_say_it_is_well(machine: Machine) -> None:
    assert "Nodus is ready at http://127.0.0.1:" in machine.ok("status")
    assert json.loads(machine.ok("status", "-o", "json"))["ready"] is True
    checks = {check["name"]: check for check in json.loads(machine.run("doctor", "-o", "json").stdout)["checks"]}
    assert checks["server"]["ok"] and checks["key"]["ok"]
    assert "isolation" in checks


def test_second_up_on_the_same_data_is_one_clear_line(machine: Machine) -> None:
    lines = machine.fails("up", "--detach", "--port", "0").splitlines()
    assert lines[0].startswith("error: Nodus already runs on ")


def test_restart_keeps_the_key_and_finds_the_new_port(machine: Machine) -> None:
    key = machine.ok("auth", "token")
    machine.ok("down")
    assert "not running" in machine.run("status").stdout
    assert "can't be reached: nothing listens at" in machine.fails("get", "tj")
    machine.ok("up", "--detach", "--port", "0")
    assert machine.ok("auth", "token") == key
    assert machine.ok("get", "apikeys", "-o", "name").split() == ["apikey.nodus.dev/admin"]  # no key for each start
    machine.ok("get", "tj")


def test_login_with_token_writes_a_context_of_its_own(machine: Machine, tmp_path: Path) -> None:
    key = json.loads(machine.ok("auth", "token"))["status"]["token"]
    url = json.loads(machine.ok("status", "-o", "json"))["url"]
    other = Machine(tmp_path)
    assert "Logged in to" in other.ok("login", "--with-token", "--api-url", url, stdin=key + "\n")
    assert "Organization: " in other.ok("whoami")
    assert "Error from server (Unauthorized)" in other.fails(
        "login", "--with-token", "--api-url", url, stdin="nodus_wrong"
    )
    other.fails("login", "--with-token", "--api-url", url, code=2)
    assert other.run("whoami", NODUS_API_KEY="").returncode == 0
    assert "Unauthorized" in other.run("whoami", NODUS_API_KEY="nodus_wrong").stderr


def test_up_adds_a_context_and_overwrites_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    config = tmp_path / ".nodus" / "config"
    config.parent.mkdir()
    config.write_text(
        "current-context: work\ncontexts: [{name: work, context: {cluster: c}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\n"
    )
    try:
        assert "another context is the current one" in machine.ok("up", "--detach", "--port", "0")
        assert "can't be reached" in machine.fails("get", "tj")
        assert "Organization: " in machine.ok("--context", "nodus", "whoami")
        assert "Organization: " in machine.ok("whoami", "--context", "nodus")
        assert [item["name"] for item in yaml.safe_load(config.read_text())["contexts"]] == ["work", "nodus"]
    finally:
        machine.ok("down")


# Objects
def test_apply_creates_then_nothing_then_changes(machine: Machine, manifest: Manifest) -> None:
    path = manifest("a-apply", "sleep 300", maxCostUSD="1.00")
    assert machine.ok("apply", "-f", str(path), "--dry-run") == "job/a-apply created (server dry run)\n"
    assert "NotFound" in machine.fails("get", "job/a-apply")
    assert machine.ok("apply", "-f", str(path)) == "job/a-apply created\n"
    assert machine.ok("apply", "-f", str(path)) == "job/a-apply unchanged\n"
    manifest("a-apply", "sleep 300", maxCostUSD="2.00")
    assert machine.ok("apply", "-f", str(path)) == "job/a-apply configured\n"
    manifest("a-apply", "sleep 301", maxCostUSD="2.00")
    assert "Error from server (FieldImmutable)" in machine.fails("apply", "-f", str(path))
    assert machine.ok("cancel", "job", "a-apply") == "job/a-apply canceled\n"
    assert machine.ok("delete", "-f", str(path)) == "job/a-apply deleted\n"


def test_apply_reads_standard_input_and_refuses_nameless(machine: Machine) -> None:
    text = PROJECT.format(name="from-stdin")
    assert machine.ok("apply", "-f", "-", stdin=text) == "project/from-stdin created\n"
    assert "has no metadata.name" in machine.fails("apply", "-f", "-", code=2, stdin=text.replace("name", "other"))


def test_create_takes_generated_names(machine: Machine) -> None:
    text = json.dumps(
        {
            "apiVersion": "nodus.dev/v1",
            "kind": "Job",
            "metadata": {"generateName": "gen-"},
            "spec": {"command": ["true"]},
        }
    )
    name = machine.ok("create", "-f", "-", "-o", "name", stdin=text).strip()
    assert name.startswith("job.nodus.dev/gen-")
    machine.ok("delete", "job", name.partition("/")[2])


def test_bad_manifest_lists_every_mistake_with_its_path(machine: Machine) -> None:
    text = """
apiVersion: nodus.dev/v1beta1
kind: TrainingJob
metadata: {name: bad}
spec:
  runtime: nodus/grpo-lora
  environment: {name: nodus/arithmetic@9.9.9, trainTasks: 8, heldOutTasks: 8}
  parameters: {learning_rate: 0.1}
  maxCostUSD: 5
"""
    errors = machine.fails("apply", "-f", "-", stdin=text)
    assert errors.startswith("Error from server (Invalid): ")
    assert "  spec.maxCostUSD: " in errors
    assert "request-id: req_" in errors


def test_get_prints_what_is_asked_for(machine: Machine, manifest: Manifest) -> None:
    machine.ok("apply", "-f", str(manifest("a-get", "sleep 300")))
    header, row = machine.ok("get", "job", "a-get").splitlines()
    assert header.split()[:2] == ["NAME", "PHASE"] and row.split()[0] == "a-get"
    assert "IMAGE" in machine.ok("get", "jobs", "-o", "wide").splitlines()[0]
    assert machine.ok("get", "job/a-get", "--no-headers").split()[0] == "a-get"
    assert yaml.safe_load(machine.ok("get", "job/a-get", "-o", "yaml"))["metadata"]["name"] == "a-get"
    assert json.loads(machine.ok("get", "job", "-o", "json"))["kind"] == "List"
    assert machine.ok("get", "job/a-get", "-o", "name") == "job.nodus.dev/a-get\n"
    assert machine.ok("get", "job/a-get", "-o", "jsonpath={.spec.command[0]}") == "sh\n"
    assert machine.ok("get", "jobs", "-A").splitlines()[0].startswith("NAMESPACE")
    assert "a-get" in machine.ok("get", "jobs", "--mine", "--show-labels")
    machine.ok("cancel", "job/a-get")
    assert "unknown output format" in machine.fails("get", "jobs", "-o", "jsn", code=2)


def test_get_of_nothing_says_so(machine: Machine) -> None:
    done = machine.run("get", "tj")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "No resources found in project default.\n")
    assert 'projects "nope" not found' in machine.fails("get", "tj/x", "-p", "nope")
    assert "resource type 'jbos'" in machine.fails("get", "jbos")


def test_get_catalog_of_the_guide(machine: Machine) -> None:
    listed = machine.ok("get", "environments", "-n", "nodus")
    assert listed.split()[:5] == ["NAME", "VERSION", "CATEGORY", "MODES", "PHASE"]
    assert "arithmetic" in listed
    assert "Splits:" in machine.ok("describe", "environment/arithmetic", "-n", "nodus")
    machine.ok("get", "trainingruntime/grpo-lora", "-n", "nodus", "-o", "yaml")


def test_watch_shows_a_change_once(machine: Machine, manifest: Manifest, tmp_path: Path) -> None:
    machine.ok("apply", "-f", str(manifest("a-watch", "sleep 300")))
    with (tmp_path / "watched").open("w") as out:
        watching = subprocess.Popen([NODUS, "get", "job", "-w", "--no-headers"], stdout=out, env=machine.environment)
        try:
            eventually(lambda: "a-watch" in (tmp_path / "watched").read_text(), timeout_s=30)
            machine.ok("cancel", "job/a-watch")
            eventually(lambda: "Cancelled" in (tmp_path / "watched").read_text(), timeout_s=60)
        finally:
            watching.terminate()
            watching.wait()


def test_watch_goes_on_after_the_server_was_killed(manifest: Manifest, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "killed")
    machine.home.mkdir()
    machine.ok("up", "--detach", "--port", "0")
    running = json.loads(machine.ok("status", "-o", "json"))
    watched = tmp_path / "watched"
    with watched.open("w") as out:
        watching = subprocess.Popen(
            [NODUS, "get", "project", "-w", "--no-headers"], stdout=out, env=machine.environment
        )
        try:
            eventually(lambda: "default" in watched.read_text(), timeout_s=30)
            os.kill(running["pid"], signal.SIGKILL)
            eventually(lambda: "not running" in machine.run("status").stdout, timeout_s=30)
            machine.ok("up", "--detach", "--port", running["url"].rpartition(":")[2])
            machine.ok("apply", "-f", "-", stdin=PROJECT.format(name="after-the-kill"))
            eventually(lambda: "after-the-kill" in watched.read_text(), timeout_s=60)
            assert watched.read_text().count("default ") == 1
        finally:
            watching.terminate()
            watching.wait()
            machine.ok("down")


# Runs
def test_run_is_waited_for_read_and_copied(machine: Machine, manifest: Manifest, tmp_path: Path) -> None:
    command = "echo hello; cd /nodus/outputs; mkdir deep; echo result > deep/r.txt; echo top > top.txt"
    outputs = [{"name": "outputs", "path": "/nodus/outputs"}]
    machine.ok("apply", "-f", str(manifest("a-run", command, outputs=outputs)))
    assert "hello" in machine.ok("logs", "job/a-run", "-f")
    assert (
        machine.ok("wait", "job/a-run", "--for=jsonpath='{.status.phase}'=Succeeded", "--timeout=60s")
        == "job/a-run condition met\n"
    )
    assert machine.ok("logs", "job/a-run", "--tail", "1", "--timestamps").rstrip().endswith("hello")
    assert "has no attempt '9'" in machine.fails("logs", "job/a-run", "--attempt", "9")
    described = machine.ok("describe", "job/a-run")
    assert "Phase:          Succeeded" in described and "Attempts:" in described and "Events:" in described
    assert "job/a-run" in machine.ok("events", "--for", "job/a-run")
    names = machine.ok("get", "job/a-run", "-o", "jsonpath={.status.outputs[*].name}").split()
    machine.ok("cp", f"job/a-run:outputs/{names[0]}", str(tmp_path / "one"))
    machine.ok("cp", "job/a-run:outputs/", str(tmp_path / "all"))
    assert sorted(
        path.relative_to(tmp_path / "all").as_posix() for path in (tmp_path / "all").rglob("*.txt")
    ) == sorted(names)
    assert "OutputNotFound" in machine.fails("cp", "job/a-run:outputs/nope", str(tmp_path / "nope"))
    assert machine.ok("delete", "job/a-run", "--wait") == "job/a-run deleted\n"
    assert machine.ok("delete", "job/a-run", "--ignore-not-found") == ""
    assert "NotFound" in machine.fails("delete", "job/a-run")


def test_wait_ends_early_when_it_can_not_come_true_and_late_otherwise(machine: Machine, manifest: Manifest) -> None:
    machine.ok("apply", "-f", str(manifest("a-fail", "exit 3")))
    said = machine.fails("wait", "job/a-fail", "--for=jsonpath={.status.phase}=Succeeded")
    assert said.startswith("error: job/a-fail ended Failed, not Succeeded: BackoffLimitExceeded")
    assert "timed out" in machine.fails(
        "wait", "job/a-fail", "--for=jsonpath={.status.job}=x", "--timeout=1s", code=124
    )
    assert "NotFound" in machine.fails("wait", "job/nope", "--for=delete")
    assert "--for=phase" in machine.fails("wait", "job/a-fail", "--for=phase", code=2)


def test_patch_in_all_its_forms(machine: Machine, manifest: Manifest) -> None:
    machine.ok("apply", "-f", str(manifest("a-patch", "sleep 300", maxCostUSD="1.00")))
    assert (
        machine.ok("patch", "job/a-patch", "--type", "merge", "-p", '{"spec":{"maxCostUSD":"2"}}')
        == "job/a-patch patched\n"
    )
    machine.ok("patch", "job/a-patch", "-p", "default", "--patch", '{"metadata":{"labels":{"team":"a"}}}')
    machine.ok(
        "patch", "job/a-patch", "--type=json", "--patch", '[{"op":"add","path":"/metadata/labels/b","value":"c"}]'
    )
    assert machine.ok("get", "job", "-l", "team=a,b=c", "-o", "name") == "job.nodus.dev/a-patch\n"
    assert "--patch is required" in machine.fails("patch", "job/a-patch", code=2)
    assert "not valid JSON" in machine.fails("patch", "job/a-patch", "--patch", "{", code=1)
    assert machine.ok("delete", "job", "-l", "team=a") == "job/a-patch deleted\n"


def test_volume_goes_there_and_back(machine: Machine, tmp_path: Path) -> None:
    source = tmp_path / "data"
    (source / "deep").mkdir(parents=True)
    (source / "a.txt").write_text("a")
    (source / "deep" / "b.bin").write_bytes(bytes(range(256)) * 1000)
    assert machine.ok("volume", "put", "a-volume", str(source), "--create") == "volume/a-volume revision 1\n"
    assert machine.ok("volume", "put", "a-volume", str(source / "a.txt"), "/copy/") == "volume/a-volume revision 2\n"
    assert [line.split() for line in machine.ok("volume", "ls", "a-volume").splitlines()] == [
        ["NAME", "SIZE"], ["a.txt", "1"], ["copy/", "1"], ["deep/", "256000"],
    ]  # fmt: skip
    assert "deep/b.bin" in machine.ok("volume", "ls", "a-volume", "-R")
    machine.ok("volume", "get", "a-volume", "/", str(tmp_path / "back"))
    assert (tmp_path / "back" / "deep" / "b.bin").read_bytes() == (source / "deep" / "b.bin").read_bytes()
    assert "is there already" in machine.fails("volume", "get", "a-volume", "/", str(tmp_path / "back"))
    machine.ok("volume", "get", "a-volume", "/", str(tmp_path / "back"), "--force")
    assert machine.ok("volume", "get", "a-volume", "a.txt", "-") == "a"
    assert "nothing at 'copy'" in machine.fails("volume", "ls", "a-volume", "copy", "--revision", "1")
    assert machine.ok("volume", "rm", "a-volume", "/copy") == "volume/a-volume revision 3\n"
    assert "nothing at 'copy'" in machine.fails("volume", "rm", "a-volume", "copy")
    assert machine.ok("volume", "clear", "a-volume") == "volume/a-volume revision 4\n"
    assert machine.ok("volume", "restore", "a-volume", "1") == "volume/a-volume revision 5\n"
    rows = [line.split()[:3] for line in machine.ok("volume", "revisions", "a-volume").splitlines()]
    assert [row[:2] for row in rows] == [
        ["REVISION", "FILES"],
        *([str(n), f] for n, f in zip("54321", "20232", strict=True)),
    ]
    shutil.make_archive(str(tmp_path / "packed"), "gztar", source)
    machine.ok("volume", "put", "a-volume", str(tmp_path / "packed.tar.gz"), "/unpacked", "--extract")
    assert "unpacked/deep/b.bin" in machine.ok("volume", "ls", "a-volume", "-R", "-o", "yaml")
    (source / "link").symlink_to("a.txt")
    machine.ok("volume", "put", "a-volume", str(source), "/linked")
    assert "linked/link" in machine.ok("volume", "ls", "a-volume", "-R", "-o", "yaml")  # as a copy of what it names
    machine.ok("delete", "volume/a-volume")


def test_help_of_every_command_shows_an_example(machine: Machine) -> None:
    from nodus.cli.main import COMMANDS

    for name in COMMANDS:
        assert "Example" in machine.ok(name, "--help"), name


def test_get_imports_nothing_heavy(machine: Machine) -> None:
    program = (
        "import sys; from nodus.cli.main import main; code = main(['get', 'tj']); print(code, *sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=machine.environment, check=True
    )
    code, *modules = done.stdout.splitlines()[-1].split()
    assert code == "0"
    assert not {"pydantic", "rich", "yaml", "httpx", "asyncio", "sqlalchemy", "torch"} & set(modules)


def test_python_reads_the_same_configuration(machine: Machine) -> None:
    program = (
        "import nodus; print(nodus.Client().whoami().user, nodus.Environment.from_name('nodus/arithmetic').reference)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=machine.environment, check=True
    )
    assert done.stdout.split()[1] == "nodus/arithmetic@2.0.0"
