"""JSON log lines: one object a line, carrying the request id and the run that a message is about."""

from __future__ import annotations

import json
import logging
import os
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO

request_id_var: ContextVar[str | None] = ContextVar("nodus_request_id", default=None)
run_var: ContextVar[str | None] = ContextVar("nodus_run", default=None)

MAX_BYTES = 20 * 1024 * 1024
KEPT_FILES = 4
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JSONFormatter(logging.Formatter):
    """Renders a record as one JSON object; whatever was passed as ``extra`` becomes keys of it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z",
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
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers[:] = []
        logger.propagate = name != "uvicorn.access"
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
