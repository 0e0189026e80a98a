"""Starting, finding and stopping a real server process, and every reason not to start as one clear line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

from nodus.server import datadir
from nodus.server.lifecycle import (
    AlreadyRunning,
    DownOptions,
    ServerNotStarted,
    Started,
    StatusOptions,
    UpOptions,
    down,
    status,
    up,
)
from nodus.testing.eventually import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

Start = Callable[..., Started]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def start(data_dir: Path) -> Iterator[Start]:
    """Starts a detached server; whatever runs at the end is stopped."""

    def make(**options: Any) -> Started:
        return up(UpOptions(**{"data_dir": data_dir, "port": 0, "detach": True, **options}))

    yield make
    down(DownOptions(data_dir=data_dir))


def get(started: Started, path: str, key: str | None = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key or started.api_key}"}
    return httpx.get(started.url + path, headers=headers)


def test_first_start_makes_projects_catalog_and_a_key_that_works(start: Start, data_dir: Path) -> None:
    started = start(issue_key=True)

    projects = get(started, "/apis/nodus.dev/v1/projects").json()["items"]
    assert [item["metadata"]["name"] for item in projects] == ["default", "nodus"]
    runtimes = get(started, "/apis/nodus.dev/v1beta1/namespaces/nodus/trainingruntimes").json()["items"]
    assert "grpo-lora" in [item["metadata"]["name"] for item in runtimes]
    assert get(started, "/apis/nodus.dev/v1/offerings").json()["items"]
    assert get(started, "/auth/whoami").json()["scopes"] == ["*"]
    assert json.loads((data_dir / "server.json").read_text()).keys() == {"url", "pid", "startedAt"}


def test_key_is_nowhere_in_clear_and_files_are_private(start: Start, data_dir: Path) -> None:
    started = start(issue_key=True)
    down(DownOptions(data_dir=data_dir))
    assert started.api_key

    for path in (path for path in data_dir.rglob("*") if path.is_file()):
        assert started.api_key.encode() not in path.read_bytes(), path
    assert data_dir.stat().st_mode & 0o077 == 0
    for name in ("keys.json", "nodus.db", "server.log"):
        assert (data_dir / name).stat().st_mode & 0o077 == 0, name


def test_status_follows_the_server(start: Start, data_dir: Path) -> None:
    assert status(StatusOptions(data_dir=data_dir)).running is False
    started = start()
    found = status(StatusOptions(data_dir=data_dir))
    assert (found.running, found.ready, found.url, found.pid) == (True, True, started.url, started.pid)

    assert down(DownOptions(data_dir=data_dir)) is True
    assert status(StatusOptions(data_dir=data_dir)).running is False
    assert down(DownOptions(data_dir=data_dir)) is False
    assert not (data_dir / "server.json").exists()


def test_second_start_on_one_directory_is_refused_with_the_first_ones_url(start: Start, data_dir: Path) -> None:
    started = start()
    with pytest.raises(AlreadyRunning) as caught:
        start()

    assert started.url in caught.value.message
    assert str(started.pid) in caught.value.message
    assert "\n" not in caught.value.message
    assert status(StatusOptions(data_dir=data_dir)).ready


def test_many_starts_at_once_leave_one_server(data_dir: Path) -> None:
    command = [sys.executable, "-m", "nodus.server.main", "--data-dir", str(data_dir), "--port", "0"]
    data_dir.mkdir(mode=0o700)
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    try:
        eventually(lambda: sum(racer.poll() is not None for racer in racers) == 3, timeout_s=60)
        eventually(lambda: status(StatusOptions(data_dir=data_dir)).ready, timeout_s=30)
    finally:
        down(DownOptions(data_dir=data_dir))
        outputs = [racer.communicate(timeout=30) for racer in racers]
    losers = [
        err.decode().strip().splitlines()[-1]
        for racer, (_, err) in zip(racers, outputs, strict=True)
        if racer.returncode
    ]
    assert len(losers) == 3
    assert all("already runs on" in line for line in losers), losers


def test_data_survives_a_kill_and_the_old_key_still_works(start: Start, data_dir: Path) -> None:
    first = start(issue_key=True)
    body = {"metadata": {"name": "v"}, "spec": {}}
    path = "/apis/nodus.dev/v1/namespaces/default/volumes"
    created = httpx.post(first.url + path, json=body, headers={"Authorization": f"Bearer {first.api_key}"}).json()
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: datadir.holder(data_dir) is None)

    second = start()
    assert second.api_key is None
    assert get(second, f"{path}/v", first.api_key).json() == created


def test_restart_changes_nothing_in_the_catalog(start: Start, data_dir: Path) -> None:
    first = start(issue_key=True)
    path = "/apis/nodus.dev/v1beta1/namespaces/nodus/trainingruntimes"
    before = get(first, path).json()["items"]
    down(DownOptions(data_dir=data_dir))
    assert get(start(), path, first.api_key).json()["items"] == before


def test_another_key_is_made_when_asked_for(start: Start, data_dir: Path) -> None:
    first = start(issue_key=True)
    down(DownOptions(data_dir=data_dir))
    second = start(issue_key=True)

    assert first.api_key != second.api_key
    for key in (first.api_key, second.api_key):
        assert get(second, "/auth/whoami", key).status_code == 200


def test_start_is_quick(start: Start, data_dir: Path) -> None:
    """The figure is bench-start's; this only catches a heavy import."""
    start()
    down(DownOptions(data_dir=data_dir))
    begun = time.monotonic()
    start()
    assert time.monotonic() - begun < 15


def test_server_loads_no_training_stack(start: Start) -> None:
    started = start()
    mapped = Path(f"/proc/{started.pid}/maps").read_text()
    assert "libtorch" not in mapped


# Reasons not to start -----------------------------------------------------------------------------------------


def fails(start: Start, **options: Any) -> str:
    """The one line of a start that must fail."""
    with pytest.raises(ServerNotStarted) as caught:
        start(**options)
    assert "\n" not in caught.value.message
    return f"{caught.value.message} {caught.value.fix or ''}"


def test_port_in_use_names_the_port_and_the_flag(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = fails(start, port=port)
    assert f"port {port}" in line
    assert "--port" in line


def test_other_hosts_need_tls_or_a_proxy(start: Start) -> None:
    line = fails(start, host="0.0.0.0")
    assert "--tls-cert" in line
    assert "--behind-proxy" in line
    assert start(host="0.0.0.0", behind_proxy=True).url.startswith("http://127.0.0.1:")


def test_half_of_tls_is_refused(start: Start, tmp_path: Path) -> None:
    assert "--tls-key" in fails(start, tls_cert=tmp_path / "cert.pem")


def test_missing_certificate_is_named(start: Start, tmp_path: Path) -> None:
    line = fails(start, tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem")
    assert "cert.pem" in line


def test_file_that_is_no_certificate_is_refused(start: Start, tmp_path: Path) -> None:
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("no certificate")
    assert "could not listen" in fails(start, tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem")


def test_damaged_database_is_named_and_left_alone(start: Start, data_dir: Path) -> None:
    data_dir.mkdir(mode=0o700)
    database = data_dir / "nodus.db"
    database.write_bytes(b"this is no database" * 500)
    before = database.read_bytes()
    line = fails(start)

    assert str(database) in line
    assert "damaged" in line
    assert database.read_bytes() == before


def test_damage_inside_a_database_is_found_at_start(start: Start, data_dir: Path) -> None:
    start()
    down(DownOptions(data_dir=data_dir))
    database = data_dir / "nodus.db"
    data = bytearray(database.read_bytes())
    for page in range(2, len(data) // 4096, 2):
        data[page * 4096 : page * 4096 + 512] = b"\xff" * 512
    database.write_bytes(data)
    assert "damaged" in fails(start)


def test_damaged_key_file_is_named_and_left_alone(start: Start, data_dir: Path) -> None:
    data_dir.mkdir(mode=0o700)
    (data_dir / "keys.json").write_text("{}")
    assert "keys.json" in fails(start)
    assert (data_dir / "keys.json").read_text() == "{}"


def test_data_directory_that_is_a_file_is_named(start: Start, data_dir: Path) -> None:
    data_dir.write_text("x")
    assert str(data_dir) in fails(start)


def test_mistyped_settings_file_is_named(start: Start, data_dir: Path) -> None:
    data_dir.mkdir(mode=0o700)
    (data_dir / "nodus.toml").write_text("prot = 8080\n")
    assert "prot" in fails(start)
    (data_dir / "nodus.toml").write_text("port = = 1\n")
    assert "nodus.toml" in fails(start)
    (data_dir / "nodus.toml").unlink()


def test_unknown_role_is_named(start: Start) -> None:
    assert "roles" in fails(start, roles=("api", "chef"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on a disk of 3 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this user can't mount a small disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Use up what is free; the file returned holds it."""
    path = disk / "filler"
    try:
        with path.open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
    except OSError:
        return path


def test_full_disk_refuses_writes_serves_reads_and_loses_nothing(start: Start, small_disk: Path) -> None:
    data_dir = small_disk / "data"
    started = start(data_dir=data_dir, issue_key=True)
    try:
        headers = {"Authorization": f"Bearer {started.api_key}"}
        volumes = f"{started.url}/apis/nodus.dev/v1/namespaces/default/volumes"

        def create(name: str) -> httpx.Response:
            return httpx.post(volumes, json={"metadata": {"name": name}}, headers=headers)

        assert create("before").status_code == 201
        filler = fill(small_disk)
        refused = eventually(lambda: answer if (answer := create("full")).status_code == 503 else None)
        assert (refused.json()["reason"], "Free some disk space" in refused.json()["fix"]) == ("Unavailable", True)
        assert httpx.get(volumes, headers=headers).status_code == 200
        assert "degraded disk" in httpx.get(f"{started.url}/readyz").text

        filler.unlink()
        assert create("after").status_code == 201
        names = {item["metadata"]["name"] for item in httpx.get(volumes, headers=headers).json()["items"]}
        assert {"before", "after"} <= names
    finally:
        down(DownOptions(data_dir=data_dir))


def test_start_on_a_full_disk_is_one_line_and_works_once_there_is_room(start: Start, small_disk: Path) -> None:
    data_dir = small_disk / "data"
    start(data_dir=data_dir)
    down(DownOptions(data_dir=data_dir))
    filler = fill(small_disk)
    assert "full" in fails(start, data_dir=data_dir)

    filler.unlink()
    start(data_dir=data_dir)
    down(DownOptions(data_dir=data_dir))


# Serving ------------------------------------------------------------------------------------------------------


def test_stop_ends_open_watches_cleanly_and_soon(start: Start, data_dir: Path) -> None:
    started = start(issue_key=True)
    headers = {"Authorization": f"Bearer {started.api_key}"}
    url = f"{started.url}/apis/nodus.dev/v1/projects?watch=true"
    with httpx.stream("GET", url, headers=headers, timeout=30) as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines))["type"] == "ADDED"
        begun = time.monotonic()
        assert down(DownOptions(data_dir=data_dir)) is True
        assert [json.loads(line)["type"] for line in lines] == ["ADDED"]
    assert time.monotonic() - begun < 4


def test_health_needs_no_key_and_metrics_do(start: Start) -> None:
    started = start(issue_key=True)
    with urllib.request.urlopen(f"{started.url}/healthz") as answer:
        assert answer.status == 200
    ready = httpx.get(f"{started.url}/readyz")
    assert ready.text.splitlines()[0] == "ok"
    assert ready.headers["X-Nodus-Release"]
    assert httpx.get(f"{started.url}/metrics").status_code == 401
    assert "nodus_http_requests_total" in get(started, "/metrics").text


def test_endless_headers_and_slow_ones_are_cut_off(start: Start) -> None:
    started = start()
    port = int(started.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: ")
        try:
            for _ in range(100):
                client.sendall(b"a" * 65536)
        except OSError:
            pass
        else:
            assert client.recv(64) in (b"",) or b"431" in client.recv(64)
    kept_alive = HTTPConnection("127.0.0.1", port, timeout=10)
    for _ in range(3):
        kept_alive.request("GET", "/healthz")
        assert kept_alive.getresponse().read() == b"ok\n"
    kept_alive.close()


def test_log_is_json_lines_with_request_ids(start: Start, data_dir: Path) -> None:
    started = start(issue_key=True)
    answer = get(started, "/apis/nodus.dev/v1/projects")

    def logged() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (data_dir / "server.log").read_text().splitlines()]
        return [line for line in lines if line.get("requestId") == answer.headers["X-Request-Id"]]

    line = eventually(logged)[0]
    assert (line["status"], line["user"], line["logger"]) == (200, "admin", "nodus.access")
    assert started.api_key not in (data_dir / "server.log").read_text()


def test_foreground_server_calls_back_and_ends_on_sigterm(data_dir: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from nodus.server.lifecycle import *; "
        "up(UpOptions(data_dir=Path(sys.argv[1]), port=0), lambda s: print(s.url, flush=True))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(data_dir)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        assert httpx.get(f"{url}/healthz").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    finally:
        process.kill()
        process.communicate()
