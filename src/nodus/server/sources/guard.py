"""Which addresses an import may connect to: public ones, and what the operator has allowed.

A Volume's source is written by whoever may create Volumes, and fetched from where the server stands: without a guard,
it could read what only the server reaches, such as a cloud's metadata service. The guard sits in the name look-up of
the import's process, so that it holds for every redirect and every library, and for the very address that is
connected to.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from nodus.server.sources.base import ImportFailed

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_ALSO_PRIVATE = tuple(
    map(
        ipaddress.ip_network,
        (
            "168.63.129.16/32",  # a cloud's service for its machines, in public dress
            "::/96",  # IPv4 inside IPv6, as it was once written
            "fec0::/10",  # a site's own
            "64:ff9b:1::/48",  # a network's own NAT64: it leads to its private addresses
        ),
    )
)
SETTING = "NODUS_SERVER_SOURCE_HOSTS"


class AddressRefused(Exception):
    """A host leads to an address that is not public."""

    def __init__(self, host: str, address: str) -> None:
        super().__init__(f"{host} leads to {address}, which is not a public address")
        self.host, self.address = host, address

    def failure(self, label: str) -> ImportFailed:
        """Return it as what ends an import."""
        fix = f"use a public address; the operator can allow this host: {SETTING}={self.host}"
        return ImportFailed("SourceAddressRefused", f"{label}: {self}", fix)


class Guard:
    """Decides about addresses.

    Args:
        allowed: Host names and networks (``minio.lan``, ``10.1.0.0/16``) that may have any address.
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._hosts: set[str] = set()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for entry in allowed:
            try:
                self._networks.append(ipaddress.ip_network(entry.strip(), strict=False))
            except ValueError:
                self._hosts.add(entry.strip().lower().rstrip("."))
        # Where the operator routes requests through a proxy, that is where they go.
        self._proxied = {urlsplit(url).hostname or "" for name, url in getproxies().items() if name != "no"} - {""}
        self._resolve = socket.getaddrinfo

    def install(self) -> None:
        """Guard every look-up of this process from now on."""

        def guarded(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
            name = host.decode("idna") if isinstance(host, bytes) else str(host)
            if (literal := _literal(name)) is not None:
                self._check(name, [literal])
            found = self._resolve(host, port, *args, **kwargs)
            self._check(name, [str(entry[4][0]) for entry in found])
            return found

        socket.getaddrinfo = guarded

    def addresses(self, host: str, port: int, *, exempt_proxies: bool = True) -> list[str]:
        """Look a host up and return its addresses; none where a proxy has to do that.

        Args:
            host: A name, or an address in any spelling.
            port: The port to connect to.
            exempt_proxies: Whether the operator's proxies may be anywhere. Not for who names the host itself.

        Raises:
            AddressRefused: One of them is not public.
            ImportFailed: The host is unknown.
        """
        if (literal := _literal(host)) is not None:
            self._check(host, [literal], exempt_proxies)
        try:
            found = self._resolve(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            if self._proxied:
                return []
            raise ImportFailed(
                "SourceUnavailable", f"the host {host[:120]!r} is unknown", "check the address", transient=True
            ) from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        self._check(host, addresses, exempt_proxies)
        return addresses

    def lists(self, host: str, addresses: Iterable[str]) -> bool:
        """Tell whether the operator has named a host, or the networks of all its addresses."""
        if host.lower().rstrip(".") in self._hosts:
            return True
        found = [ipaddress.ip_address(text.partition("%")[0]) for text in addresses]
        return bool(found) and all(self._listed(address) for address in found)

    def _listed(self, address: Address) -> bool:
        return any(address in network for network in self._networks)

    def _check(self, host: str, addresses: Iterable[str], exempt_proxies: bool = True) -> None:
        name = host.lower().rstrip(".")
        if name in self._hosts or (exempt_proxies and name in self._proxied):
            return
        for text in addresses:
            address = ipaddress.ip_address(text.partition("%")[0])
            if not is_public(address) and not self._listed(address):
                raise AddressRefused(host, text)


def _literal(host: str) -> str | None:
    """The address that a host is, in any of the spellings that look-ups take (``127.1``, ``0x7f000001``); else None."""
    try:
        return str(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        pass
    try:
        return str(ipaddress.IPv4Address(socket.inet_aton(host)))
    except (OSError, UnicodeError, ValueError):
        return None


def is_public(address: Address) -> bool:
    """Tell whether an address is one of the internet's, also where it stands inside of another one."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None and not is_public(inner):
            return False
        if inner is not None and address.ipv4_mapped:
            return True
    if any(address in network for network in _ALSO_PRIVATE):
        return False
    return address.is_global and not address.is_multicast
