"""Graders that are programs of an image: what they print counts only where it is what they were asked for.

Such a program keeps to the protocol of the guide: ``nodus-env tasks --split S --seed N`` prints a line for each task;
``nodus-env grade`` answers ``{"taskId", "completion"}`` lines with ``{"taskId", "verdict", "reward"}`` lines, in order;
``info`` and ``step`` are optional. There is no private descriptor and no line that says it is ready. It is asked one
thing at a time, so that an answer too many is seen; lines that name no task (a library's greeting) are passed over, up
to a bound. The evidence is what the host saw, whatever the program claims.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from nodus.core.digests import canonical_json
from nodus.server.compute.graders import GraderNotStarted, GraderProcess
from nodus.server.grading.environments import ResolvedEnvironment
from nodus.server.grading.episodes import Episode
from nodus.server.grading.manifests import Manifest
from nodus.server.grading.runner import Runners
from nodus.server.grading.verdicts import Evidence, storable
from nodus.server.grading.worker import ANSWER_GRACE_S, IN_FLIGHT, Grader, GraderDied, Reply, Request, StartFailed

START_S = 60.0
"""How much longer than later ones a program's first answer may take: it loads its tasks before."""
SETTLE_S = 0.001
CHATTER_BYTES = 64 * 1024
"""Of lines that are no answers, between two answers."""
OUR_RUNNER = "NODUS_ENVIRONMENT_LOADER"
"""What an image built on env-base has in its environment."""
_TASK_KEYS = ("taskId", "prompt", "metadata", "tools")
_ID_CHARS = 200
_LOG_CHARS = 300
_NEVER = "(each answer has to be written, and flushed, before the next request is read)"


def in_flight(environment: ResolvedEnvironment) -> int:
    """Return how many requests may be inside a grader of an environment at a time.

    Nodus's own runner gives each request's number back, also on env-base. Other programs of images were promised
    nothing but task and completion, so that they are asked one thing at a time.
    """
    return IN_FLIGHT if environment.root is None or OUR_RUNNER in environment.root.env else 1


class ForeignGrader(Grader):
    """A grader in an image; ``step`` runs in a process of its own beside ``grade``.

    Args:
        runners: Starts it.
        beside: Key of the member whose host it is on; None for any host.
    """

    def __init__(self, runners: Runners, beside: str | None = None) -> None:
        super().__init__(runners, beside)
        self._processes: dict[str, GraderProcess] = {}
        self._buffers: dict[str, bytearray] = {}
        self._command = "grade"
        self._answered: set[str] = set()
        self._chatter = 0
        self._numbered = in_flight(runners.environment) > 1

    def start(self) -> None:
        """Start it. It says nothing until it is asked.

        Raises:
            StartFailed: When no sandbox can be started.
        """
        self._turn_to("grade")

    def interrupt(self) -> None:
        """End its processes from another thread, or before they are started."""
        self._interrupted = True
        for process in list(self._processes.values()):
            process.interrupt()

    def close(self) -> None:
        """End it and everything it started."""
        processes, self._processes, self._process = self._processes, {}, None
        for process in processes.values():
            process.close()

    def send(self, request: Request) -> None:
        """Ask it.

        Raises:
            GraderDied: When it has answered what it was not asked.
            StartFailed: When no sandbox can be started.
        """
        if not self._inside:
            self._turn_to("step" if isinstance(request.item, Episode) else "grade")
            if pending := self._running().exchange(bytearray(), 0.0):
                self._take_in(pending)  # its end is seen when an answer is waited for
            if self._unsent:
                raise self._died(f"{self._name} answered before it had read the request")
            self._head_since = time.monotonic()
        self._inside.append(request)
        body = request.item.request()
        body.pop("step", None)
        if self._numbered:
            body["id"] = request.number
        self._unsent += json.dumps(body).encode() + b"\n"

    def exchange(self) -> list[Reply]:
        """Wait for the answer.

        Raises:
            GraderDied: When it ends, is too slow, or answers anything else.
        """
        first = 0.0 if self._command in self._answered else START_S
        deadline = self._head_since + self._environment.timeout_s + ANSWER_GRACE_S + first
        while True:
            left = deadline - time.monotonic()  # also while it goes on printing something else
            chunk = self._running().exchange(self._unsent, left) if left > 0 else None
            if chunk is None:
                raise self._died(f"{self._name} did not answer in time and was killed {_NEVER}")
            if replies := self._take_in(chunk):
                self._settle()
                return replies

    def _settle(self) -> None:
        """See an answer too many, which comes right behind the first: the next reply's answer it could be taken for."""
        more = None if self._numbered else self._running().exchange(bytearray(), SETTLE_S)
        if more:
            self._take_in(more)

    @property
    def _name(self) -> str:
        return f"`nodus-env {self._command}`"

    def _turn_to(self, command: str) -> None:
        """Have the process of a command as the one that is talked to."""
        self._command = command
        process = self._processes.get(command)
        if process is None:
            try:
                process = self._runners.start([command], self._beside)
            except GraderNotStarted as error:
                raise StartFailed(str(error), Evidence(self._runners.arguments([command]), "none", 0.0)) from None
            self._processes[command] = process
            self._buffers[command] = bytearray()
            if self._interrupted:
                process.interrupt()
        self._process, self._received = process, self._buffers[command]

    def _take_in(self, chunk: bytes) -> list[Reply]:
        try:
            return super()._take_in(chunk)
        finally:
            self._buffers[self._command] = self._received

    def _replies(self, lines: Sequence[bytes]) -> list[Reply]:
        """Return the answer among what it printed."""
        replies = []
        for line in lines:
            found = _about_a_task(line)
            if found is None:
                self._chatter += len(line) + 1
                if self._chatter > CHATTER_BYTES:
                    raise self._died(f"{self._name} printed more than {CHATTER_BYTES >> 10} KiB that is no answer")
                continue
            if not self._inside:
                raise self._died(f"{self._name} answered what it was not asked")
            asked = self._inside[0].item.task_id
            if found["taskId"] != asked:
                got = storable(found["taskId"], _ID_CHARS)
                raise self._died(f"{self._name} was asked about the task {asked!r} and answered about {got!r}")
            if "id" in found and found["id"] != self._inside[0].number:
                raise self._died(f"{self._name} answered another request")
            self._chatter = 0
            self._answered.add(self._command)
            replies.append(self._reply(line))
        return replies

    def _reply(self, line: bytes) -> Reply:
        reply = super()._reply(line)
        return Reply(reply.request, replace(reply.evidence, read=_as_asked(line, reply.request.number)))

    def _died(self, message: str) -> GraderDied:
        """Say how it ended: nothing that it exits with has a meaning."""
        duration_ms = (time.monotonic() - self._head_since) * 1000
        evidence = self._evidence(duration_ms, ended=True, tries=self._inside[0].tries if self._inside else 1)
        if not message:
            said = storable(self._running().log_tail().strip()[-_LOG_CHARS:], _LOG_CHARS)
            message = f"{self._name} ended without an answer: {self._cause(evidence)}" + (f": {said}" if said else "")
        return GraderDied(message, evidence)


def tasks_among(lines: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the tasks among what ``nodus-env tasks`` printed, with nothing but what is published of them.

    Raises:
        ValueError: A task's id is too long, or it holds what JSON doesn't.
    """
    found = []
    for line in lines:
        if not isinstance(line, dict) or not isinstance(line.get("taskId"), str):
            continue
        if len(line["taskId"]) > _ID_CHARS:
            raise ValueError(f"a taskId has {len(line['taskId'])} characters; at most {_ID_CHARS} are taken")
        task = {key: line[key] for key in _TASK_KEYS if line.get(key) is not None}
        canonical_json(task)  # no NaN: what is no JSON can't be kept
        found.append(task)
    return found


def held_out_apart(train: Manifest, test: Manifest) -> Manifest:
    """Return the train split without what is held out too: the same id, or the same prompt."""
    ids = {task.task_id for task in test.tasks}
    prompts = {canonical_json(task.prompt) for task in test.tasks}
    kept = [task for task in train.tasks if task.task_id not in ids and canonical_json(task.prompt) not in prompts]
    return replace(train, tasks=tuple(kept))


def _about_a_task(line: bytes) -> dict[str, Any] | None:
    """Return a line that names a task, read; None for anything else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("taskId"), str) else None


def _as_asked(line: bytes, number: int) -> dict[str, Any]:
    """Return an answer as our own runner would give it: under the number it was asked, without evidence."""
    found = _about_a_task(line) or {}
    found.pop("evidence", None)
    if found.get("verdict") == "InvalidOutput":
        found["reward"] = 0.0
    return {**found, "id": number}
