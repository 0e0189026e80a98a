"""What a build may reach of the network: an HTTP proxy on a unix socket that connects to public addresses alone.

A build runs code of strangers. From where the server stands, it could otherwise talk to whatever only the server
reaches: its own API, a cloud's metadata service, other machines of the network. So its sandbox has an empty network,
and a proxy whose other end is here. The name is looked up here, and the very address that was checked is connected to.
Where the operator routes requests through a proxy, they go there; the proxy itself is no place to ask for.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from nodus.server.compute.local.netdoor import relay
from nodus.server.sources.base import ImportFailed
from nodus.server.sources.guard import SETTING, AddressRefused, Guard

CONNECT_TIMEOUT_S = 15.0
IDLE_TIMEOUT_S = 300.0
MAX_CONNECTIONS = 64
_HEAD_BYTES = 64 * 1024
_PORTS = frozenset({80, 443})

Place = tuple[str, int]
"""A host and a port."""


class Refused(Exception):
    """A request that is not passed on; the message says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Egress:
    """Serves one build's socket on threads of its own.

    Args:
        path: Of the socket; replaced where there is one.
        guard: Decides about addresses.
        allowed: Hosts with their ports that may be anywhere: the operator's own package index.
        say: Told of what is refused.
        ports: Ports of public addresses besides those of HTTP and HTTPS: of an index that somebody has named.
    """

    def __init__(
        self,
        path: Path,
        guard: Guard,
        allowed: Iterable[Place],
        say: Callable[[str], None],
        ports: Iterable[int] = (),
    ) -> None:
        self._guard = guard
        self._ports = _PORTS.union(ports)
        self._allowed = frozenset((host.lower(), port) for host, port in allowed)
        self._say = say
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._closed = threading.Event()
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # By way of /proc: a socket's path has room for a hundred characters.
            self._listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)
        os.chmod(path, 0o666)
        self._listener.listen(128)
        threading.Thread(target=self._accept, name="build-egress", daemon=True).start()

    def close(self) -> None:
        """Accept no more; connections end with the sandbox."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            self._slots.acquire()
            try:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()
            except (OSError, RuntimeError):
                self._slots.release()
                if self._closed.is_set():
                    return

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                client.settimeout(IDLE_TIMEOUT_S)
                try:
                    self._pass_on(client)
                except Refused as refused:
                    self._say(str(refused))
                    _answer(client, refused.status, str(refused))
                except ValueError as error:  # an address such as http://[, or a name that no look-up takes
                    _answer(client, 400, f"the request is for no address: {error}")
        except OSError:
            pass  # either side went away
        finally:
            self._slots.release()

    def _pass_on(self, client: socket.socket) -> None:
        head, rest = _read_head(client)
        method, target, version = _request_line(head)
        if method == "CONNECT":
            place = _place(urlsplit(f"//{target}"), 443)
            upstream = self._connect("https", place)
            with upstream:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                upstream.sendall(rest)
                relay(client, upstream)
            return
        url = urlsplit(target)
        if url.scheme != "http":
            raise Refused(400, f"the request is for {url.scheme or 'no'}:, and http: is passed on")
        proxy = _proxy_of("http", url.hostname or "")
        with self._connect("http", _place(url, 80)) as upstream:
            path = url._replace(scheme="", netloc="").geturl() or "/"
            lines = head.split(b"\r\n")[1:]
            lines = [line for line in lines if not line.lower().startswith((b"connection:", b"proxy-"))]
            if proxy is not None:
                path = target
                lines += [line.encode() for line in _authorization(proxy)]
            first = f"{method} {path} {version}".encode("latin-1")
            # One request a connection: the next may be for another host.
            upstream.sendall(b"\r\n".join([first, *(line for line in lines if line), b"Connection: close", b"", b""]))
            upstream.sendall(rest)
            relay(client, upstream)

    def _connect(self, scheme: str, place: Place) -> socket.socket:
        """Connect to a place that may be reached, or to the operator's proxy on the way to it.

        Raises:
            Refused: It may not be reached, or can't.
        """
        host, port = place
        addresses = [host] if place in self._allowed else self._addresses(host, port)
        proxy = _proxy_of(scheme, host)
        try:
            if proxy is not None:
                return _through(proxy, scheme, place)
            for number, address in enumerate(addresses, 1):
                try:
                    found = socket.create_connection((address, port), CONNECT_TIMEOUT_S)
                except OSError:
                    if number == len(addresses):
                        raise
                else:
                    found.settimeout(IDLE_TIMEOUT_S)
                    return found
        except OSError as error:
            raise Refused(502, f"{host}:{port} can't be reached: {error.strerror or error}") from error
        raise Refused(502, f"the host {host[:120]!r} is unknown")

    def _addresses(self, host: str, port: int) -> list[str]:
        try:
            found = self._guard.addresses(host, port, exempt_proxies=False)
        except AddressRefused as refused:
            raise Refused(403, f"{refused}: a build reaches public addresses only") from None
        except ImportFailed as failure:
            raise Refused(502, failure.message) from None
        if port not in self._ports and not self._guard.lists(host, found):
            ports = ", ".join(map(str, sorted(self._ports)))
            fix = f"the operator can allow this host: {SETTING}={host[:120]}"
            raise Refused(403, f"port {port} of {host[:120]} is out of reach: a build reaches ports {ports}; {fix}")
        return found


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        block = client.recv(8192)
        if not block:
            raise OSError("the client went away")
        data += block
        if len(data) > _HEAD_BYTES:
            raise Refused(431, "the request's head is too long")
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _request_line(head: bytes) -> tuple[str, str, str]:
    parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise Refused(400, "the request has no request line")
    return parts[0], parts[1], parts[2]


def _place(url: SplitResult, default_port: int) -> Place:
    try:
        host, port = url.hostname, url.port or default_port
    except ValueError:
        host, port = None, 0
    if not host or "\0" in host:
        raise Refused(400, "the request names no host")
    return host.lower(), port


def _proxy_of(scheme: str, host: str) -> SplitResult | None:
    """Return the operator's proxy for a host, or None."""
    url = getproxies().get(scheme)
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return None
    if not url or proxy_bypass(host):
        return None
    return urlsplit(url if "//" in url else f"http://{url}")


def _authorization(proxy: SplitResult) -> list[str]:
    if proxy.username is None:
        return []
    words = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return [f"Proxy-Authorization: Basic {base64.b64encode(words.encode()).decode()}"]


def _through(proxy: SplitResult, scheme: str, place: Place) -> socket.socket:
    """Connect to the operator's proxy, and through it where the connection is to be the client's own."""
    found = socket.create_connection((proxy.hostname or "", proxy.port or 3128), CONNECT_TIMEOUT_S)
    found.settimeout(IDLE_TIMEOUT_S)
    if scheme == "http":
        return found
    host, port = place
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {shown} HTTP/1.1", f"Host: {shown}", *_authorization(proxy), "", ""]
    try:
        found.sendall("\r\n".join(lines).encode("latin-1"))
        head, _ = _read_head(found)
        if head.split(b" ", 2)[1:2] != [b"200"]:
            raise OSError("the operator's proxy does not connect to " + shown)
    except BaseException:
        found.close()
        raise
    return found


def _answer(client: socket.socket, status: int, message: str) -> None:
    body = f"nodus: {message}\n".encode()
    head = f"HTTP/1.1 {status} {message[:120]}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    client.sendall(head.encode("latin-1", "replace") + b"Connection: close\r\n\r\n" + body)
