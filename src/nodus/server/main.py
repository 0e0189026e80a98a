"""The server process: read settings, lock the data directory, open the store, serve.

Run as ``python -m nodus.server.main`` by ``nodus up --detach``, or called as :func:`run` by ``nodus up``. Every reason
not to start ends as one line for the operator.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import resource
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from nodus.core.clock import SystemClock, rfc3339
from nodus.core.errors import NodusError
from nodus.server import bootstrap, datadir, logs
from nodus.server.lifecycle import ServerNotStarted, Started, UpOptions, already_running
from nodus.server.protocol import BoundedProtocol
from nodus.server.services import Services
from nodus.server.settings import Settings, SettingsError

log = logging.getLogger(__name__)
MOST_OPEN_FILES = 65_536
Ready = Callable[[Started], None]


def main(argv: list[str] | None = None) -> int:
    """Entry point of the detached server. Exit code 0 after a clean stop, 1 when it could not start."""
    options, report_fd, log_file = _parse(sys.argv[1:] if argv is None else argv)
    try:
        run(options, lambda started: _report(report_fd, _ready_line(started)), log_file)
    except NodusError as error:
        _report(
            report_fd, {"reason": error.reason, "message": error.message, "fix": error.fix, "details": error.details}
        )
        print(f"nodus: {error.message}" + (f"; {error.fix}" if error.fix else ""), file=sys.stderr)  # noqa: T201 - the operator's line
        return 1
    return 0


def run(options: UpOptions, on_ready: Ready | None = None, log_file: Path | None = None) -> Started:
    """Serve until SIGTERM or SIGINT.

    Args:
        options: see :class:`nodus.server.lifecycle.UpOptions`.
        on_ready: called once, when requests are answered.
        log_file: where to log to; default stderr.

    Raises:
        ServerNotStarted: with one line saying why.
    """
    begun = time.monotonic()
    logs.configure(log_file)
    _raise_open_files()
    try:
        settings = Settings.load(options.flags())
    except SettingsError as error:
        raise ServerNotStarted(str(error)) from error
    try:
        lock = datadir.DataDirLock.acquire(settings.data_dir)
    except datadir.Locked as error:
        raise already_running(settings.data_dir, error) from None
    except datadir.DataDirError as error:
        raise ServerNotStarted(str(error)) from error
    with contextlib.ExitStack() as stack:
        stack.callback(lock.release)
        listening = stack.enter_context(_listen(settings))
        with _one_line(settings.data_dir):
            services, api_key = bootstrap.open_services(settings, SystemClock(), issue_key=options.issue_key)
        stack.callback(services.store.close)
        services.base_url = settings.public_url or _url(settings, listening)
        started = Started(
            url=_url(settings, listening),
            pid=os.getpid(),
            data_dir=settings.data_dir,
            org=settings.org_name,
            api_key=api_key,
        )
        _runner()(_serve(services, listening, started, begun, on_ready))
        logs.access_log.flush()
        return started


def _raise_open_files() -> None:
    """Let the process hold as many connections as the system allows it; most begin with a thousand."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _runner() -> Callable[..., None]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


async def _serve(
    services: Services, listening: socket.socket, started: Started, begun: float, on_ready: Ready | None
) -> None:
    from nodus.server.api.app import create_app

    settings = services.settings
    config = uvicorn.Config(
        create_app(services),
        http=BoundedProtocol,
        ws="websockets-sansio",
        ws_max_size=1 << 20,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=settings.behind_proxy,
        forwarded_allow_ips="*" if settings.behind_proxy else "",
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=75,
        backlog=512,
    )
    server = _Server(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, server.ask_to_stop, services)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    await _until_listening(server, serving)
    datadir.write_info(settings.data_dir, datadir.ServerInfo(started.url, started.pid, rfc3339(services.clock.now())))
    async with bootstrap.background(services):
        _settle()
        log.info("ready", extra={"url": started.url, "seconds": round(time.monotonic() - begun, 2)})
        if on_ready is not None:
            on_ready(started)
        await serving
    (settings.data_dir / datadir.SERVER_FILE).unlink(missing_ok=True)


def _settle() -> None:
    """Spare the garbage collector what stays for good (modules, kinds), and let it look less often at the rest.

    As Python sets it, it looks several times during each request, and now and then at everything: that takes a tenth of
    the server's time and stops it for tens of milliseconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


async def _until_listening(server: _Server, serving: asyncio.Task[None]) -> None:
    """Wait until requests are accepted; a server that ends before that says why."""
    listening = asyncio.create_task(server.listening.wait())
    await asyncio.wait({listening, serving}, return_when=asyncio.FIRST_COMPLETED)
    if not server.listening.is_set():
        listening.cancel()
        error = serving.exception()
        raise ServerNotStarted(f"the server could not listen: {error or 'it ended at once'}") from error


class _Server(uvicorn.Server):
    """uvicorn that says when it listens and leaves signals to us."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept, then say so."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install nothing: the handlers of ``_serve`` also end the long responses."""
        yield

    def ask_to_stop(self, services: Services) -> None:
        """Stop accepting, let requests finish, end watches and followed logs."""
        services.stopping.set()
        self.should_exit = True


@contextlib.contextmanager
def _listen(settings: Settings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((settings.host, settings.port))
        except OSError as error:
            raise ServerNotStarted(_bind_problem(settings, error), fix=_bind_fix(error)) from error
        yield listening
    finally:
        listening.close()


def _bind_problem(settings: Settings, error: OSError) -> str:
    where = f"{settings.host}:{settings.port}"
    if error.errno == errno.EADDRINUSE:
        return f"port {settings.port} on {settings.host} is in use by another program"
    if error.errno == errno.EACCES:
        return f"listening on {where} needs more rights"
    return f"cannot listen on {where}: {error.strerror or error}"


def _bind_fix(error: OSError) -> str:
    if error.errno in (errno.EADDRINUSE, errno.EACCES):
        return "Choose another with --port, or --port 0 for a free one."
    return "Check --host."


@contextlib.contextmanager
def _one_line(data_dir: Path) -> Iterator[None]:
    """Turn what can go wrong while opening the data into the operator's line."""
    try:
        yield
    except ServerNotStarted:
        raise
    except NodusError as error:
        if _is_full(data_dir):  # SQLite reports it as an I/O error where it can't create a file
            raise ServerNotStarted(f"the disk of {data_dir} is full", fix=_FULL_FIX) from error
        raise ServerNotStarted(error.message, fix=error.fix) from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) or _is_full(data_dir)
        why = "the disk is full" if full else (error.strerror or str(error))
        fix = _FULL_FIX if full else None
        raise ServerNotStarted(f"cannot use the data directory {data_dir}: {why}", fix=fix) from error


_FULL_FIX = "Free some space and start again; nothing is lost."
_FULL_BYTES = 64 * 1024


def _is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path).free < _FULL_BYTES
    except OSError:
        return False


def _url(settings: Settings, listening: socket.socket) -> str:
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "localhost") else settings.host
    host = "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
    return f"{settings.scheme}://{host}:{listening.getsockname()[1]}"


def _parse(argv: list[str]) -> tuple[UpOptions, int | None, Path | None]:
    parser = argparse.ArgumentParser(prog="nodus-server", description="Run a Nodus server in the foreground.")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--roles", type=lambda text: tuple(text.split(",")))
    parser.add_argument("--tls-cert", type=Path)
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--behind-proxy", action="store_const", const=True)
    parser.add_argument("--public-url")
    parser.add_argument("--allow-unsafe-sandbox", action="store_const", const=True)
    parser.add_argument("--issue-key", action="store_true")
    parser.add_argument("--report-fd", type=int)
    parser.add_argument("--log-file", type=Path)
    given = {name: value for name, value in vars(parser.parse_args(argv)).items() if value is not None}
    report_fd, log_file = given.pop("report_fd", None), given.pop("log_file", None)
    return UpOptions(**given), report_fd, log_file


def _ready_line(started: Started) -> dict[str, object]:
    line: dict[str, object] = {"url": started.url, "pid": started.pid, "org": started.org}
    return {**line, "apiKey": started.api_key} if started.api_key else line


def _report(fd: int | None, line: dict[str, object]) -> None:
    if fd is None:
        return
    with contextlib.suppress(OSError):  # the one who started us may be gone
        os.write(fd, json.dumps(line).encode() + b"\n")
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
