"""How the operator has configured pip on this machine: by its files and by environment variables.

pip itself is asked, so that what it would do is what builds do. Only what decides where packages come from is taken.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from nodus.server.compute.builds import PipSettings

_LINE = re.compile(r"(?P<section>:env:|global|install|download)\.(?P<name>[a-z-]+)=(?P<value>.+)")
_ORDER = ("global", "install", "download", ":env:")
"""Later ones win."""
_INDEXES = ("index-url", "extra-index-url")
_PLACES = ("find-links", "constraint", "cert")
_PLAIN = ("no-index", "trusted-host", "timeout", "default-timeout")
_TIMEOUT_S = 30.0
_DEFAULTS = "from pip._internal.models.index import PyPI; print(PyPI.netloc, PyPI.file_storage_domain)"


def read() -> PipSettings:
    """Ask pip. What it can't say is as if nothing were configured: then packages come from PyPI."""
    return parse(_ask("-m", "pip", "config", "list"), _ask("-c", _DEFAULTS).split())


def _ask(*arguments: str) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-I", *arguments],
            capture_output=True, stdin=subprocess.DEVNULL, timeout=_TIMEOUT_S, check=True, text=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def parse(listing: str, defaults: Sequence[str] = ()) -> PipSettings:
    """Return what pip is configured to do.

    Args:
        listing: What ``pip config list`` prints.
        defaults: Hosts that packages come from when nothing else is configured: a network may show them at addresses
            of its own.
    """
    found: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None or match["name"] not in (*_INDEXES, *_PLACES, *_PLAIN):
            continue
        rank, value = _ORDER.index(match["section"]), _value(match["value"])
        if value and rank >= found.get(match["name"], (-1, ""))[0]:
            found[match["name"]] = (rank, value)
    values = {name: value for name, (_, value) in found.items()}
    urls = [url for name in _INDEXES for url in values.get(name, "").split()]
    places = [place for name in _PLACES for place in values.get(name, "").split()]
    # A local index's pages may link to files beside them.
    local = [path.parent for text in urls if (path := _path(text)) is not None and path.exists()]
    local += [path for text in places if (path := _path(text)) is not None and path.exists()]
    remote = [urlsplit(text) for text in (*urls, *places) if text.startswith(("http://", "https://"))]
    hosts = [(url.hostname, url.port or (443 if url.scheme == "https" else 80)) for url in remote if url.hostname]
    return PipSettings(
        env={f"PIP_{name.upper().replace('-', '_')}": value for name, value in values.items()},
        hosts=[*hosts, *((host, 443) for host in defaults if "index-url" not in values)],
        readable=[path for path in dict.fromkeys(local) if not path.is_relative_to("/usr")],
        secret=any(url.username is not None for url in remote),
    )


def _value(text: str) -> str:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return ""
    return " ".join(str(value).split())


def _path(text: str) -> Path | None:
    if text.startswith("file://"):
        return Path(unquote(urlsplit(text).path))
    return Path(text) if os.path.isabs(text) else None
