"""The inside of one program's process: run the code, call its function, write what it returned.

From the moment the code runs, everything here is the code's: it may replace any of it. What it writes is data to
whoever reads it, no more trusted than the text that it was.
"""

from __future__ import annotations

import json
import os
from typing import Any

from nodus.grader.codebox import plain

_REASON_CHARS = 300


def run(request: dict[str, Any], results: int) -> None:
    """Run a request's code and write ``{"calls": [...]}`` or ``{"fault": reason}`` to a descriptor."""
    data = json.dumps(_outcome(request)).encode()
    while data:
        data = data[os.write(results, data) :]


def _outcome(request: dict[str, Any]) -> dict[str, Any]:
    name = request["function"]
    scope: dict[str, Any] = {"__name__": "completion"}
    try:
        exec(compile(request["code"], "<completion>", "exec"), scope)
    except BaseException as error:  # noqa: BLE001 - the code may raise anything, also SystemExit
        return {"fault": _shown(error)}
    function = scope.get(name)
    if not callable(function):
        return {"fault": f"the code defines no function {name!r}"}
    return {"calls": [_call(function, arguments) for arguments in request["calls"]]}


def _call(function: Any, arguments: str) -> list[str]:
    try:
        value = function(*plain.loads(arguments))
    except BaseException as error:  # noqa: BLE001 - the code may raise anything, also SystemExit
        return ["raised", _shown(error)]
    try:
        return ["returned", plain.dumps(value)]
    except BaseException as error:  # noqa: BLE001 - the value's class is the code's own
        return ["raised", f"bad result: {_shown(error)}"]


def _shown(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_REASON_CHARS]
    except BaseException:  # noqa: BLE001 - the exception's class is the code's own
        return "an exception that can't be shown"
