"""``nodus doctor``."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from dataclasses import asdict
from importlib.util import find_spec
from typing import NamedTuple

import click

from nodus.cli.formats import check_format
from nodus.cli.progress import Waiting
from nodus.cli.session import Options, Session, given_options
from nodus.client.config import config_path
from nodus.core.errors import NodusError


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    ok: bool
    found: str
    fix: str | None = None


@click.command()
@click.option("--context", metavar="NAME", help="Context of the configuration file. [env: NODUS_CONTEXT]")
@click.option("-o", "--output", metavar="json", help="Print it as JSON.")
@click.pass_context
def command(ctx: click.Context, context: str | None, output: str | None) -> int:
    """Check isolation, configuration and server, and say how to fix what is wrong; exits with 1 when something is.

    In both sandboxes, the grader's and the one for code of completions, canaries try to get out, to run for ever and to
    stay behind.

    \b
    Example:
      nodus doctor
    """
    check_format(output, ("json",))
    checks = [_python(), *_isolation(), *_packages(), *_programs(), *_server(given_options(ctx, context, None))]
    if output == "json":
        print(
            json.dumps(
                {"ok": all(check.ok for check in checks), "checks": [check._asdict() for check in checks]}, indent=2
            )
        )
    else:
        for check in checks:
            print(f"{'ok  ' if check.ok else 'FAIL'}  {check.name:<20}{check.found}")
            if check.fix:
                print(f"      {'fix:' if not check.ok else 'hint:':<20}{check.fix}")
    return 0 if all(check.ok for check in checks) else 1


def _python() -> Check:
    good = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return Check(
        "python",
        good,
        f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        None if good else "Use Python 3.11, 3.12 or 3.13.",
    )


def _isolation() -> list[Check]:
    if sys.platform != "linux":
        return [Check("isolation", True, "not needed: the server runs on Linux, this is a client")]
    from nodus.server.compute.local.probe import probe

    found = probe()
    facts = asdict(found)
    listed = ", ".join(
        f"{key.replace('_', ' ')}: {_word(facts[key])}"
        for key in ("mode", "user_ns", "net_ns", "seccomp", "memory_limit", "pids_limit")
    )
    level = "limits for each sandbox" if found.memory_limit != "rlimits" else "limits for each process alone"
    named = f"{found.name} ({level})" if found.ok else "; ".join(found.problems)
    checks = [Check("isolation", found.ok, named, found.fix)]
    checks.append(Check("isolation details", True, listed, "; ".join(found.warnings) or None))
    return [*checks, *_canaries()] if found.ok else checks


def _canaries() -> list[Check]:
    """Run the canaries; a client has no sandboxes to run them in."""
    if find_spec("sqlalchemy") is None:
        return []
    from nodus.server.envtools import canaries

    with Waiting("running canaries in both sandboxes"):
        try:
            return [Check(found.name, found.held, found.found, found.fix) for found in canaries.run()]
        except (NodusError, OSError) as error:
            return [Check("canaries", False, f"could not be run: {error}", getattr(error, "fix", None))]


def _word(value: object) -> str:
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _packages() -> list[Check]:
    checks = []
    for extra, modules in (("server", ("sqlalchemy", "starlette", "uvicorn")), ("train", ("torch", "trl", "peft"))):
        missing = [name for name in modules if find_spec(name) is None]
        checks.append(
            Check(
                f"extra {extra!r}",
                not missing,
                "installed" if not missing else f"missing: {', '.join(missing)}",
                f"pip install '.[{extra}]' in the clone, or run scripts/setup" if missing else None,
            )
        )
    return checks


def _programs() -> list[Check]:
    """Look for what only some Environments need; a client needs none of it."""
    if find_spec("sqlalchemy") is None or sys.platform != "linux":
        return []
    if shutil.which("skopeo"):
        return [Check("images", True, "skopeo is installed: Environments may be images")]
    return [Check("images", True, "no skopeo: Environments can't be images", "apt-get install skopeo")]


def _server(options: Options) -> list[Check]:
    try:
        session = Session(options)
    except NodusError as error:
        return [Check("configuration", False, error.message, error.fix)]
    where = f"{session.connection.url}, context {session.connection.context or 'none'} of {config_path()}"
    checks = [Check("configuration", True, where)]
    try:
        report = str(session.run(session.api.call("GET", "/readyz"))).strip()
        checks.append(Check("server", True, "; ".join(report.splitlines()) or "ready"))
        who = session.run(session.api.call("GET", "/auth/whoami"))
        checks.append(Check("key", True, f"{who.get('user')} of {who.get('orgName') or who.get('org')}"))
    except NodusError as error:
        checks.append(
            Check(
                "key" if len(checks) > 1 else "server",
                False,
                error.message,
                error.fix or "Start it with `nodus up --detach`.",
            )
        )
    return checks
