"""Changing ``~/.nodus/config``: contexts listed, chosen, changed and taken away; :mod:`nodus.client.config` reads it.

Every change replaces the file at once and leaves what it doesn't know as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodus.client.config import (
    ORG_EXTENSION,
    ConfigError,
    credentials_path,
    extension_of,
    load_config,
    named,
    put,
    read_credentials,
    write_private,
)


@dataclass(frozen=True, slots=True)
class ContextInfo:
    """A context of the configuration file."""

    name: str
    server: str | None
    org: str | None
    project: str
    current: bool
    key_name: str | None = None
    """Name of the APIKey that a login made for it; None for a key that came from elsewhere."""


def contexts(path: Path) -> list[ContextInfo]:
    """Return the contexts of a file in its order.

    Raises:
        ConfigError: The file can't be read.
    """
    content = load_config(path)
    return [_info(content, str(item.get("name"))) for item in content.get("contexts") or []]


def find_context(path: Path, name: str | None = None) -> ContextInfo:
    """Return a context by name, the current one when None.

    Raises:
        ConfigError: There is none.
    """
    content = load_config(path)
    wanted = name or content.get("current-context")
    if not wanted:
        raise ConfigError("there is no current context", fix="Log in with `nodus login`, or choose a context.")
    return _info(content, str(_require(path, content, str(wanted))))


def _info(content: Mapping[str, Any], name: str) -> ContextInfo:
    entry = named(content, "contexts", "context", name) or {}
    cluster = named(content, "clusters", "cluster", entry.get("cluster")) or {}
    org = extension_of(entry, ORG_EXTENSION)
    return ContextInfo(
        name=name,
        server=cluster.get("server"),
        org=_text(org.get("org")),
        project=str(entry.get("namespace") or "default"),
        current=content.get("current-context") == name,
        key_name=_text(org.get("key")),
    )


def _text(value: object) -> str | None:
    return str(value) if value else None


def _require(path: Path, content: Mapping[str, Any], name: str) -> str:
    if named(content, "contexts", "context", name) is None:
        known = ", ".join(sorted(str(item.get("name")) for item in content.get("contexts") or [])) or "none"
        raise ConfigError(f"there is no context {name!r} in {path}", fix=f"Contexts there: {known}.")
    return name


def use_context(path: Path, name: str) -> None:
    """Make a context the current one.

    Raises:
        ConfigError: There is none of that name.
    """
    content = load_config(path)
    content["current-context"] = _require(path, content, name)
    write_private(path, content)


def change_context(path: Path, name: str | None, *, project: str | None = None, server: str | None = None) -> str:
    """Change the project or the server of a context, the current one when ``name`` is None; return its name.

    Raises:
        ConfigError: There is no such context.
    """
    info = find_context(path, name)
    content = load_config(path)
    entry = named(content, "contexts", "context", info.name) or {}
    if project is not None:
        entry["namespace"] = project
    if server is not None:
        url = server.rstrip("/")
        before = entry.get("cluster")
        cluster = dict(named(content, "clusters", "cluster", before) or {}) | {"server": url}
        entry["cluster"] = url.split("://", 1)[-1]
        put(content, "clusters", {"name": entry["cluster"], "cluster": cluster})
    put(content, "contexts", {"name": info.name, "context": entry})
    _drop_unused(content)
    write_private(path, content)
    return info.name


def remove_context(path: Path, name: str) -> None:
    """Take a context away with its user and key; no other becomes current.

    Raises:
        ConfigError: There is none of that name.
    """
    content = load_config(path)
    entry = named(content, "contexts", "context", _require(path, content, name)) or {}
    content["contexts"] = [item for item in content["contexts"] if item.get("name") != name]
    users = {(item.get("context") or {}).get("user") for item in content["contexts"]}
    user = entry.get("user")
    if user not in users:
        content["users"] = [item for item in content.get("users") or [] if item.get("name") != user]
    if content.get("current-context") == name:
        content["current-context"] = ""
    _drop_unused(content)
    write_private(path, content)
    # The key last: a context without its key would be worse than a key nobody names any more.
    credentials = read_credentials(path)
    if credentials.pop(name, None) is not None:
        write_private(credentials_path(path), credentials)


def _drop_unused(content: dict[str, Any]) -> None:
    used = {(item.get("context") or {}).get("cluster") for item in content.get("contexts") or []}
    content["clusters"] = [item for item in content.get("clusters") or [] if item.get("name") in used]


def free_name(path: Path, org: str, url: str) -> str:
    """Return the name for a login's context: the organization's, with a number where another server has that name."""
    content = load_config(path)
    name, number = org, 2
    while named(content, "contexts", "context", name) is not None and _info(content, name).server not in (None, url):
        name, number = f"{org}-{number}", number + 1
    return name
