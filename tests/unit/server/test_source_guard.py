"""Which addresses imports may connect to."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import pytest

from nodus.server.sources.base import ImportFailed
from nodus.server.sources.guard import AddressRefused, Guard, is_public


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("::ffff:8.8.8.8", True),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b::808:808", True),
        ("168.63.129.16", False),
        ("::ffff:168.63.129.16", False),
        ("::8.8.8.8", False),
        ("fec0::1", False),
        ("64:ff9b:1::a00:1", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is public


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: found)
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_one_address_that_is_not_public_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, "8.8.8.8", "10.0.0.1")
    with pytest.raises(AddressRefused, match=r"evil\.example leads to 10\.0\.0\.1") as refused:
        Guard().addresses("evil.example", 80)
    assert refused.value.failure("it").fix.endswith("NODUS_SERVER_SOURCE_HOSTS=evil.example")


@pytest.mark.parametrize("allowed", ["minio.lan", "MINIO.lan.", "10.0.0.0/8", "10.0.0.1"])
def test_operator_allows_hosts_and_networks(monkeypatch: pytest.MonkeyPatch, allowed: str) -> None:
    resolving(monkeypatch, "10.0.0.1")
    assert Guard([allowed]).addresses("minio.lan", 80) == ["10.0.0.1"]
    with pytest.raises(AddressRefused):
        Guard(["other.lan", "192.168.0.0/16"]).addresses("minio.lan", 80)


def test_installed_guard_watches_every_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, "127.0.0.1")
    Guard().install()
    for host in ("x.example", b"x.example"):
        with pytest.raises(AddressRefused):
            socket.getaddrinfo(host, 80)


def test_unknown_host_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror("no such host")

    resolving(monkeypatch)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ImportFailed, match="'nowhere' is unknown"):
        Guard().addresses("nowhere", 80)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.lan:3128")
    assert Guard().addresses("nowhere", 443) == []


def test_a_proxy_is_exempt_only_where_the_operator_chose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, "10.0.0.1")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.lan:3128")
    assert Guard().addresses("proxy.lan", 3128) == ["10.0.0.1"]
    with pytest.raises(AddressRefused):
        Guard().addresses("proxy.lan", 3128, exempt_proxies=False)


def test_what_the_operator_has_listed() -> None:
    guard = Guard(["minio.lan", "10.0.0.0/8"])
    assert guard.lists("MINIO.lan.", [])
    assert guard.lists("x", ["10.0.0.1", "10.0.0.2"])
    assert not guard.lists("x", ["10.0.0.1", "8.8.8.8"])
    assert not guard.lists("x", [])
