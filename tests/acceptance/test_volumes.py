"""Volumes by the Python client on a real server: large files through kills of either side, memory, sources."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nodus
from nodus.client import volumefiles
from nodus.client.client import Client
from nodus.client.config import Connection
from nodus.core.errors import NodusError, NotFound
from nodus.server import datadir
from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up
from nodus.testing.eventually import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

MIB = 1024 * 1024
Start = Callable[..., Started]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("volumes")


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[dict[str, Any]]:
    """A server whose entry ``pid`` follows its restarts."""
    options = UpOptions(data_dir=place / "data", port=0, detach=True, issue_key=True)
    started = up(options)
    yield {"url": started.url, "key": started.api_key, "pid": started.pid, "data": place / "data"}
    down(DownOptions(data_dir=place / "data"))


def restart(server: dict[str, Any]) -> None:
    os.kill(server["pid"], signal.SIGKILL)
    eventually(lambda: datadir.holder(server["data"]) is None)
    port = int(server["url"].rpartition(":")[2])
    server["pid"] = up(UpOptions(data_dir=server["data"], port=port, detach=True)).pid


@pytest.fixture
def client(server: dict[str, Any]) -> Iterator[Client]:
    with Client(connection=Connection(server["url"], server["key"], "default")) as made:
        yield made


@pytest.fixture(scope="module")
def large(place: Path) -> Path:
    path = place / "large.bin"
    with path.open("wb") as file:
        for number in range(64):
            file.write(hashlib.sha256(str(number).encode()).digest() * (MIB // 32))
    return path


def volume(client: Client, name: str) -> nodus.Volume:
    return nodus.Volume.from_name(name, create_if_missing=True, size="1Gi", client=client)


def peak_mib(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


DYING = """
import os, signal, sys
import nodus
from nodus.client import volumefiles
from nodus.client.client import Client
from nodus.client.config import Connection

volumefiles.PIECE_BYTES = 8 * 1024 * 1024
client = Client(connection=Connection(sys.argv[1], sys.argv[2], "default"))
left = [int(sys.argv[4])]

def meter(name, total):
    def sent(size):
        left[0] -= size
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return sent

client.api.meter = meter
nodus.Volume.from_name("survivor", client=client).put(sys.argv[3])
"""


def test_upload_goes_on_after_its_client_was_killed(server: dict[str, Any], client: Client, large: Path) -> None:
    made = volume(client, "survivor")
    arguments = (server["url"], server["key"], str(large), str(30 * MIB))
    ended = subprocess.run([sys.executable, "-c", DYING, *arguments], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert made.list() == []

    sent: list[int] = []
    client.api.meter = lambda name, total: sent.append
    assert made.put(large) == 1
    assert sent[0] >= 16 * MIB  # what the server had: told first, at once
    assert sum(sent) == large.stat().st_size
    assert made.list()[0].sha256 == hashlib.sha256(large.read_bytes()).hexdigest()


def test_upload_goes_on_through_a_kill_of_the_server(
    server: dict[str, Any], client: Client, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volumefiles, "PIECE_BYTES", 8 * MIB)
    made = volume(client, "patient")
    sent = [0]
    killer = threading.Thread(target=restart, args=(server,))

    def moved(size: int) -> None:
        sent[0] += size
        if sent[0] > 20 * MIB and killer.ident is None:
            killer.start()

    client.api.meter = lambda name, total: moved
    content = b"x" + large.read_bytes()  # other bytes than the server knows
    assert made.write_file("/d/large.bin", content) == 1
    killer.join()
    assert made.read_file("d/large.bin") == content


def test_memory_stays_flat(server: dict[str, Any], client: Client, place: Path) -> None:
    path = place / "huge.bin"
    with path.open("wb") as file:
        for number in range(160):
            file.write(bytes([number]) * MIB)
    made, before = volume(client, "flat"), peak_mib(server["pid"])
    made.put(path)
    made.get("huge.bin", place / "back.bin")
    assert peak_mib(server["pid"]) - before < 40
    with (place / "back.bin").open("rb") as back, path.open("rb") as there:
        assert hashlib.file_digest(back, "sha256").hexdigest() == hashlib.file_digest(there, "sha256").hexdigest()
    path.unlink()
    (place / "back.bin").unlink()


def test_directories_and_revisions(client: Client, tmp_path: Path) -> None:
    (tmp_path / "d" / "e").mkdir(parents=True)
    for number in range(30):
        (tmp_path / "d" / f"{number}.txt").write_text(str(number))
    (tmp_path / "d" / "e" / "run.sh").write_text("true")
    (tmp_path / "d" / "e" / "run.sh").chmod(0o755)
    (tmp_path / "d" / "empty").write_bytes(b"")
    made = volume(client, "tree")
    assert made.put_directory(tmp_path / "d", "/in") == 1
    assert made.put_file(tmp_path / "d" / "1.txt", "/in/e/") == 2
    assert [entry.name for entry in made.listdir("/in/e")] == ["1.txt", "run.sh"]
    assert [(entry.name, entry.type, entry.size) for entry in made.listdir()] == [("in", "directory", 55)]
    assert made.put(tmp_path / "d" / "2.txt", "/in") == 3  # a directory: goes inside
    with made.batch_upload() as batch:
        batch.write_file("notes.txt", "hello")
        batch.put_directory(tmp_path / "d" / "e", "/e")
        batch.remove_file("/in")
    assert batch.revision == 4
    assert [entry.path for entry in made.list()] == ["e/run.sh", "notes.txt"]
    assert made.read_file("notes.txt") == b"hello"
    assert made.read_file("/in/empty", revision=1) == b""
    assert made.clear() == 5
    assert made.restore(1) == 6
    assert [(item.revision, item.files) for item in made.revisions()][:2] == [(6, 32), (5, 0)]
    written = made.get("/in", tmp_path / "back")
    assert len(written) == 32
    assert (tmp_path / "back" / "e" / "run.sh").stat().st_mode & 0o111
    assert made.remove_file("/in/e") == 7
    with pytest.raises(NotFound, match="'in/e'"):
        made.remove_file("in/e")
    with pytest.raises(NotFound):
        made.read_file("/in")


def test_nothing_is_sent_when_the_block_fails(client: Client) -> None:
    made = volume(client, "batch")
    with pytest.raises(ZeroDivisionError), made.batch_upload() as batch:
        batch.write_file("a", "1")
        raise ZeroDivisionError
    assert made.revisions() == []


@pytest.mark.parametrize("what", ["link", "pipe", "bytes", "absent", "empty"])
def test_what_no_volume_holds_is_refused_here(client: Client, tmp_path: Path, what: str) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    if what == "link":
        (directory / "link").symlink_to("/etc")
    elif what == "pipe":
        os.mkfifo(directory / "pipe")
    elif what == "bytes":
        (directory / os.fsdecode(b"\xff")).write_text("x")
    source = tmp_path / "nope" if what == "absent" else directory
    with pytest.raises(NodusError) as refused:
        volume(client, "odd").put(source, skipped=lambda what: None)
    assert refused.value.fix


def test_a_directory_with_links_goes_without_what_leads_out(
    server: dict[str, Any], client: Client, tmp_path: Path
) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    (directory / "a").write_text("a")
    (directory / "same").symlink_to("a")
    for number in range(12):
        (directory / f"out{number:02}").symlink_to("/etc/hostname")
    environment = {**os.environ, "NODUS_API_URL": server["url"], "NODUS_API_KEY": server["key"], "HOME": str(tmp_path)}

    def put(*flags: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "nodus.cli.main", "volume", "put", "linked", str(directory), *flags]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)

    done = put("--create")
    assert done.stdout == "volume/linked revision 1\n"
    warnings = done.stderr.splitlines()
    assert warnings[0] == "warning: left out out00: a symbolic link that leads out of the directory"
    assert warnings[-1] == "warning: left out 2 more, 12 together"
    assert len(warnings) == 11
    made = volume(client, "linked")
    assert [(item.path, item.size) for item in made.list()] == [("a", 1), ("same", 1)]
    assert put("--follow-symlinks").stderr == ""
    assert len(made.list()) == 14


def test_broken_download_goes_on_where_it_was(client: Client, tmp_path: Path) -> None:
    content = os.urandom(3 * MIB)
    made = volume(client, "downloads")
    made.write_file("a.bin", content)
    sha256 = hashlib.sha256(content).hexdigest()
    partial = tmp_path / f".a.bin.{sha256[:16]}.part"
    partial.write_bytes(content[:MIB])
    arrived: list[int] = []
    client.api.meter = lambda name, total: arrived.append
    assert made.get("a.bin", tmp_path / "a.bin") == [tmp_path / "a.bin"]
    assert (tmp_path / "a.bin").read_bytes() == content
    assert sum(arrived) == 2 * MIB
    assert not partial.exists()

    partial.write_bytes(b"?" * MIB)
    with pytest.raises(nodus.errors.SHA256Mismatch):
        made.get("a.bin", tmp_path / "a.bin")
    assert not partial.exists()
    assert b"".join(made.stream("a.bin")) == content


def test_everything_awaits_too(client: Client, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")

    async def use() -> None:
        made = await nodus.Volume.from_name.aio("async", create_if_missing=True, client=client)
        assert await made.put.aio(tmp_path / "a.txt", "/d/") == 1
        async with made.batch_upload() as batch:
            batch.write_file("b.txt", "b" * 3 * MIB)
        assert batch.revision == 2
        assert [entry.name for entry in await made.listdir.aio()] == ["b.txt", "d"]
        assert b"".join([chunk async for chunk in made.stream.aio("d/a.txt")]) == b"a"
        assert len(await made.get.aio("/", tmp_path / "back")) == 2
        assert (await made.revisions.aio())[0].revision == 2

    asyncio.run(use())


def test_import_says_what_is_wrong(client: Client) -> None:
    made = nodus.Volume.import_from("from-url", url="http://127.0.0.1:1/a.tar.gz", size="1Mi", client=client)
    with pytest.raises(NodusError, match="SourceAddressRefused") as refused:
        made.wait_ready(60)
    assert "NODUS_SERVER_SOURCE_HOSTS" in str(refused.value.fix)
    with pytest.raises(nodus.errors.BadRequest, match="exactly one"):
        nodus.Volume.import_from("two", url="https://a/b", git="https://a/b", client=client)


# Secrets ------------------------------------------------------------------------------------------------------


def test_secrets_by_name_by_content_and_from_a_file(client: Client, tmp_path: Path) -> None:
    made = nodus.Secret.create("sdk", {"A": "1"}, client=client)
    assert (made.keys, made.version) == (["A"], 1)
    made = nodus.Secret.create("sdk", {"B": "2"}, client=client)
    assert (made.keys, made.version) == (["A", "B"], 2)
    registry = {"server": "ghcr.io", "username": "ada", "password": "p"}
    nodus.Secret.create("registry", registry, type="Registry", client=client)
    assert nodus.Secret.create("registry", {"password": "q"}, client=client).version == 2

    first = nodus.Secret.from_dict({"K": "v", "L": "w"}, client=client)
    assert first.name == nodus.Secret.from_dict({"L": "w", "K": "v"}, client=client).name
    assert first.name != nodus.Secret.from_dict({"K": "other", "L": "w"}, client=client).name
    (tmp_path / ".env").write_text("# mine\nexport K=v\nL='w'\n")
    assert nodus.Secret.from_dotenv(tmp_path / ".env", client=client).name == first.name
    (tmp_path / ".env").write_text("K=v\nprivate words\n")
    with pytest.raises(NodusError, match="line 2 is not KEY=VALUE") as refused:
        nodus.Secret.from_dotenv(tmp_path / ".env", client=client)
    assert "private" not in str(refused.value)


# From inside a run --------------------------------------------------------------------------------------------

INSIDE = """
import pathlib, time
import nodus

volume, data = nodus.Volume.from_name("shared"), pathlib.Path("/data")
(data / "mine.txt").write_text("1")
(data / "gone.txt").write_text("1")
print("committed", volume.commit(), flush=True)
(data / "gone.txt").unlink()
while not (data / "theirs.txt").exists():
    volume.reload()
    time.sleep(0.2)
(data / "mine.txt").write_text((data / "theirs.txt").read_text() + "2")
print("committed", volume.commit(), flush=True)
try:
    nodus.Volume.from_name("fixed").commit()
except nodus.errors.Conflict as error:
    print(error)
"""


def test_run_commits_and_reloads_from_inside(client: Client) -> None:
    made = volume(client, "shared")
    volume(client, "fixed").write_file("a", "1")
    mounts = {"/data": "shared", "/fixed": {"volume": "fixed", "readOnly": True}}
    job = nodus.Job.create(name="inside", command=["python", "-c", INSIDE], volumes=mounts, client=client)
    eventually(lambda: len(made.list()) == 2, timeout_s=40)
    made.write_file("theirs.txt", "from outside ")
    job.wait(60)
    assert {entry.path: made.read_file(entry.path) for entry in made.list()} == {
        "mine.txt": b"from outside 2",
        "theirs.txt": b"from outside ",
    }
    assert [item.revision for item in made.revisions()] == [3, 2, 1]
    assert "read-only" in "".join(job.logs())
    with pytest.raises(nodus.errors.Unsupported):
        made.commit()
