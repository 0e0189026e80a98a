"""`top`'s queries: what running objects use, measured by the backend, one project at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nodus.server.compute.base import MemberSpec, Usage
from nodus.server.services import Services
from nodus.server.store import Object
from nodus.testing.compute import FakeBackend
from tests.integration.api.conftest import Api

PATH = "/metrics/v1/namespaces/default/api/v1/query"


def query(series: str, labels: str = 'kind="Job"') -> dict[str, str]:
    return {"query": f"sum by (name) (nodus_container_{series}{{{labels}}})", "timeout": "10s"}


class Busy(FakeBackend):
    """Each look finds 50 ms more of CPU time, and two megabytes."""

    looks = 0

    async def usage(self, keys: Any) -> dict[str, Usage]:
        self.looks += 1
        found = await super().usage(keys)
        return {key: Usage(self.looks * 0.05, 2 << 20) for key in found}


@pytest.fixture
async def running(services: Services, put: Callable[..., Object]) -> None:
    """Job a with two members that run, job b that ended."""
    services.backend = backend = Busy()
    for name, rank, phase in (("a", 0, "Running"), ("a", 1, "Running"), ("b", 0, "Succeeded")):
        attempt = put(
            "Attempt",
            f"{name}-{rank}",
            {"job": name, "epoch": 1},
            labels={"nodus.dev/job": name},
            status={"phase": phase},
        )
        await backend.start(MemberSpec(attempt.uid, ["x"], "nodus/base", "t"))
        backend._states[attempt.uid] = replace(backend.read_state(attempt.uid), phase="Running")


@pytest.mark.usefixtures("running")
async def test_cpu_and_memory_of_running_objects(api: Api) -> None:
    written = len((await api.ok("GET", "/apis/nodus.dev/v1/auditevents"))["items"])
    found = (await api.ok("POST", PATH, data=query("memory_bytes")))["data"]
    assert found["resultType"] == "vector"
    assert [(item["metric"], item["value"][1]) for item in found["result"]] == [({"name": "a"}, str(4 << 20))]
    (cpu,) = (await api.ok("GET", PATH, params=query("cpu_millis")))["data"]["result"]
    assert 0 < float(cpu["value"][1]) <= 500  # two members with 50 ms in at least 200
    assert (await api.ok("GET", PATH, params=query("gpu_memory_bytes")))["data"]["result"] == []
    other = query("memory_bytes", 'kind="Job", name="b"')
    assert (await api.ok("GET", PATH, params=other))["data"]["result"] == []
    assert len((await api.ok("GET", "/apis/nodus.dev/v1/auditevents"))["items"]) == written  # it only reads


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize(
    "text",
    ["", "up", 'sum by (name) (up{kind="Job"})', 'sum by (name) (nodus_container_cpu_millis{kind="Nope"})',
     'sum by (name) (nodus_container_cpu_millis{pod="x"})', "sum by (name) (nodus_container_cpu_millis{})", "x" * 9000],
)  # fmt: skip
async def test_other_queries_are_refused(api: Api, text: str) -> None:
    refusal = await api.fails(400, "BadRequest", "POST", PATH, data={"query": text})
    assert len(refusal["message"]) < 400


@pytest.mark.usefixtures("running")
async def test_a_key_sees_its_kinds_and_projects_only(api: Api, with_key: Callable[..., Api]) -> None:
    question = {"data": query("memory_bytes")}
    await with_key("volumes:read").fails(403, "Forbidden", "POST", PATH, **question)
    assert (await with_key("jobs:read", name="reader").call("POST", PATH, **question)).status_code == 200
    foreign = with_key("*", projects=["other"], name="foreign")
    assert (await foreign.call("POST", PATH, **question)).status_code in (403, 404)
    await api.fails(404, "NotFound", "POST", PATH.replace("default", "nope"), **question)


async def test_a_process_that_runs_nothing_says_so(api: Api, services: Services) -> None:
    services.backend = None
    await api.fails(503, "Unavailable", "POST", PATH, data=query("memory_bytes"))
