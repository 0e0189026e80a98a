"""Events as they are sent."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from nodus.runtime import sending


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


class Broken:
    def item(self) -> float:
        raise RuntimeError("no device")

    def __str__(self) -> str:
        raise RuntimeError("no device")


class Scalar:
    def __init__(self, value: float) -> None:
        self.value = value

    def item(self) -> float:
        return self.value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5, 0.5),
        (float("nan"), None),
        (Scalar(0.25), 0.25),
        (Scalar(float("inf")), None),
        (Path("a/b"), "a/b"),
        ({(1, 2): 3}, None),
        (_circle(), None),
        (Broken(), None),
    ],
)
def test_whatever_a_program_reports_is_a_line_of_json(value: Any, expected: Any) -> None:
    line = sending.encode({"type": "task", "trace": value})
    assert json.loads(line) == {"type": "task", "trace": expected}


def test_child_reports_though_it_was_forked_while_another_thread_was_sending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "events.sock"))
        listener.listen()
        listener.settimeout(10)
        monkeypatch.setenv("NODUS_ATTEMPT", "a-1")
        monkeypatch.setenv("NODUS_EVENTS_SOCKET", str(tmp_path / "events.sock"))
        holding, forked = threading.Event(), threading.Event()

        def hold() -> None:
            with sending._SENDER._lock:
                holding.set()
                forked.wait(10)

        thread = threading.Thread(target=hold)
        thread.start()
        holding.wait(10)
        pid = os.fork()
        if pid == 0:
            sending.emit({"type": "phase", "name": "Child"})
            os._exit(0)
        forked.set()
        thread.join()
        try:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                assert json.loads(lines.readline())["name"] == "Child"
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
