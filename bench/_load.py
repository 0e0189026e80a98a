"""The clients of bench/api.py, in a process of their own: raw HTTP/1.1 over asyncio, the server is the slow one.

Run as ``python -m bench._load`` with one JSON object on stdin; the answer is one JSON object on stdout. A client is a
connection that is kept and sends its next request when it has the whole answer to the last, as an SDK does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

Waiter = asyncio.Future[tuple[int, bytes]]


class Client(asyncio.Protocol):
    """One connection. :meth:`send` returns the status and the body of the answer."""

    def __init__(self) -> None:
        self._buffer = b""
        self._transport: Any = None
        self._waiter: Waiter | None = None

    @classmethod
    async def connect(cls, url: str) -> Client:
        """Connect to the origin of ``url``."""
        parts = urlsplit(url)
        _, made = await asyncio.get_running_loop().create_connection(cls, parts.hostname, parts.port)
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whoever waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(exc or ConnectionResetError("the server closed the connection"))

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Send a whole request and wait for its answer."""
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiter

    def data_received(self, data: bytes) -> None:
        """Collect an answer with a Content-Length."""
        self._buffer = self._buffer + data if self._buffer else data
        head_end = self._buffer.find(b"\r\n\r\n")
        if head_end < 0 or self._waiter is None:
            return
        head = self._buffer[:head_end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0])
        end = head_end + 4 + length
        if len(self._buffer) < end:
            return
        body, self._buffer = self._buffer[head_end + 4 : end], self._buffer[end:]
        self._waiter.set_result((int(head[9:12]), body))

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


class Watcher(asyncio.Protocol):
    """A connection that a stream of lines comes over; ``on_text`` gets them raw, chunk framing included."""

    def __init__(self, on_text: Callable[[bytes], None]) -> None:
        self._on_text = on_text
        self.opened = asyncio.get_running_loop().create_future()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Pass on what came; the first bytes are the head of the answer."""
        if not self.opened.done():
            self.opened.set_result(int(data[9:12]))
        self._on_text(data)


def request(method: str, url: str, key: str, body: bytes = b"", headers: str = "") -> bytes:
    """A request as it goes over the wire."""
    parts = urlsplit(url)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    head = f"{method} {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {key}\r\n"
    head += "Accept: application/json\r\nUser-Agent: nodus-bench\r\n" + headers
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def volume(name: str) -> bytes:
    """An object of some size: what `nodus volume create` sends, with labels."""
    return json.dumps(
        {
            "apiVersion": "nodus.dev/v1",
            "kind": "Volume",
            "metadata": {"name": name, "labels": {"app": "bench", "team": "research"}},
            "spec": {"accessMode": "ReadWriteOnce", "size": "10Gi"},
        }
    ).encode()


async def create(config: dict[str, Any]) -> dict[str, Any]:
    """Create ``total`` objects by ``clients`` at once, each with an Idempotency-Key; return objects a second."""
    url, key, run = config["url"], config["key"], config["run"]
    share = config["total"] // config["clients"]

    def one(number: int) -> bytes:
        name = f"{run}-{number}"
        return request("POST", url, key, volume(name), f"Idempotency-Key: {run}-key-{number}\r\n")

    # Made beforehand: the load costs nothing while it is measured.
    work = [[one(client * share + number) for number in range(share)] for client in range(config["clients"])]
    clients = [await Client.connect(url) for _ in work]
    taken_s: list[float] = []

    async def send_all(client: Client, requests: list[bytes]) -> None:
        for item in requests:
            begun = time.perf_counter()
            status, body = await client.send(item)
            taken_s.append(time.perf_counter() - begun)
            if status != 201:
                raise RuntimeError(f"a create was answered with {status}: {body[:300]!r}")

    begun = time.perf_counter()
    cpu = time.process_time()
    await asyncio.gather(*(send_all(client, requests) for client, requests in zip(clients, work, strict=True)))
    seconds = time.perf_counter() - begun
    for client in clients:
        client.close()
    taken_s.sort()
    return {
        "rate": share * len(work) / seconds,
        "p50_ms": taken_s[len(taken_s) // 2] * 1e3,
        "p99_ms": taken_s[int(len(taken_s) * 0.99)] * 1e3,
        "load_busy": (time.process_time() - cpu) / seconds,
    }


async def page(config: dict[str, Any]) -> dict[str, Any]:
    """Read a page ``times`` times over one connection; return the median milliseconds."""
    client = await Client.connect(config["url"])
    taken_ms: list[float] = []
    for _ in range(config["times"]):
        begun = time.perf_counter()
        status, body = await client.send(request("GET", config["url"], config["key"]))
        taken_ms.append((time.perf_counter() - begun) * 1e3)
        found = len(json.loads(body)["items"]) if status == 200 else 0
        if found != config["items"]:
            raise RuntimeError(f"the page was answered with {status} and {found} items: {body[:300]!r}")
    client.close()
    taken_ms.sort()
    return {"p50_ms": taken_ms[len(taken_ms) // 2], "max_ms": taken_ms[-1], "bytes": len(body)}


async def watch(config: dict[str, Any]) -> dict[str, Any]:
    """Open ``watchers`` streams, create ``changes`` objects; return milliseconds from sending one to each seeing it."""
    loop = asyncio.get_running_loop()
    seen_ms: list[float] = []
    marker, begun, left = b"", 0.0, 0
    everybody = asyncio.Event()

    def hear(watcher: dict[str, bytes], data: bytes) -> None:
        nonlocal left
        watcher["text"] = (watcher["text"] + data)[-4096:]
        if marker and watcher["seen"] != marker and marker in watcher["text"]:
            watcher["seen"] = marker
            seen_ms.append((time.perf_counter() - begun) * 1e3)
            left -= 1
            if left == 0:
                everybody.set()

    parts = urlsplit(config["watch_url"])
    watchers: list[Watcher] = []
    for _ in range(config["watchers"]):
        state = {"text": b"", "seen": b""}
        _, made = await loop.create_connection(
            lambda state=state: Watcher(lambda data: hear(state, data)), parts.hostname, parts.port
        )
        made.transport.write(request("GET", config["watch_url"], config["key"]))
        watchers.append(made)
    statuses = {await watcher.opened for watcher in watchers}
    if statuses != {200}:
        raise RuntimeError(f"watches were answered with {statuses}")
    client = await Client.connect(config["url"])
    for number in range(config["changes"] + 2):
        name = f"{config['run']}-{number}"
        if number == 2:  # the first ones warm up
            seen_ms.clear()
        everybody.clear()
        marker, left = f'"{name}"'.encode(), len(watchers)
        item = request("POST", config["url"], config["key"], volume(name))
        begun = time.perf_counter()
        status, body = await client.send(item)
        if status != 201:
            raise RuntimeError(f"a create was answered with {status}: {body[:300]!r}")
        async with asyncio.timeout(20):
            await everybody.wait()
    client.close()
    for watcher in watchers:
        watcher.transport.close()
    seen_ms.sort()
    return {
        "p50_ms": seen_ms[len(seen_ms) // 2],
        "p99_ms": seen_ms[int(len(seen_ms) * 0.99)],
        "max_ms": seen_ms[-1],
        "seen": len(seen_ms),
    }


_WORK: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
    "create": create, "page": page, "watch": watch,
}  # fmt: skip


def main() -> int:
    """Do what stdin says."""
    import uvloop

    config = json.load(sys.stdin)

    async def work() -> dict[str, Any]:
        return await _WORK[config["do"]](config)

    print(json.dumps(uvloop.run(work())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
