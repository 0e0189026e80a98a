"""``nodus``: finds the command, runs it, and turns every known error into lines and an exit code.

Exit codes: 0 done, 1 an API or other error, 2 wrong usage, 124 a wait ran out of time, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click

from nodus._version import __version__
from nodus.cli.session import Options
from nodus.core.errors import NodusError, NodusTimeout

EXIT_TIMEOUT = 124
EXIT_INTERRUPTED = 130

# The help stands here as well as in the modules, so that `nodus --help` imports none of them; a test compares the two.
COMMANDS: dict[str, str] = {
    "up": "Start the server.",
    "down": "Stop the server; runs go on and are picked up by the next `nodus up`.",
    "status": "Tell whether the server runs and is ready.",
    "doctor": "Check isolation, configuration and server, and say how to fix what is wrong.",
    "apply": "Create objects from manifests, or change them to what the manifests say.",
    "create": "Create objects from manifests.",
    "get": "List objects, or show one.",
    "describe": "Show an object with its progress, results and events.",
    "wait": "Wait until an object is in a state.",
    "logs": "Print the log of a run.",
    "cp": "Copy a run's outputs to this machine, each file checked by its sha256.",
    "patch": "Change fields of an object.",
    "cancel": "Cancel a run.",
    "delete": "Delete objects and what they own.",
    "events": "List what happened to the objects of the project.",
    "volume": "Put files into volumes and get them back.",
    "login": "Save a key of a server.",
    "auth": "Print credentials and permissions.",
    "whoami": "Show whose key is in use.",
    "api-resources": "List the kinds of objects the server has.",
}


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order a new user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name, or None."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"nodus.cli.commands.{cmd_name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown one is answered with the closest name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else " `nodus --help` lists the commands."
            raise click.UsageError(f"unknown command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "--version", prog_name="nodus", message="%(prog)s %(version)s")
@click.option("--context", metavar="NAME", help="Context of the configuration file. [env: NODUS_CONTEXT]")
@click.option("-p", "--project", "-n", "--namespace", "project", metavar="NAME", help="Project. [env: NODUS_PROJECT]")
@click.pass_context
def root(ctx: click.Context, context: str | None, project: str | None) -> None:
    """Teach language models with your own reward, on your own machine.

    \b
    Example:
      nodus up --detach
      nodus apply -f grpo.yaml
      nodus get tj -w
      nodus cp tj/my-grpo:outputs/ ./outputs
    """
    ctx.obj = Options(context=context, project=project)


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments; those of the process when None.

    Returns:
        The exit code.
    """
    try:
        result: Any = root.main(args=argv, prog_name="nodus", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.ClickException as error:
        error.show(file=sys.stderr)
        return error.exit_code if isinstance(error, click.UsageError) else 1
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


def _say(*lines: str) -> None:
    sys.stdout.flush()
    for line in lines:
        print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
