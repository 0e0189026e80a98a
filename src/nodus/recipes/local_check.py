"""Tries a packaged reward on this machine, in a process of its own, before anything is sent.

It is called twice, as the grader will call it: with one task's answer for a completion, and with an empty completion.
A reward that runs code of completions has it run, here too, by the program that does so in the grader: with its limits,
but in no sandbox, since it is nothing but the user's own answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nodus.core.libraries import GRADER_LIBRARIES
from nodus.recipes.bundling import PackagedReward
from nodus.recipes.errors import RewardError, RewardNotTried
from nodus.recipes.imports import CODE_MODULE

TIMEOUT_S = 60.0
_END_TIMEOUT_S = 5.0
REWARD_MODULE = "nodus_reward"
_NODUS = Path(__file__).resolve().parents[1]
_PROGRAM = Path(__file__).with_name("reward_check.py")


def try_reward(
    packaged: PackagedReward, answer: Any, files: Mapping[str, bytes], *, timeout_s: float = TIMEOUT_S
) -> None:
    """Call the reward as the grader will, with an answer for a completion and with an empty one.

    A reward that needs one of the grader's libraries which this machine lacks is not tried: a warning says so, and the
    server tries it in the same way, in its grader, before anything trains.

    Args:
        packaged: The reward.
        answer: One task's answer.
        files: The bundle's files by name, vendored packages included.
        timeout_s: Seconds for both calls together.

    Raises:
        RewardError: When it can't be imported, raises, takes too long or returns something other than a
            finite number, a bool or None; with the line in the user's file.
    """
    completion = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    cases = [
        {"stage": "answer", "completion": completion, "answer": answer},
        {"stage": "empty", "completion": "", "answer": answer},
    ]
    if _runs_code(packaged) and not sys.platform.startswith("linux"):
        warnings.warn(
            f"{packaged.name}() was not tried on this machine: {CODE_MODULE} runs code on Linux only; the server tries "
            "it in its grader before anything trains",
            RewardNotTried,
            stacklevel=2,
        )
        return
    found = _run(packaged, {"name": packaged.name, "cases": cases}, files, timeout_s)
    if found["stage"] == "passed":
        return
    where = packaged.origin(found.get("line"))
    if (module := str(found.get("module")).partition(".")[0]) in GRADER_LIBRARIES:
        distribution = GRADER_LIBRARIES[module]
        warnings.warn(
            f"{where}: {packaged.name}() was not tried on this machine, which has no module {module!r}; the server "
            f"tries it in its grader before anything trains. To try it here first: pip install {distribution}",
            RewardNotTried,
            stacklevel=2,
        )
        return
    call = {"answer": f"{packaged.name}({completion[:40]!r}, ...)", "empty": f'{packaged.name}("", ...)'}.get(
        found["stage"], ""
    )
    if found["stage"] == "import":
        raise RewardError(
            f"{where}: the reward's module can't be loaded on its own: {found['type']}: {found['message']}",
            fix=_import_fix(found),
        )
    if "returned" in found:
        raise RewardError(
            f"{_return_line(packaged)}: {call} returned {found['value']}, a {found['returned']}",
            fix="Return a number from -1e9 to 1e9, a bool, or None where the reply holds no answer.",
        )
    raise RewardError(f"{where}: {call} raised {found['type']}: {found['message']}", fix=_call_fix(found))


def _run(
    packaged: PackagedReward, asked: dict[str, Any], files: Mapping[str, bytes], timeout_s: float
) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="nodus-reward-"))
        root = Path(folder, "bundle")
        for name, content in files.items():
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        empty = Path(folder, "empty")
        empty.mkdir()
        code_fd = stack.enter_context(_code_runner(empty)) if _runs_code(packaged) else None
        read_fd, write_fd = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-B", str(_PROGRAM), str(write_fd), str(root)],
                stdin=subprocess.PIPE,
                pass_fds=(write_fd, *([] if code_fd is None else [code_fd])),
                **_quiet(empty),
            )
        finally:
            os.close(write_fd)
        more = {"code_fd": code_fd, "nodus": str(_NODUS.parent), "timeout_s": timeout_s}
        with os.fdopen(read_fd, "rb") as answers:
            try:
                process.communicate(json.dumps({**asked, **more}).encode(), timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                raise RewardError(
                    f"{packaged.name}() did not return within {timeout_s:g} s on an answer and an empty reply",
                    fix="A reward is called for every reply; make it quick.",
                ) from error
            finally:
                _end(process)
            line = answers.read()
    if not line:
        raise RewardError(
            f"{packaged.name}() ended the process (exit code {process.returncode}) instead of returning",
            fix="Return a number; don't call exit().",
        )
    found: dict[str, Any] = json.loads(line)
    return found


def _quiet(folder: Path) -> dict[str, Any]:
    """Return how processes are started here: away from the user's files and settings, and in a group of their own."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "NODUS_"))}
    null = subprocess.DEVNULL
    return {"stdout": null, "stderr": null, "cwd": folder, "env": environment, "start_new_session": True}


def _runs_code(packaged: PackagedReward) -> bool:
    return "nodus.grader" in packaged.text


@contextlib.contextmanager
def _code_runner(folder: Path) -> Iterator[int]:
    """Start what runs code of completions in a grader, without its sandbox; yield the descriptor of its socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = [sys.executable, "-S", "-P", "-B", str(_NODUS / "grader" / "codebox")]
    with ours, theirs:
        process = subprocess.Popen(
            [*program, "--control-fd", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            **_quiet(folder),
        )
        theirs.close()
        try:
            yield ours.fileno()
        finally:
            ours.close()  # it then ends by itself, after the program that it runs
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_TIMEOUT_S)
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it started: a child that lives on would hold the answer's pipe open."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _import_fix(found: dict[str, Any]) -> str:
    if found["type"] in ("ModuleNotFoundError", "ImportError"):
        return "Install the package on this machine too, so that the reward can be tried."
    return (
        _absence_fix(found)
        or "The reward is loaded with only the lines it uses; correct this one, or do that work in the tasks."
    )


def _call_fix(found: dict[str, Any]) -> str:
    if found["stage"] == "empty" and found["type"] not in ("FileNotFoundError", "OSError"):
        return "Return None or 0 when a reply holds no answer."
    return _absence_fix(found) or "Correct the line, then try again."


def _absence_fix(found: dict[str, Any]) -> str | None:
    if found["type"] in ("FileNotFoundError", "IsADirectoryError"):
        return "Files don't go along: put the data into the tasks, or into a constant of the reward's file."
    if "the grader has no network" in found["message"]:
        return "Put what the reward needs into the tasks, or into a constant of its file."
    return None


def _return_line(packaged: PackagedReward) -> str:
    """Return where the reward begins in the user's file."""
    for number, line in enumerate(packaged.text.splitlines(), start=1):
        if line.lstrip().startswith(f"def {packaged.name}("):
            return packaged.origin(number)
    return packaged.name
