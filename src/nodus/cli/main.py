"""``nodus``: finds the command, runs it, and turns every known error into lines and an exit code.

Exit codes: 0 done, 1 an API or other error, 2 wrong usage, 124 a wait ran out of time, 130 interrupted. ``nodus run``
adds those of the command it runs, and 125 for an end that isn't the command's own.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from nodus._version import __version__
from nodus.cli.connection import Options, connection_options
from nodus.cli.groups import Group, unknown_command, with_epilog
from nodus.core.errors import NodusError, NodusTimeout

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

WIDTH = 110
EXIT_TIMEOUT = 124
EXIT_INTERRUPTED = 130

# Every command, by the section of the help it stands in. The help stands here as well as in the modules, so that
# `nodus --help` imports none of them; a test compares the two.
SECTIONS: dict[str, dict[str, str]] = {
    "Server": {
        "up": "Start the server.",
        "down": "Stop the server; runs go on and are picked up by the next `nodus up`.",
        "status": "Tell whether the server runs and is ready.",
        "doctor": "Check isolation, configuration and server, and say how to fix what is wrong.",
    },
    "Objects": {
        "get": "List objects, or show one.",
        "describe": "Show an object with its progress, results and events.",
        "apply": "Create objects from manifests, or change them to what the manifests say.",
        "create": "Create objects from manifests or, for some kinds, from flags.",
        "diff": "Show what `apply` would change.",
        "edit": "Change an object in your editor.",
        "patch": "Change fields of an object.",
        "label": "Set labels, by which objects are selected; KEY- takes one away.",
        "annotate": "Set annotations, notes that nothing selects by; KEY- takes one away.",
        "delete": "Delete objects and what they own.",
        "wait": "Wait until objects are in a state, all of them at once.",
        "events": "List what happened to the objects of the project.",
    },
    "Runs": {
        "run": "Run a command in a sandbox, with the current directory's files.",
        "exec": "Run a command in a sandbox, and end with its exit code.",
        "shell": "Open a terminal in a sandbox, which is created when it isn't there.",
        "logs": "Print the log of a run.",
        "cp": "Copy a run's outputs to this machine, each file checked by its sha256, or files to and from a sandbox.",
        "cancel": "Cancel runs.",
        "suspend": "Pause runs: they give their resources back and keep their checkpoints.",
        "resume": "Go on with suspended runs, from their last checkpoint.",
        "stop": "Stop sandboxes, agents and endpoints; they keep what they hold and can be started again.",
        "start": "Start stopped sandboxes, agents and endpoints.",
        "request": "Ask for an action.",
        "top": "Show what runs use right now: CPU, memory, GPU and money.",
    },
    "Environments": {
        "env": "Make environments: begin one, check it as the server's build does, play attacks against its reward.",
    },
    "Files and secrets": {
        "volume": "Put files into volumes and get them back.",
        "secret": "Create secrets from literals and files.",
    },
    "Money": {
        "billing": "Show what can be spent, what is set aside, and what this month has cost.",
    },
    "Keys and settings": {
        "login": "Log in to a server.",
        "logout": "Log out: revokes the key that the login made and takes its context away.",
        "auth": "Print credentials and permissions.",
        "whoami": "Show whose key is in use, and where.",
        "config": "Show and change the contexts in ~/.nodus/config.",
        "admin": "Look after a server: bring people in, grant credits, back it up, change its master key.",
    },
    "Help": {
        "api-resources": "List the kinds of objects the server has.",
        "explain": "Show what a kind or one of its fields means.",
        "completion": "Print what makes a shell complete commands, flags, kinds and names of objects.",
        "version": "Print the version of this client and of the server.",
    },
}
COMMANDS: dict[str, str] = {name: text for section in SECTIONS.values() for name, text in section.items()}
# A command is `command` in the module of its name, unless it stands here as MODULE:NAME.
ELSEWHERE: dict[str, str] = {
    "label": "labels:label",
    "annotate": "labels:annotate",
    **{name: f"state:{name}_command" for name in ("cancel", "suspend", "resume", "stop", "start")},
}
# Kinds that `get` shows in ways of their own, as MODULE:NAME below nodus.cli.
GETS: dict[str, str] = {"usage": "wallet:usage", "transactions": "wallet:transactions"}
# Other spellings of commands.
ALIASES: dict[str, str] = {"vol": "volume"}
# Commands of the hosted product that this release has no server for.
NOT_YET: dict[str, str] = {
    "agentrun": "agents",
    "inference": "hosted inference",
    "pool": "pools",
    "deploy": "apps and functions",
    "serve": "apps and functions",
    "ssh": "workspaces",
}


class LazyGroup(Group):
    """The group of all commands; imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order a new user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name, or None."""
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = ELSEWHERE.get(cmd_name, cmd_name.replace("-", "_")).partition(":")
        command: click.Command = getattr(import_module(f"nodus.cli.commands.{module}"), attribute or "command")
        return with_epilog(command)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command's name without importing any, or a flag."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return [item for item in super().shell_complete(ctx, incomplete) if item.value.startswith("-")]
        return [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections without importing their commands."""
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl(list(commands.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown one is answered with the closest name."""
        name = args[0] if args else ""
        if name in NOT_YET:
            raise click.UsageError(f"{name!r} is not part of this release: it has no {NOT_YET[name]} yet.", ctx)
        if name == "get" and args[1:2] and args[1] in GETS:
            module, _, attribute = GETS[args[1]].partition(":")
            shown: click.Command = getattr(import_module(f"nodus.cli.{module}"), attribute)
            return f"get {args[1]}", with_epilog(shown), args[2:]
        if args and name not in (*COMMANDS, *ALIASES) and not name.startswith("-"):
            raise unknown_command(ctx, name, COMMANDS)
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH})
@click.version_option(__version__, "--version", prog_name="nodus", message="%(prog)s %(version)s")
@connection_options
def root(ctx: click.Context, given: Options) -> None:
    """Teach language models with your own reward, on your own machine.

    \b
    Example:
      nodus up --detach
      nodus apply -f grpo.yaml
      nodus get tj -w
      nodus cp tj/my-grpo:outputs/ ./outputs
    """
    ctx.obj = given


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments; those of the process when None.

    Returns:
        The exit code.
    """
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["help"]:  # `nodus help get`, as other tools have it
        words = [*words[1:], "--help"]
    try:
        result: Any = root.main(args=words, prog_name="nodus", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.UsageError as error:
        return _wrong_usage(error)
    except click.ClickException as error:
        _say(f"error: {error.format_message()}")
        return error.exit_code
    except NodusTimeout as error:
        _say(f"error: {error.message}")
        return EXIT_TIMEOUT
    except NodusError as error:
        from nodus.cli.render import error_lines

        _say(*error_lines(error))
        return 1
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except OSError as error:  # a file of the user's that can't be read or written, a full disk
        where = f"{error.filename}: " if error.filename else ""
        _say(f"error: {where}{error.strerror or error}")
        return 1
    finally:  # an interrupted transfer leaves no bar, and no hidden cursor
        if "nodus.cli.progress" in sys.modules:
            sys.modules["nodus.cli.progress"].clear()


def _wrong_usage(error: click.UsageError) -> int:
    """Say what is wrong in one line and what would be right in another; a group without a command prints its help."""
    if type(error).__name__ == "NoArgsIsHelpError":  # not in the oldest click that is supported
        error.show()
        return error.exit_code
    context, lines = error.ctx, [f"error: {error.format_message()}"]
    if context is not None and not isinstance(context.command, LazyGroup):
        usage = " ".join(context.command.collect_usage_pieces(context))
        lines.append(f"usage: {context.command_path} {usage}    (--help says more)")
    _say(*lines)
    return error.exit_code


def _say(*lines: str) -> None:
    from nodus.cli.colour import paint, visible
    from nodus.cli.progress import clear

    clear()
    sys.stdout.flush()
    for line in map(visible, lines):
        word, colon, rest = line.partition(":")
        styled = line.startswith(("error:", "Error from server")) and bool(colon)
        print(f"{paint(word + colon, 'red', sys.stderr)}{rest}" if styled else line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
