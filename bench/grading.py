"""Completions graded a second, with a trivial reward, a fresh process for each completion.

Two figures, against the floor of 400 a second on two cores: through the isolated pool alone, and the whole way that a
trainer's completions take: attempt socket, supervisor's proxy, HTTP, authentication, recorded verdicts (SQLite,
synchronous=FULL), pool. A third, against 25 a second: a reward that has each completion's code run in the code sandbox,
ten calls each. A fourth, against 10,000 a second: an environment of the catalog that is scored without a process for
each completion, through the pool. The server is a process of its own; the pool has as many graders as there are cores.

And the time to the first verdict of an environment that was never used here: its bundle unpacked, its tasks listed in
a sandbox, a grader started, one completion graded; at most 1.5 s.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench._harness import Figure, report

if TYPE_CHECKING:
    from nodus.server.grading import GradingService
    from nodus.server.services import Services

FLOOR = 400.0
ROUNDS = 5
COMPLETIONS = 1024
TASKS = 256
POOL = Figure(name="grading-pool", unit="completions/s", goal=1.0, better="higher")
CODE_FLOOR = 25.0
CODE = Figure(name="grading-code", unit="completions/s", goal=1.0, better="higher")
DIRECT_FLOOR = 10_000.0
DIRECT_COMPLETIONS = 20_000
DIRECT = Figure(name="grading-direct", unit="completions/s", goal=1.0, better="higher")
COLD = Figure(name="grading-cold", unit="s", goal=1.5)
SOCKET = Figure(name="grading-socket", unit="completions/s", goal=1.0, better="higher")
REWARD = f"""
def tasks(split):
    return [(f"{{split}} {{n}}", str(n)) for n in range({TASKS})]

def reward(completion, answer):
    return float(completion == answer)
"""

CODE_REWARD = f"""
from nodus.grader.code import run_code

def tasks(split):
    return [(f"{{split}} {{n}}", n) for n in range({TASKS})]

def reward(completion, answer):
    outcome = run_code(completion, "f", [[n] for n in range(10)])
    return float([call.value for call in outcome.calls] == [n + answer for n in range(10)])
"""


def bundle(reward: str = REWARD) -> bytes:
    """Return an environment's bundle."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo("nodus_task.py")
        member.size = len(reward)
        archive.addfile(member, io.BytesIO(reward.encode()))
    return buffer.getvalue()


def source_package(folder: Path, reward: str) -> dict[str, Any]:
    """Put a bundle into a folder of blobs; return its ``spec.package``."""
    digest = hashlib.sha256(bundle(reward)).hexdigest()
    (folder / digest).write_bytes(bundle(reward))
    return {"source": {"blob": f"sha256:{digest}", "module": "nodus_task"}}


def service_over(folder: Path) -> GradingService:
    """Return a grading service over a folder of blobs."""
    from nodus.server.compute.local.graders import LocalGraders
    from nodus.server.grading import EnvironmentLibrary, GradingService, MemoryManifests

    library = EnvironmentLibrary(folder / "unpacked", lambda blob: folder / blob.removeprefix("sha256:"))
    return GradingService(library, MemoryManifests(), LocalGraders())


async def pool(
    folder: Path, package: dict[str, Any], completion: Callable[[int], str], completions: int
) -> list[float]:
    """Return completions a second through the pool, once a round."""
    from nodus.server.grading import Completion

    service, rates = service_over(folder), []
    try:
        environment = await service.resolve("trivial", {"version": "1.0.0", "package": package})
        tasks = (await service.tasks(environment, "train", 0)).tasks
        for _ in range(ROUNDS + 1):
            items = [Completion(tasks[n % TASKS].task_id, n, completion(n)) for n in range(completions)]
            begun = time.perf_counter()
            verdicts = await service.grade("bench", environment, items)
            rates.append(completions / (time.perf_counter() - begun))
            assert {verdict.outcome for verdict in verdicts} <= {"Passed", "Failed"}
    finally:
        await service.close()
    return rates[1:]


async def cold(folder: Path) -> list[float]:
    """Return seconds to the first verdict of an environment that is new each round."""
    from nodus.server.grading import Completion

    service, times = service_over(folder), []
    try:
        await service.isolation()
        for number in range(ROUNDS + 1):
            package = source_package(folder, f"{REWARD}\n# {number}\n")
            begun = time.perf_counter()
            environment = await service.resolve("trivial", {"version": "1.0.0", "package": package})
            task = (await service.tasks(environment, "train", 0)).tasks[0]
            (verdict,) = await service.grade(f"bench-{number}", environment, [Completion(task.task_id, 0, "x")])
            times.append(time.perf_counter() - begun)
            assert verdict.verdict == "Incorrect"
            await service.release(f"bench-{number}")
    finally:
        await service.close()
    return times[1:]


def through_socket(folder: Path) -> list[float]:
    """Return completions a second through the attempt socket, once a round."""
    from nodus.server.compute.local.proxy import Proxy, listen
    from nodus.trainer.attempt import AttemptClient, Sample

    with _server(folder) as token:
        socket_path = str(folder / "api.sock")
        proxy = Proxy(listen(socket_path), folder / "server.json", token)
        proxy.start()
        client = AttemptClient(Path(socket_path), "default", "bench", "bench-1")
        tasks, _ = client.tasks()
        numbers, rates = count(), []
        for step in range(ROUNDS + 1):
            samples = [Sample(tasks[n % TASKS].id, n // TASKS, str(next(numbers))) for n in range(COMPLETIONS)]
            begun = time.perf_counter()
            verdicts = client.grade("Training", step, samples)
            rates.append(COMPLETIONS / (time.perf_counter() - begun))
            assert {verdict.outcome for verdict in verdicts} <= {"Passed", "Failed"}
        proxy.close()
    return rates[1:]


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """Run the API with a TrainingJob that is in its training stage; give its attempt's token."""
    command = [sys.executable, "-m", "bench.grading", "--serve", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()


async def serve(folder: Path) -> None:
    """Serve until standard input ends; print the attempt's token once requests are answered."""
    import uvicorn

    from nodus.core.clock import SystemClock
    from nodus.server import bootstrap
    from nodus.server.api.app import create_app
    from nodus.server.settings import Settings

    folder.joinpath("data").mkdir(mode=0o700)
    services, _ = bootstrap.open_services(Settings(data_dir=folder / "data", roles=("api",)), SystemClock())
    token = _put_run(services)
    server = uvicorn.Server(uvicorn.Config(create_app(services), port=0, log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has a flag and no event
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    folder.joinpath("server.json").write_text(f'{{"url": "http://127.0.0.1:{port}"}}')
    async with bootstrap.background(services):
        print(token, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await serving
    services.store.close()


def _put_run(services: Services) -> str:
    """Put a running TrainingJob over the trivial environment into the store; return its attempt's token."""
    from nodus.core.kinds import ATTEMPT, ENVIRONMENT, JOB, TRAINING_JOB
    from nodus.server.store import objects

    blob = services.store.blobs.put_bytes(bundle())
    package = {"source": {"blob": f"sha256:{blob}", "module": "nodus_task"}}
    put: Callable[..., Any] = lambda *a, **k: services.store.write_sync(  # noqa: E731 - a shorthand of this function
        lambda conn: objects.create(conn, *a, **k)
    )
    put(ENVIRONMENT, "default", "trivial", {"version": "1.0.0", "package": package}, status={"phase": "Ready"})
    spec = {"runtime": "nodus/grpo-lora", "environment": {"name": "trivial@1.0.0", "trainTasks": TASKS}}
    pinned = {"seed": 0, "trainTasks": TASKS, "heldOutTasks": 0}
    run = put(TRAINING_JOB, "default", "bench", spec, status={"phase": "Running", "job": "bench", "pinned": pinned})
    job = put(JOB, "default", "bench", {}, owner=run, status={"phase": "Running"})
    attempt_spec = {"job": "bench", "epoch": 1}
    attempt = put(ATTEMPT, "default", "bench-1", attempt_spec, owner=job, status={"phase": "Running"})
    return services.signer.attempt_token(attempt.uid)


def main() -> int:
    """Measure both ways and print a line for each."""
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(serve(Path(sys.argv[2])))
        return 0
    with tempfile.TemporaryDirectory(prefix="nodus-bench-") as name:
        folder = Path(name)
        report(POOL, asyncio.run(pool(folder, source_package(folder, REWARD), str, COMPLETIONS)), [FLOOR])
        code: Callable[[int], str] = "def f(x):\n    return x + {}".format
        report(CODE, asyncio.run(pool(folder, source_package(folder, CODE_REWARD), code, TASKS)), [CODE_FLOOR])
        catalog = {"catalog": {"module": "graph_coloring"}}
        colors: Callable[[int], str] = '{{"0": {}}}'.format
        report(DIRECT, asyncio.run(pool(folder, catalog, colors, DIRECT_COMPLETIONS)), [DIRECT_FLOOR])
        report(COLD, asyncio.run(cold(folder)))
    with tempfile.TemporaryDirectory(prefix="nodus-bench-") as name:
        report(SOCKET, through_socket(Path(name)), [FLOOR])
    return 0


if __name__ == "__main__":
    sys.exit(main())
