"""The only way to the network out of a build's sandbox: a proxy on its loopback that leads to a socket of the server's.

Runs inside the sandbox, whose own network is empty: ``netdoor.py SOCKET -- COMMAND...`` starts the command with the
usual proxy variables set, and passes every connection on to the socket, where the server decides. It holds nothing
worth having; a command that ends it has no network left. Standard library only, importable alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading

PORT = 3128
_BLOCK = 1 << 16


def main(argv: list[str]) -> int:
    """Run a command with the proxy beside it, and return its exit code."""
    path, command = argv[0], argv[argv.index("--") + 1 :]
    listener = socket.create_server(("127.0.0.1", PORT), backlog=128)
    threading.Thread(target=_accept, args=(listener, path), daemon=True).start()
    url = f"http://127.0.0.1:{PORT}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    proxies = {name: url for word in names for name in (word, word.lower())}
    code = subprocess.Popen(command, env={**os.environ, **proxies}).wait()
    return code if code >= 0 else 128 - code


def _accept(listener: socket.socket, path: str) -> None:
    while True:
        inner, _ = listener.accept()
        threading.Thread(target=_serve, args=(inner, path), daemon=True).start()


def _serve(inner: socket.socket, path: str) -> None:
    with inner, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as outer, contextlib.suppress(OSError):
        outer.connect(path)
        relay(inner, outer)


def relay(one: socket.socket, other: socket.socket) -> None:
    """Copy both ways until both sides have said all."""
    back = threading.Thread(target=_copy, args=(other, one), daemon=True)
    back.start()
    _copy(one, other)
    back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while block := source.recv(_BLOCK):
            target.sendall(block)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
