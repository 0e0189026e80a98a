"""What holds for every test: a home of its own, nothing of the caller's Nodus settings, no network but this machine's.

Fixtures that only some tests need stand beside those tests, or in `nodus.testing` where users' tests need them too.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_LOCAL_NAMES = {"localhost", "127.0.0.1", "::1", "", None}


def _refuse_foreign_addresses(event: str, arguments: tuple[object, ...]) -> None:
    """Audit hook: a test that reaches for another machine fails at that line, with the address."""
    if event == "socket.connect":
        sock, address = arguments
        if isinstance(sock, socket.socket) and sock.family in (socket.AF_INET, socket.AF_INET6):
            host = address[0] if isinstance(address, tuple) else address
            if not _is_local(host):
                raise PermissionError(f"a test may connect to this machine only, not to {address!r}")
    elif event == "socket.getaddrinfo" and not _is_local(arguments[0]):
        raise PermissionError(f"a test may look up this machine only, not {arguments[0]!r}")


def _is_local(host: object) -> bool:
    if isinstance(host, bytes):
        host = host.decode()
    if host in _LOCAL_NAMES or host == socket.gethostname():
        return True
    try:
        return ipaddress.ip_address(str(host)).is_loopback or str(host) == "0.0.0.0"
    except ValueError:
        return False


sys.addaudithook(_refuse_foreign_addresses)


@pytest.fixture(autouse=True, scope="session")
def _session_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the caller's settings out, for session fixtures too; subprocesses inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("NODUS_"):
                patch.delenv(name)
        home = tmp_path_factory.mktemp("home")
        patch.setenv("HOME", str(home))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("NODUS_CONFIG", str(home / ".nodus" / "config"))
        yield


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test an empty home: none reads or writes the user's ~/.nodus."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NODUS_CONFIG", str(home / ".nodus" / "config"))
    return home
