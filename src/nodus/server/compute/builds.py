"""What a compute backend does for builds of Environments' packages: run commands of strangers that need the network.

A command sees its own directories and nothing else of the host, runs as nobody's user, and reaches public addresses
alone, through a proxy of the backend's. It has no credentials.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class BuildCommand:
    """A command of a build.

    Attributes:
        argv: The command; ``{python}`` is the graders' Python, ``{runner}`` the runner ``nodus-env``, ``{packages}``
            the directory where graders see installed packages.
        env: Its environment, beside PATH, proxies and certificates.
        writable: Directories it may write to: inside path, with ``{packages}`` as above, to directory on the server's
            machine.
        readable: The same, of directories and files that it may read.
        hosts: Hosts and ports that it may reach wherever they are: the operator's own index.
        ports: Ports of public addresses that it may reach besides 80 and 443: of the package's own index.
        timeout_s: Wall time.
        disk_bytes: The most that its writable directories may hold.
        memory_bytes: Memory of all its processes together.
        output_bytes: The most that it may print.
        home: Inside path of its home directory.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    writable: Mapping[str, Path] = field(default_factory=dict)
    readable: Mapping[str, Path] = field(default_factory=dict)
    hosts: Sequence[tuple[str, int]] = ()
    ports: Sequence[int] = ()
    timeout_s: float = 600.0
    disk_bytes: int = 4 * GIB
    memory_bytes: int = 2 * GIB
    output_bytes: int = 64 * 1024 * 1024
    home: str = "/tmp"


@dataclass(frozen=True, slots=True)
class PipSettings:
    """The operator's own configuration of pip, as far as builds need it.

    Attributes:
        env: As environment variables of pip.
        hosts: Hosts and ports of its indexes.
        readable: Local indexes and files that it names.
        secret: Whether an index's address holds credentials: then no code of a package may run beside them.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    hosts: Sequence[tuple[str, int]] = ()
    readable: Sequence[Path] = ()
    secret: bool = False


@dataclass(frozen=True, slots=True)
class BuildEnded:
    """How a command ended.

    Attributes:
        code: Its exit code; 128 plus the signal's number when a signal ended it.
        broke: Which limit it was stopped for, in words; empty when for none.
        refused: What its requests to the network were refused for, each once.
    """

    code: int
    broke: str = ""
    refused: Sequence[str] = ()


class BuildNotStarted(Exception):
    """No sandbox could be started; the message says why and what to do."""


class BuildHost(Protocol):
    """Where builds run."""

    def python(self) -> str:
        """Return what the Python names its compiled modules after, such as ``cpython-311-x86_64-linux-gnu``."""
        ...

    def pip(self) -> Path | None:
        """Return the directory of the package pip on the server's machine; None when there is none."""
        ...

    def pip_settings(self) -> PipSettings:
        """Return how the operator has configured pip: which index is the default one."""
        ...

    def run(
        self, command: BuildCommand, output: Callable[[bytes], None], stopping: threading.Event, scratch: Path
    ) -> BuildEnded:
        """Run a command to its end; blocks, for threads that live as long.

        Args:
            command: What to run.
            output: Takes what it prints, as it comes.
            stopping: Ends it when set.
            scratch: A directory on the server's machine for the backend's own use.

        Raises:
            BuildNotStarted: When no sandbox can be started.
        """
        ...
