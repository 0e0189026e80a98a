"""What ``nodus run`` says while a Job goes through its phases, and what it exits with.

Words about the run go to standard error; standard output is the command's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from nodus.cli.colour import paint, visible_but_paint
from nodus.cli.progress import clear
from nodus.cli.session import Session
from nodus.client import runlog
from nodus.client.outcomes import TERMINAL
from nodus.client.resources import JsonObject
from nodus.core.durations import format_duration
from nodus.core.errors import NodusError

EXIT_OTHER, EXIT_DEADLINE = 125, 124
"""An end that is not the command's own; its time ran out."""
NOT_THE_COMMANDS = (
    "StartFailed", "AttemptLost", "NodeLost", "QueueTimeout", "VolumeNotCommitted", "SourceNotFetched", "InternalError",
)  # fmt: skip
"""Reasons of a failure that the command has no part in."""


class RunView:
    """Follows one Job.

    Args:
        session: The server.
        job: The Job as it was created.
    """

    def __init__(self, session: Session, job: JsonObject) -> None:
        self._session = session
        self.job = job
        self.name = str(job["metadata"]["name"])
        self.project = str(job["metadata"].get("namespace") or session.project)
        self._shown = ""
        self._created = time.monotonic()
        self._began_s: float | None = None

    def follow(self) -> int:
        """Print phases and output until the Job has ended; return the exit code."""
        self._session.run(self._until(lambda phase: phase not in ("Queued", "Provisioning"), "its start"))
        self._session.run(self._copy())
        self.job = self._session.run(self._until(lambda phase: phase in TERMINAL, "its end"))
        say(*self.result_lines(), *self._missing_outputs())
        return exit_code(self.job)

    def _missing_outputs(self) -> list[str]:
        """Return a line for each output that was asked for and not written."""
        metadata, spec = self.job["metadata"], self.job.get("spec") or {}
        if not spec.get("outputs") or _phase(self.job) != "Succeeded":
            return []
        wanted = {"kind": "Job", "name": self.name, "namespace": self.project}
        fields = {f"involvedObject.{key}": value for key, value in wanted.items()}
        try:
            found = self._session.run(self._session.resources.list("Event", fields=fields))
        except NodusError:
            return []  # a key without the scope still runs Jobs
        return [
            f"   {_mark('!', 'yellow')} {event.get('message')}"
            for event in found
            if event.get("reason") == "OutputMissing" and event["involvedObject"].get("uid") == metadata.get("uid")
        ]

    async def _copy(self) -> None:
        output = sys.stdout.buffer
        chunks: AsyncGenerator[bytes, None] = runlog.follow(
            self._session.resources, self.project, self.name, seen=self._see
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                clear()
                output.write(chunk)
                output.flush()

    async def _until(self, reached: Callable[[str], bool], what: str) -> JsonObject:
        def holds(job: JsonObject) -> bool:
            self._see(job)
            return reached(_phase(job))

        return await self._session.resources.wait_for("Job", self.name, holds, project=self.project, what=what)

    def _see(self, job: JsonObject) -> None:
        """Print the phase where it is another than before, and what it waits for."""
        self.job = job
        status = job.get("status") or {}
        phase, message = _phase(job), str(status.get("message") or "")
        if phase in TERMINAL:
            if self._began_s is None and status.get("startTime"):
                self._start()  # it ran, so shortly that nobody saw it
            return
        # A pause is told once for each reason: its message may count, such as the bytes that are free.
        told = status.get("reason") if phase == "Suspended" else message
        shown = f"{phase} {told}" if phase in ("Queued", "Recovering", "Suspended") and told else phase
        if shown == self._shown or (phase == "Queued" and not message) or phase == "Provisioning":
            return
        self._shown = shown
        if phase == "Running":
            self._start()
        else:
            say(f" {_mark('…', 'yellow')} {phase:<14} {message}".rstrip(), *_fix(status))

    def _start(self) -> None:
        if self._began_s is None:
            self._began_s = time.monotonic() - self._created
            say(f" {_mark('✓', 'green')} {'Provisioning':<14} {format_duration(self._began_s)}")
        say(f" {_mark('▶', 'cyan')} Running")

    def cancel(self) -> None:
        """Ask for the Job's end."""
        change = {"spec": {"state": "Cancelled"}}
        self._session.run(self._session.resources.patch("Job", self.name, change, project=self.project))

    def result_lines(self) -> list[str]:
        """Return the lines about the end: how, after how long, what it cost, and what to do."""
        status = self.job.get("status") or {}
        phase, cost = _phase(self.job), _cost(status)
        hint = f"nodus describe job/{self.name}"
        if phase == "Succeeded":
            return [f" {_mark('✓', 'green')} Succeeded in {_took(status)} · {cost} · {hint}"]
        mark = _mark("✗", "red")
        if phase == "Cancelled":
            return [f" {mark} {'Cancelled':<14} · {cost}"]
        lines = [f" {mark} {phase:<14} ({status.get('reason')}) after {_took(status)} · {cost} · {hint}"]
        lines += [f"   {status['message']}"] if status.get("message") else []
        return [*lines, *_fix(status)]


def interrupted(view: RunView) -> None:
    """React to Ctrl+C: at a terminal ask whether to cancel the Job, elsewhere cancel it."""
    clear()
    again = f"nodus logs -f job/{view.name} follows it, nodus cancel job/{view.name} ends it"
    if sys.stdin.isatty() and sys.stderr.isatty():
        sys.stderr.write(f"\nCancel job/{view.name}? [y/N] ")
        sys.stderr.flush()
        try:
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            answer = ""
            say("")
        if answer.strip().lower() not in ("y", "yes"):
            say(f"job/{view.name} goes on: {again}")
            return
    view.cancel()
    say(f"Canceling job/{view.name}…")


def exit_code(job: Mapping[str, Any]) -> int:
    """Return what ``nodus run`` exits with for an ended Job: the command's own exit code, 124 or 125."""
    status = job.get("status") or {}
    if status.get("phase") == "Succeeded":
        return 0
    if status.get("phase") == "Failed" and status.get("reason") == "DeadlineExceeded":
        return EXIT_DEADLINE
    code = status.get("exitCode")
    own = status.get("phase") == "Failed" and status.get("reason") not in NOT_THE_COMMANDS
    return int(code) if own and code else EXIT_OTHER


def say(*lines: str) -> None:
    """Print lines about the run, after what the command has printed."""
    clear()
    sys.stdout.flush()
    for line in lines:
        print(visible_but_paint(line), file=sys.stderr)


def _mark(sign: str, style: str) -> str:
    return paint(sign, style, sys.stderr)


def _fix(status: Mapping[str, Any]) -> list[str]:
    return [f"   fix: {status['fix']}"] if status.get("fix") else []


def _phase(job: Mapping[str, Any]) -> str:
    return str((job.get("status") or {}).get("phase") or "Queued")


def _cost(status: Mapping[str, Any]) -> str:
    cost = status.get("cost") or {}
    return f"${cost.get('totalUSD', '0.00')}{'' if cost.get('final') else ' so far'}"


def _took(status: Mapping[str, Any]) -> str:
    from nodus.core.clock import parse_rfc3339

    if not status.get("startTime") or not status.get("completionTime"):
        return "0s"
    took = parse_rfc3339(status["completionTime"]) - parse_rfc3339(status["startTime"])
    return format_duration(max(0.0, took.total_seconds()))
