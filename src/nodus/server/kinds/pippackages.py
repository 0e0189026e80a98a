"""What an Environment may say of a pip package: a name, an exact version, an index without credentials."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from packaging.version import InvalidVersion, Version

if TYPE_CHECKING:
    from nodus.core.kinds.environment import Package

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_LOADER = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*(?::[A-Za-z_][A-Za-z0-9_]*)?")
_INDEX_CHARS = 1000
SETTING = "NODUS_SERVER_SOURCE_HOSTS"


def problems(package: Package, allowed: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a pip package: the field below ``spec.package``, and a message.

    Args:
        package: With ``pip``.
        allowed: Hosts and networks that the operator lets builds reach without TLS and at private addresses.
    """
    pip = package.pip
    assert pip is not None
    if not _NAME.fullmatch(pip.name):
        yield "pip.name", f"{pip.name[:60]!r} is no name of a package; name it alone, without extras or a version"
    try:
        Version(pip.version)
    except InvalidVersion:
        yield "pip.version", f"{pip.version[:60]!r} is no exact version; write it in full, such as 0.1.4"
    if pip.index is not None and (problem := _index_problem(pip.index, allowed)) is not None:
        yield "pip.index", problem
    if package.loader is not None and not _LOADER.fullmatch(package.loader):
        yield "loader", f"{package.loader[:60]!r} is neither a function nor module:function"


def _index_problem(index: str, allowed: Sequence[str]) -> str | None:
    """Say what is wrong with an index's address. It is not quoted where it may hold credentials."""
    try:
        url = urlsplit(index)
        host, _ = url.hostname, url.port
    except ValueError:
        return "is no address, such as https://example.com/simple/"
    if url.username is not None or url.password is not None or "@" in url.netloc:
        return "holds credentials; they would be stored in the open. Use an index that can be read without"
    if url.scheme not in ("https", "http") or not host or any(char.isspace() for char in index):
        return f"{index[:80]!r} is no address, such as https://example.com/simple/"
    if len(index) > _INDEX_CHARS or url.query or url.fragment:
        return "has a query, a fragment or too many characters; write the address of the index alone"
    if url.scheme == "http" and not _is_allowed(url, allowed):
        return (
            f"{index[:80]!r}: what is fetched without TLS can be changed on its way; use https://, or the operator "
            f"can allow the host: {SETTING}={host}"
        )
    return None


def _is_allowed(url: SplitResult, allowed: Sequence[str]) -> bool:
    host = (url.hostname or "").rstrip(".")
    if host in (entry.strip().lower().rstrip(".") for entry in allowed):
        return True
    try:
        address = ipaddress.ip_address(host)
        return any(address in ipaddress.ip_network(entry.strip(), strict=False) for entry in allowed if "/" in entry)
    except ValueError:
        return False
