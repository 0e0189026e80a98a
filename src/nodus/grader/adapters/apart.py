"""Work in a process of its own, so that an environment's object stays as its loader made it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from nodus.grader.adapters.base import EnvironmentFault

_CHUNK = 1 << 16


def apart(what: str, work: Callable[[], Any]) -> Any:
    """Return what ``work`` returns in a fork of this process, as JSON brings it back.

    Args:
        what: What is done, for messages.
        work: Does it.

    Raises:
        EnvironmentFault: When it raises, ends its process, or returns what is no JSON.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(work, write_end)
    os.close(write_end)
    with open(read_end, "rb") as stream:
        data = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != 0 or not data:
        raise EnvironmentFault(f"{what} ended its process with exit code {code}", "")
    report = json.loads(data)
    if "error" in report:
        raise EnvironmentFault(f"{what} failed: {report['error']}", report["trace"])
    return report["result"]


def _child(work: Callable[[], Any], write_end: int) -> None:
    """Work, report, end; never returns."""
    status = 1
    try:
        try:
            report = json.dumps({"result": work()})
        except BaseException as error:  # noqa: BLE001 - an environment may raise anything, also SystemExit
            report = json.dumps(_report(error))
        data = report.encode()
        while data:
            data = data[os.write(write_end, data[:_CHUNK]) :]
        status = 0
    finally:
        os._exit(status)


def _report(error: BaseException) -> dict[str, str]:
    from nodus.grader.loading import outside_trace  # late: it imports this package

    return {"error": f"{type(error).__name__}: {error}"[:500], "trace": outside_trace(error)}
