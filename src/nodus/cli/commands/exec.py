"""``nodus exec``."""

from __future__ import annotations

import sys
from contextlib import aclosing

import click

from nodus.cli.session import Session, connected
from nodus.cli.starting import Telling
from nodus.cli.targets import Target, parse_target
from nodus.client.http import new_key
from nodus.client.resources import JsonObject
from nodus.core.errors import NodusError

EXIT_TIMEOUT = 124


class _Command(click.Command):
    """A command whose flags end where another program's words begin, with ``--`` or without."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put ``--`` before the first word after the object, where it was left out: ``exec sb/dev ls -la``."""
        if "--" not in args:
            words = self._words(ctx, args)
            if len(words) > 1:
                args = [*args[: words[1]], "--", *args[words[1] :]]
        return super().parse_args(ctx, args)

    def _words(self, ctx: click.Context, args: list[str]) -> list[int]:
        """Return where words stand that are neither flags nor values of flags."""
        valued = {
            name
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and not param.is_flag
            for name in param.opts
        }
        return [
            number
            for number, word in enumerate(args)
            if not word.startswith("-") and (number == 0 or args[number - 1] not in valued)
        ]


@click.command(cls=_Command)
@click.argument("what", metavar="KIND/NAME")
@click.argument("words", metavar="[--] COMMAND [ARGS]...", nargs=-1, type=click.UNPROCESSED)
@click.option("-i", "--stdin", is_flag=True, help="Pass standard input on to the command.")
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal.")
@click.option("--timeout", metavar="DURATION", help="Kill the command after this long, such as 30s; ends with 124.")
@click.option("--workdir", metavar="PATH", help="The command's working directory.")
@connected(patient=True)
def command(
    session: Session,
    what: str,
    words: tuple[str, ...],
    stdin: bool,
    tty: bool,
    timeout: str | None,
    workdir: str | None,
) -> int:
    """Run a command in a sandbox, and end with its exit code.

    Every word from COMMAND on is the command's own, flags too.

    \b
    Examples:
      nodus exec sb/dev -- python3 --version
      nodus exec -it sb/dev -- bash
    """
    target = sandbox_of(session, what)
    if not words:
        raise click.UsageError("say what to run: nodus exec sb/NAME -- COMMAND.")
    spec: JsonObject = {"command": list(words), "tty": tty, "stdin": stdin}
    spec |= {key: value for key, value in (("timeout", timeout), ("workingDir", workdir)) if value is not None}
    process = session.run(start(session, target, spec))
    return attend(session, process, stdin=stdin, tty=tty)


def sandbox_of(session: Session, what: str) -> Target:
    """Return the sandbox that an argument names.

    Raises:
        click.UsageError: When it names another kind of object.
    """
    target = parse_target(session, [what] if "/" in what else ["sandbox", what])
    if target.kind.kind != "Sandbox":
        raise click.UsageError(f"{what!r}: commands run in sandboxes; name one, such as sb/dev.")
    return target


async def start(session: Session, target: Target, spec: JsonObject) -> JsonObject:
    """Start a process in a sandbox and return it."""
    path = target.kind.path(target.project or session.project, target.name, "processes")
    document = {"apiVersion": "nodus.dev/v1", "kind": "Process", "spec": spec}
    key = new_key("processes").replace("sdk:", "nodus-", 1)
    with Telling(session, target):
        made: JsonObject = await session.api.call("POST", path, body=document, idempotency_key=key, timeout_s=120.0)
    return made


def attend(session: Session, process: JsonObject, *, stdin: bool, tty: bool) -> int:
    """Show a process's output until it ends, and return the exit code to end with."""
    if stdin or tty:
        from nodus.cli.terminal import join

        metadata = process["metadata"]
        ended = join(session.connection, metadata["namespace"], metadata["name"], stdin=stdin, tty=tty)
        code, reason = int(ended.exit_code or 0), ended.reason
    else:
        code, reason = session.run(_watch(session, process))
    if reason is not None:
        print(f"error: the command was ended: {reason}", file=sys.stderr)
        return EXIT_TIMEOUT if reason == "DeadlineExceeded" else code
    return code


async def _watch(session: Session, process: JsonObject) -> tuple[int, str | None]:
    from nodus.client.process import Process

    running = Process(process, session.client())
    async with aclosing(running.follow()) as output:
        async for stream, data in output:
            target = sys.stderr.buffer if stream == "stderr" else sys.stdout.buffer
            target.write(data)
            target.flush()
    if running.returncode is None:
        raise NodusError(f"process {running.name} did not say how it ended")
    return running.returncode, running.reason
