"""The API over real HTTP: objects created a second, milliseconds for a page of 500, milliseconds until watchers see.

Ours is a whole server (`nodus up`'s program: controllers, audit trail, access log) on SQLite in WAL mode with
synchronous=FULL; the peer is the same service as it is usually written with FastAPI, SQLAlchemy and SQLite
(bench/_api_peer.py), as durable. Both get the same requests from the same load generator, a process of its own, and
both are started anew on an empty database for every run.

`api-create`: 64 clients create Volumes with labels, each request with an Idempotency-Key. `api-list`: the median of
pages of 500 out of 2,000 objects. `api-watch`: the 99th percentile, over all changes and watchers, of the time from
sending a create to a watcher having its line, with 200 watchers.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench._api_peer import KEY as PEER_KEY
from bench._harness import Figure, measure

CREATE = Figure(name="api-create", unit="objects/s", goal=1500, better="higher", goal_of="ours")
LIST = Figure(name="api-list", unit="ms", goal=60, goal_of="ours")
WATCH = Figure(name="api-watch", unit="ms", goal=50, goal_of="ours")
CLIENTS = 64
OUR_CREATES, PEER_CREATES = 6_400, 1_600
STORED = 2_000
PAGE = 500
WATCHERS = 200
CHANGES = 50
_VOLUMES = "/apis/nodus.dev/v1/namespaces/default/volumes"


class Served:
    """A running server and where its objects are."""

    def __init__(self, pid: int, origin: str, key: str, path: str, watch_path: str) -> None:
        self.pid = pid
        self.key = key
        self.url = origin + path
        self.watch_url = origin + watch_path

    def load(self, do: str, **config: Any) -> dict[str, Any]:
        """Run the load generator and return what it measured."""
        given = {"do": do, "key": self.key, "url": self.url, "watch_url": self.watch_url, **config}
        before_s = self._cpu_s()
        done = subprocess.run(
            [sys.executable, "-m", "bench._load"],
            input=json.dumps(given),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout) | {"server_cpu_s": round(self._cpu_s() - before_s, 2)}
        print(f"#   {do}: {found}", file=sys.stderr)
        return found

    def _cpu_s(self) -> float:
        """Seconds of processor time that the server has taken."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def ours() -> Iterator[Served]:
    """A Nodus server on a fresh data directory."""
    with tempfile.TemporaryDirectory(prefix="nodus-bench-") as folder:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NODUS_")}
        command = [sys.executable, "-m", "nodus.server.main", "--data-dir", folder, "--port", "0", "--issue-key"]
        reading, writing = os.pipe()
        log = Path(folder) / "server.log"
        process = subprocess.Popen(
            [*command, "--report-fd", str(writing), "--log-file", str(log)], pass_fds=[writing], env=kept
        )
        os.close(writing)
        try:
            with open(reading, encoding="utf-8") as report:
                started = json.loads(report.readline())
            yield Served(process.pid, started["url"], started["apiKey"], _VOLUMES, _VOLUMES + "?watch=true")
        finally:
            _stop(process)


@contextlib.contextmanager
def peer() -> Iterator[Served]:
    """The peer's server on a fresh database."""
    with tempfile.TemporaryDirectory(prefix="nodus-bench-") as folder:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = subprocess.Popen([sys.executable, "-m", "bench._api_peer", folder, str(port)])
        try:
            _wait_for(port)
            yield Served(process.pid, f"http://127.0.0.1:{port}", PEER_KEY, "/items", "/watch")
        finally:
            _stop(process)


def _wait_for(port: int) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise SystemExit("the peer did not start")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_Side = Callable[[], contextlib.AbstractContextManager[Served]]


def create_rate(side: _Side, total: int) -> float:
    """Return objects a second."""
    with side() as served:
        served.load("create", run="warm", total=CLIENTS * 4, clients=CLIENTS)
        return float(served.load("create", run="run", total=total, clients=CLIENTS)["rate"])


def page_ms(served: Served) -> float:
    """Return the median milliseconds of a page."""
    served.url += f"?limit={PAGE}" if "?" not in served.url else ""
    return float(served.load("page", times=20, items=PAGE)["p50_ms"])


def watch_ms(side: _Side) -> float:
    """Return the 99th percentile of milliseconds from a create to each watcher."""
    with side() as served:
        return float(served.load("watch", run="seen", watchers=WATCHERS, changes=CHANGES)["p99_ms"])


def main(wanted: list[str]) -> int:
    """Measure what is named (`create`, `list`, `watch`; all without names) and print a line for each."""
    if not wanted or "create" in wanted:
        measure(CREATE, lambda: create_rate(ours, OUR_CREATES), lambda: create_rate(peer, PEER_CREATES), warmup=0)
    if not wanted or "list" in wanted:
        with ours() as one, peer() as other:
            for served in (one, other):
                served.load("create", run="stored", total=STORED, clients=CLIENTS // 4)
            measure(LIST, lambda: page_ms(one), lambda: page_ms(other))
    if not wanted or "watch" in wanted:
        measure(WATCH, lambda: watch_ms(ours), lambda: watch_ms(peer), warmup=0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
