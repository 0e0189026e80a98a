"""A PostgreSQL server of the tests' own: started from the distribution's programs on a private socket, gone afterwards.

    with PostgresServer.start(tmp_path) as server:
        Store.open(server.new_database(), SystemClock())

Nothing of the machine's own PostgreSQL is touched, and no TCP port is opened. PostgreSQL refuses to run as root: then
it runs as the user ``postgres``, or ``nobody``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import pytest

PACKAGES = ("postgresql",)
"""Debian packages that bring the programs."""
_PORT = 5432
_DIRECTORIES = ("/usr/lib/postgresql/*/bin", "/usr/local/bin", "/usr/bin", "/usr/pgsql-*/bin")
_START_S = 60


class PostgresMissing(RuntimeError):
    """The server programs aren't installed; the message says how to get them."""


def find_programs() -> Path:
    """Return the directory with ``initdb`` and ``postgres``, of the newest version.

    Raises:
        PostgresMissing: there is none.
    """
    found: list[tuple[float, Path]] = []
    for pattern in _DIRECTORIES:
        for directory in Path("/").glob(pattern.lstrip("/")):
            if (directory / "initdb").exists() and (directory / "postgres").exists():
                version = directory.parent.name.rpartition("-")[2]
                found.append((float(version) if version.replace(".", "", 1).isdecimal() else 0.0, directory))
    if not found:
        raise PostgresMissing(f"PostgreSQL's server programs are missing; install them: apt-get install {PACKAGES[0]}")
    return max(found)[1]


class PostgresServer:
    """A running server.

    Args:
        root: its private directory.
        programs: from :func:`find_programs`.
        as_user: prefix of commands that drops root; empty when not root.
    """

    def __init__(self, root: Path, programs: Path, as_user: list[str]) -> None:
        self._root = root
        self._programs = programs
        self._as_user = as_user
        self._numbers = itertools.count(1)
        self._free: list[str] = []

    @classmethod
    def start(cls, *, durable: bool = False) -> PostgresServer:
        """Initialise and start a server in a fresh directory below the system's temporary one.

        Args:
            durable: True syncs commits to the disk, as a real server does; tests needn't.

        Raises:
            PostgresMissing: the programs aren't installed.
            subprocess.CalledProcessError: a program failed; its output is in the error.
        """
        programs = find_programs()
        # Short: the path of a unix socket has at most 107 bytes.
        root = Path(tempfile.mkdtemp(prefix="nodus-pg-"))
        as_user: list[str] = []
        if os.geteuid() == 0:
            user = _unprivileged()
            os.chown(root, user.pw_uid, user.pw_gid)
            as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        server = cls(root, programs, as_user)
        try:
            server._start(durable)
        except BaseException:
            server.stop()
            raise
        return server

    def url(self, database: str = "postgres") -> str:
        """Return the SQLAlchemy URL of a database on this server."""
        return f"postgresql+psycopg://nodus@/{database}?host={quote(str(self._root), safe='')}&port={_PORT}"

    def new_database(self) -> str:
        """Create an empty database and return its URL."""
        name = f"test{next(self._numbers)}"
        self._run("createdb", "-h", str(self._root), "-p", str(_PORT), "-U", "nodus", name)
        return self.url(name)

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Lend an empty database; it is emptied and lent again afterwards, which is faster than making another."""
        url = self._free.pop() if self._free else self.new_database()
        yield url
        import psycopg

        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as conn:
            conn.execute("DROP SCHEMA public CASCADE")
            conn.execute("CREATE SCHEMA public")
        self._free.append(url)

    def stop(self) -> None:
        """Stop the server, dropping its connections, and remove its directory."""
        if (self._data / "postmaster.pid").exists():
            self._run("pg_ctl", "stop", "-D", str(self._data), "-m", "immediate", "-w")
        shutil.rmtree(self._root, ignore_errors=True)

    def restart(self) -> None:
        """Stop the server at once, as a crash does, and start it again."""
        self._run("pg_ctl", "stop", "-D", str(self._data), "-m", "immediate", "-w")
        self._launch()

    def __enter__(self) -> PostgresServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _data(self) -> Path:
        return self._root / "data"

    def _start(self, durable: bool) -> None:
        data = str(self._data)
        self._run("initdb", "-D", data, "-U", "nodus", "-A", "trust", "--locale=C", "--encoding=UTF8", "--no-sync")
        settings = {
            "listen_addresses": "''",
            "unix_socket_directories": f"'{self._root}'",
            "port": str(_PORT),
            "max_connections": "200",
            "shared_buffers": "64MB",
            "fsync": "on" if durable else "off",
        }
        lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(lines)
        self._launch()

    def _launch(self) -> None:
        log = str(self._root / "log")
        self._run("pg_ctl", "start", "-D", str(self._data), "-l", log, "-w", "-t", str(_START_S))

    def _run(self, program: str, *args: str) -> None:
        command = [*self._as_user, str(self._programs / program), *args]
        env = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "HOME": str(self._root)}
        # Output to a file and not a pipe: the server that pg_ctl leaves behind would keep the pipe open.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                command,
                cwd=self._root,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=2 * _START_S,
            )
            output.seek(0)
            if done.returncode != 0:
                raise subprocess.CalledProcessError(done.returncode, command, output.read().decode(errors="replace"))


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise PostgresMissing("running as root, and there is no user postgres or nobody to run PostgreSQL as")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server for the whole test session.

    Without the programs tests that use it are skipped; in CI, where ``CI=true``, they fail.
    """
    try:
        server = PostgresServer.start()
    except PostgresMissing as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
    with server:
        yield server
