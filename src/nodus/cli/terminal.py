"""A person's terminal, or a pipe, joined to a process in a sandbox."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from nodus.client.attach import Attachment
from nodus.client.config import Connection

READ_BYTES = 32 * 1024


def join(connection: Connection, project: str, process: str, *, stdin: bool, tty: bool) -> Attachment:
    """Carry input and output between this terminal and a process until it ends; return how it ended.

    Args:
        connection: Server and key.
        project: The process's project.
        process: Its name.
        stdin: Whether to pass this program's standard input on.
        tty: Whether the process has a terminal: keys go to it as they are pressed, Ctrl+C too.
    """
    with Attachment(connection, project, process, stdin=stdin, tty=tty) as attached, _raw(tty), _sizes(attached, tty):
        stop_read, stop_write = os.pipe()
        feeder = threading.Thread(target=_feed, args=(attached, stop_read), daemon=True)
        try:
            if stdin:
                feeder.start()
            for stream, data in attached.output():
                target = sys.stderr.buffer if stream == "stderr" else sys.stdout.buffer
                target.write(data)
                target.flush()
        finally:
            os.close(stop_write)
            if stdin:
                feeder.join(1.0)
            os.close(stop_read)
    return attached


def _feed(attached: Attachment, stop: int) -> None:
    """Send what is typed or piped in, until its end or until told to stop."""
    source = sys.stdin.fileno()
    while True:
        ready, _, _ = select.select([source, stop], [], [])
        if stop in ready:
            return
        data = os.read(source, READ_BYTES)
        if not data:
            attached.close_stdin()
            return
        attached.send(data)


@contextlib.contextmanager
def _raw(tty: bool) -> Iterator[None]:
    """Let every key through as it is pressed, for as long as the block lasts."""
    if not (tty and sys.stdin.isatty()):
        yield
        return
    import termios
    import tty as modes

    before = termios.tcgetattr(sys.stdin)
    try:
        modes.setraw(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _sizes(attached: Attachment, tty: bool) -> Iterator[None]:
    """Tell the process the size of this terminal, now and whenever it changes."""
    if not (tty and sys.stdout.isatty()):
        yield
        return

    def tell(number: int = 0, frame: Any = None) -> None:
        size = os.get_terminal_size(sys.stdout.fileno())
        attached.resize(size.lines, size.columns)

    before = signal.signal(signal.SIGWINCH, tell)
    tell()
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
