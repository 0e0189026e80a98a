"""Pools: order, parallelism, retries, idleness, release; with real sandboxes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nodus.core.clock import FakeClock
from nodus.core.errors import EnvironmentTasksFailed, GraderFailed, Unavailable
from nodus.server.compute.local import cgroups
from nodus.server.compute.local.graders import LocalGraders
from nodus.server.compute.local.probe import Isolation, probe
from nodus.server.grading import Completion, EnvironmentLibrary, GradingService, MemoryManifests, ResolvedEnvironment
from nodus.server.grading import pool as pool_module
from nodus.testing.eventually import eventually, eventually_async
from tests.integration.grading.conftest import MakeEnvironment, Specify, nothing_left_of, processes_with

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

NO_ISOLATION = Isolation(
    "none", "root", False, False, False, "rlimits", "rlimits", ("not installed: x",), (), "install x"
)
ECHO = """
def tasks(split):
    return [{"prompt": f"{split} {number}", "answer": number} for number in range(50)]

def reward(completion, answer):
    return answer / 100
"""


async def _items(service: GradingService, environment: ResolvedEnvironment, count: int) -> list[Completion]:
    tasks = (await service.tasks(environment, "train", 3)).tasks
    return [Completion(tasks[n % len(tasks)].task_id, n, "x") for n in range(count)]


async def test_thousands_of_completions_come_back_in_order(
    service: GradingService, make_environment: MakeEnvironment
) -> None:
    environment = make_environment(ECHO)
    items = await _items(service, environment, 1500)
    prompts = {task.task_id: task.prompt for task in (await service.tasks(environment, "train", 3)).tasks}
    verdicts = await service.grade("job", environment, items, 2)
    assert [(v.task_id, v.sample) for v in verdicts] == [(i.task_id, i.sample) for i in items]
    assert [v.reward for v in verdicts] == [int(str(prompts[i.task_id]).split()[1]) / 100 for i in items]
    assert service.graders == 2


async def test_long_and_strange_completions_arrive_whole(
    service: GradingService, make_environment: MakeEnvironment
) -> None:
    environment = make_environment(
        "def tasks(split): return [(split, 'a')]\n"
        "def reward(completion, answer):\n"
        "    import hashlib\n"
        "    return int(hashlib.sha256(completion.encode('utf-8', 'surrogatepass')).hexdigest()[:6], 16)\n"
    )
    texts = ["", "x" * 3_000_000, "é\n\r\0 \ud800", '{"id": 1}\n{"id": 2}', "\U0001f600" * 1000]
    task = (await service.tasks(environment, "test", 0)).tasks[0]
    verdicts = await service.grade("job", environment, [Completion(task.task_id, n, t) for n, t in enumerate(texts)])
    expected = [int(hashlib.sha256(t.encode("utf-8", "surrogatepass")).hexdigest()[:6], 16) for t in texts]
    assert [verdict.reward for verdict in verdicts] == expected


async def test_evidence_tells_how_much_memory_a_completion_took(
    service: GradingService, make_environment: MakeEnvironment
) -> None:
    environment = make_environment(
        "def tasks(split): return [(split, 'a')]\n"
        "def reward(completion, answer): return len(b'x' * int(completion)) >= 0\n"
    )
    task = (await service.tasks(environment, "test", 0)).tasks[0]
    items = [Completion(task.task_id, n, text) for n, text in enumerate(["0", str(100 << 20)])]
    small, large = await service.grade("job", environment, items, 1)
    assert (small.reward, large.reward) == (1.0, 1.0), large
    assert 0 < small.evidence["peakMemoryBytes"] < 100 << 20 < large.evidence["peakMemoryBytes"]


async def test_slow_completion_does_not_hold_up_the_other_grader(
    service: GradingService, executing: ResolvedEnvironment
) -> None:
    tasks = (await service.tasks(executing, "test", 0)).tasks
    programs = ["while True: pass"] + ["value = 1"] * 40
    items = [Completion(tasks[n % len(tasks)].task_id, n, text) for n, text in enumerate(programs)]
    slow, *others = await service.grade("job", executing, items, 2)
    assert slow.verdict == "InfrastructureFailure"
    assert slow.evidence["timedOut"] is True and 2000 <= slow.evidence["processMs"] < 10_000
    assert {verdict.verdict for verdict in others} == {"Correct"}


async def test_grader_that_is_killed_is_replaced_and_its_completion_tried_once_more(
    service: GradingService, executing: ResolvedEnvironment
) -> None:
    tasks = (await service.tasks(executing, "test", 0)).tasks
    programs = ["import time; time.sleep(1.5); value = 1"] + ["value = 1"] * 10
    items = [Completion(tasks[n].task_id, n, text) for n, text in enumerate(programs)]
    grading = asyncio.create_task(service.grade("job", executing, items, 1))
    await eventually_async(lambda: _is_grading(executing.name))
    (worker,) = [pid for pid in processes_with(executing.name) if _number_inside(pid) == 1]
    os.kill(worker, signal.SIGKILL)
    first, *others = await grading
    assert (first.verdict, first.evidence["tries"]) == ("Correct", 2)
    assert [(v.verdict, v.evidence["tries"]) for v in others] == [("Correct", 1)] * 10


async def _is_grading(name: str) -> bool:
    """Whether a grader has forked for a completion."""
    return any(_number_inside(pid) > 1 for pid in processes_with(name))


def _number_inside(pid: int) -> int:
    """A process's pid in its sandbox; 0 when it is in none, or gone."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except OSError:
        return 0
    numbers = status["NSpid"].split()
    return int(numbers[-1]) if len(numbers) > 1 else 0


async def test_completion_that_kills_every_grader_becomes_a_failure_after_two_tries(
    service: GradingService, make_environment: MakeEnvironment
) -> None:
    # the worker itself is what runs out: it reads the request before it forks
    environment = make_environment(
        "def tasks(split): return [(f'{split} {n}', 'a') for n in range(5)]\ndef reward(c, a): return 1\n",
        sandbox={"memory": "64Mi"},
    )
    tasks = (await service.tasks(environment, "test", 0)).tasks
    items = [Completion(tasks[0].task_id, 0, "x" * (48 << 20)), *(Completion(t.task_id, 0, "x") for t in tasks)]
    large, *others = await service.grade("job", environment, items, 1)
    assert (large.verdict, large.reward, large.evidence["tries"]) == ("InfrastructureFailure", None, 2)
    assert large.evidence["oom"] is True and "out of memory" in (large.reason or "")
    assert {verdict.verdict for verdict in others} == {"Correct"}


async def test_pool_idle_for_five_minutes_is_ended_and_starts_again(
    service: GradingService, make_environment: MakeEnvironment, clock: FakeClock
) -> None:
    environment = make_environment(ECHO)
    items = await _items(service, environment, 4)
    await service.grade("job", environment, items, 1)
    clock.advance(299)
    assert (await service.end_idle(), service.graders) == (0, 1)
    clock.advance(2)
    assert (await service.end_idle(), service.graders) == (1, 0)
    nothing_left_of(environment.name)
    assert len(await service.grade("job", environment, items, 1)) == 4


async def test_release_ends_the_graders_of_that_key_only(
    service: GradingService, make_environment: MakeEnvironment
) -> None:
    environment = make_environment(ECHO)
    items = await _items(service, environment, 4)
    for key in ("one", "two"):
        await service.grade(key, environment, items, 1)
    await service.release("one")
    assert service.graders == 1
    await service.release("unknown")


async def test_release_during_a_batch_gives_it_up_at_once_so_that_it_is_sent_again(
    service: GradingService, executing: ResolvedEnvironment
) -> None:
    task = (await service.tasks(executing, "test", 0)).tasks[0]
    endless = [Completion(task.task_id, 0, "import time; time.sleep(60)")]
    grading = asyncio.create_task(service.grade("job", executing, endless, 1))
    await eventually_async(lambda: _is_grading(executing.name))
    await service.release("job")
    with pytest.raises(Unavailable, match="released"):
        await grading
    nothing_left_of(executing.name)


async def test_batch_that_waits_for_its_turn_is_given_up_too_and_starts_no_grader(
    service: GradingService, executing: ResolvedEnvironment
) -> None:
    task = (await service.tasks(executing, "test", 0)).tasks[0]
    endless = [Completion(task.task_id, 0, "import time; time.sleep(60)")]
    grading = asyncio.create_task(service.grade("job", executing, endless, 1))
    await eventually_async(lambda: _is_grading(executing.name))
    waiting = asyncio.create_task(service.grade("job", executing, endless, 1))
    await asyncio.sleep(0)  # until it waits behind the first
    await service.release("job")
    for batch in (grading, waiting):
        with pytest.raises(Unavailable, match="released"):
            await batch
    nothing_left_of(executing.name)


async def test_closed_service_starts_nothing(service: GradingService, executing: ResolvedEnvironment) -> None:
    await service.close()
    with pytest.raises(Unavailable, match="stopping"):
        await service.grade("job", executing, [Completion("t", 0, "x")])


async def test_closing_ends_a_listing_that_hangs_and_does_not_blame_the_environment(
    service: GradingService, make_environment: MakeEnvironment
) -> None:
    environment = make_environment("import time\ntime.sleep(60)")
    listing = asyncio.create_task(service.tasks(environment, "train", 0))
    await eventually_async(lambda: _runs(environment.name))
    await service.close()
    with pytest.raises(Unavailable, match="stopping"):
        await listing
    nothing_left_of(environment.name)


async def _runs(name: str) -> bool:
    return any(_number_inside(pid) == 1 for pid in processes_with(name))


async def test_grader_is_replaced_after_many_completions(
    service: GradingService, make_environment: MakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "RECYCLE_AFTER", 10)
    environment = make_environment("import os\n" + ECHO.replace("answer / 100", "os.stat('/proc/self').st_ino"))
    items = await _items(service, environment, 40)
    verdicts = await service.grade("job", environment, items, 1)
    assert {verdict.outcome for verdict in verdicts} == {"Passed"}


async def test_max_parallel_is_obeyed_also_when_it_falls(
    service: GradingService, make_environment: MakeEnvironment
) -> None:
    environment = make_environment(ECHO)
    items = await _items(service, environment, 60)
    await service.grade("job", environment, items, 3)
    assert service.graders == 3
    await service.grade("job", environment, items, 1)
    await eventually_async(lambda: _count_is(service, 1))


async def _count_is(service: GradingService, count: int) -> bool:
    return service.graders == count


async def test_environment_that_does_not_load_fails_everything_with_its_traceback(
    service: GradingService, make_environment: MakeEnvironment
) -> None:
    environment = make_environment("import json\nraise OSError('no data here')\n")
    with pytest.raises(EnvironmentTasksFailed, match="no data here") as caught:
        await service.tasks(environment, "train", 0)
    assert "nodus_task.py" in caught.value.details["traceback"]
    verdicts = await service.grade("job", environment, [Completion("t", n, "x") for n in range(30)], 2)
    assert {(v.verdict, v.reward) for v in verdicts} == {("InfrastructureFailure", None)}
    assert "no data here" in (verdicts[0].reason or "")
    assert "nodus_task.py" in verdicts[0].evidence["traceback"]


async def test_unknown_task_is_a_failure_and_not_a_reward(
    service: GradingService, make_environment: MakeEnvironment
) -> None:
    (verdict,) = await service.grade("job", make_environment(ECHO), [Completion("0" * 16, 0, "x")])
    assert (verdict.verdict, verdict.reward) == ("InfrastructureFailure", None)
    assert "has no task" in (verdict.reason or "")


async def test_machine_without_isolation_refuses_and_says_the_fix(tmp_path: Path, specify: Specify) -> None:
    library = EnvironmentLibrary(tmp_path / "environments", lambda blob: tmp_path / blob.removeprefix("sha256:"))
    service = GradingService(library, MemoryManifests(), LocalGraders(lambda: NO_ISOLATION))
    environment = library.resolve(*specify(ECHO))
    with pytest.raises(EnvironmentTasksFailed, match="install x"):
        await service.tasks(environment, "train", 0)
    with pytest.raises(GraderFailed, match="install x"):
        await service.grade("job", environment, [Completion("t", 0, "x")])
    await service.close()


async def test_isolation_that_was_missing_is_looked_for_again(tmp_path: Path, specify: Specify) -> None:
    found = [NO_ISOLATION, probe()]
    library = EnvironmentLibrary(tmp_path / "environments", lambda blob: tmp_path / blob.removeprefix("sha256:"))
    service = GradingService(library, MemoryManifests(), LocalGraders(lambda: found.pop(0)))
    environment = library.resolve(*specify(ECHO))
    with pytest.raises(EnvironmentTasksFailed, match="install x"):
        await service.tasks(environment, "train", 0)
    assert len((await service.tasks(environment, "train", 0)).tasks) == 50
    await service.close()


async def test_unsafe_grading_is_named_in_every_verdict(tmp_path: Path, specify: Specify) -> None:
    library = EnvironmentLibrary(tmp_path / "environments", lambda blob: tmp_path / blob.removeprefix("sha256:"))
    service = GradingService(library, MemoryManifests(), LocalGraders(lambda: NO_ISOLATION), allow_unsafe=True)
    try:
        environment = library.resolve(*specify(ECHO))
        verdicts = await service.grade("job", environment, await _items(service, environment, 8), 1)
        assert {v.evidence["isolation"] for v in verdicts} == {"none (--allow-unsafe-sandbox)"}
        assert {v.outcome for v in verdicts} == {"Failed"}
    finally:
        await service.close()
    nothing_left_of(environment.name)


async def test_service_leaves_no_descriptor_thread_or_control_group(tmp_path: Path, specify: Specify) -> None:
    library = EnvironmentLibrary(tmp_path / "environments", lambda blob: tmp_path / blob.removeprefix("sha256:"))
    name, spec = specify(ECHO)

    async def use() -> tuple[int, int]:
        service = GradingService(library, MemoryManifests(), LocalGraders())
        environment = await service.resolve(name, spec)
        await service.grade("job", environment, await _items(service, environment, 20), 2)
        await service.close()
        return len(os.listdir("/proc/self/fd")), len([t for t in threading.enumerate() if "grader" in t.name])

    first = await use()
    assert await use() == first == (first[0], 0)
    place = cgroups.hierarchy()
    own = f"{cgroups.PREFIX}{cgroups._maker(os.getpid())}-*"
    assert place is None or not [path for parent in place.parents.values() for path in parent.glob(own)]


SERVER = """
import asyncio, sys
from pathlib import Path
from nodus.server.compute.local.graders import LocalGraders
from nodus.server.grading import *

async def main(root, name, blob):
    library = EnvironmentLibrary(root / "environments", lambda digest: root / digest.removeprefix("sha256:"))
    service = GradingService(library, MemoryManifests(), LocalGraders())
    package = {"source": {"blob": blob, "module": "nodus_task"}}
    environment = await service.resolve(name, {"version": "1.0.0", "package": package})
    task = (await service.tasks(environment, "test", 0)).tasks[0]
    print("grading", flush=True)
    await service.grade("job", environment, [Completion(task.task_id, n, "x") for n in range(40)], 2)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
"""


DAEMONS = """
import os, time
def tasks(split): return [(split, "a")]
def reward(completion, answer):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    time.sleep(9)
    return 1
"""
# hangs inside C code, where Python runs no signal handlers and no other thread gets a turn
HANGS_AT_IMPORT = """
if %r in open("/proc/self/cmdline").read().split("\\0"):
    9 ** 9 ** 9
def tasks(split): return [(split, "a")]
def reward(completion, answer): return 1
"""


@pytest.mark.parametrize(
    ("source", "processes"),
    [
        pytest.param(DAEMONS, 9, id="rewards with daemons"),  # the server; of each grader: bwrap, 1, completion, daemon
        pytest.param(HANGS_AT_IMPORT % "grade", 5, id="graders that hang at import"),
    ],
)
def test_killed_server_takes_its_graders_along(source: str, processes: int, tmp_path: Path, specify: Specify) -> None:
    name, spec = specify(source)
    command = [sys.executable, "-c", SERVER, str(tmp_path), name, spec["package"]["source"]["blob"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == b"grading\n"
            eventually(lambda: len(processes_with(name)) >= processes, timeout_s=30)
        finally:
            server.kill()
    started = time.monotonic()
    nothing_left_of(name)
    assert time.monotonic() - started < 4.0, "they must die with the server, not when they are done"


def test_killed_server_takes_an_environment_that_hangs_while_it_lists_along(tmp_path: Path, specify: Specify) -> None:
    name, spec = specify(HANGS_AT_IMPORT % "tasks")
    command = [sys.executable, "-c", SERVER, str(tmp_path), name, spec["package"]["source"]["blob"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            eventually(lambda: len(processes_with(name)) >= 3, timeout_s=30)
        finally:
            server.kill()
    nothing_left_of(name)
