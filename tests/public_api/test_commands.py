"""The command line, pinned: commands and flags are what scripts are written against."""

from __future__ import annotations

import click
import pytest

from nodus.cli.main import COMMANDS, root

COMMAND_LINE: dict[str, set[str]] = {
    "up": {
        "--data-dir",
        "--host",
        "--port",
        "--detach",
        "-d",
        "--tls-cert",
        "--tls-key",
        "--behind-proxy",
        "--public-url",
        "--roles",
        "--allow-unsafe-sandbox",
        "--new-key",
    },
    "down": {"--data-dir", "--timeout"},
    "status": {"--data-dir", "--output", "-o"},
    "doctor": {"--context", "--output", "-o"},
    "apply": {"--filename", "-f", "--recursive", "-R", "--dry-run", "--output", "-o", "--prune", "--selector", "-l"},
    "create": {"--filename", "-f", "--recursive", "-R", "--dry-run", "--idempotency-key", "--output", "-o"},
    "diff": {"--filename", "-f", "--recursive", "-R"},
    "edit": set(),
    "label": {"--dry-run", "--output", "-o"},
    "annotate": {"--dry-run", "--output", "-o"},
    "get": {
        "--filename",
        "-f",
        "--output",
        "-o",
        "--watch",
        "-w",
        "--selector",
        "-l",
        "--field-selector",
        "-A",
        "--all-projects",
        "--all-namespaces",
        "--mine",
        "--no-headers",
        "--show-labels",
        "--sort-by",
        "--limit",
        "--gpu",
        "--count",
        "--region",
        "--interruptible",
    },
    "describe": {"--selector", "-l"},
    "wait": {"--for", "--timeout", "--selector", "-l"},
    "run": {
        "--name",
        "--image",
        "--cpu",
        "--memory",
        "--disk",
        "--gpu",
        "--env",
        "--secret",
        "--volume",
        "--output",
        "--workdir",
        "--timeout",
        "--backoff-limit",
        "--completions",
        "--parallelism",
        "--checkpoint",
        "--continuity",
        "--no-source",
        "--allow-large-source",
        "--git",
        "--git-ref",
        "--git-path",
        "--detach",
        "-d",
        "--dry-run",
        "--keep",
        "--label",
        "-l",
        "--max-cost",
        "--expected-duration",
        "--complete-by",
        "--idempotency-key",
        "--interruptible",
        "--region",
        "--profile",
        "--no-warm",
        "--nodes",
        "--total-gpus",
        "--gpus-per-node",
        "--launcher",
        "--network",
        "--transport",
        "--startup-timeout",
    },
    "logs": {
        "--follow",
        "-f",
        "--tail",
        "--since",
        "--timestamps",
        "--attempt",
        "--rank",
        "--index",
        "--all-indexes",
        "--process",
    },
    "exec": {"--stdin", "-i", "--tty", "-t", "--timeout", "--workdir"},
    "shell": {
        "--rm",
        "--keep",
        "--image",
        "--cpu",
        "--memory",
        "--disk",
        "--gpu",
        "--idle-timeout",
        "--secret",
        "--max-cost",
    },
    "cp": {"--index", "--rank"},
    "patch": {"--patch", "--type", "--dry-run", "--output", "-o"},
    "cancel": set(),
    "suspend": set(),
    "resume": set(),
    "stop": set(),
    "start": set(),
    "request": set(),
    "top": {"--no-headers"},
    "completion": set(),
    "version": {"--output", "-o"},
    "delete": {
        "--filename",
        "-f",
        "--selector",
        "-l",
        "--all",
        "--cascade",
        "--wait",
        "--timeout",
        "--dry-run",
        "--ignore-not-found",
        "--recursive",
        "-R",
    },
    "events": {
        "--for",
        "--type",
        "--watch",
        "-w",
        "-A",
        "--all-projects",
        "--all-namespaces",
        "--limit",
        "--no-headers",
        "--output",
        "-o",
    },
    "env": set(),
    "volume": set(),
    "secret": set(),
    "login": {
        "--device",
        "--with-token",
        "--api-url",
        "--console-url",
        "--no-browser",
        "--certificate-authority",
    },
    "logout": set(),
    "config": set(),
    "admin": set(),
    "billing": {"--output", "-o"},
    "auth": set(),
    "whoami": {"--output", "-o"},
    "api-resources": set(),
    "explain": {"--recursive", "--output", "-o"},
}
CONNECTION = {"--context", "--org", "--project", "-p", "--namespace", "-n", "--verbose", "-v"}
WITHOUT_CONNECTION = {
    "up",
    "down",
    "status",
    "doctor",
    "login",
    "env",
    "volume",
    "secret",
    "auth",
    "completion",
    "config",
    "admin",
}


def flags(command: click.Command) -> set[str]:
    """Return a command's flags."""
    return {name for param in command.params if isinstance(param, click.Option) for name in param.opts}


def test_commands_are_these() -> None:
    assert set(COMMANDS) == set(COMMAND_LINE)


@pytest.mark.parametrize("name", COMMAND_LINE)
def test_flags_of_commands(name: str) -> None:
    command = root.get_command(click.Context(root), name)
    assert command is not None
    assert flags(command) == COMMAND_LINE[name] | (set() if name in WITHOUT_CONNECTION else CONNECTION)


@pytest.mark.parametrize("name", COMMANDS)
def test_short_help_is_the_commands_own(name: str) -> None:
    command = root.get_command(click.Context(root), name)
    assert command is not None and command.help is not None
    first = command.help.replace("\b", "").split("\n\n")[0].replace("\n", " ")
    assert first.startswith(COMMANDS[name].rstrip("."))


def test_groups_have_these_commands() -> None:
    volume = {"put", "get", "ls", "rm", "clear", "revisions", "restore"}
    expected = {"volume": volume, "secret": {"create"}, "auth": {"token", "can-i"}, "env": {"init", "test", "audit"}}
    for name, names in expected.items():
        group = root.get_command(click.Context(root), name)
        assert isinstance(group, click.Group)
        assert set(group.commands) == names
