"""What a command reports of itself: lines of JSON, taken within limits and kept in the attempt's directory.

Runs in the supervisor; standard library only. Every line that is accepted changes the attempt's progress, which is
replaced in ``progress.json`` before the next is looked at, and is appended to ``events.jsonl`` as long as that is not
full. Both outlive the supervisor and are all that the server reads; while it is away nothing waits.

The command may send anything, as fast as it likes. Lines wait in a queue of bounded size, of which so many a second
are looked at. When there are more the oldest go, but for the newest of each kind that replaces what was said before:
so what was said last is what is known in the end, however many other lines came after it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MAX_LINE_BYTES = 64 * 1024
QUEUE_LINES, QUEUE_BYTES = 256, 1 << 20
EVENTS_PER_S, BURST = 200.0, 1000.0
HISTORY_BYTES = 8 << 20
MAX_METRICS = 64
_KIND_WITHIN = 1000
"""Bytes of a line in which its kind is looked for before it is read."""
MAX_NAME = 100
MAX_ID = 253
KNOWN_IDS = 4096
PROGRESS_FILE, HISTORY_FILE = "progress.json", "events.jsonl"
STDOUT_MARK = b"nodus.event "
"""A line of output that begins so is an event: for commands that can't reach the socket."""

_MAX_COUNT = 2**53
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:@%+-]*")
_REPLACING = re.compile(rb'"type"\s*:\s*"(progress|metrics|phase)"')
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What a terminal takes for a command, or for another order of the letters."""


class Malformed(ValueError):
    """A line is no event; the text says why."""


class Bucket:
    """So many a second, and a stock of them for a burst.

    Args:
        rate: How many come back a second.
        burst: How many there are at first, and at most.
        clock: Seconds, from any start.
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._left, self._at = burst, clock()

    def take(self) -> bool:
        """Take one; False when there is none."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Lines:
    """Cuts a stream into lines of bounded length.

    Attributes:
        skipped: How many lines were longer, and left out.
    """

    def __init__(self, limit_bytes: int = MAX_LINE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._rest = b""
        self._skipping = False
        self.skipped = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that ``data`` completes, without their ends."""
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = self._rest + whole[0]
            self._rest = b""
            if self._skipping:
                del whole[0]
                self._skipping = False
            fitting = [line for line in whole if len(line) <= self._limit_bytes]
            self.skipped += len(whole) - len(fitting)
            whole = fitting
        if not self._skipping:
            self._rest += rest
            if len(self._rest) > self._limit_bytes:
                self._rest, self._skipping = b"", True
                self.skipped += 1
        return whole


class OutputEvents:
    """Finds the events among a command's output, which is left as it is."""

    def __init__(self) -> None:
        self._rest = b""
        self._mid_line = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that ``data`` completes, without their mark."""
        if not self._rest and b"nodus" not in data and not data.endswith((b"n", b"no", b"nod", b"nodu")):
            self._mid_line = not data.endswith(b"\n")
            return []
        found = []
        *whole, last = (self._rest + data).split(b"\n")
        if self._mid_line and whole:
            del whole[0]
            self._mid_line = False
        for line in whole:
            if line.startswith(STDOUT_MARK) and len(line) <= MAX_LINE_BYTES:
                found.append(line[len(STDOUT_MARK) :])
        # What may become an event is kept; of any other line only that it has begun.
        may_be = last.startswith(STDOUT_MARK) or STDOUT_MARK.startswith(last)
        if self._mid_line or not may_be or len(last) > MAX_LINE_BYTES:
            self._rest, self._mid_line = b"", self._mid_line or bool(last)
        else:
            self._rest = last
        return found


@dataclass(slots=True)
class Counts:
    """What became of the lines."""

    accepted: int = 0
    duplicate: int = 0
    malformed: int = 0
    dropped: int = 0
    """Came faster than they are looked at."""
    oversized: int = 0
    unkept: int = 0
    """Accepted, and not in the history any more, because it is full."""


@dataclass(slots=True)
class Progress:
    """How far a command is, as far as it said so."""

    stage: str | None = None
    completed: float | None = None
    total: float | None = None
    units: int = 0
    """Units told one by one."""
    metrics: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, int] = field(default_factory=dict)

    def take(self, event: Mapping[str, Any]) -> None:
        """Take an event that :func:`decode` returned."""
        match event["type"]:
            case "progress":
                self.completed = event["completed"]
                self.total = event.get("total", self.total)
            case "metrics":
                for name, value in event["values"].items():
                    if name in self.metrics or len(self.metrics) < MAX_METRICS:
                        self.metrics[name] = str(value) if isinstance(value, int) else f"{value:.6g}"
                if "step" in event:
                    self.metrics["step"] = str(event["step"])
            case "phase":
                self.stage = event["name"]
            case "unit":
                self.units += 1
            case "task":
                done = event["taskKind"] == "TaskCompleted"
                self._add("completed" if done else "started")
                if done and event.get("outcome") == "Passed":
                    self._add("passed")

    def _add(self, name: str) -> None:
        self.tasks[name] = self.tasks.get(name, 0) + 1

    def to_status(self) -> dict[str, Any]:
        """Return it as it stands in ``status.progress``."""
        status: dict[str, Any] = {}
        if self.stage is not None:
            status["stage"] = self.stage
        completed = self.completed if self.completed is not None else self.units or None
        if completed is not None:
            status["units"] = {"completed": completed} | ({"total": self.total} if self.total is not None else {})
        if self.metrics:
            status["metrics"] = self.metrics
        if self.tasks:
            status["tasks"] = self.tasks
        return status


class Telemetry:
    """Takes an attempt's lines, from any thread, and keeps what they say.

    Args:
        directory: The attempt's; ``progress.json`` and ``events.jsonl`` are written there.
        clock: Seconds, for the limits.
        wall: Seconds since the epoch, for the history.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._wall = wall
        self._bucket = Bucket(EVENTS_PER_S, BURST, clock)
        self._lock = threading.Lock()
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._left_out: dict[bytes, bytes] = {}
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._history: int | None = None
        self._history_bytes = self._seq = 0
        self._changed = False
        self.progress = Progress()
        self.counts = Counts()

    @property
    def waiting(self) -> bool:
        """Whether lines wait to be looked at; call :meth:`drain` again soon."""
        return bool(self._queue or self._left_out)

    def take(self, lines: list[bytes], *, oversized: int = 0) -> None:
        """Take lines as they came.

        Args:
            lines: Without their ends.
            oversized: How many more there were that were too long.
        """
        with self._lock:
            self.counts.oversized += oversized
            self._changed |= oversized > 0
            for line in lines:
                if not self._queue and not self._left_out and self._bucket.take():
                    self._accept([line])
                    continue
                self._queue.append(line)
                self._queued_bytes += len(line)
                if len(self._queue) > QUEUE_LINES or self._queued_bytes > QUEUE_BYTES:
                    self._shift()
            self._drain()

    def drain(self, *, all_: bool = False) -> None:
        """Look at lines that wait, as many as may be looked at now; with ``all_``, at the few that there are."""
        with self._lock:
            self._drain(all_=all_)

    def close(self) -> None:
        """Look at what waits, and let go of the files."""
        self.drain(all_=True)
        with self._lock:
            self._save()
            if self._history is not None:
                os.close(self._history)
            self._history, self._history_bytes = None, HISTORY_BYTES

    def event(self, event: Mapping[str, Any]) -> None:
        """Put an event of the supervisor's own into the history, such as a checkpoint."""
        with self._lock:
            self._keep(event)

    def _shift(self) -> None:
        """The queue is full: its oldest line is dropped, unless it is the newest of its kind."""
        line = self._queue.popleft()
        self._queued_bytes -= len(line)
        kind = _REPLACING.search(line, 0, _KIND_WITHIN)
        if kind is None:
            self.counts.dropped += 1
            return
        self.counts.dropped += kind[1] in self._left_out
        self._left_out[kind[1]] = line

    def _drain(self, *, all_: bool = False) -> None:
        # What was left out is older than what is in the queue.
        while self._left_out and (all_ or self._bucket.take()):
            self._accept([self._left_out.pop(next(iter(self._left_out)))])
        while self._queue and (all_ or self._bucket.take()):
            line = self._queue.popleft()
            self._queued_bytes -= len(line)
            self._accept([line])
        if self._changed:
            self._save()

    def _accept(self, lines: list[bytes]) -> None:
        for line in lines:
            if not line.strip():
                continue
            self._changed = True
            try:
                event = decode(line)
            except Malformed:
                self.counts.malformed += 1
                continue
            if self._is_known(event.get("id")):
                self.counts.duplicate += 1
                continue
            self.counts.accepted += 1
            self.progress.take(event)
            self._keep(event)

    def _is_known(self, id_: str | None) -> bool:
        if id_ is None:
            return False
        if id_ in self._ids:
            return True
        self._ids[id_] = None
        if len(self._ids) > KNOWN_IDS:
            self._ids.popitem(last=False)
        return False

    def _keep(self, event: Mapping[str, Any]) -> None:
        self._seq += 1
        numbered = {"seq": self._seq, "at": round(self._wall(), 3), **event}
        try:
            line = json.dumps(numbered, separators=(",", ":"), allow_nan=False).encode() + b"\n"
            if self._history_bytes + len(line) > HISTORY_BYTES:
                self.counts.unkept += 1
                return
            if self._history is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._history = os.open(self._directory / HISTORY_FILE, flags, 0o600)
            os.write(self._history, line)
            self._history_bytes += len(line)
        except (OSError, ValueError, RecursionError):
            self.counts.unkept += 1  # A full disk, or a trace that no JSON holds: the progress is what matters.

    def _save(self) -> None:
        """Replace ``progress.json``: it survives the supervisor at once, and the machine soon."""
        status = self.progress.to_status()
        content = {"progress": status, "counts": {name: n for name, n in asdict(self.counts).items() if n}}
        temporary = self._directory / f".{PROGRESS_FILE}.{os.getpid()}"
        # A full disk: it is tried again with the next event.
        with contextlib.suppress(OSError):
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(json.dumps(content, separators=(",", ":")).encode())
            os.replace(temporary, self._directory / PROGRESS_FILE)
            self._changed = False


# Reading a line -----------------------------------------------------------------------------------------------


def read_object(line: bytes) -> dict[str, Any]:
    """Return the object that a line holds.

    Raises:
        Malformed: When it holds none.
    """
    try:
        # NaN and the like are Python's own: such a value is no number.
        event = json.loads(line, parse_constant=lambda name: None)
    except (ValueError, RecursionError) as error:
        raise Malformed("no JSON") from error
    if not isinstance(event, dict):
        raise Malformed("no object")
    return event


def decode(line: bytes) -> dict[str, Any]:
    """Return the event that a line says, with nothing in it that was not checked but a task's trace.

    Raises:
        Malformed: When it is none.
    """
    given = read_object(line)
    event: dict[str, Any] = {"type": given.get("type")}
    if given.get("id") is not None:
        event["id"] = _text(given, "id", MAX_ID)
    match event["type"]:
        case "progress":
            event["completed"] = _count(given, "completed")
            if given.get("total") is not None:
                event["total"] = _count(given, "total")
        case "metrics":
            event |= _metrics(given)
        case "phase":
            event["name"] = _text(given, "name", MAX_NAME)
        case "unit":
            event |= {"unitId": _text(given, "unitId", MAX_ID), "ms": _count(given, "ms")}
        case "task":
            event |= _task(given)
        case other:
            raise Malformed(f"no type of event: {str(other)[:40]!r}")
    return event


def _metrics(given: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name in ("id", "type", "step") or not _is_number(value):
            continue
        if len(name) <= MAX_NAME and _NAME.fullmatch(name) and len(values) < MAX_METRICS:
            values[name] = value
    found: dict[str, Any] = {"values": values}
    if given.get("step") is not None:
        step = _count(given, "step")
        found["step"] = int(step)
    if not values and "step" not in found:
        raise Malformed("no numbers")
    return found


def _task(given: Mapping[str, Any]) -> dict[str, Any]:
    kind = given.get("taskKind", "TaskCompleted")
    if kind not in ("TaskStarted", "TaskCompleted"):
        raise Malformed("taskKind")
    found: dict[str, Any] = {
        "taskKind": kind,
        "phase": _text(given, "phase", MAX_NAME),
        "taskId": _text(given, "taskId", MAX_ID),
    }
    if given.get("attempt") is not None:
        found["attempt"] = int(_count(given, "attempt"))
    if given.get("outcome") is not None:
        found["outcome"] = _text(given, "outcome", MAX_NAME)
    if _is_number(given.get("reward")):
        found["reward"] = given["reward"]
    if given.get("trace") is not None:
        found["trace"] = given["trace"]
    return found


def _text(given: Mapping[str, Any], name: str, limit: int) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= limit or _CONTROL.search(value):
        raise Malformed(name)
    return value.encode(errors="replace").decode()


def _count(given: Mapping[str, Any], name: str) -> float:
    value: Any = given.get(name)
    if not _is_number(value) or not 0 <= value <= _MAX_COUNT:
        raise Malformed(name)
    # A whole number may come as 3.0.
    return int(value) if float(value).is_integer() else float(value)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= _MAX_COUNT**4 if isinstance(value, int) else math.isfinite(value)
