"""``nodus shell``."""

from __future__ import annotations

import sys

import click

from nodus.cli.commands.exec import attend, sandbox_of, start
from nodus.cli.generators import GENERATORS, create_one, manifest, spec_of
from nodus.cli.session import Session, connected
from nodus.core.errors import NotFound
from nodus.core.ids import generated_name

FLAGS = next(generator.flags for generator in GENERATORS if generator.kind == "Sandbox")
SHELL = ("bash",)
AFTER = "nodus.shell.after"


def _shell(
    session: Session,
    /,
    what: str | None,
    rm: bool,
    keep: bool,
    **given: object,
) -> int:
    """Open a terminal in a sandbox, which is created when it isn't there.

    With a name, the sandbox stays for the next time, with its /workspace; --rm deletes one that was made for this
    shell. Without a name the shell gets one of its own, deleted at the end unless --keep is given. A command after --
    replaces bash.

    \b
    Examples:
      nodus shell sb/dev
      nodus shell sb/dev --cpu 2 --memory 4Gi
      nodus shell -- python3
    """
    name, made = _name(session, what), False
    if name is None:
        if rm:
            raise click.UsageError("--rm goes with a name; without one the sandbox is deleted anyway.")
        name, made, rm = generated_name("shell-"), True, not keep
    else:
        made = not _is_there(session, name)
    if made:
        create_one(session, manifest("Sandbox", name, spec_of(FLAGS, given)), "none", None)
    target = sandbox_of(session, f"sandbox/{name}")
    command = click.get_current_context().meta.get(AFTER) or list(SHELL)
    try:
        tty = sys.stdin.isatty()
        process = session.run(start(session, target, {"command": command, "tty": tty, "stdin": True}))
        return attend(session, process, stdin=True, tty=tty)
    finally:
        if made and rm:
            session.run(session.resources.delete("Sandbox", name, project=session.project, missing_ok=True))
            print(f"sandbox/{name} deleted", file=sys.stderr)


class _Command(click.Command):
    """A command whose arguments after ``--`` are somebody else's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put what is after ``--`` aside."""
        if "--" in args:
            position = args.index("--")
            args, ctx.meta[AFTER] = args[:position], args[position + 1 :]
        return super().parse_args(ctx, args)


def _name(session: Session, what: str | None) -> str | None:
    return None if what is None else str(sandbox_of(session, what).name)


def _is_there(session: Session, name: str) -> bool:
    try:
        session.run(session.resources.get("Sandbox", name))
    except NotFound:
        return False
    return True


def _command() -> click.Command:
    function = connected(patient=True)(_shell)
    for flag in reversed(FLAGS):
        function = click.option(
            f"--{flag.name}",
            flag.name.replace("-", "_"),
            multiple=flag.multiple,
            default=flag.default,
            show_default=flag.default is not None,
            metavar=flag.metavar,
            help=flag.help,
        )(function)
    function = click.option("--keep", is_flag=True, help="Without a name: keep the sandbox after the shell.")(function)
    function = click.option("--rm", is_flag=True, help="Delete the sandbox at the end, if this command made it.")(
        function
    )
    function = click.argument("what", metavar="[sb/NAME] [-- COMMAND [ARGS]...]", required=False)(function)
    made: click.Command = click.command("shell", cls=_Command)(function)
    return made


command = _command()
