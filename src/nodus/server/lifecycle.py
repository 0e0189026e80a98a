"""``nodus up``, ``nodus down`` and ``nodus status``: starting, stopping and finding the server of a data directory.

Called by the CLI. Imports no server code until :func:`up` runs in the foreground, so that ``nodus status`` stays quick.

Example::

    started = up(UpOptions(data_dir=Path("/var/lib/nodus"), detach=True, issue_key=True))
    print(started.url, started.api_key)
    down(DownOptions(data_dir=Path("/var/lib/nodus")))
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodus.core.errors import NodusError
from nodus.server import datadir
from nodus.server.datadir import LOG_FILE, DataDirError, ServerInfo


class ServerNotStarted(NodusError):
    """The server could not start; the message is one line with the cause, ``fix`` what to do."""

    reason, status = "ServerNotStarted", 503


class AlreadyRunning(ServerNotStarted):
    """A server runs on the data directory already; ``details`` has its ``url`` and ``pid``."""

    reason, status = "AlreadyRunning", 409


class ServerNotStopped(NodusError):
    """The server did not end in time; it was not killed."""

    reason, status = "ServerNotStopped", 504


def _data_dir() -> Path:
    return Path(os.environ.get("NODUS_DATA_DIR") or Path.home() / ".nodus" / "data").expanduser().absolute()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What ``nodus up`` takes; ``None`` leaves a setting to the file, the environment or its default."""

    data_dir: Path = field(default_factory=_data_dir)
    """Directory of the database, blobs and attempts."""
    host: str | None = None
    """Address to listen on; default 127.0.0.1. Others need TLS or a proxy."""
    port: int | None = None
    """TCP port; default 8080; 0 picks a free one."""
    roles: tuple[str, ...] | None = None
    """Parts to run: ``api``, ``controllers``, ``gateway``; default all."""
    tls_cert: Path | None = None
    """PEM certificate chain."""
    tls_key: Path | None = None
    """PEM private key."""
    behind_proxy: bool | None = None
    """A proxy in front terminates TLS."""
    public_url: str | None = None
    """Origin that clients use, when it isn't the listening address."""
    allow_unsafe_sandbox: bool | None = None
    """Run untrusted code without isolation."""
    detach: bool = False
    """Return once the server is ready, leaving it running."""
    issue_key: bool = False
    """Make a new admin API key and return it in :attr:`Started.api_key`."""
    ready_timeout_s: float = 60.0
    """How long to wait for a detached server, in seconds."""

    def flags(self) -> dict[str, Any]:
        """The values that are settings of the server, by settings field."""
        names = ("data_dir", "host", "port", "roles", "tls_cert", "tls_key", "behind_proxy", "public_url")
        return {name: getattr(self, name) for name in (*names, "allow_unsafe_sandbox")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A server that is ready."""

    url: str
    """Origin to reach it at."""
    pid: int
    """Its process."""
    data_dir: Path
    """Its data directory."""
    org: str = "nodus"
    """Name of its org: what a CLI context is named after."""
    api_key: str | None = None
    """The admin key it just made, when one was asked for. Shown once; only a hash is stored."""
    seconds: float = 0.0
    """Time from the call to ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownOptions:
    """What ``nodus down`` takes."""

    data_dir: Path = field(default_factory=_data_dir)
    """Directory of the server to stop."""
    timeout_s: float = 30.0
    """How long to wait for it to end, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions:
    """What ``nodus status`` takes."""

    data_dir: Path = field(default_factory=_data_dir)
    """Directory of the server to look for."""
    timeout_s: float = 5.0
    """How long to wait for its answer, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """What is known of the server of a data directory."""

    running: bool
    """A process holds the directory's lock."""
    ready: bool
    """It answers ``/readyz`` with 200."""
    data_dir: Path
    """The directory that was asked about."""
    url: str | None = None
    """Origin it listens at."""
    pid: int | None = None
    """Its process."""
    started_at: str | None = None
    """RFC 3339, UTC."""
    detail: str = ""
    """Body of ``/readyz``, or why there is none."""


def up(options: UpOptions, on_ready: Callable[[Started], None] | None = None) -> Started:
    """Start a server. In the foreground it returns when the server was stopped; detached, once it is ready.

    Args:
        options: see :class:`UpOptions`.
        on_ready: called once when the server is ready, before a foreground call starts to block.

    Raises:
        AlreadyRunning: a server runs on the data directory.
        ServerNotStarted: anything else that keeps it from starting, as one line.
    """
    if options.detach:
        started = _start_detached(options)
        if on_ready is not None:
            on_ready(started)
        return started
    from nodus.server import main  # late: the whole server

    return main.run(options, on_ready)


def down(options: DownOptions) -> bool:
    """Ask the server to stop and wait until it has.

    Runs that are going on stay with their supervisors; the next ``up`` picks them up again.

    Returns:
        Whether a server was running.

    Raises:
        ServerNotStopped: it still runs after ``timeout_s``, or it may not be signalled from here.
    """
    pid = datadir.holder(options.data_dir)
    if pid is None:
        return False
    if pid <= 0:
        raise ServerNotStopped(
            f"the server of {options.data_dir} runs in another process namespace", fix="Run `nodus down` where it runs."
        )
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return True
    except PermissionError as error:
        raise ServerNotStopped(
            f"process {pid} belongs to another user", fix="Run `nodus down` as that user."
        ) from error
    end = time.monotonic() + options.timeout_s
    while datadir.holder(options.data_dir) == pid:
        if time.monotonic() > end:
            raise ServerNotStopped(
                f"the server (pid {pid}) did not stop within {options.timeout_s:g} s",
                fix=f"See {options.data_dir / LOG_FILE}; `kill -9 {pid}` is safe, nothing is lost.",
            )
        time.sleep(0.02)
    return True


def status(options: StatusOptions) -> ServerStatus:
    """Tell whether a server runs on the data directory, and whether it is ready."""
    pid = datadir.holder(options.data_dir)
    info = datadir.read_info(options.data_dir)
    if pid is None:
        return ServerStatus(running=False, ready=False, data_dir=options.data_dir, detail="not running")
    if info is None or (pid > 0 and info.pid != pid):
        return ServerStatus(running=True, ready=False, data_dir=options.data_dir, pid=pid, detail="starting")
    ready, detail = _probe(info, options.timeout_s)
    return ServerStatus(
        running=True,
        ready=ready,
        data_dir=options.data_dir,
        url=info.url,
        pid=pid,
        started_at=info.started_at,
        detail=detail,
    )


def _probe(info: ServerInfo, timeout_s: float) -> tuple[bool, str]:
    try:
        with urllib.request.urlopen(f"{info.url}/readyz", timeout=timeout_s) as answer:
            return True, answer.read(4096).decode("utf-8", "replace").strip()
    except urllib.error.HTTPError as error:
        return False, error.read(4096).decode("utf-8", "replace").strip()
    except (OSError, ValueError) as error:
        return False, f"no answer from {info.url}: {getattr(error, 'reason', error)}"


def _start_detached(options: UpOptions) -> Started:
    """Start the server in a session of its own, its output in ``server.log``, and wait for its report."""
    begun = time.monotonic()
    _check_lock_and_dir(options.data_dir)
    read_fd, write_fd = os.pipe()
    try:
        log = os.open(options.data_dir / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "nodus.server.main",
                    *_arguments(options),
                    "--report-fd",
                    str(write_fd),
                    "--log-file",
                    str(options.data_dir / LOG_FILE),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(write_fd,),
                start_new_session=True,
                cwd="/",
            )
        finally:
            os.close(log)
            os.close(write_fd)
        report = _read_report(read_fd, process, options)
    finally:
        os.close(read_fd)
    process.returncode = 0  # it goes on without us: no ResourceWarning, no reaping
    return Started(
        url=report["url"],
        pid=report["pid"],
        data_dir=options.data_dir,
        org=report.get("org", "nodus"),
        api_key=report.get("apiKey"),
        seconds=time.monotonic() - begun,
    )


def _check_lock_and_dir(data_dir: Path) -> None:
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ServerNotStarted(f"cannot use the data directory {data_dir}: {error.strerror}") from error
    try:
        datadir.DataDirLock.acquire(data_dir).release()
    except datadir.Locked as error:
        raise already_running(data_dir, error) from None
    except DataDirError as error:
        raise ServerNotStarted(str(error)) from error


def already_running(data_dir: Path, error: datadir.Locked) -> AlreadyRunning:
    """The error of a second start, with the url and pid of the first."""
    info = datadir.read_info(data_dir)
    return AlreadyRunning(str(error), details={"url": info.url if info else None, "pid": error.pid})


def _arguments(options: UpOptions) -> list[str]:
    found = ["--issue-key"] if options.issue_key else []
    for name, value in options.flags().items():
        if value is None or value is False:
            continue
        flag = "--" + name.replace("_", "-")
        found += [flag] if value is True else [flag, ",".join(value) if isinstance(value, tuple) else str(value)]
    return found


def _read_report(fd: int, process: subprocess.Popen[bytes], options: UpOptions) -> dict[str, Any]:
    """Read the one JSON line that the server writes when it is ready or can't start."""
    end = time.monotonic() + options.ready_timeout_s
    data = b""
    while b"\n" not in data:
        left = end - time.monotonic()
        if left <= 0:
            _stop_child(process)
            raise ServerNotStarted(
                f"the server was not ready within {options.ready_timeout_s:g} s",
                fix=f"See {options.data_dir / LOG_FILE}.",
            )
        if not select.select([fd], [], [], left)[0]:
            continue
        chunk = os.read(fd, 65536)
        if not chunk:
            code = process.wait()
            raise ServerNotStarted(
                f"the server ended with code {code} before it was ready", fix=f"See {options.data_dir / LOG_FILE}."
            )
        data += chunk
    report: dict[str, Any] = json.loads(data)
    if "url" not in report:
        process.wait()
        cls = AlreadyRunning if report.get("reason") == AlreadyRunning.reason else ServerNotStarted
        raise cls(
            report.get("message", "the server did not start"), fix=report.get("fix"), details=report.get("details")
        )
    return report


def _stop_child(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
        return
    process.kill()
    process.wait()
