"""Log lines are JSON, in files of bounded size that take a crash's output too."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from nodus.server.logs import AccessLog, JSONFormatter, request_id_var, run_var
from nodus.testing.eventually import eventually


def render(**changes: object) -> dict[str, object]:
    record = logging.makeLogRecord(
        {"name": "n", "levelname": "INFO", "msg": "%s b", "args": ("a",), "created": 0.5, **changes}
    )
    line: dict[str, object] = json.loads(JSONFormatter().format(record))
    return line


def test_line_has_time_level_message_and_extras() -> None:
    assert render(status=200, path=Path("/x")) == {
        "time": "1970-01-01T00:00:00.500Z",
        "level": "info",
        "logger": "n",
        "message": "a b",
        "status": 200,
        "path": "/x",
    }


def test_line_carries_the_request_and_the_run() -> None:
    tokens = request_id_var.set("req_1"), run_var.set("default/run")
    try:
        found = render()
    finally:
        request_id_var.reset(tokens[0])
        run_var.reset(tokens[1])
    assert (found["requestId"], found["run"]) == ("req_1", "default/run")


def test_line_is_one_line_whatever_is_in_it() -> None:
    record = logging.makeLogRecord({"msg": "a\nb\u2028c", "name": "n", "levelname": "INFO"})
    assert JSONFormatter().format(record).splitlines() == [JSONFormatter().format(record)]


PROGRAM = """
import logging, os, sys
from pathlib import Path
from nodus.server import logs
logs.MAX_BYTES = 2000
logs.configure(Path(sys.argv[1]))
for number in range(100):
    logging.getLogger("x").info("line %d", number)
os.write(2, b"a crash's last words\\n")
"""


async def test_requests_are_logged_some_at_a_time() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JSONFormatter())
    log = AccessLog()
    log.attach(handler)
    for number in range(3):
        log.note("GET", f"/\u2028{number}\n", 200, 1.5, "ada", f"req_{number}")
    assert stream.getvalue() == ""
    await asyncio.to_thread(eventually, stream.getvalue)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["requestId"] for line in lines] == ["req_0", "req_1", "req_2"]
    assert {key: lines[0][key] for key in lines[0] if key != "time"} == {
        "level": "info", "logger": "nodus.access", "message": "GET /\u20280\n 200", "requestId": "req_0",
        "status": 200, "ms": 1.5, "user": "ada",
    }  # fmt: skip
    moment = datetime.fromisoformat(lines[0]["time"])
    assert abs((datetime.now(UTC) - moment).total_seconds()) < 60


async def test_many_requests_are_logged_at_once_and_all_at_the_end() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JSONFormatter())
    log = AccessLog()
    log.attach(handler)
    for number in range(100):
        log.note("GET", "/", 200, 1.5, None, f"req_{number}")
    written = len(stream.getvalue().splitlines())
    assert 0 < written < 100
    log.flush()
    assert len(stream.getvalue().splitlines()) == 100


def test_file_is_bounded_private_and_takes_the_process_output(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    subprocess.run([sys.executable, "-c", PROGRAM, str(log)], check=True)

    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["server.log", *(f"server.log.{number}" for number in range(1, 5))]
    assert all(path.stat().st_size < 2500 for path in files)
    assert log.stat().st_mode & 0o077 == 0
    lines = log.read_text().splitlines()
    assert lines[-1] == "a crash's last words"
    assert json.loads(lines[-2])["message"] == "line 99"
