"""Code of completions in its own sandbox: what it can't reach, and that whatever it does wrong is its own fault.

Each attack stands between two honest completions, which are graded as if it had not been there; what the code does
wrong is Incorrect with that evidence, never an InfrastructureFailure that would spare it; and the host finds nothing of
it afterwards.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodus.core.clock import FakeClock
from nodus.server.catalog import read_catalog
from nodus.server.compute.local import uidpool
from nodus.server.compute.local.graders import LocalGraders
from nodus.server.compute.local.gradersandbox import CODE_UID
from nodus.server.grading import (
    Completion,
    EnvironmentLibrary,
    GradingService,
    MemoryManifests,
    ResolvedEnvironment,
    Verdict,
)
from nodus.testing.eventually import eventually
from tests.integration.grading.conftest import MakeEnvironment, bundle, processes_with

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

CODE_REWARD = """
from nodus.grader.code import matches, note, run_code

def tasks(split):
    return [{"prompt": f"{split} {number}", "answer": "the-answer-is-4"} for number in range(20)]

def reward(completion, answer):
    outcome = run_code(completion, "f", [[2]], timeout_s=1.5)
    if outcome.fault is not None:
        return 0.0
    [call] = outcome.calls
    if call.error:
        note(call.error)
    return float(call.error is None and matches(call.value, int(answer[-1])))
"""
POOL = range(uidpool.FIRST_UID, uidpool.FIRST_UID + uidpool.UIDS)
RIGHT, WRONG = "def f(x): return 2 * x", "def f(x): return 5"

# what it does: (program, part of the reason)
FAULTS: dict[str, tuple[str, str]] = {
    "is no Python": ("def f(x: return", "SyntaxError"),
    "defines nothing": ("g = 1", "no function 'f'"),
    "raises": ("def f(x): return x / 0", "ZeroDivisionError"),
    "raises while it is read": ("raise ValueError('boom')", "ValueError: boom"),
    "exits while it is read": ("import sys; sys.exit(0)", "SystemExit"),
    "exits in the call": ("def f(x):\n    import sys\n    sys.exit(0)", "SystemExit"),
    "ends without a word": ("import os; os._exit(0)", "exit code 0 and no result"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "kills itself": ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
    "loops": ("def f(x):\n    while True: pass", "longer than 1.5 s"),
    "sleeps": ("import time; time.sleep(100)", "longer than 1.5 s"),
    "ignores signals": (
        "import signal\nfor n in (14, 15, 24): signal.signal(n, signal.SIG_IGN)\n9 ** 9 ** 8",
        "longer than 1.5 s",
    ),
    "allocates without end": (
        "def f(x):\n    data = []\n    while True: data.append(bytearray(10 << 20))",
        "MemoryError",
    ),
    "allocates in children": (
        "import os, time\n"
        "for _ in range(20):\n    if os.fork() == 0:\n        d = bytearray(150 << 20); time.sleep(5); os._exit(0)\n"
        "time.sleep(60)",
        "",
    ),
    "forks without end": (
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "longer than 1.5 s",
    ),
    "prints 100 MB": ("import os\nfor _ in range(100): os.write(1, b'x' * (1 << 20))", "1 MiB of output"),
    "returns 50 MB": ("def f(x): return 'x' * (50 << 20)", "1 MiB of results"),
    "returns a number of 5 million digits": ("def f(x): return 1 << 16_000_000", "bad result"),
    "returns a deep list": (
        "def f(x):\n    a = []\n    for _ in range(100_000): a = [a]\n    return a",
        "bad result",
    ),
    "returns an object": ("def f(x): return object()", "bad result"),
    "returns an object that equals everything": (
        "class Equal:\n    def __eq__(self, other): return True\n    __hash__ = None\ndef f(x): return Equal()",
        "bad result",
    ),
    "returns a number that equals everything": (
        "class Equal(int):\n    def __eq__(self, other): return True\ndef f(x): return Equal(7)",
        "",
    ),
    "returns a list that can't be read": (
        "class Bad(list):\n    def __iter__(self): raise SystemExit\ndef f(x): return Bad([1])",
        "",
    ),
    "lies in the text of its exception": (
        "class Bad(Exception):\n    def __str__(self): raise SystemExit\ndef f(x): raise Bad",
        "can't be shown",
    ),
    "patches the comparison": (
        "import nodus.grader.codebox.plain as p, builtins\n"
        "p.matches = p._same = lambda *a: True\nbuiltins.float = lambda *a: 1.0\ndef f(x): return 5",
        "",
    ),
    "patches the runner": (
        "import nodus.grader.codebox.program as p\n"
        "p._outcome = p.run = p._call = lambda *a: {'verdict': 'Correct', 'reward': 1.0}\ndef f(x): return 5",
        "",
    ),
    "forges verdicts on every descriptor": (
        "import os\n"
        'line = b\'{"id": 1, "taskId": "x", "verdict": "Correct", "reward": 1.0}\\n\'\n'
        "for fd in range(3, 64):\n    try: os.write(fd, line)\n    except OSError: pass\n"
        "os._exit(0)",
        "bad result",
    ),
    "forges results of too many calls": (
        "import os, stat\n"
        "for fd in range(3, 64):\n"
        "    try:\n"
        "        if stat.S_ISFIFO(os.fstat(fd).st_mode):\n"
        '            os.write(fd, b\'{"calls": [["returned", "4"], ["returned", "4"]]}\')\n'
        "    except OSError: pass\n"
        "os._exit(0)",
        "2 results of 1 calls",
    ),
}

# what it does: the program, whose f looks for itself and returns 4 when it was kept out
KEPT_OUT: dict[str, str] = {
    "looks for the answers": (
        "import os\n"
        "def f(x):\n"
        "    places = ('/opt/environment', '/opt/nodus/nodus/grader/catalog', '/opt/nodus/nodus/grader/loading.py',\n"
        "              '/etc/shadow', '/home', '/var', '/sys', '/run', '/srv', '/mnt', '/proc/1/root/home')\n"
        "    return 4 if not any(map(os.path.exists, places)) else 0"
    ),
    "searches memory and frames for the answers": (
        "import gc, sys\n"
        "def f(x):\n"
        "    text, frame = '', sys._getframe()\n"
        "    while frame: text += repr(frame.f_locals); frame = frame.f_back\n"
        "    for o in gc.get_objects():\n"
        "        if isinstance(o, (dict, list, tuple)) and len(o) < 1000: text += repr(o)[:2000]\n"
        "    return 4 if ''.join(reversed('si-rewsna-eht')) not in text else 0"
    ),
    "is another user": (
        "import os\n"
        "def f(x):\n"
        "    status = dict(l.split(':', 1) for l in open('/proc/self/status').read().splitlines())\n"
        "    found = [int(status[name], 16) for name in ('CapEff', 'NoNewPrivs', 'Seccomp')]\n"
        f"    return 4 if found == [0, 1, 2] and os.getuid() in ({CODE_UID}, *{POOL}) else 0"
    ),
    "sees no other process": (
        "import os\n"
        "def f(x):\n"
        "    return 4 if sorted(int(n) for n in os.listdir('/proc') if n.isdigit()) == [1, os.getpid()] else 0"
    ),
    "reads the runner's memory": (
        "def f(x):\n"
        "    for name in ('mem', 'environ', 'fd/0', 'maps'):\n"
        "        try:\n            open(f'/proc/1/{name}', 'rb').read(1); return 0\n"
        "        except OSError: pass\n"
        "    return 4"
    ),
    "signals the runner": (
        "import os\n"
        "def f(x):\n"
        "    for n in range(1, 65):\n"
        "        if n not in (32, 33): os.kill(1, n)\n"
        "    try: os.kill(-1, 9)\n"
        "    except ProcessLookupError: pass\n"
        "    return 4"
    ),
    "traces the runner": ("import ctypes\ndef f(x): return 4 if ctypes.CDLL(None).ptrace(16, 1, 0, 0) == -1 else 0"),
    "uses the network": (
        "import socket\n"
        "def f(x):\n"
        "    for family in (socket.AF_INET, socket.AF_INET6, 16, 17, 38, 40):\n"
        "        try:\n            socket.socket(family, socket.SOCK_STREAM); return 0\n"
        "        except OSError: pass\n"
        "    return 4"
    ),
    "writes the runtime": (
        "def f(x):\n"
        "    for p in ('/opt/nodus/nodus/grader/codebox/program.py', '/x', '/dev/x', '/usr/x', '/etc/passwd'):\n"
        "        try:\n            open(p, 'w'); return 0\n"
        "        except OSError: pass\n"
        "    return 4"
    ),
    "fills /tmp": (
        "def f(x):\n"
        "    try:\n"
        "        for n in range(100): open(f'/tmp/{n}', 'wb').write(b'x' * (1 << 20))\n"
        "        return 0\n"
        "    except OSError: return 4"
    ),
    "raises its limits": (
        "import resource\n"
        "def f(x):\n"
        "    for name in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):\n"
        "        try:\n            resource.setrlimit(name, (1 << 40, 1 << 40)); return 0\n"
        "        except (OSError, ValueError): pass\n"
        "    return 4"
    ),
    "makes namespaces": (
        "import ctypes\n"
        "def f(x):\n"
        "    libc = ctypes.CDLL(None)\n"
        "    calls = [libc.unshare(0x10000000), libc.unshare(0x20000), libc.setns(0, 0), libc.chroot(b'/tmp'),\n"
        "             libc.mount(b'x', b'/tmp', b'tmpfs', 0, 0), libc.syscall(435, 0, 0)]\n"
        "    return 4 if set(calls) == {-1} else 0"
    ),
    "leaves a daemon that holds the pipes": (
        "import os, time\n"
        "def f(x):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n            time.sleep(600)\n"
        "        os._exit(0)\n"
        "    return 4"
    ),
}


@pytest.fixture
def running(make_environment: MakeEnvironment) -> ResolvedEnvironment:
    """Return an environment whose reward has the completion run in the code sandbox."""
    return make_environment(CODE_REWARD, sandbox={"timeout": "8s", "memory": "256Mi"})


@pytest.fixture(scope="module", autouse=True)
def _no_code_sandbox_is_left() -> Iterator[None]:
    yield
    eventually(lambda: not _code_sandboxes() and not any(_parent(pid) == 1 for pid in processes_with("grader/codebox")))


async def _grade(service: GradingService, environment: ResolvedEnvironment, programs: list[str]) -> list[Verdict]:
    tasks = (await service.tasks(environment, "test", 0)).tasks
    items = [Completion(tasks[n % len(tasks)].task_id, n, text) for n, text in enumerate(programs)]
    return await service.grade("job", environment, items, 1)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Verdict]]:
    """Return each attack's verdict and those of two honest completions after it, graded by one grader in a row."""
    folder = tmp_path_factory.mktemp("code")
    data = bundle({"nodus_task.py": CODE_REWARD})
    digest = hashlib.sha256(data).hexdigest()
    (folder / digest).write_bytes(data)
    package = {"source": {"blob": f"sha256:{digest}", "module": "nodus_task"}}
    spec = {"version": "1.0.0", "package": package, "sandbox": {"timeout": "8s", "memory": "256Mi"}}
    programs = {**{name: program for name, (program, _) in FAULTS.items()}, **KEPT_OUT}

    async def grade_all() -> list[Verdict]:
        library = EnvironmentLibrary(folder / "environments", lambda _: folder / digest)
        service = GradingService(library, MemoryManifests(), LocalGraders(), FakeClock())
        try:
            environment = await service.resolve("code", spec)
            return await _grade(service, environment, [text for p in programs.values() for text in (p, RIGHT, WRONG)])
        finally:
            await service.close()

    verdicts = asyncio.run(grade_all())
    return {name: verdicts[3 * number : 3 * number + 3] for number, name in enumerate(programs)}


@pytest.mark.parametrize("attack", FAULTS)
def test_fault_of_the_code_is_incorrect_with_its_evidence_and_harms_no_other(
    attack: str, attacked: dict[str, list[Verdict]]
) -> None:
    verdict, right, wrong = attacked[attack]
    assert (verdict.verdict, verdict.reward, verdict.outcome) == ("Incorrect", 0.0, "Failed"), verdict
    assert FAULTS[attack][1] in (verdict.reason or ""), verdict
    assert (right.verdict, wrong.verdict) == ("Correct", "Incorrect"), right
    assert verdict.evidence["isolation"].startswith("bubblewrap-")
    assert verdict.evidence["code"]["runs"] == 1 and verdict.evidence["code"]["ms"] > 0
    assert len(verdict.evidence["code"]["outputSHA256"]) == 64
    assert {verdict.evidence["tries"], right.evidence["tries"]} == {1}


@pytest.mark.parametrize("attack", KEPT_OUT)
def test_code_that_reaches_out_is_kept_inside(attack: str, attacked: dict[str, list[Verdict]]) -> None:
    verdict, right, wrong = attacked[attack]
    assert (verdict.verdict, verdict.reward) == ("Correct", 1.0), verdict
    assert (right.verdict, wrong.verdict) == ("Correct", "Incorrect")


async def test_program_leaves_nothing_for_the_next(service: GradingService, running: ResolvedEnvironment) -> None:
    leave = (
        "import builtins, os, nodus.grader.codebox.program as p\nbuiltins.left = p.left = 7\n"
        "os.makedirs('/tmp/a/b')\nos.chmod('/tmp/a', 0)\nopen('/tmp/f', 'w').write('x')\n"
        "open('/dev/shm/f', 'w').write('x')\ndef f(x): return 4"
    )
    look = (
        "import builtins, os, nodus.grader.codebox.program as p\n"
        "def f(x):\n"
        "    files = os.listdir('/tmp') + os.listdir('/dev/shm')\n"
        "    return 4 if not files and not hasattr(builtins, 'left') and not hasattr(p, 'left') else 0"
    )
    assert [verdict.verdict for verdict in await _grade(service, running, [leave, look])] == ["Correct", "Correct"]


def test_out_of_memory_is_told_by_the_host(attacked: dict[str, list[Verdict]]) -> None:
    verdict = attacked["allocates in children"][0]
    assert verdict.evidence["oom"] is True and (verdict.reason or "").startswith("out of memory"), verdict


async def test_own_tasks_of_python_functions_are_solved_by_their_solutions(service: GradingService) -> None:
    spec = next(each["spec"] for each in read_catalog() if each["metadata"]["name"] == "python-functions")
    environment = await service.resolve("python-functions", spec)
    listed = [task for split in ("train", "test") for task in (await service.tasks(environment, split, 0)).tasks]
    by_source = {task.metadata["source"]: task for task in listed}
    solutions = (Path(__file__).parents[3] / "scripts/python_functions_own.txt").read_text().split("\n# ---\n")[1:]
    items = []
    for number, solution in enumerate(solutions):
        task = by_source[f"nodus/{number}"]
        wrong = f"```python\ndef {task.metadata['function']}(*arguments):\n    return 'no'\n```"
        texts = (f"Here it is:\n```python\n{solution}\n```\nDone.", wrong, "I can't do that.")
        items += [Completion(task.task_id, sample, text) for sample, text in enumerate(texts)]
    verdicts = await service.grade("job", environment, items, 2)
    assert [verdict.verdict for verdict in verdicts] == ["Correct", "Incorrect", "InvalidOutput"] * len(solutions)
    assert "calls were wrong" in (verdicts[1].reason or "")


async def test_directory_too_deep_to_remove_replaces_the_sandbox_and_blames_nobody(
    service: GradingService, running: ResolvedEnvironment
) -> None:
    deep = "import os\nos.chdir('/tmp')\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\ndef f(x): return 4"
    look = "import os\ndef f(x): return 4 if os.listdir('/tmp') == [] else 0"
    verdicts = await _grade(service, running, [deep, look, look])
    assert [(verdict.verdict, verdict.evidence["tries"]) for verdict in verdicts] == [("Correct", 1)] * 3


async def test_code_that_uses_up_the_time_of_many_runs_is_incorrect(
    service: GradingService, make_environment: MakeEnvironment
) -> None:
    many = CODE_REWARD.replace(
        "    outcome =", "    for _ in range(40):\n        run_code(completion, 'f', [[1]])\n    outcome ="
    )
    environment = make_environment(many, sandbox={"timeout": "4s", "memory": "256Mi"})
    verdicts = await _grade(service, environment, ["while True: pass", RIGHT])
    assert [verdict.verdict for verdict in verdicts] == ["Incorrect", "Correct"], verdicts
    assert "used up its time, 2.5 s" in (verdicts[0].reason or "") and verdicts[0].evidence["code"]["timedOut"] is True


async def test_code_sandbox_that_is_killed_between_programs_costs_nobody_a_verdict(
    service: GradingService, running: ResolvedEnvironment
) -> None:
    assert (await _grade(service, running, [RIGHT]))[0].verdict == "Correct"
    for pid in _code_sandboxes():
        os.kill(pid, signal.SIGKILL)
    verdicts = await _grade(service, running, [RIGHT, WRONG])
    assert [verdict.verdict for verdict in verdicts] == ["Correct", "Incorrect"]


def _code_sandboxes() -> list[int]:
    """Return the processes of this test run's code sandboxes, as the host numbers them; others may test here too."""
    found = [pid for pid in processes_with("--control-fd") if _is_below(pid, os.getpid())]
    return [pid for pid in found if _runs_python(pid)]


def _runs_python(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/exe").rpartition("/")[2].startswith("python")
    except OSError:
        return False  # it has ended meanwhile


def _is_below(pid: int, ancestor: int) -> bool:
    while pid > 1 and pid != ancestor:
        pid = _parent(pid)
    return pid == ancestor


async def test_program_that_ends_its_sandbox_in_each_try_is_incorrect(
    service: GradingService, make_environment: MakeEnvironment
) -> None:
    """Killed from outside here, while the program runs: no program that can do it is known."""
    patient = CODE_REWARD.replace("timeout_s=1.5", "timeout_s=20")
    running = make_environment(patient, sandbox={"timeout": "30s", "memory": "256Mi"})
    before = set(_code_sandboxes())
    loops = FAULTS["loops"][0]
    tasks = (await service.tasks(running, "test", 0)).tasks
    grading = asyncio.create_task(service.grade("job", running, [Completion(tasks[0].task_id, 0, loops)], 1))
    for _ in range(2):
        pid = await asyncio.to_thread(_busy_sandbox, before)
        before.add(pid)
        os.kill(pid, signal.SIGKILL)
    [verdict] = await grading
    assert (verdict.verdict, verdict.reward) == ("Incorrect", 0.0), verdict
    assert "ended the sandbox" in (verdict.reason or "") and verdict.evidence["tries"] == 2


def _busy_sandbox(before: set[int]) -> int:
    """Wait for a new code sandbox that runs a program, and return its process 1."""

    def look() -> int | None:
        found = set(_code_sandboxes()) - before
        return next((parent for parent in map(_parent, found) if parent in found), None)

    pid = eventually(look)
    assert pid is not None and pid > 1
    return pid


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
