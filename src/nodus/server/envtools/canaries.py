"""Canaries: programs that try to get out, to run on, and to stay, each for real in both sandboxes.

``nodus doctor`` runs them: in the grader's sandbox, where a reward runs, and in the one that runs code of completions.
What they try is harmless where it succeeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nodus.server.envtools.local import grading
from nodus.server.envtools.subjects import of_path
from nodus.server.grading.verdicts import Completion, Verdict

_BROKEN = "Run nobody else's environments here, and report what this says: the isolation does not hold on this machine."
_STAYS_S = 2.0
_LOOK_S = 0.02
_GRADER_TIMEOUT, _CODE_TIMEOUT = "1s", "2500ms"  # 1.5 s of the latter are kept for what comes after the code

_ESCAPE = """
def canary(given):
    import ctypes
    import os
    import socket

    found = []
    for path in given["hidden"]:
        try:
            os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1)
        except OSError:
            continue
        found.append("reads " + path)
    for place in given["fixed"]:
        try:
            with open(os.path.join(place, "nodus-canary"), "w"):
                found.append("writes to " + place)
        except OSError:
            pass
    for family, address in ((socket.AF_INET, ("127.0.0.1", given["port"])), (socket.AF_UNIX, given["abstract"])):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as connection:
                connection.settimeout(0.2)
                connection.connect(address)
                found.append("reaches the host by " + family.name)
        except OSError:
            pass
    libc = ctypes.CDLL(None, use_errno=True)
    for name, flag in (("user", 0x10000000), ("network", 0x40000000), ("mount", 0x20000)):
        if libc.unshare(flag) == 0:
            found.append("makes a namespace: " + name)
    if libc.ptrace(16, os.getppid(), None, None) == 0:
        found.append("traces its parent")
    for change in (os.setuid, os.setgid):
        try:
            change(0)
        except OSError:
            continue
        found.append(change.__name__ + "(0) succeeds")
    return found
"""
_ENDLESS = """
def canary(given):
    import signal

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGXCPU):
        signal.signal(number, signal.SIG_IGN)
    while True:
        pass
"""
_ORPHAN = """
def canary(given):
    import os

    reader, writer = os.pipe()  # closed where it is executed: its end says that the orphan runs
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            try:
                os.execv("/bin/sleep", [given["marker"], "120"])
            except OSError:
                os.write(writer, b"not started")
        os._exit(0)
    os.close(writer)
    return [said.decode()] if (said := os.read(reader, 100)) else []
"""
_IN_GRADER = """
import json

def tasks(split):
    return [(f"a canary of {split}", "none")]

def reward(completion, answer):
    order, names = json.loads(completion), {}
    exec(order["code"], names)
    if found := names["canary"](order["given"]):
        raise RuntimeError("; ".join(found))
    return 1.0
"""
_IN_CODE = """
import json

from nodus.grader.code import run_code

def tasks(split):
    return [(f"a canary of {split}", "none")]

def reward(completion, answer):
    order = json.loads(completion)
    outcome = run_code(order["code"], "canary", [[order["given"]]])
    if outcome.timed_out:
        return 0.0
    if outcome.fault or outcome.calls[0].error:
        raise RuntimeError(str(outcome.fault or outcome.calls[0].error))
    if outcome.calls[0].value:
        raise RuntimeError("; ".join(outcome.calls[0].value))
    return 1.0
"""
_KINDS = {"escape": _ESCAPE, "time-out": _ENDLESS, "orphan": _ORPHAN}


@dataclass(frozen=True, slots=True)
class Canary:
    """What came of one canary.

    Attributes:
        name: Its kind and its sandbox, such as ``escape (grader)``.
        held: Whether the sandbox held.
        found: What it found, in words.
        fix: What to do when it did not hold.
    """

    name: str
    held: bool
    found: str
    fix: str | None = None


def run() -> list[Canary]:
    """Run every canary in both sandboxes (some two seconds).

    Raises:
        NoSandbox: Where no sandbox can be had.
    """
    return asyncio.run(_run_all())


async def _run_all() -> list[Canary]:
    with tempfile.TemporaryDirectory(prefix="nodus-canary-") as folder, _bait(Path(folder)) as given:
        found = await asyncio.gather(
            _run_in("grader", _IN_GRADER, _GRADER_TIMEOUT, Path(folder), given),
            _run_in(
                "code",
                _IN_CODE,
                _CODE_TIMEOUT,
                Path(folder),
                given | {"hidden": [*given["hidden"], "/opt/environment"]},
            ),
        )
    return [canary for canaries in found for canary in canaries]


@contextlib.contextmanager
def _bait(folder: Path) -> Iterator[dict[str, Any]]:
    """Give what there is to be reached on this machine: files, a port, a socket."""
    secret = folder / "secret"
    secret.write_text("for nobody")
    secret.chmod(0o644)
    folder.chmod(0o755)  # nothing but the sandbox keeps them from it
    abstract = f"\0nodus-canary-{secrets.token_hex(8)}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(abstract)
        local.listen()
        yield {
            "hidden": [str(secret), *_precious(), "/etc/shadow", f"/proc/{os.getpid()}/environ"],
            "fixed": ["/", "/usr", "/etc", "/opt"],
            "port": server.getsockname()[1],
            "abstract": abstract,
        }


def _precious() -> list[str]:
    """Return what a user has that nobody else is to read; what is not there can't be read either."""
    return [str(Path.home() / name) for name in (".nodus", ".ssh", ".bash_history", ".netrc", ".aws", ".config")]


async def _run_in(place: str, source: str, limit: str, folder: Path, given: dict[str, Any]) -> list[Canary]:
    module = folder / f"canary_{place}.py"
    module.write_text(source)
    marker = f"nodus-canary-{secrets.token_hex(8)}"
    subject = await asyncio.to_thread(of_path, str(module), folder / place)
    subject = replace(subject, spec={**subject.spec, "sandbox": {"timeout": limit}})
    orders = [json.dumps({"code": code, "given": given | {"marker": marker}}) for code in _KINDS.values()]
    async with grading(subject) as service:
        environment = await service.resolve(subject.name, subject.spec)
        task = (await service.tasks(environment, "test", 0)).tasks[0]
        items = [Completion(task.task_id, number, order) for number, order in enumerate(orders)]
        verdicts = await service.grade(subject.name, environment, items, 1)
        escape, endless, orphan = verdicts
        stayed = await asyncio.to_thread(_stays, marker)
    return [
        _held_or_not(
            "escape", place, escape.verdict == "Correct", "no file, network, process or right of the host", escape
        ),
        _held_or_not("time-out", place, _ended(place, endless), "an endless loop was killed at its limit", endless),
        _held_or_not(
            "orphan",
            place,
            orphan.verdict == "Correct" and not stayed,
            "a daemon was killed with its completion",
            orphan,
            f"process {stayed} stayed" if stayed else None,
        ),
    ]


def _ended(place: str, verdict: Verdict) -> bool:
    """Tell whether the endless loop was ended as such: as the code's fault in its sandbox, else as the reward's."""
    if place == "code":
        return verdict.verdict == "Incorrect"
    return verdict.verdict == "InfrastructureFailure" and bool(verdict.evidence.get("timedOut"))


def _held_or_not(kind: str, place: str, held: bool, good: str, verdict: Verdict, bad: str | None = None) -> Canary:
    name = f"{kind} ({place})"
    if held:
        return Canary(name, True, good)
    reason = (verdict.reason or "").removeprefix("reward raised RuntimeError: ")
    return Canary(name, False, bad or reason or f"ended as {verdict.verdict}", _BROKEN)


def _stays(marker: str) -> int | None:
    """Return a process of this machine that still has a marker on its command line after a while."""
    deadline = time.monotonic() + _STAYS_S
    while (pid := _process_with(marker)) is not None and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return pid


def _process_with(marker: str) -> int | None:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if marker.encode() in (entry / "cmdline").read_bytes():
                    return int(entry.name)
    return None
