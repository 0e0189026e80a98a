"""JSON log lines: one object a line, carrying the request id and the run that a message is about."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Any

import orjson

request_id_var: ContextVar[str | None] = ContextVar("nodus_request_id", default=None)
run_var: ContextVar[str | None] = ContextVar("nodus_run", default=None)

MAX_BYTES = 20 * 1024 * 1024
KEPT_FILES = 4
_LINES_AT_ONCE = 64
_LINES_WITHIN_S = 0.1
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JSONFormatter(logging.Formatter):
    """Renders a record as one JSON object; whatever was passed as ``extra`` becomes keys of it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        if (lines := getattr(record, "lines", None)) is not None:
            return "\n".join(lines)
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := request_id_var.get():
            line["requestId"] = request_id
        if run := run_var.get():
            line["run"] = run
        line.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


def json_line(line: Mapping[str, object]) -> str:
    """One object as ASCII, without a line break whatever is in it."""
    try:
        text = orjson.dumps(line)
    except TypeError:  # half of a surrogate pair
        return json.dumps(line)
    return text.decode() if text.isascii() else json.dumps(line)


class AccessLog:
    """A line for each request, in the form of all others.

    Through the logging library a line costs half of what handling a small request does. Here some are written together,
    within a tenth of a second.
    """

    def __init__(self) -> None:
        self._logger = logging.getLogger("nodus.access")
        self._handler: logging.StreamHandler[Any] | None = None
        self._waiting: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._second, self._prefix = 0, ""

    def attach(self, handler: logging.StreamHandler[Any] | None) -> None:
        """Write to the stream of ``handler``; None leaves it to the logging library."""
        self.flush()
        self._handler = handler

    def note(self, method: str, path: str, status: int, ms: float, user: str | None, request_id: str | None) -> None:
        """Write that a request was answered; called on the event loop."""
        if self._handler is None:
            self._logger.info("%s %s %s", method, path, status, extra={"status": status, "ms": ms, "user": user})
            return
        line = {
            "time": self._time(), "level": "info", "logger": self._logger.name, "message": f"{method} {path} {status}",
            "requestId": request_id, "status": status, "ms": ms, "user": user,
        }  # fmt: skip
        self._waiting.append(json_line(line))
        if len(self._waiting) >= _LINES_AT_ONCE:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LINES_WITHIN_S, self.flush)

    def flush(self) -> None:
        """Write what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and self._handler is not None:
            waiting, self._waiting = self._waiting, []
            self._handler.handle(logging.makeLogRecord({"lines": waiting}))

    def _time(self) -> str:
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second = second
            self._prefix = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        return f"{self._prefix}{int((now - second) * 1000):03d}Z"


access_log = AccessLog()
"""The process's."""


class RotatingLog(RotatingFileHandler):
    """A log file that starts anew when it is full, with the process's own output (crashes included) in it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=MAX_BYTES, backupCount=KEPT_FILES, encoding="utf-8")
        self._take_output()

    def doRollover(self) -> None:
        """Begin a new file."""
        super().doRollover()
        self._take_output()

    def _open(self) -> TextIOWrapper:
        """Open for appending, readable by its owner only."""
        return open(os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8")

    def _take_output(self) -> None:
        assert self.stream is not None
        for number in (1, 2):
            os.dup2(self.stream.fileno(), number)


def configure(file: Path | None = None, stream: IO[str] | None = None, level: int = logging.INFO) -> None:
    """Write every log record of this process as a JSON line.

    Args:
        file: where to, in files of bounded size; the process's output goes there too.
        stream: where to, when there is no file; default stderr.
        level: the least level written.
    """
    handler = RotatingLog(file) if file is not None else logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JSONFormatter())
    # What no line shows needn't be found out for each.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    access_log.attach(handler if level <= logging.INFO else None)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers[:] = []
        logger.propagate = name != "uvicorn.access"
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
