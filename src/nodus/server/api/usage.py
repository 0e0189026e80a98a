"""What running objects use: the few queries of Prometheus' form that ``nodus top`` sends.

``sum by (name) (nodus_container_cpu_millis{kind="Job"})``, with ``nodus_container_memory_bytes`` and the GPU series
(empty where nothing measures GPUs), and ``name="..."`` beside the kind for one object.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from starlette.responses import Response

from nodus.core.errors import BadRequest, Unavailable
from nodus.core.kinds import ATTEMPT, KINDS
from nodus.server.api.call import Call
from nodus.server.api.http import json_response, read_body
from nodus.server.api.reading import require_project
from nodus.server.store import objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

PATH = "/metrics/v1/namespaces/{project}/api/v1/query"
CPU, MEMORY = "nodus_container_cpu_millis", "nodus_container_memory_bytes"
SERIES = (CPU, MEMORY, "nodus_container_gpu_utilization_percent", "nodus_container_gpu_memory_bytes")
_QUERY = re.compile(r"\s*(?:sum|avg)\s+by\s*\(name\)\s*\(\s*(\w+)\s*\{([^{}]*)\}\s*\)\s*")
_MATCHER = re.compile(r'\s*(kind|name)\s*=\s*"([^"\\]*)"\s*')
_INTERVAL_S = 0.2
"""CPU use is the mean over so long."""
_BODY_LIMIT_BYTES = 16 * 1024


async def query(call: Call) -> Response:
    """Use of CPU and memory by object, as an instant vector of Prometheus' API."""
    call.audited = True  # it only reads
    text = call.query("query")
    if call.method == "POST" and text is None:
        form = parse_qs((await read_body(call.request, _BODY_LIMIT_BYTES)).decode("utf-8", "replace"))
        text = (form.get("query") or [""])[-1]
    series, wanted = _parse(text or "")
    kind = KINDS.get(wanted.get("kind", ""))
    if kind is None:
        raise BadRequest(f"the query names no kind that there is: {text!r}", fix='Say which, such as {kind="Job"}.')
    call.principal.require("list", kind, call.project)
    if call.services.backend is None:
        raise Unavailable("this process runs nothing, so it measures nothing", fix="Ask a server with all roles.")
    owners = await call.services.store.read(_running, call.project, kind.singular, wanted.get("name"))
    values = await _measured(call.services.backend, owners, series)
    moment = call.services.clock.now().timestamp()
    vector = [{"metric": {"name": name}, "value": [moment, str(int(value))]} for name, value in sorted(values.items())]
    return json_response({"status": "success", "data": {"resultType": "vector", "result": vector}})


def _parse(text: str) -> tuple[str, dict[str, str]]:
    """Return the series and the labels of a query."""
    match = _QUERY.fullmatch(text)
    matchers = [_MATCHER.fullmatch(part) for part in match[2].split(",")] if match else []
    if match is None or match[1] not in SERIES or not all(matchers):
        raise BadRequest(
            f"the query {text[:200]!r} is not understood",
            fix=f'Ask for sum by (name) (SERIES{{kind="Job"}}) with one of {", ".join(SERIES)}.',
        )
    return match[1], {found[1]: found[2] for found in matchers if found}


def _running(conn: Connection, project: str | None, singular: str, name: str | None) -> dict[str, list[str]]:
    """Return the names of objects with the uids of their running attempts."""
    require_project(conn, project)
    label = f"nodus.dev/{singular}"
    found: dict[str, list[str]] = {}
    for attempt in objects.list_(conn, ATTEMPT, project, labels=label, fields="status.phase=Running").items:
        owner = attempt.labels[label]
        if name in (None, owner):
            found.setdefault(owner, []).append(attempt.uid)
    return found


async def _measured(backend: Any, owners: dict[str, list[str]], series: str) -> dict[str, float]:
    """Return the value of a series by object."""
    keys = [uid for uids in owners.values() for uid in uids]
    if not keys or series not in (CPU, MEMORY):
        return {}
    first = await backend.usage(keys)
    if series == MEMORY:
        return {name: sum(first[uid].memory_bytes for uid in uids if uid in first) for name, uids in owners.items()}
    begun = asyncio.get_running_loop().time()
    await asyncio.sleep(_INTERVAL_S)
    second = await backend.usage(keys)
    passed_s = asyncio.get_running_loop().time() - begun
    found: dict[str, float] = {}
    for name, uids in owners.items():
        used_s = sum(max(0.0, second[uid].cpu_s - first[uid].cpu_s) for uid in uids if uid in first and uid in second)
        found[name] = round(1000 * used_s / passed_s)
    return found
