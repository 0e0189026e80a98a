"""`nodus admin backup` of a server that works, kills in the middle of it, and `restore`."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from nodus.cli import main as cli
from nodus.server.lifecycle import DownOptions, ServerNotStarted, Started, UpOptions, down, up
from nodus.server.store.blobs import BlobStore
from nodus.testing.eventually import eventually
from nodus.testing.postgres import PostgresServer, postgres_server

__all__ = ["postgres_server"]
pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]
V1 = "/apis/nodus.dev/v1"
DEFAULT = f"{V1}/namespaces/default"


class Place:
    """A data directory, its server, and a directory for backups."""

    def __init__(self, root: Path) -> None:
        self.data, self.target = root / "data", root / "backup"
        self.key = ""
        self.started: Started | None = None

    def up(self, data: Path | None = None) -> None:
        options = UpOptions(data_dir=data or self.data, port=0, detach=True, issue_key=not self.key)
        self.started = up(options)
        self.key = self.started.api_key or self.key

    def down(self) -> None:
        if self.started is not None:
            down(DownOptions(data_dir=self.started.data_dir))
            self.started = None

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        assert self.started is not None
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.request(method, self.started.url + path, headers=headers, timeout=30, **options)

    def ok(self, method: str, path: str, **options: Any) -> Any:
        answer = self.call(method, path, **options)
        assert answer.status_code < 400, answer.text
        return answer.json()

    def write_file(self, volume: str, path: str, content: bytes) -> None:
        uploads = f"{DEFAULT}/volumes/{volume}/uploads"
        upload = self.ok("POST", uploads, json={"mode": "Write"})["id"]
        self.ok("PUT", f"{uploads}/{upload}/files", params={"path": path}, content=content)
        self.ok("PUT", f"{uploads}/{upload}", json={"commit": {}})

    def read_file(self, volume: str, path: str) -> bytes:
        moved = self.call("GET", f"{DEFAULT}/volumes/{volume}/files", params={"path": path})
        return httpx.get(moved.headers["location"]).content

    def fill(self) -> None:
        """Give the server something of everything."""
        self.ok("POST", f"{DEFAULT}/secrets", json={"metadata": {"name": "s"}, "spec": {"stringData": {"K": "v"}}})
        self.ok("POST", f"{DEFAULT}/volumes", json={"metadata": {"name": "v"}, "spec": {"size": "1Gi"}})
        self.write_file("v", "a.txt", b"first")

    def names(self, kind: str) -> set[str]:
        return {item["metadata"]["name"] for item in self.ok("GET", f"{DEFAULT}/{kind}")["items"]}


@dataclass
class Done:
    """What a command said."""

    returncode: int
    stdout: str
    stderr: str


def nodus(*words: str | Path) -> Done:
    """Run the command line here: a process of its own takes a second to begin."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = cli.main([str(word) for word in words])
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    made.up()
    yield made
    made.down()


def test_backup_of_a_server_that_is_written_to_is_one_consistent_state(place: Place, tmp_path: Path) -> None:
    place.fill()
    state = place.data / "jobs" / "some-job" / "state"
    state.mkdir(parents=True)
    (state / "checkpoint").write_text("step 3")
    (state / "latest").symlink_to("checkpoint")
    stop, written = threading.Event(), 0

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            place.write_file("v", f"more/{written}", b"%d" % written)
            written += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert eventually(lambda: written > 2)
        done = nodus("admin", "backup", place.target, "--data-dir", place.data)
        least = written
    finally:
        stop.set()
        writer.join()
    assert done.returncode == 0, done.stderr
    assert "blobs" in done.stdout and done.stderr == ""
    assert all(path.stat().st_mode & 0o077 == 0 for path in place.target.iterdir())
    seen = place.ok("GET", f"{DEFAULT}/volumes/v")["metadata"]["resourceVersion"]

    place.down()
    shutil.rmtree(place.data)
    again = tmp_path / "elsewhere"
    done = nodus("admin", "restore", place.target, "--data-dir", again)
    assert done.returncode == 0, done.stderr
    place.up(again)
    listed = place.ok("GET", f"{DEFAULT}/volumes/v/files", params={"limit": 5000, "links": "true"})["items"]
    assert {item["path"] for item in listed} >= {"a.txt", "more/0", "more/1"}
    assert len(listed) <= least + 2
    for item in listed:
        expected = b"first" if item["path"] == "a.txt" else item["path"].removeprefix("more/").encode()
        assert httpx.get(item["url"]).content == expected, "every file of the copied state is there"
    assert place.ok("GET", "/auth/whoami")["scopes"] == ["*"], "the key of before works"
    assert (again / "jobs" / "some-job" / "state" / "latest").read_text() == "step 3"
    watch = place.call("GET", f"{DEFAULT}/volumes?watch=true&resourceVersion={seen}&timeoutSeconds=1")
    assert json.loads(watch.text.splitlines()[0])["object"]["code"] == 410, "who saw later versions lists again"
    trail = place.ok("GET", f"{V1}/auditevents?fieldSelector=spec.verb=restore")["items"]
    assert [item["spec"]["object"]["kind"] for item in trail] == ["Backup"]
    place.ok("POST", f"{DEFAULT}/jobs", json={"metadata": {"name": "new"}, "spec": {"command": ["true"]}})


DYING = """
import os, signal, sys
from pathlib import Path
from nodus.server import backup

count = 0
def on_blob(size):
    global count
    count += 1
    if count == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

backup.make(Path(sys.argv[1]), Path(sys.argv[2]), on_blob=on_blob)
"""


def killed(place: Place, at: int) -> None:
    done = subprocess.run([sys.executable, "-c", DYING, place.data, place.target, str(at)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL


def test_kill_in_the_middle_leaves_the_backup_of_before(place: Place, tmp_path: Path) -> None:
    place.fill()
    killed(place, 1)
    done = nodus("admin", "restore", place.target, "--data-dir", tmp_path / "new")
    assert done.returncode == 1
    assert "its first backup was not finished" in done.stderr
    assert not (tmp_path / "new").exists()

    assert nodus("admin", "backup", place.target, "--data-dir", place.data).returncode == 0
    place.write_file("v", "b.txt", b"second")
    killed(place, 2)
    place.down()
    assert nodus("admin", "restore", place.target, "--data-dir", tmp_path / "new").returncode == 0
    place.up(tmp_path / "new")
    assert place.read_file("v", "a.txt") == b"first"
    assert len(place.ok("GET", f"{DEFAULT}/volumes/v/files")["items"]) == 1


def test_backup_again_copies_what_is_new_and_drops_what_is_gone(place: Place) -> None:
    place.fill()
    assert "(1 new)" in nodus("admin", "backup", place.target, "--data-dir", place.data).stdout
    place.write_file("v", "b.txt", b"second")
    assert "2 blobs of 11B (1 new)" in nodus("admin", "backup", place.target, "--data-dir", place.data).stdout
    place.ok("DELETE", f"{DEFAULT}/volumes/v")
    assert len(list(place.target.glob("database-*.sqlite"))) == 1
    assert len(list(place.target.glob("blobs/*/*"))) == 2


def test_restore_that_was_killed_keeps_servers_away_until_it_is_done_again(place: Place, tmp_path: Path) -> None:
    place.fill()
    assert nodus("admin", "backup", place.target, "--data-dir", place.data).returncode == 0
    place.down()
    again = tmp_path / "again"
    again.mkdir()
    (again / "restoring").write_text("")
    (again / "keys.json").write_text("half")
    with pytest.raises(ServerNotStarted, match="was not finished"):
        up(UpOptions(data_dir=again, port=0, detach=True))
    assert nodus("admin", "restore", place.target, "--data-dir", again).returncode == 0
    place.up(again)
    assert place.read_file("v", "a.txt") == b"first"


def test_what_was_damaged_is_named(place: Place, tmp_path: Path) -> None:
    place.fill()
    place.write_file("v", "b.txt", b"second")
    one, two = sorted((place.data / "blobs").glob("??/*"))
    one.chmod(0o600)
    one.write_bytes(b"rotten")
    done = nodus("admin", "backup", place.target, "--data-dir", place.data)
    assert (done.returncode, "Backup of" in done.stdout) == (1, True)
    assert f"the server itself lacks or has damaged 1 blobs: {one.name}" in done.stderr
    (place.target / "blobs" / two.name[:2] / two.name).write_bytes(b"second!"[: two.stat().st_size - 1])
    place.down()
    done = nodus("admin", "restore", place.target, "--data-dir", tmp_path / "new")
    assert done.returncode == 1
    assert "the backup lacks or has damaged 2 blobs" in done.stderr


def test_what_is_no_place_for_it_is_refused(place: Place, tmp_path: Path) -> None:
    other, new = tmp_path / "other", tmp_path / "new"
    other.mkdir()
    (other / "mine").write_text("")

    def refused(said: str, *words: str | Path, data: Path = place.data) -> None:
        done = nodus("admin", *words, "--data-dir", data)
        assert done.returncode == 1, done
        assert done.stderr.startswith("error: ") and said in done.stderr, done

    refused("holds other files", "backup", other)
    refused("is in the data directory itself", "backup", place.data / "backup")
    refused("keys.json", "backup", place.target, data=other)
    refused("it has no backup.json", "restore", other, data=new)
    assert nodus("admin", "backup", place.target, "--data-dir", place.data).returncode == 0
    refused("already runs", "restore", place.target)
    place.down()
    refused("is not empty: it has", "restore", place.target)
    refused("is not empty: it has mine", "restore", place.target, data=other)
    (database,) = place.target.glob("database-*.sqlite")
    with database.open("r+b") as file:
        file.write(b"x")
    refused("is not as it was written", "restore", place.target, data=new)
    (place.target / "backup.json").write_text("{")
    refused("can't be read", "restore", place.target, data=new)
    (place.target / "backup.json").write_text('{"format": 2, "nodus": "9.0"}')
    refused("a newer version of Nodus (9.0)", "restore", place.target, data=new)
    assert (other / "mine").exists()


@pytest.mark.postgres
@pytest.mark.heavy
def test_a_backup_moves_a_server_between_databases(
    place: Place, tmp_path: Path, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.fill()
    assert nodus("admin", "backup", place.target, "--data-dir", place.data).returncode == 0
    place.down()
    with postgres_server.database() as url:
        monkeypatch.setenv("NODUS_SERVER_DATABASE_URL", url)
        first, second = tmp_path / "on-postgres", tmp_path / "from-postgres"
        done = nodus("admin", "restore", place.target, "--data-dir", first)
        assert done.returncode == 0, done.stderr
        place.up(first)
        place.write_file("v", "b.txt", b"on postgres")
        assert place.read_file("v", "a.txt") == b"first"
        assert place.ok("GET", f"{V1}/auditevents?limit=1")["items"][0]["spec"]["verb"] == "commit"
        done = nodus("admin", "backup", tmp_path / "other", "--data-dir", first)
        assert done.returncode == 0, done.stderr
        place.down()
        done = nodus("admin", "restore", tmp_path / "other", "--data-dir", tmp_path / "third")
        assert done.returncode == 1 and "not empty" in done.stderr
        monkeypatch.delenv("NODUS_SERVER_DATABASE_URL")
        assert nodus("admin", "restore", tmp_path / "other", "--data-dir", second).returncode == 0
        place.up(second)
        assert place.read_file("v", "b.txt") == b"on postgres"
        assert place.ok("GET", "/auth/whoami")["scopes"] == ["*"]


def test_sweep_beside_a_server_that_works(place: Place, tmp_path: Path) -> None:
    place.fill()
    done = nodus("admin", "sweep", "--older-than", "1h", "--data-dir", place.data)
    assert (done.returncode, done.stdout) == (0, "Removed 0 revisions and 0 blobs of 0B.\n")
    assert place.read_file("v", "a.txt") == b"first"
    with BlobStore(place.data / "blobs").kept():
        done = nodus("admin", "sweep", "--data-dir", place.data)
        assert done.returncode == 1 and "a backup or another sweep is going on" in done.stderr
    assert "no server's data" in nodus("admin", "sweep", "--data-dir", tmp_path / "none").stderr
    assert nodus("admin", "sweep", "--older-than", "1m").returncode == 2


@pytest.mark.sandbox
@pytest.mark.heavy
def test_logs_of_a_run_come_back_and_one_under_way_is_begun_again(place: Place, tmp_path: Path) -> None:
    def job(name: str, script: str) -> None:
        spec = {"command": ["sh", "-c", script], "resources": {"cpu": 0.1, "memory": "64Mi"}, "backoffLimit": 0}
        place.ok("POST", f"{DEFAULT}/jobs", json={"metadata": {"name": name}, "spec": spec})

    def phase(name: str) -> str | None:
        found: str | None = place.ok("GET", f"{DEFAULT}/jobs/{name}")["status"].get("phase")
        return found

    job("done", "echo said")
    job("under-way", "echo begun; sleep 8; echo ended")
    assert eventually(lambda: phase("done") == "Succeeded" and phase("under-way") == "Running", timeout_s=60)
    assert nodus("admin", "backup", place.target, "--data-dir", place.data).returncode == 0
    assert eventually(lambda: phase("under-way") == "Succeeded", timeout_s=60)
    place.down()
    again = tmp_path / "again"
    assert nodus("admin", "restore", place.target, "--data-dir", again).returncode == 0
    place.up(again)
    assert place.call("GET", f"{DEFAULT}/jobs/done/log").text == "said\n"
    assert eventually(lambda: phase("under-way") == "Succeeded", timeout_s=80)
    assert place.call("GET", f"{DEFAULT}/jobs/under-way/log").text.endswith("begun\nended\n")
