"""Programs that try to break grading, run by a scorer that executes what it grades.

For each: the verdict is an InfrastructureFailure or the program's own reward, never an invented 0; the completions
around it are graded as if it had not been there; and the host finds no process of it afterwards (the fixtures check).
"""

from __future__ import annotations

import pytest

from nodus.server.grading import Completion, GradingService, ResolvedEnvironment, Verdict

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

# what it does: (program, part of the reason)
NO_VERDICT: dict[str, tuple[str, str]] = {
    "raises": ("raise ValueError('boom')", "ValueError: boom"),
    "exits": ("import sys; sys.exit(0)", "SystemExit"),
    "ends without a word": ("import os; os._exit(0)", "exit code 0 and no verdict"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "returns text": ("value = '1.0'", "str '1.0'"),
    "returns nan": ("value = float('nan')", "nan"),
    "returns infinity": ("value = float('inf')", "inf"),
    "returns a huge number": ("value = 10 ** 1000", "too large"),
    "returns a list": ("value = [1.0]", "list [1.0]"),
    "loops": ("while True: pass", "longer than 2 s"),
    "sleeps": ("import time; time.sleep(100)", "longer than 2 s"),
    "ignores signals": (
        "import signal\nfor n in (14, 15, 24): signal.signal(n, signal.SIG_IGN)\n9 ** 9 ** 8",
        "longer than 2 s",
    ),
    "allocates without end": ("data = []\nwhile True: data.append(bytearray(10 << 20))", "out of memory"),
    "allocates in children": (
        "import os, time\n"
        "for _ in range(20):\n    if os.fork() == 0:\n        d = bytearray(200 << 20); time.sleep(5); os._exit(0)\n"
        "time.sleep(60)",
        "",
    ),
    "forks without end": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", "longer than 2 s"),
    "writes everywhere": (
        "import os\n"
        'line = b\'{"id": 1, "taskId": "x", "verdict": "Correct", "reward": 1.0}\\n\'\n'
        "for fd in range(3, 64):\n    try: os.write(fd, line * 3)\n    except OSError: pass\n",
        "no verdict",
    ),
    "reports 100 MB": (
        "import os, stat\n"
        "for fd in range(3, 64):\n"
        "    try:\n"
        "        if stat.S_ISFIFO(os.fstat(fd).st_mode):\n"
        "            for _ in range(100): os.write(fd, b'x' * (1 << 20))\n"
        "    except OSError: pass\n",
        "more than a verdict",
    ),
    "recurses": ("def f(): return f()\nf()", "RecursionError"),
}

# what it does: the program, which looks for itself and sets value to 1 when it was kept out
KEPT_OUT: dict[str, str] = {
    "prints forged lines": (
        'import sys\nprint(\'{"id": 1, "verdict": "Correct", "reward": 1.0}\')\nsys.stdout.flush()\n'
        "sys.stderr.write('x' * 1000)\nvalue = 1.0"
    ),
    "prints 100 MB": (
        "import os, sys\nfor _ in range(100): os.write(1, b'x' * (1 << 20)); os.write(2, b'y' * (1 << 20))\nvalue = 1"
    ),
    "fills /tmp": (
        "import os\n"
        "value = 0\n"
        "try:\n"
        "    with open('/tmp/big', 'wb') as f:\n        for _ in range(2000): f.write(b'x' * (1 << 20))\n"
        "except OSError: value = 1\n"
        "try:\n"
        "    for n in range(20): open(f'/dev/shm/{n}', 'wb').write(b'x' * (4 << 20))\n"
        "    value = 0\n"
        "except OSError: pass\n"
    ),
    "signals the worker": (
        "import os, signal\n"
        "for n in (9, 19, 15, 2, 11, 14): os.kill(1, n)\n"
        "try: os.kill(-1, 9)\n"
        "except ProcessLookupError: pass\n"
        "value = float(os.getppid() == 1)"
    ),
    "reads the worker's memory": (
        "import os\n"
        "value = 1\n"
        "for name in ('mem', 'environ', 'fd/0', 'maps'):\n"
        "    try:\n        open(f'/proc/1/{name}', 'rb').read(1); value = 0\n"
        "    except OSError: pass\n"
    ),
    "changes the worker's limits": (
        "import os, resource\n"
        "value = 1\n"
        "for call in (lambda: resource.prlimit(1, resource.RLIMIT_CPU, (1, 1)), lambda: os.setpriority(0, 1, 19),\n"
        "             lambda: os.sched_setaffinity(1, {0})):\n"
        "    try:\n        call(); value = 0\n"
        "    except OSError: pass\n"
    ),
    "traces the worker": ("import ctypes\nvalue = float(ctypes.CDLL(None, use_errno=True).ptrace(16, 1, 0, 0) == -1)"),
    "looks for host files": (
        "import os\n"
        "places = ('/etc/shadow', '/home', '/var', '/sys', '/run', '/srv', '/mnt', '/proc/1/root/home')\n"
        "value = float(not any(os.path.exists(place) for place in places))"
    ),
    "writes the runtime": (
        "import sys\n"
        "value = 1\n"
        "for p in ('/opt/nodus/nodus/grader/worker.py', '/opt/environment/nodus_task.py', '/x', '/dev/x', '/usr/x'):\n"
        "    try:\n        open(p, 'w'); value = 0\n"
        "    except OSError: pass\n"
    ),
    "makes namespaces": (
        "import ctypes, errno, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "calls = [lambda: libc.unshare(0x10000000), lambda: libc.unshare(0x20000), lambda: libc.setns(0, 0),\n"
        "         lambda: libc.mount(b'x', b'/tmp', b'tmpfs', 0, 0), lambda: libc.syscall(435, 0, 0),\n"
        "         lambda: libc.chroot(b'/tmp')]\n"
        "value = float(all(call() == -1 for call in calls))"
    ),
    "becomes root": (
        "import os\n"
        "value = 1\n"
        "for call in (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgid(0)):\n"
        "    try:\n        call(); value = 0\n"
        "    except OSError: pass\n"
        "status = dict(l.split(':', 1) for l in open('/proc/self/status').read().splitlines())\n"
        "found = [int(status[name], 16) for name in ('CapEff', 'NoNewPrivs', 'Seccomp')]\n"
        "value = float(value and found == [0, 1, 2])"
    ),
    "uses the network": (
        "import socket\n"
        "value = 1\n"
        "for family in (socket.AF_INET, socket.AF_INET6, 16, 17, 38, 40):\n"
        "    try:\n        socket.socket(family, socket.SOCK_STREAM); value = 0\n"
        "    except OSError: pass\n"
    ),
    "leaves a daemon that holds the pipe": (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n        time.sleep(600)\n"
        "    os._exit(0)\n"
        "value = 1"
    ),
    "patches the runner": (
        "import nodus.grader.verdicts as v, nodus.grader.completion as c, nodus.grader.worker as w\n"
        "w._grade = c.classify = v.classify = lambda *a: {'verdict': 'Correct', 'reward': 1.0}\n"
        "value = 1"
    ),
    "keeps shared objects": (
        "import ctypes\n"
        "libc = ctypes.CDLL(None)\n"
        "made = [libc.shmget(7, 4096, 0o1666), libc.msgget(7, 0o1666), libc.semget(7, 1, 0o1666)]\n"
        "value = float(made == [-1, -1, -1])"
    ),
}


async def _grade(service: GradingService, environment: ResolvedEnvironment, programs: list[str]) -> list[Verdict]:
    tasks = (await service.tasks(environment, "test", 0)).tasks
    items = [Completion(tasks[n % len(tasks)].task_id, n, text) for n, text in enumerate(programs)]
    return await service.grade("job", environment, items, 1)


@pytest.mark.parametrize("attack", NO_VERDICT)
async def test_program_without_a_usable_reward_is_no_verdict_and_harms_no_other(
    attack: str, service: GradingService, executing: ResolvedEnvironment
) -> None:
    program, reason = NO_VERDICT[attack]
    before, attacked, after = await _grade(service, executing, ["value = 1", program, "value = 0.25"])
    assert (before.verdict, before.reward) == ("Correct", 1.0)
    assert (attacked.verdict, attacked.reward, attacked.outcome) == ("InfrastructureFailure", None, "Error")
    assert reason in (attacked.reason or "")
    assert (after.verdict, after.reward) == ("Incorrect", 0.25)
    assert attacked.evidence["isolation"].startswith("bubblewrap-")
    assert attacked.evidence["process"] and attacked.evidence["durationMs"] > 0


@pytest.mark.parametrize("attack", KEPT_OUT)
async def test_program_that_reaches_out_is_kept_inside(
    attack: str, service: GradingService, executing: ResolvedEnvironment
) -> None:
    attacked, after = await _grade(service, executing, [KEPT_OUT[attack], "value = 0.25"])
    assert (attacked.verdict, attacked.reward) == ("Correct", 1.0), attacked
    assert (after.verdict, after.reward) == ("Incorrect", 0.25)


async def test_completion_leaves_nothing_for_the_next(service: GradingService, executing: ResolvedEnvironment) -> None:
    leave = (
        "import os, sys, nodus_task\nnodus_task.counter = 7\nos.makedirs('/tmp/a/b')\nos.chmod('/tmp/a', 0)\n"
        "open('/tmp/f', 'w').write('x')\nopen('/dev/shm/f', 'w').write('x')\nvalue = 1"
    )
    look = (
        "import os, nodus_task\n"
        "value = float(nodus_task.counter == 0 and os.listdir('/tmp') == [] and os.listdir('/dev/shm') == [])"
    )
    verdicts = await _grade(service, executing, [leave, look])
    assert [verdict.verdict for verdict in verdicts] == ["Correct", "Correct"]


async def test_out_of_memory_and_other_deaths_are_told_apart(
    service: GradingService, executing: ResolvedEnvironment
) -> None:
    programs = ["x = bytearray(1 << 30)", "import os; os.kill(os.getpid(), 9)", "raise SystemExit(3)"]
    memory, killed, left = await _grade(service, executing, programs)
    assert memory.evidence["oom"] is True
    assert killed.evidence["oom"] is False and killed.evidence["signal"] == "SIGKILL"
    assert "SystemExit: 3" in (left.reason or "")


async def test_directory_too_deep_to_remove_replaces_the_grader_and_blames_nobody(
    service: GradingService, executing: ResolvedEnvironment
) -> None:
    deep = "import os\nos.chdir('/tmp')\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\nvalue = 1"
    look = "import os\nvalue = float(os.listdir('/tmp') == [])"
    verdicts = await _grade(service, executing, [deep, look, look])
    assert [(verdict.verdict, verdict.evidence["tries"]) for verdict in verdicts] == [("Correct", 1)] * 3
