"""A stand-in for the server behind an attempt's unix socket: tasks, gradings and task events, all in memory.

It keeps the contract of the real one: verdicts are recorded once an (attempt, phase, step, task, sample) and a re-send
gets the recorded ones. The attempt is told apart by the prefix of the Idempotency-Key, since no token is checked here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from types import TracebackType
from typing import Any

from nodus.core.errors import Conflict, GraderFailed, NodusError, NotFound

Grade = Callable[[str, Any], float | None]
"""Scores (task id, completion), of an episode (task id, replies); None is InvalidOutput, an exception
InfrastructureFailure."""
Answer = Callable[[str, list[str]], "list[dict[str, Any]] | str | None"]
"""What the environment says after (task id, replies): messages, or the content of one; None ends the episode, an
exception is a failure of the environment."""

_FAILURE = {"verdict": "InfrastructureFailure", "outcome": "Error", "reward": None}
GRADER_FAILED_AFTER, GRADER_FAILED_SHARE = 8, 0.5


class AttemptServer:
    """Serves one TrainingJob's attempt API on a unix socket, in threads of this process.

    Example:
        >>> with AttemptServer(path, train, test, grade) as server:
        ...     run_trainer(env={"NODUS_RUNTIME_SOCKET": str(path)})
        >>> server.events_of("Metrics")

    Args:
        path: Where the socket is made; at most 100 bytes long.
        train: Rows ``{"taskId", "prompt", "metadata"}`` of train.jsonl.
        test: Rows of test.jsonl.
        grade: Scores a completion.
        answer: The environment's side of an episode; None where an episode ends with its first reply.
    """

    def __init__(
        self,
        path: Path,
        train: Sequence[Mapping[str, Any]],
        test: Sequence[Mapping[str, Any]],
        grade: Grade,
        answer: Answer | None = None,
    ) -> None:
        self.path = path
        self.train, self.test, self.grade = train, test, grade
        self.say: Answer = answer or (lambda task_id, turns: None)
        self.verdicts: dict[tuple[str, str, int, str, int], dict[str, Any]] = {}
        """Recorded verdicts by (attempt, phase, step, task, sample); each also holds the completion, or the replies."""
        self.events: dict[tuple[str, str], dict[str, Any]] = {}
        """Recorded events by (attempt, event id)."""
        self.steps: list[tuple[str, int, str, int, int]] = []
        """(phase, step, task, sample, number of replies) of everything the environment was asked, in order."""
        self.requests: list[tuple[str, str]] = []
        """(verb, Idempotency-Key) of every request, in order."""
        self.intercept: Callable[[str, dict[str, Any], int], tuple[int, Any] | None] = lambda verb, body, number: None
        """Called with verb, body and the request's number; a (status, body) it returns is the answer."""
        self.after: Callable[[str, dict[str, Any]], None] = lambda verb, body: None
        """Called with verb and body once the answer is recorded, before it is sent."""
        self._lock = threading.Lock()
        self._recent: list[bool] = []
        self._server: _Server | None = None

    def __enter__(self) -> AttemptServer:
        self._server = _Server(str(self.path), _handler_of(self))
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self.path.unlink(missing_ok=True)

    def events_of(self, kind: str, attempt: str | None = None) -> list[dict[str, Any]]:
        """Recorded events of a type, in the order they came, of one attempt or of all."""
        return [e for (a, _), e in self.events.items() if e["type"] == kind and attempt in (None, a)]

    def phase(self, name: str, attempt: str | None = None) -> dict[tuple[int, str, int], dict[str, Any]]:
        """Recorded verdicts of a phase by (step, task, sample), of one attempt or of all, the newest winning."""
        return {(s, t, n): v for (a, p, s, t, n), v in self.verdicts.items() if p == name and attempt in (None, a)}

    def answer(self, verb: str, body: dict[str, Any], key: str) -> tuple[int, Any]:
        """Answer one request: (HTTP status, JSON body)."""
        with self._lock:
            self.requests.append((verb, key))
            intercepted = self.intercept(verb, body, len(self.requests))
            if intercepted is not None:
                return intercepted
            attempt = key.rsplit("-", 2)[0] if verb != "tasks" else key.rsplit("-", 1)[0]
            try:
                answer = self._respond(verb, body, attempt)
            except NodusError as error:
                return error.status, error.to_status()
            self.after(verb, body)
            return 200, answer

    def _respond(self, verb: str, body: dict[str, Any], attempt: str) -> dict[str, Any]:
        if verb == "tasks":
            lines = {"train.jsonl": self.train, "test.jsonl": self.test}
            return {"files": {name: "".join(json.dumps(row) + "\n" for row in rows) for name, rows in lines.items()}}
        if verb == "gradings":
            rows = [self._verdict(attempt, body["phase"], body["step"], row) for row in body["completions"]]
            self._stop_when_failing()
            return {"verdicts": rows}
        if verb == "steps":
            rows = [self._reply(attempt, body["phase"], body["step"], row) for row in body["episodes"]]
            self._stop_when_failing()
            return {"replies": rows}
        if verb == "taskevents":
            for event in body["events"]:
                self.events.setdefault((attempt, event["id"]), event)
            return {}
        raise NotFound(f"no such path: {verb}")

    def _verdict(self, attempt: str, phase: str, step: int, row: Mapping[str, Any]) -> dict[str, Any]:
        key = (attempt, phase, step, row["taskId"], row["sample"])
        said = row["turns"] if "turns" in row else row["completion"]
        known = self.verdicts.get(key)
        if known is not None and known["completion"] != said:
            raise Conflict(f"{key} was graded with another completion")
        if known is None:
            known = {**self._score(row["taskId"], said), "completion": said}
            self.verdicts[key] = known
            self._recent.append(known["verdict"] == "InfrastructureFailure")
        answer = {k: v for k, v in known.items() if k != "completion"}
        return {"taskId": row["taskId"], "sample": row["sample"], **answer}

    def _reply(self, attempt: str, phase: str, step: int, row: Mapping[str, Any]) -> dict[str, Any]:
        name = {"taskId": row["taskId"], "sample": row["sample"]}
        self.steps.append((phase, step, row["taskId"], row["sample"], len(row["turns"])))
        try:
            said = self.say(row["taskId"], row["turns"])
        except Exception as error:  # noqa: BLE001 - an environment that raises is what this answer is for
            failure = {**_FAILURE, "reason": repr(error), "completion": row["turns"]}
            self.verdicts[(attempt, phase, step, row["taskId"], row["sample"])] = failure
            self._recent.append(True)
            return {**name, "error": repr(error)}
        return {**name, "messages": [{"role": "user", "content": said}] if isinstance(said, str) else said}

    def _score(self, task_id: str, completion: Any) -> dict[str, Any]:
        try:
            reward = self.grade(task_id, completion)
        except Exception as error:  # noqa: BLE001 - a grader that raises is what this verdict is for
            return {**_FAILURE, "reason": repr(error)}
        if reward is None:
            return {"verdict": "InvalidOutput", "outcome": "Failed", "reward": 0.0}
        passed = reward >= 1
        return {
            "verdict": "Correct" if passed else "Incorrect",
            "outcome": "Passed" if passed else "Failed",
            "reward": reward,
        }

    def _stop_when_failing(self) -> None:
        recent = self._recent[-32:]
        if len(recent) >= GRADER_FAILED_AFTER and sum(recent) >= GRADER_FAILED_SHARE * len(recent):
            raise GraderFailed(f"{sum(recent)} of the last {len(recent)} completions could not be graded")


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


def _handler_of(owner: AttemptServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
            verb = self.path.rsplit("/", 1)[-1]
            status, answer = owner.answer(verb, body, self.headers["Idempotency-Key"] or "")
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            try:
                self.wfile.write(data)
            except BrokenPipeError:
                pass  # the trainer was killed while it waited

        def address_string(self) -> str:
            return "unix"

        def log_message(self, format: str, *args: Any) -> None:
            return None

    return Handler
