"""Checkpoints of an attempt: moments at which what is in its kept directories is complete, and who says so.

Runs in the supervisor; standard library only. The directories themselves are kept all the time, from attempt to
attempt; what is recorded is that the command said, asked or unasked, that a later attempt can go on from them.
``checkpoint.json`` in the attempt's directory holds the newest and how many there were.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nodus.server.compute.local.attemptdir import write_json
from nodus.server.compute.local.httpmessages import Refused, Request
from nodus.server.compute.local.telemetry import MAX_ID, Bucket

CHECKPOINT_FILE = "checkpoint.json"
ROUTE = "/_nodus/v1/checkpoints"
PER_S, BURST = 2.0, 20.0
MEASURED_FILES, MEASURED_S = 100_000, 2.0
"""Where the measuring of what is kept ends; a size that is not whole is left out."""


class Plan(NamedTuple):
    """What an attempt's checkpoints are to be, as ``spec.json`` says it.

    Attributes:
        paths: Directories of the state inside of the sandbox; the first is where a command saves.
        hosts: Where they are on this machine.
        seq: Number of the newest checkpoint of earlier attempts.
        interval_s: How often the command is asked to save one; None for never.
    """

    paths: Sequence[str]
    hosts: Sequence[str]
    seq: int
    interval_s: float | None

    @classmethod
    def of(cls, spec: dict[str, Any]) -> Plan:
        """Read it from the content of ``spec.json``."""
        given = spec.get("checkpoint") or {}
        paths = [str(path).rstrip("/") for path in given.get("paths") or ()]
        hosts = [
            str(mount["host"])
            for mount in spec.get("mounts") or ()
            if not mount["readonly"] and any(f"{path}/".startswith(f"{mount['path'].rstrip('/')}/") for path in paths)
        ]
        interval_s = given.get("intervalSeconds")
        return cls(paths, hosts, int(given.get("seq") or 0), None if interval_s is None else float(interval_s))


class Checkpoints:
    """Records an attempt's checkpoints, from any thread.

    Args:
        directory: The attempt's.
        plan: What they are to be.
        answer: Takes the id of a request that a program answers by recording; see ``EventSocket.answer``.
        on_record: Called with each that was recorded.
    """

    def __init__(
        self,
        directory: Path,
        plan: Plan,
        answer: Callable[[str], bool] = lambda request_id: False,
        on_record: Callable[[dict[str, Any]], None] = lambda found: None,
    ) -> None:
        self._directory = directory
        self._plan = plan
        self._answer = answer
        self._on_record = on_record
        self._seq = plan.seq
        self._count = 0
        self._lock = threading.Lock()
        self._bucket = Bucket(PER_S, BURST)

    def record(self, trigger: str, request_id: str | None = None) -> dict[str, Any]:
        """Record that what is there now is complete; return it as it stands in ``status.checkpoint``.

        Args:
            trigger: ``Requested`` or ``Program``.
            request_id: Of the request that it answers.

        Raises:
            OSError: When it can't be written; nothing is recorded then.
        """
        size = measure(self._plan.hosts)
        with self._lock:
            found: dict[str, Any] = {"seq": self._seq + 1, "time": _rfc3339(time.time()), "trigger": trigger}
            if size is not None:
                found["size"] = size
            if request_id is not None:
                found["requestId"] = request_id
            write_json(self._directory / CHECKPOINT_FILE, {"count": self._count + 1, "newest": found})
            self._seq, self._count = self._seq + 1, self._count + 1
        self._on_record(found)
        return found

    def serve(self, request: Request) -> tuple[int, dict[str, Any]] | None:
        """Answer a request on the API socket; None when it is for somebody else.

        Raises:
            Refused: When it can't be done as asked.
        """
        path = request.target.partition("?")[0].rstrip("/")
        if path not in (ROUTE, f"{ROUTE}/prepare"):
            return None
        if request.method != "POST":
            raise Refused(405, "MethodNotAllowed", f"{path} takes POST, not {request.method[:20]}")
        if not self._plan.paths:
            raise Refused(422, "Unsupported", "this run keeps no state from attempt to attempt, so has no checkpoints")
        body = _body(request)
        if path != ROUTE:
            return 200, {"seq": self._seq + 1, "path": self._plan.paths[0], "paths": list(self._plan.paths)}
        if not self._bucket.take():
            raise Refused(429, "TooManyRequests", f"more than {PER_S:g} checkpoints a second; wait a second")
        request_id = body.get("requestId")
        if request_id is not None and not self._answer(request_id):
            message = f"no checkpoint {request_id!r} is asked for; leave requestId out to save one"
            raise Refused(409, "Conflict", message)
        try:
            return 201, self.record("Program" if request_id is None else "Requested", request_id)
        except OSError as error:
            raise Refused(503, "Unavailable", f"the checkpoint could not be recorded: {error.strerror}") from error


def _body(request: Request) -> dict[str, Any]:
    if not request.body.strip():
        return {}
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError):
        raise Refused(400, "BadRequest", "the body is no JSON") from None
    if not isinstance(body, dict):
        raise Refused(400, "BadRequest", "the body is no JSON object")
    request_id = body.get("requestId")
    if request_id is not None and (not isinstance(request_id, str) or not 0 < len(request_id) <= MAX_ID):
        raise Refused(422, "Invalid", f"requestId is a string of 1 to {MAX_ID} characters")
    return body


def measure(directories: Sequence[str]) -> int | None:
    """Return how many bytes are in directories, links not followed; None when that takes too long to find out."""
    total = files = 0
    end = time.monotonic() + MEASURED_S
    waiting = list(directories)
    while waiting:
        # The command may be changing them right now, into anything.
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                files += 1
                if files > MEASURED_FILES or time.monotonic() > end:
                    return None
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
    return total


def _rfc3339(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
