"""Environments made from source text, and a grading service that ends with its test."""

from __future__ import annotations

import hashlib
import io
import secrets
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.server.compute.local.graders import LocalGraders
from nodus.server.compute.local.probe import probe
from nodus.server.grading import EnvironmentLibrary, GradingService, MemoryManifests, ResolvedEnvironment
from nodus.testing.eventually import eventually

pytestmark = pytest.mark.sandbox

EXECUTING_REWARD = '''
"""A scorer that runs the completion: the worst case, in which every attack is the completion's own text."""
counter = 0

def tasks(split):
    return [{"prompt": f"{split} {number}", "answer": f"secret-{number}"} for number in range(20)]

def reward(completion, answer):
    names = {"answer": answer, "value": 0.0}
    exec(completion, names)
    return names["value"]
'''


def bundle(files: dict[str, str | bytes]) -> bytes:
    """Return a tar.gz of files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def processes_with(marker: str) -> list[int]:
    """Return the host's processes that have a text on their command line; forked children inherit it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def nothing_left_of(marker: str) -> None:
    """Wait until the host has no process with a text on its command line."""
    eventually(lambda: not processes_with(marker))


@pytest.fixture(scope="session", autouse=True)
def _needs_isolation() -> None:
    isolation = probe()
    if not isolation.ok:
        pytest.skip(f"this machine cannot isolate: {isolation.problems}")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def environment_names() -> Iterator[list[str]]:
    """Return a list to add names to; once the service has closed, no process of any of them may be left."""
    names: list[str] = []
    yield names
    for name in names:
        nothing_left_of(name)


@pytest.fixture
async def service(tmp_path: Path, clock: FakeClock, environment_names: list[str]) -> AsyncIterator[GradingService]:
    """Return a grading service whose blobs are files of the test's directory."""
    library = EnvironmentLibrary(tmp_path / "environments", lambda blob: tmp_path / blob.removeprefix("sha256:"))
    made = GradingService(library, MemoryManifests(), LocalGraders(), clock)
    yield made
    await made.close()


Specify = Callable[..., tuple[str, dict[str, Any]]]


@pytest.fixture
def specify(tmp_path: Path, environment_names: list[str]) -> Specify:
    """Return a function from source text to an environment's name and spec."""

    def make(source: str, *, files: dict[str, str | bytes] | None = None, **spec: Any) -> tuple[str, dict[str, Any]]:
        data = bundle({"nodus_task.py": source, **(files or {})})
        digest = hashlib.sha256(data).hexdigest()
        (tmp_path / digest).write_bytes(data)
        environment_names.append(f"env-{secrets.token_hex(6)}")
        package = {"source": {"blob": f"sha256:{digest}", "module": "nodus_task"}}
        return environment_names[-1], {"version": "1.0.0", "package": package, **spec}

    return make


MakeEnvironment = Callable[..., ResolvedEnvironment]


@pytest.fixture
def make_environment(service: GradingService, specify: Specify) -> MakeEnvironment:
    """Return a function from source text to an environment."""

    def make(source: str, **spec: Any) -> ResolvedEnvironment:
        return service.library.resolve(*specify(source, **spec))

    return make


@pytest.fixture
def executing(make_environment: MakeEnvironment) -> ResolvedEnvironment:
    """Return an environment whose reward runs the completion, with tight limits."""
    return make_environment(EXECUTING_REWARD, sandbox={"timeout": "2s", "memory": "256Mi"})
