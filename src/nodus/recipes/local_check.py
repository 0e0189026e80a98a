"""Tries a packaged reward on this machine, in a process of its own, before anything is sent.

It is called twice, as the grader will call it: with one task's answer for a completion, and with an empty completion.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodus.core.libraries import GRADER_LIBRARIES
from nodus.recipes.bundling import PackagedReward
from nodus.recipes.errors import RewardError, RewardNotTried

TIMEOUT_S = 60.0
REWARD_MODULE = "nodus_reward"

# Runs in the other process: reads {"name", "cases"} on standard input, answers one JSON line on the descriptor in argv.
_CHECK = r"""
import json, numbers, os, sys, traceback
MAX_REWARD = 1e9  # the grader refuses larger ones
answer_fd, root = int(sys.argv[1]), sys.argv[2]
sys.argv[:] = ["reward"]
asked = json.load(sys.stdin)
sys.path[:0] = [root, os.path.join(root, "site")]

def finish(**found):
    os.write(answer_fd, json.dumps(found).encode())
    os._exit(0)

def fault(stage, error):
    trace = traceback.extract_tb(error.__traceback__)
    frames = [frame.lineno for frame in trace if frame.filename.endswith("nodus_reward.py")]
    if isinstance(error, SyntaxError) and error.lineno:
        frames = [error.lineno]
    finish(
        stage=stage,
        type=type(error).__name__,
        message=str(error)[:500],
        line=frames[-1] if frames else None,
        module=getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None,
    )

try:
    import nodus_reward
    reward = getattr(nodus_reward, asked["name"])
except BaseException as error:
    fault("import", error)
for case in asked["cases"]:
    try:
        value = reward(case["completion"], case["answer"])
    except BaseException as error:
        fault(case["stage"], error)
    if value is None:
        continue
    if isinstance(value, numbers.Number) or hasattr(value, "dtype"):
        try:
            if abs(float(value)) <= MAX_REWARD:
                continue
        except (TypeError, ValueError, OverflowError):
            pass
    finish(stage=case["stage"], value=repr(value)[:200], returned=type(value).__name__)
finish(stage="passed")
"""


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
    fix = (
        "Return None or 0 when a reply holds no answer."
        if found["stage"] == "empty"
        else "Correct the line, then try again."
    )
    raise RewardError(f"{where}: {call} raised {found['type']}: {found['message']}", fix=fix)


def _run(
    packaged: PackagedReward, asked: dict[str, Any], files: Mapping[str, bytes], timeout_s: float
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="nodus-reward-") as folder:
        root = Path(folder, "bundle")
        for name, content in files.items():
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        empty = Path(folder, "empty")
        empty.mkdir()
        read_fd, write_fd = os.pipe()
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "NODUS_"))}
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CHECK, str(write_fd), str(root)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(write_fd,),
                cwd=empty,
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(write_fd)
        with os.fdopen(read_fd, "rb") as answers:
            try:
                process.communicate(json.dumps(asked).encode(), timeout=timeout_s)
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
    if found["type"] in ("FileNotFoundError", "IsADirectoryError"):
        return "Files don't go along: put the data into the tasks, or into a constant of the reward's file."
    return "The reward is loaded with only the lines it uses; correct this one, or do that work in the tasks."


def _return_line(packaged: PackagedReward) -> str:
    """Return where the reward begins in the user's file."""
    for number, line in enumerate(packaged.text.splitlines(), start=1):
        if line.lstrip().startswith(f"def {packaged.name}("):
            return packaged.origin(number)
    return packaged.name
