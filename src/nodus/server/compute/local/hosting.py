"""How a supervisor hosts the processes of a Sandbox: the sockets, process one's command line, and what ends it early.

Standard library only. An attempt whose spec says ``processes`` gets process one (``nodus.sandboxinit``) in front of its
own command, which may be empty; other attempts get nothing of this.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence

from nodus.server.compute.local.attemptdir import AttemptDir, short_path
from nodus.server.compute.local.mounts import interpreter, package_root
from nodus.server.compute.local.processhost import ProcessHost
from nodus.server.compute.local.sandbox import SandboxProcess, host_owner

BACKLOG = 128
# -I takes no PYTHONPATH, so the place of the package is an argument.
_RUN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from nodus.sandboxinit.main import main; main()"


class Hosting:
    """Processes of one attempt, hosted from the start of its sandbox to its end.

    Args:
        attempt: Its directory.
        notify: Tells the server that something changed.

    Attributes:
        problem: Why the sandbox had to be ended early, if it had.
    """

    def __init__(self, attempt: AttemptDir, notify: Callable[[], None]) -> None:
        self.problem: str | None = None
        self._attempt = attempt
        self._notify = notify
        self._ours, self._inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._host: ProcessHost | None = None

    @property
    def inner_fd(self) -> int:
        """The descriptor that process one is to inherit."""
        return self._inner.fileno()

    def command(self, own: Sequence[str]) -> list[str]:
        """Return the command that puts process one in front of the attempt's own."""
        return [interpreter(), "-I", "-S", "-c", _RUN, package_root(), str(self.inner_fd), *own]

    def begin(self, member: SandboxProcess) -> None:
        """Serve the server from now on; the sandbox is started and has inherited its end."""
        self._inner.close()
        self._attempt.processes.mkdir(mode=0o700, exist_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short_path(self._attempt.exec_socket) as short:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(short)
            listener.bind(short)
        listener.listen(BACKLOG)

        def broken(problem: str) -> None:
            self.problem = self.problem or problem
            member.interrupt()

        self._host = ProcessHost(
            self._attempt, self._ours, listener, owner=host_owner(), notify=self._notify, broken=broken
        )
        self._host.start()

    def end(self) -> None:
        """Record the end of every process; nothing of the sandbox is left by then."""
        if self._host is not None:
            self._host.close()
        with contextlib.suppress(OSError):
            self._attempt.exec_socket.unlink()
