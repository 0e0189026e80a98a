"""``nodus env``."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nodus.cli.connection import Options, connection_options
from nodus.cli.groups import Group
from nodus.cli.options import DATA_DIR, output_option

if TYPE_CHECKING:
    from nodus.cli.session import Session
    from nodus.server.envtools.subjects import Subject

KINDS = ("functions", "episodes", "verifiers", "openenv", "reasoning-gym", "verl")
WHAT = click.argument("what", default=".", required=False, metavar="[PATH|NAME[@VERSION]]")
JSON = output_option("json", help_text="Print it as JSON.")


@click.group(name="env", cls=Group)
def command() -> None:
    """Make environments: begin one, check it as the server's build does, play attacks against its reward.

    \b
    Examples:
      nodus env init reverse-words
      nodus env test reverse-words
      nodus env audit reverse-words
    """


@command.command()
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), default="functions", show_default=True, help="What it is made of.")
@click.option("--directory", type=click.Path(path_type=Path), metavar="DIR", help="Where it goes; ./NAME when unset.")
def init(name: str, kind: str, directory: Path | None) -> None:
    """Write a package to begin with: it installs, has tests and passes `nodus env test`. Nothing is overwritten.

    functions has tasks(split) and reward(completion, answer), episodes has step(turns, answer); the others wrap what
    that library makes.

    \b
    Examples:
      nodus env init reverse-words
      nodus env init word-game --kind episodes
    """
    from nodus.recipes.skeleton import skeleton, write

    place = directory or Path(name)
    made = skeleton(name, kind)
    left = write(made, place)
    for path in sorted(made.files):
        print(place / path)
    if left is not None:
        print(left)
    print(f"next: nodus env test {place}")


@command.command()
@WHAT
@DATA_DIR
@JSON
@connection_options
def test(ctx: click.Context, given: Options, what: str, data_dir: Path | None, output: str | None) -> int:
    """Check an environment as the server's build does, in the same sandboxes; exits with 1 when it would fail.

    Lists its tasks twice in two processes, which must agree; grades answers and empty replies, each twice; shows a
    task, the verdicts, or the traceback. PATH is a package's directory, published or not, or a file; NAME one of the
    catalog, or of a server on this machine.

    \b
    Examples:
      nodus env test                       # the package in the current directory
      nodus env test ./reverse-words
      nodus env test gsm8k@1.0.0 -o json
    """
    from nodus.cli.envview import report_lines
    from nodus.cli.progress import Waiting

    _needs_server_parts()
    from nodus.server.envtools import checking
    from nodus.server.envtools.building import BuildFailed

    with tempfile.TemporaryDirectory(prefix="nodus-env-") as staging, Waiting(f"preparing {what}") as waiting:
        try:
            subject = _subject(given, what, data_dir, Path(staging, "sources"), waiting.say)
            report = asyncio.run(checking.run(subject, progress=waiting.say))
        except BuildFailed as error:
            report = checking.not_built(what, error)
    if output == "json":
        print(json.dumps(report.to_wire(), indent=2))
    else:
        print("\n".join(report_lines(report.to_wire())))
    return 0 if report.ok else 1


@command.command()
@WHAT
@click.option("--tasks", type=click.IntRange(1, 1000), default=8, show_default=True, help="Tasks to play against.")
@click.option("--skip", multiple=True, metavar="ATTACK", help="Leave this attack out, such as fork-bomb.")
@DATA_DIR
@JSON
@connection_options
def audit(
    ctx: click.Context,
    given: Options,
    what: str,
    tasks: int,
    skip: tuple[str, ...],
    data_dir: Path | None,
    output: str | None,
) -> int:
    """Play cheap attacks against an environment's reward and report what each was paid.

    Null, empty, the prompt itself, the answer's format alone, planted reward files, deleted tests, forged verdicts,
    100 MB of output, a fork bomb, an endless loop and more: as text, and as code for those that run it. Exits with 1
    when an attack was paid 1, or the reward raised. PATH and NAME are as for `nodus env test`.

    \b
    Examples:
      nodus env audit ./reverse-words
      nodus env audit python-functions --tasks 2 --skip fork-bomb
    """
    from nodus.cli.envview import audit_lines
    from nodus.cli.progress import Steps

    _needs_server_parts()
    from nodus.server.envtools import audit as auditing

    auditing.chosen(skip)
    with tempfile.TemporaryDirectory(prefix="nodus-env-") as staging, Steps(f"preparing {what}") as steps:
        subject = _subject(given, what, data_dir, Path(staging, "sources"), lambda text: steps.at(text, 0, 1))
        found = asyncio.run(auditing.audit(subject, tasks=tasks, skip=skip, progress=steps.at))
    if output == "json":
        print(json.dumps(found.to_wire(), indent=2))
    else:
        print("\n".join(audit_lines(found.to_wire())))
    return 0 if found.ok else 1


def _needs_server_parts() -> None:
    """Refuse where environments can't be graded at all.

    Raises:
        NodusError: With what to install, or where to go.
    """
    from importlib.util import find_spec

    from nodus.core.errors import NodusError

    if sys.platform != "linux":
        raise NodusError("environments are graded in sandboxes of Linux", fix="Run it on a Linux machine.")
    if find_spec("sqlalchemy") is None:
        raise NodusError(
            "the server's parts are not installed", fix="pip install '.[server,environments]' in the clone of Nodus."
        )


def _subject(
    given: Options, what: str, data_dir: Path | None, staging: Path, progress: Callable[[str], None]
) -> Subject:
    from nodus.server.envtools import subjects

    if subjects.is_path(what):
        return subjects.of_path(what, staging, progress)
    name, _, version = what.removeprefix("nodus/").partition("@")
    if found := subjects.of_catalog(name, version or None, staging):
        return found
    return _of_server(given, what, data_dir)


def _of_server(given: Options, what: str, data_dir: Path | None) -> Subject:
    """Return an Environment of a project, whose files are in the data directory of a server on this machine."""
    from nodus.cli.session import Session
    from nodus.client.kinds import find_kind
    from nodus.core.errors import NotFound, Unsupported
    from nodus.server import datadir
    from nodus.server.envtools import subjects
    from nodus.server.lifecycle import StatusOptions

    session, (name, _, version) = Session(given), what.partition("@")
    kind = find_kind("environment")
    assert kind is not None
    try:
        obj: dict[str, Any] = session.run(session.get(kind, name))
    except NotFound as error:
        raise NotFound(
            f"there is no environment {name!r} here, in the catalog, or in project {session.project}",
            fix=error.fix or f"Name a directory, such as ./{name}.",
        ) from error
    if version and version != obj["spec"]["version"]:
        raise NotFound(
            f"environment {name!r} is at version {obj['spec']['version']} now, not {version}",
            fix="Apply the version that is meant, or name its package's directory.",
        )
    options = StatusOptions() if data_dir is None else StatusOptions(data_dir=data_dir.expanduser().absolute())
    info = datadir.read_info(options.data_dir)
    if info is None or info.url.rstrip("/") != session.connection.url:
        raise Unsupported(
            f"environment {name!r} is on {session.connection.url}, whose files are not in {options.data_dir}",
            fix="Run it on the server's machine (with --data-dir), or name the package's directory.",
        )
    where = f"project {session.project} of {session.connection.url}"
    return subjects.of_server(obj["metadata"]["name"], _with_build(session, obj), options.data_dir, where)


def _with_build(session: Session, obj: dict[str, Any]) -> dict[str, Any]:
    """Return an Environment's spec with the digest of what its package was built into, as its Image has it."""
    from nodus.client.kinds import find_kind
    from nodus.core.kinds.image import image_name

    spec: dict[str, Any] = obj["spec"]
    kind = find_kind("image")
    if kind is None or not (spec["package"].get("pip") or spec["package"].get("image")):
        return spec
    image = session.run(session.get(kind, image_name(obj["metadata"]["name"], spec["version"])))
    return {**spec, "build": {"digest": (image.get("status") or {}).get("digest")}}
