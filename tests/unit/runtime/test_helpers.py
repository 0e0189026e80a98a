"""``nodus.progress``, ``nodus.log`` and ``nodus.checkpoint``: what they send, and that they fail nobody's program."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nodus
from nodus.core.errors import Unavailable
from nodus.runtime import sending
from nodus.runtime.subscription import Subscription
from nodus.testing.eventually import eventually


class Supervisor:
    """The other end of the events socket."""

    def __init__(self, path: str) -> None:
        self.said: list[dict[str, Any]] = []
        self.connections: list[socket.socket] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection.makefile("rb") as lines:
            for line in lines:
                self.said.append(json.loads(line))

    def ask(self, request_id: str) -> None:
        line = json.dumps({"type": "checkpoint.request", "requestId": request_id}).encode() + b"\n"
        for connection in self.connections:
            connection.sendall(line)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # closed before
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.connections:
            connection.close()


@pytest.fixture(autouse=True)
def fresh_connection() -> Iterator[None]:
    """The process's one connection, as it is at the start."""
    sending._SENDER.close()
    sending._SENDER.begin()
    yield
    sending._SENDER.close()


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    with tempfile.TemporaryDirectory(prefix="nodus-") as directory:
        path = str(Path(directory) / "events.sock")
        made = Supervisor(path)
        monkeypatch.setenv("NODUS_ATTEMPT", "job-1")
        monkeypatch.setenv("NODUS_EVENTS_SOCKET", path)
        yield made
        made.close()


def said(supervisor: Supervisor, count: int) -> list[dict[str, Any]]:
    eventually(lambda: len(supervisor.said) >= count)
    return [{name: value for name, value in event.items() if name != "id"} for event in supervisor.said]


class Scalar:
    """A number of another library."""

    def __init__(self, value: float) -> None:
        self.value = value

    def item(self) -> float:
        return self.value


class Rude:
    """An object that lets nobody look at it."""

    @property
    def item(self) -> float:
        raise RuntimeError("no")

    def __str__(self) -> str:
        return "rude"


def test_what_the_helpers_send(supervisor: Supervisor) -> None:
    nodus.progress(3, 10)
    nodus.progress(4)
    nodus.log.phase("Warm")
    nodus.log.metrics(step=1, loss=0.5, torch=Scalar(2.0), nan=float("nan"), rude=Rude(), inf=Scalar(float("inf")))  # type: ignore[arg-type]
    nodus.log.unit("u1", 12.5)
    nodus.log.task_started("eval", "t1")
    nodus.log.task("eval", "t1", outcome="Passed", reward=1.0, trace={"a": 1})
    assert said(supervisor, 7) == [
        {"type": "progress", "completed": 3, "total": 10},
        {"type": "progress", "completed": 4},
        {"type": "phase", "name": "Warm"},
        {"type": "metrics", "step": 1, "loss": 0.5, "torch": 2.0, "nan": None, "rude": "rude", "inf": None},
        {"type": "unit", "unitId": "u1", "ms": 12.5},
        {"type": "task", "phase": "eval", "taskId": "t1", "attempt": 1, "taskKind": "TaskStarted"},
        {
            "type": "task", "phase": "eval", "taskId": "t1", "attempt": 1, "taskKind": "TaskCompleted",
            "outcome": "Passed", "reward": 1.0, "trace": {"a": 1},
        },
    ]  # fmt: skip
    ids = [event["id"] for event in supervisor.said]
    assert len(set(ids)) == 7
    assert len(supervisor.connections) == 1


def test_outside_of_a_run_nothing_happens(capsys: pytest.CaptureFixture[str]) -> None:
    nodus.progress(1)
    nodus.log.metrics(loss=1.0)
    nodus.checkpoint.subscribe()
    nodus.checkpoint.on_request(lambda: None)
    nodus.checkpoint.ack()
    assert (nodus.checkpoint.requested(), nodus.checkpoint.commit(), nodus.restored()) == (False, {}, False)
    assert str(nodus.state_dir()) == "/nodus/state"
    assert nodus.cluster.info().size == 1
    with pytest.raises(Unavailable, match="inside of a run"):
        nodus.self()
    assert capsys.readouterr().out == ""


def test_without_a_socket_events_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NODUS_ATTEMPT", "job-1")
    monkeypatch.setenv("NODUS_EVENTS_SOCKET", "/nonexistent/events.sock")
    nodus.progress(1, 2)
    [line] = capsys.readouterr().out.splitlines()
    mark, _, text = line.partition(" ")
    assert (mark, json.loads(text)["completed"]) == ("nodus.event", 1)


def test_supervisor_that_went_away_fails_no_program(supervisor: Supervisor) -> None:
    nodus.progress(1)
    said(supervisor, 1)
    supervisor.close()
    for number in range(20):
        nodus.progress(number)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_process_has_a_connection_and_ids_of_its_own(supervisor: Supervisor) -> None:
    nodus.progress(1)
    child = os.fork()
    if child == 0:
        nodus.progress(2)
        os._exit(0)
    os.waitpid(child, 0)
    nodus.progress(3)
    assert {event["completed"] for event in said(supervisor, 3)} == {1, 2, 3}
    assert len({event["id"].rpartition("-")[0] for event in supervisor.said}) == 2
    assert len(supervisor.connections) == 2


def test_request_waits_until_it_is_answered(supervisor: Supervisor) -> None:
    subscription = Subscription()
    subscription.listen()
    subscription.listen()
    assert said(supervisor, 1) == [{"type": "checkpoint.subscribe"}]
    supervisor.ask("a")
    eventually(lambda: subscription.pending == "a")
    supervisor.ask("b")
    eventually(lambda: subscription.pending == "b")
    subscription.answer("a")
    assert str(subscription.pending) == "b"
    subscription.answer(None)
    assert subscription.pending is None
    ready = [{"type": "checkpoint.ready", "requestId": name} for name in ("a", "b")]
    assert said(supervisor, 3)[1:] == ready
    subscription.close()


def test_callback_answers_and_one_that_fails_does_not(
    supervisor: Supervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    subscription, failing = Subscription(), [True]

    def save() -> None:
        if failing[0]:
            raise RuntimeError("disk full")

    subscription.listen(save)
    said(supervisor, 1)
    supervisor.ask("a")
    eventually(lambda: subscription.pending == "a")
    failing[0] = False
    supervisor.ask("b")
    assert said(supervisor, 2)[1:] == [{"type": "checkpoint.ready", "requestId": "b"}]
    assert "disk full" in capsys.readouterr().err
    subscription.close()
    eventually(lambda: subscription._connection is None)


def test_gang_is_what_the_environment_says() -> None:
    env = {"NODUS_NODE_RANK": "1", "NODUS_NUM_NODES": "2", "NODUS_NODE_IPS": "10.0.0.1,10.0.0.2", "MASTER_PORT": "7"}
    found = nodus.cluster.info(env)
    assert (found.rank, found.size, found.ips, found.master_port, found.epoch) == (1, 2, ["10.0.0.1", "10.0.0.2"], 7, 0)
