"""Copies between this machine and a sandbox."""

from __future__ import annotations

import re
from contextlib import aclosing
from pathlib import Path, PurePosixPath

import click

from nodus.cli.colour import visible
from nodus.cli.session import Session
from nodus.cli.starting import Telling
from nodus.cli.targets import Target, parse_target
from nodus.client.sandboxfiles import SandboxFiles

_REMOTE = re.compile(r"([A-Za-z][A-Za-z0-9.]*/[^/:\s]+):(.*)", re.DOTALL)


def remote(session: Session, argument: str) -> tuple[Target, str] | None:
    """Return the object and the path that an argument names, or None when it is a path of this machine."""
    match = _REMOTE.fullmatch(argument)
    if match is None or not match.group(2):
        return None
    return parse_target(session, [match.group(1)]), match.group(2)


def upload(session: Session, source: str, target: Target, path: str) -> None:
    """Copy a file or directory of this machine into a sandbox, printing each file."""
    files = _files(session, target, path)
    local = Path(source)
    if remote(session, source) is not None:
        raise click.UsageError("one side of a copy is on this machine.")
    if not local.exists():
        raise click.UsageError(f"there is no {source!r} here.")
    if path.endswith("/") and not local.is_dir():
        path += local.name

    async def copy() -> None:
        async with aclosing(files.uploading(local, path)) as copied:
            async for name in copied:
                print(visible(f"{target.kind.singular}/{target.name}:{name}"))

    with Telling(session, target):
        session.run(copy())


def download(session: Session, source: Target, path: str, target: str) -> None:
    """Copy a file or directory from a sandbox to this machine, printing each file."""
    files = _files(session, source, path)
    local = Path(target)
    if (local.is_dir() or target.endswith("/")) and not path.endswith("/"):
        local = local / PurePosixPath(path).name

    async def copy() -> None:
        async with aclosing(files.downloading(path.rstrip("/") or "/", local)) as copied:
            async for name in copied:
                print(visible(str(name)))  # named by whoever runs code in the sandbox

    with Telling(session, source):
        session.run(copy())


def _files(session: Session, target: Target, path: str) -> SandboxFiles:
    if target.kind.kind != "Sandbox":
        raise click.UsageError(f"files can't be copied into a {target.kind.singular}; name a sandbox, such as sb/dev.")
    if not path.startswith("/"):
        raise click.UsageError(f"{path!r}: write where it is in the sandbox from / on, such as /workspace/{path}.")
    return SandboxFiles(session.api, target.kind.path(target.project or session.project, target.name, "files"))
