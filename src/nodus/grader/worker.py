"""The warm worker: an environment loaded once, completions in, verdicts out, a fresh process for each.

Requests are JSON lines on standard input: ``{"id", "taskId", "completion"}``, or ``"turns"``, a list of the model's
turns, in place of the completion. Each is answered by a JSON line on the private descriptor, in the order of the
requests: the verdict; with ``"step": true``, the environment's ``messages`` after the last turn, null at the end of
the episode, or the verdict InfrastructureFailure. Standard input and output of everything the environment does are
/dev/null. The worker ends when its input does.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from nodus.grader import cache, process
from nodus.grader.completion import Scorer
from nodus.grader.direct import Direct
from nodus.grader.loading import Environment
from nodus.grader.tasks import Task
from nodus.grader.verdicts import failure

DEFAULT_TIMEOUT_S = 10.0
_encode = json.JSONEncoder(ensure_ascii=False).encode
EXIT_REPLACE_ME = 75
"""Exit code of a worker that could not clean up after a completion: nothing failed, but start another one."""
EXIT_NO_CODE_SANDBOX = 76
"""Exit code of a worker whose code sandbox was gone when a completion needed it."""
EXIT_CODE_ENDED_SANDBOX = 77
"""Exit code of a worker whose code sandbox ended while it ran a completion's code."""


class Output:
    """The only way results leave the process.

    Args:
        descriptor: Where lines are written.
        requests: The descriptor that requests are read from.
        private: Whether results go to a host's descriptor and not to somebody's terminal or pipe.
    """

    def __init__(self, descriptor: int, requests: int, private: bool) -> None:
        self.descriptor = descriptor
        self.requests = requests
        self.private = private

    @classmethod
    def take_over(cls, output_fd: int | None) -> Output:
        """Move standard input and (without ``output_fd``) standard output away, and put /dev/null in their place."""
        requests = os.dup(0)
        private = output_fd is not None
        output_fd = os.dup(1) if output_fd is None else output_fd
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.close(null)
        for descriptor in (requests, output_fd):
            os.set_inheritable(descriptor, False)
        return cls(output_fd, requests, private)

    def line(self, value: dict[str, Any]) -> None:
        """Write one JSON line."""
        data = _encode(value).encode("utf-8", "surrogatepass") + b"\n"
        while data:
            data = data[os.write(self.descriptor, data) :]


def serve(
    environment: Environment,
    output: Output,
    *,
    timeout_s: float,
    lifeline_fd: int | None,
    steps: bool = False,
    pure: bool = False,
) -> int:
    """Answer requests until the input ends; return the exit code.

    Args:
        environment: What grades.
        output: Where answers go.
        timeout_s: Wall limit of one request.
        lifeline_fd: Closed in children.
        steps: Whether every request is for the environment's messages and not for a verdict.
        pure: Whether completions are scored in this process; see ``direct``.
    """
    tasks = environment.by_id()
    cache.settle()
    private_fds = (output.descriptor, output.requests, *([] if lifeline_fd is None else [lifeline_fd]))
    if process.is_namespace_init():
        process.adopt_orphans()
    process.hide_memory()  # a child cannot look into this process, which holds every answer
    os.dup2(0, 2)  # what rewards print goes nowhere; from here on only verdicts leave the process
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    scorer: Scorer | Direct
    scorer = Direct(environment.adapter, timeout_s) if pure else Scorer(environment.adapter, timeout_s, private_fds)
    gc.collect()
    gc.freeze()  # children then do not copy what the collector would touch
    if output.private:
        output.line({"ready": True, "tasks": len(tasks), **({"pure": True} if pure else {})})
    for request in _requests(output.requests):
        answer = _answer(scorer, tasks, request, steps)
        if lost := answer.get("lost"):
            return EXIT_CODE_ENDED_SANDBOX if lost == "running" else EXIT_NO_CODE_SANDBOX
        output.line(answer)
        if not pure and (not _clean_up() or _code_sandbox_gone()):
            return EXIT_REPLACE_ME
    return 0


def _code_sandbox_gone() -> bool:
    code = sys.modules.get("nodus.grader.code")
    return code is not None and bool(code.sandbox_gone())


def _requests(descriptor: int) -> Iterator[dict[str, Any]]:
    with open(descriptor, "rb", closefd=False) as stream:
        for line in stream:
            request = None
            with contextlib.suppress(ValueError, RecursionError):
                request = json.loads(line, parse_constant=_no_number)
            yield request if isinstance(request, dict) else {"malformed": True}


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _answer(scorer: Scorer | Direct, tasks: dict[str, Task], request: dict[str, Any], steps: bool) -> dict[str, Any]:
    task = tasks.get(str(request.get("taskId")))
    turns = _turns(request)
    evidence: dict[str, Any] = {}
    if turns is None:
        result = failure("the request is not a JSON object with taskId and completion, or turns: a list of texts")
    elif task is None:
        result = failure(f"this environment has no task {request.get('taskId')!r}")
    elif steps or request.get("step") is True:
        result, evidence = scorer.reply(task, turns)
    else:
        result, evidence = scorer.score(task, turns)
    if "traceback" in result:
        evidence["traceback"] = result.pop("traceback")
    if "code" in result:
        evidence["code"] = result.pop("code")
    answer: dict[str, Any] = {key: request[key] for key in ("id", "taskId") if key in request}
    return {**answer, **result, "evidence": evidence}


def _turns(request: dict[str, Any]) -> list[str] | None:
    """Return the model's turns of a request; None when it has none, or anything else."""
    completion = request.get("completion")
    if isinstance(completion, str):
        return [completion] if "turns" not in request else None
    turns = request.get("turns")
    return turns if isinstance(turns, list) and turns and all(isinstance(turn, str) for turn in turns) else None


def _clean_up() -> bool:
    if not process.is_namespace_init():
        return True  # in somebody's shell: other processes and /tmp are not ours
    return process.end_leftovers() and process.wipe() and cache.keep()
