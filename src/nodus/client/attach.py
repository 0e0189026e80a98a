"""A terminal's, or a pipe's, connection to a process in a Sandbox: the WebSocket protocol ``v5.channel.k8s.io``.

Blocking, for the command line: one thread reads, any thread may send.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode, urlsplit

from nodus._version import __version__
from nodus.client.config import Connection
from nodus.client.http import ConnectionFailed
from nodus.core.errors import NodusError, from_status

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PIECE_BYTES = 64 * 1024
OPEN_TIMEOUT_S = 30.0
_STREAMS = {STDOUT: "stdout", STDERR: "stderr"}


class Attachment:
    """An open connection; close it, or use it as a context manager.

    Args:
        connection: Server and key.
        project: The process's project.
        process: Its name.
        stdin: Whether to send input.
        tty: Whether it has a terminal.

    Raises:
        NodusError: Of the class the server names; `ConnectionFailed` when no answer came.
    """

    def __init__(self, connection: Connection, project: str, process: str, *, stdin: bool, tty: bool) -> None:
        flags = {"stdin": stdin, "stdout": True, "stderr": not tty, "tty": tty}
        query = urlencode({name: str(flag).lower() for name, flag in flags.items()})
        path = f"/apis/nodus.dev/v1/namespaces/{project}/processes/{process}/attach?{query}"
        self._socket = _connect(connection, path)
        self._sending = threading.Lock()
        self.exit_code: int | None = None
        self.reason: str | None = None
        self.message: str | None = None

    def output(self) -> Iterator[tuple[str, bytes]]:
        """Yield output with its stream until the process ended; then `exit_code` and `reason` say how.

        Raises:
            ConnectionFailed: When the connection breaks before that.
        """
        from websockets.exceptions import ConnectionClosed

        while True:
            try:
                message = self._socket.recv(decode=False)
            except (ConnectionClosed, OSError) as error:
                raise ConnectionFailed(
                    "the connection to the process broke; it goes on in the sandbox",
                    fix="`nodus get processes` shows it, `nodus logs` its output.",
                ) from error
            if message and message[0] in _STREAMS:
                yield _STREAMS[message[0]], bytes(message[1:])
            elif message and message[0] == STATUS:
                self._end(json.loads(message[1:]))
                return

    def send(self, data: bytes) -> None:
        """Send input."""
        for start in range(0, len(data), PIECE_BYTES):
            self._send(STDIN, data[start : start + PIECE_BYTES])

    def close_stdin(self) -> None:
        """Send the end of the input."""
        self._send(CLOSE, bytes([STDIN]))

    def resize(self, rows: int, columns: int) -> None:
        """Send the size of the terminal."""
        self._send(RESIZE, json.dumps({"Width": columns, "Height": rows}).encode())

    def close(self) -> None:
        """Close the connection; the process stays as it is."""
        self._socket.close()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _send(self, channel: int, content: bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        with self._sending:
            try:
                self._socket.send(bytes([channel]) + content)
            except (ConnectionClosed, OSError):
                return  # It ended, or broke; whoever reads learns which.

    def _end(self, status: dict[str, object]) -> None:
        if status.get("status") == "Success":
            self.exit_code = 0
            return
        details = status.get("details")
        causes = details.get("causes") if isinstance(details, dict) else None
        told = {cause["reason"]: cause["message"] for cause in causes or []}
        if "ExitCode" not in told:
            code = status.get("code")
            raise from_status(dict(status), code if isinstance(code, int) else 500)
        self.exit_code, self.reason = int(told["ExitCode"]), told.get("Reason")
        self.message = str(status.get("message") or "")


def _connect(connection: Connection, path: str) -> ClientConnection:
    from websockets.exceptions import InvalidHandshake, InvalidStatus
    from websockets.sync.client import connect, unix_connect
    from websockets.typing import Subprotocol

    url = urlsplit(connection.url)
    secure = url.scheme == "https"
    uri = f"{'wss' if secure else 'ws'}://{url.netloc}{url.path}{path}"
    headers = {"Authorization": f"Bearer {connection.api_key}"} if connection.api_key else {}
    context = ssl.create_default_context(cafile=connection.certificate_authority) if secure else None
    options: dict[str, Any] = {
        "subprotocols": [Subprotocol(PROTOCOL)],
        "additional_headers": headers,
        "user_agent_header": f"nodus/{__version__}",
        "open_timeout": OPEN_TIMEOUT_S,
        "max_size": 4 << 20,
        "compression": None,
    }
    try:
        if connection.socket:
            return cast("ClientConnection", unix_connect(connection.socket, uri="ws://nodus" + path, **options))
        return cast("ClientConnection", connect(uri, ssl=context, proxy=None, **options))
    except InvalidStatus as error:
        raise _refusal(error.response.status_code, bytes(error.response.body or b"")) from error
    except (OSError, InvalidHandshake, TimeoutError) as error:
        raise ConnectionFailed(f"the Nodus server can't be reached: {error}", fix="Check `nodus status`.") from error


def _refusal(status: int, body: bytes) -> NodusError:
    try:
        found = json.loads(body)
    except ValueError:
        found = {}
    return from_status(found if isinstance(found, dict) else {}, status)
