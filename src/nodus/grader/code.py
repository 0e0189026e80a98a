"""For rewards that run code of a completion: it runs in a second sandbox, as another user, with no answer in it.

    from nodus.grader.code import matches, run_code

    def reward(completion, answer):
        outcome = run_code(completion, "double", [[2], [5]])
        return float(outcome.fault is None and [call.value for call in outcome.calls] == [4, 10])

Only arguments go there, and only plain data comes back; what is expected stays here and is compared here. Whatever the
code does wrong (crash, time, memory, a bad result) is in the outcome and no exception, so that the reward can be 0.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import re
import select
import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from nodus.grader.codebox.plain import NotPlain, dumps, loads, matches

__all__ = ["Call", "CodeSandboxLost", "NotPlain", "Outcome", "loads", "matches", "note", "python_of", "run_code"]

_BLOCK = re.compile(r"```([^\n`]*)\n(.*?)(?:```|\Z)", re.DOTALL)  # takes no more time than the text is long
_PYTHON = ("", "py", "python", "python3")

DEFAULT_TIMEOUT_S = 5.0
DEFAULT_MEMORY_MIB = 256
_MARGIN_S = 1.5
"""Kept of the completion's wall limit for what comes after the code: a loop must end as the code's fault, not ours."""
_LEAST_S = 0.1
_GRACE_S = 5.0
_REPLY_BYTES = 4 << 20
_REQUEST_BYTES = 16 << 20
MAX_CODE_CHARS = 1 << 20
"""The longest code that is run; whatever is longer is its own fault."""


class CodeSandboxLost(BaseException):
    """The code sandbox is gone. No ``Exception``: a reward that catches those must not turn it into a reward.

    Attributes:
        sandbox_lost: ``running`` when it ended while it ran the code, else ``gone``.
    """

    def __init__(self, message: str, sandbox_lost: str) -> None:
        super().__init__(message)
        self.sandbox_lost = sandbox_lost


class Call(NamedTuple):
    """What one call came to.

    Attributes:
        value: What it returned; None when it did not.
        error: What it raised, such as ``ZeroDivisionError: division by zero``; None when it returned.
    """

    value: Any = None
    error: str | None = None


class Outcome(NamedTuple):
    """What running the code came to.

    Attributes:
        calls: One for each call; empty with a fault.
        fault: Why there are no results, such as ``ran longer than 5 s and was killed``; None when there are.
        output: The end of what it printed.
        exit_code: Of its process; None when a signal ended it.
        signal: The signal's name; None without.
        timed_out: Whether it was killed at its time limit.
        duration_ms: How long it ran.
        peak_memory_bytes: The most memory its process had.
    """

    calls: list[Call]
    fault: str | None = None
    output: str = ""
    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    duration_ms: float = 0.0
    peak_memory_bytes: int = 0


class _State:
    master: socket.socket | None = None
    control: socket.socket | None = None
    wall_s = 10.0
    pid = 0
    begun = 0.0
    runs = 0
    facts: dict[str, Any] | None = None


def use(control_fd: int, wall_s: float) -> None:
    """Run code through this control socket from now on; the worker's business.

    Completions never have that socket: each fork of this process gets one of its own, which ends with it, so that
    nothing a completion leaves there is in the way of the next.

    Args:
        control_fd: The grader's end of the socket.
        wall_s: Wall limit of one completion.
    """
    _State.master = socket.socket(fileno=control_fd)
    _State.wall_s = wall_s
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


def _before_fork() -> None:
    if _State.master is not None:
        _State.control = _hand_over(_State.master, socket.SOCK_SEQPACKET)


def _after_fork() -> None:
    if _State.master is not None and _State.control is not None:
        _State.control.close()
        _State.control = None


def _in_child() -> None:
    if _State.master is not None:
        _State.master.close()
        _State.master = None


def _hand_over(control: socket.socket, kind: int) -> socket.socket:
    """Send one end of a new pair of sockets and return the other; where nobody takes it, that has no other end."""
    here, there = socket.socketpair(socket.AF_UNIX, kind)
    with there, contextlib.suppress(OSError):
        control.sendmsg([b"c"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [there.fileno()]))])
    return here


def sandbox_gone() -> bool:
    """Say whether there was a code sandbox and it has ended; the worker's business."""
    if _State.master is None:
        return False
    poller = select.poll()
    poller.register(_State.master, 0)
    return bool(poller.poll(0))


def evidence() -> dict[str, Any] | None:
    """Return what is recorded of the code that this process had run; None when it had none run."""
    return None if _State.facts is None else {**_State.facts, "runs": _State.runs}


def note(text: str) -> None:
    """Add a sentence to the evidence of the code that ran last, such as ``2 of 7 calls returned something else``."""
    if _State.facts is not None:
        _State.facts["note"] = text[:300]


def python_of(reply: str) -> str:
    """Return the code of a chat model's reply: its last fenced block of Python; the whole reply where it has no block.

    Nothing of it is parsed or run. An empty block counts as none.
    """
    blocks = [text for language, text in _BLOCK.findall(reply) if language.strip().lower() in _PYTHON and text.strip()]
    return str(blocks[-1]) if blocks else reply


def run_code(
    code: str,
    function: str,
    calls: Sequence[Sequence[Any]],
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    memory_mib: int = DEFAULT_MEMORY_MIB,
) -> Outcome:
    """Run code in the code sandbox and call one of its functions.

    Args:
        code: Python source text; it has the standard library, 16 MiB under ``/tmp``, and no network.
        function: The function that is called, once for each of ``calls``, in a row and in one process.
        calls: The positional arguments of each call: plain data (numbers, text, lists, tuples, dicts, None).
        timeout_s: Wall limit of everything together, in seconds; less where the completion's own limit is near. Where
            earlier runs have used that up, the outcome says so and nothing is run.
        memory_mib: Address space of each of its processes, in MiB, at most 256.

    Returns:
        The outcome, whatever the code did.

    Raises:
        NotPlain: When an argument is no plain data.
        RuntimeError: Where there is no code sandbox, as outside of a grader.
        CodeSandboxLost: When the sandbox ended; the completion is then graded again with another.
    """
    if _State.control is None:
        if _State.master is None:
            raise RuntimeError("run_code works in a grader: there is no code sandbox here")
        _State.control = _hand_over(_State.master, socket.SOCK_SEQPACKET)
    if len(code) > MAX_CODE_CHARS:
        return _not_run(f"the code has {len(code)} characters; at most {MAX_CODE_CHARS} are run")
    now = time.monotonic()
    if os.getpid() != _State.pid:
        _State.pid, _State.begun = os.getpid(), now
    left_s = _State.wall_s - _MARGIN_S - (now - _State.begun)
    if left_s < _LEAST_S and _State.runs:
        allowed_s = _State.wall_s - _MARGIN_S
        return _not_run(f"the code had used up its time, {allowed_s:g} s for all of its runs", timed_out=True)
    timeout_s = max(_LEAST_S, min(timeout_s, left_s))
    request = {
        "code": code,
        "function": function,
        "calls": [dumps(list(arguments)) for arguments in calls],
        "timeoutSeconds": timeout_s,
        "memoryBytes": min(memory_mib, DEFAULT_MEMORY_MIB) << 20,
    }
    body = json.dumps(request).encode()
    if len(body) > _REQUEST_BYTES:
        raise NotPlain(f"the arguments of the calls are {len(body) >> 20} MiB; at most {_REQUEST_BYTES >> 20} fit")
    reply = _exchange(_State.control, body, now + timeout_s + _GRACE_S)
    outcome = _outcome(reply, len(calls))
    _State.runs += 1
    names = ("exitCode", "signal", "timedOut", "ms", "peakMemoryBytes", "outputSHA256")
    _State.facts = {name: reply[name] for name in names if reply.get(name) is not None}
    if outcome.fault is not None:
        _State.facts["fault"] = outcome.fault
    return outcome


def _not_run(fault: str, *, timed_out: bool = False) -> Outcome:
    """Return, and record, the outcome of code that is not run."""
    _State.facts = {**(_State.facts or {}), "timedOut": timed_out, "fault": fault}
    return Outcome([], fault, timed_out=timed_out)


def _exchange(control: socket.socket, request: bytes, deadline: float) -> dict[str, Any]:
    """Send a request over a connection of its own and return the reply."""
    with _hand_over(control, socket.SOCK_STREAM) as here:
        data = bytearray()
        taken = False
        with contextlib.suppress(OSError):
            here.settimeout(max(0.0, deadline - time.monotonic()))
            here.sendall(request)
            taken = True
            here.shutdown(socket.SHUT_WR)
            while len(data) <= _REPLY_BYTES and (chunk := here.recv(1 << 16)):
                data += chunk
    try:
        reply = json.loads(data)
    except ValueError:
        if not taken:
            raise CodeSandboxLost("the code sandbox is gone", "gone") from None
        raise CodeSandboxLost("the code sandbox ended while it ran the completion's code", "running") from None
    if reply.get("sandbox"):
        raise CodeSandboxLost(str(reply["fault"]), "gone")
    return dict(reply)


def _outcome(reply: dict[str, Any], calls: int) -> Outcome:
    results, fault = _calls(reply.get("results", ""), calls) if reply.get("fault") is None else ([], reply["fault"])
    return Outcome(
        calls=results,
        fault=fault,
        output=reply.get("output", ""),
        exit_code=reply.get("exitCode"),
        signal=reply.get("signal"),
        timed_out=reply.get("timedOut") is True,
        duration_ms=reply.get("ms", 0.0),
        peak_memory_bytes=reply.get("peakMemoryBytes", 0),
    )


def _calls(text: str, count: int) -> tuple[list[Call], str | None]:
    """Return what a program wrote of its calls, or why that is no result; it may have written anything."""
    try:
        said = json.loads(text)
        fault = said.get("fault")
        if fault is not None:
            return [], str(fault)[:300]
        found = [_one(*call) for call in said["calls"]]
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return [], "bad result: what the code's process wrote is no list of results"
    if len(found) != count:
        return [], f"bad result: {len(found)} results of {count} calls"
    return found, None


def _one(kind: str, text: str) -> Call:
    if kind == "returned":
        return Call(loads(text))
    if kind != "raised":
        raise NotPlain("neither a result nor an error")
    return Call(error=str(text)[:300])
