"""Graders that are programs of an image: the guide's protocol, what they see, and ones that cheat or fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodus.core.errors import EnvironmentTasksFailed
from nodus.server.compute.graders import GraderRoot
from nodus.server.grading import Completion, GradingService, ResolvedEnvironment, foreign
from nodus.server.grading.episodes import Episode
from nodus.server.grading.oci.layers import Limits, RootDirectory
from tests.integration.grading.conftest import nothing_left_of, processes_with
from tests.integration.grading.images import python_layer

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "FROM_IMAGE": "yes", "PYTHONHASHSEED": "7", "LD_PRELOAD": "/evil.so"}
TASKS = """
import json, os, sys, time

def tasks():
    for number in range(4):
        print(json.dumps({"taskId": f"t{number}", "prompt": f"task {number}", "answer": "hidden"}))

def answer(request, **more):
    line = {"taskId": request["taskId"], "verdict": "Correct", "reward": 1.0, **more}
    print(json.dumps(line))

if sys.argv[1] == "tasks":
    tasks()
    sys.exit(0)
if sys.argv[1] != "grade":
    sys.exit(2)
"""
GOOD = """
for line in sys.stdin:
    request = json.loads(line)
    right = request["completion"] == "right"
    answer(request, verdict="Correct" if right else "Incorrect", reward=float(right), evidence={"exitCode": 66})
"""
Make = Callable[..., ResolvedEnvironment]


@pytest.fixture(scope="session")
def python_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python's files, unpacked once."""
    place = tmp_path_factory.mktemp("image")
    (place / "layer").write_bytes(python_layer())
    (place / "root").mkdir()
    RootDirectory(place / "root", Limits()).apply(place / "layer")
    return place / "root"


@pytest.fixture
def make(python_root: Path, tmp_path: Path) -> Make:
    """A function from the source of ``nodus-env`` to the environment of an image that has it."""

    def environment(source: str, **more: object) -> ResolvedEnvironment:
        root = tmp_path / f"root{len(list(tmp_path.iterdir()))}"
        shutil.copytree(python_root, root, symlinks=True, copy_function=os.link)
        program = root / "usr/local/bin/nodus-env"
        program.write_text(f"#!/usr/local/bin/python3\n{source}")
        program.chmod(0o755)
        where = GraderRoot(root, "/usr/local/bin/nodus-env", ENV, "/opt")
        settings: dict[str, object] = {"timeout_s": 2.0, "memory_bytes": 256 << 20, **more}
        return ResolvedEnvironment("foreign", "1.0.0", f"sha256:{root.name}", "", root=where, **settings)  # type: ignore[arg-type]

    return environment


def replies(*texts: str) -> list[Completion]:
    """A reply to each of the first tasks."""
    return [Completion(f"t{number}", 0, text) for number, text in enumerate(texts)]


async def test_a_program_that_keeps_to_the_guide_grades(service: GradingService, make: Make) -> None:
    environment = make(TASKS + GOOD)
    manifest = await service.tasks(environment, "test", 7)
    assert [task.task_id for task in manifest.tasks] == ["t0", "t1", "t2", "t3"]
    assert all(task.answer is None for task in manifest.tasks)
    verdicts = await service.grade("job", environment, replies("right", "wrong", "right"), 1)
    assert [verdict.verdict for verdict in verdicts] == ["Correct", "Incorrect", "Correct"]
    evidence = verdicts[0].evidence
    assert evidence["process"] == ["/usr/local/bin/nodus-env", "grade"]
    assert evidence["exitCode"] is None and evidence["tries"] == 1  # the host's, whatever the program says
    assert evidence["isolation"].startswith("bubblewrap") and len(evidence["outputSHA256"]) == 64


async def test_one_process_grades_many(service: GradingService, make: Make) -> None:
    environment = make(TASKS + GOOD.replace("evidence={", "reason=str(os.getpid()), evidence={"))
    items = [Completion(f"t{number % 4}", number, "wrong") for number in range(200)]
    verdicts = await service.grade("job", environment, items, 1)
    assert len({verdict.reason for verdict in verdicts}) == 1
    assert {verdict.verdict for verdict in verdicts} == {"Incorrect"}


PROBES = {
    "uid": "os.getuid()",
    "groups": "os.getgroups()",
    "capabilities": "[l.split()[1] for l in open('/proc/self/status') if l.startswith(('CapEff', 'CapBnd', 'CapPrm'))]",
    "seed": "os.environ['PYTHONHASHSEED']",
    "image": "os.environ['FROM_IMAGE'] + os.getcwd()",
    "variables": "sorted(n for n in os.environ if n.startswith(('NODUS', 'AWS', 'SSH', 'PYTEST')))",
    "top": "sorted(os.listdir('/'))",
    "open": "sorted(os.listdir('/proc/self/fd'))",
    "network": "attempt(lambda: __import__('socket').socket())",
    "root": "attempt(lambda: open('/x', 'w'))",
    "usr": "attempt(lambda: open('/usr/local/bin/nodus-env', 'w'))",
    "tmp": "attempt(lambda: open('/tmp/x', 'w').close())",
    "chroot": "attempt(lambda: os.chroot('/tmp'))",
    "setuid": "attempt(lambda: os.setuid(0))",
    "ptrace": "attempt(lambda: open('/proc/1/mem', 'rb'))",
    "signal": "attempt(lambda: os.kill(1, 9))",
}


async def test_what_it_sees_is_the_image_and_it_has_no_privilege(service: GradingService, make: Make) -> None:
    source = TASKS + (
        "def attempt(action):\n    try:\n        return action()\n    except OSError as error:\n"
        "        return error.strerror\n"
        "for line in sys.stdin:\n    request = json.loads(line)\n"
        "    answer(request, reason=json.dumps(eval(request['completion'])))\n"
    )
    found = await service.grade("job", make(source), [Completion("t0", n, p) for n, p in enumerate(PROBES.values())], 1)
    said = {name: verdict.reason for name, verdict in zip(PROBES, found, strict=True)}
    assert (said["uid"], said["groups"]) == ("10001", "[]")
    assert said["capabilities"] == '["0000000000000000", "0000000000000000", "0000000000000000"]'
    assert (said["seed"], said["image"]) == ('"0"', '"yes/opt"')
    assert said["variables"] == '["NODUS_GRADING_SANDBOX", "NODUS_GRADING_TIMEOUT"]'
    assert said["top"] is not None and "home" not in said["top"] and "image" not in said["top"]
    assert said["open"] == '["0", "1", "2", "3"]'  # the last is the listing's own
    assert "not supported" in str(said["network"]) and said["tmp"] == "null"
    assert "Read-only" in str(said["root"]) and "Read-only" in str(said["usr"])
    for name in ("chroot", "setuid", "ptrace", "signal"):
        assert "ermi" in str(said[name]) or said[name] == "null", (name, said[name])
    assert "ermi" in str(said["chroot"]) and "ermi" in str(said["setuid"])


BROKEN = {
    "answers about another task": ("answer({'taskId': 't3'})", "answered about 't3'"),
    "answers twice": (
        "sys.stdout.write(2 * (json.dumps({'taskId': 't0', 'verdict': 'Correct', 'reward': 1}) + '\\n'))",
        "what it was not asked",
    ),
    "answers an older request": ("answer(request, id=0)", "another request"),
    "not a number": ("answer(request, reward=float('nan'))", "no verdict"),
    "infinite": ("answer(request, reward=1e999)", "no verdict"),
    "a text for a reward": ("answer(request, reward='1')", "no verdict"),
    "no reward": ("answer(request, reward=None)", "no verdict"),
    "unknown verdict": ("answer(request, verdict='Perfect')", "no verdict"),
    "a list for a verdict": ("answer(request, verdict=['Correct'])", "no verdict"),
    "ends with nothing": ("sys.exit(0)", "ended without an answer: exit code 0"),
    "ends as our own runner asks to be replaced": ("sys.exit(75)", "exit code 75"),
    "ends as if code had ended its sandbox": ("sys.exit(77)", "exit code 77"),
    "raises": ("raise ValueError('no such file: words.txt')", "no such file: words.txt"),
    "crashes": ("os.kill(os.getpid(), 11)", "exit code 139"),
    "never answers": ("time.sleep(600)", "did not answer in time"),
    "goes on talking": ("while True: print('thinking', flush=True); time.sleep(0.2)", "did not answer in time"),
    "a gigabyte of lines": ("[print('x' * 1000) for _ in range(1_000_000)]", "KiB that is no answer"),
    "a gigabyte without an end": ("[print('x' * 1000, end='') for _ in range(1_000_000)]", "without end"),
    "a gigabyte of complaints": ("[print('x' * 1000, file=sys.stderr) for _ in range(200_000)]; sys.exit(1)", "exit"),
    "too much memory": ("x = bytearray(1 << 30)", ""),
    "deep nonsense": ("print('[' * 100_000)", "KiB that is no answer"),
    "children that hold the pipe": ("os.fork() or time.sleep(600); sys.exit(0)", ""),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_what_is_no_answer_is_an_infrastructure_failure_and_never_a_reward(
    what: str, service: GradingService, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    action, says = BROKEN[what]
    if "in time" in says:
        monkeypatch.setattr(foreign, "START_S", 0.5)
        monkeypatch.setattr(foreign, "ANSWER_GRACE_S", 0.5)
    source = TASKS + f"for line in sys.stdin:\n    request = json.loads(line)\n    {action}\n"
    (verdict,) = await service.grade("job", make(source), replies("x"), 1)
    assert (verdict.verdict, verdict.reward) == ("InfrastructureFailure", None)
    assert says in str(verdict.reason)
    await service.release("job")
    nothing_left_of("/usr/local/bin/nodus-env")


async def test_a_program_that_ends_early_is_started_again_once(service: GradingService, make: Make) -> None:
    environment = make(TASKS + GOOD.replace("right =", "request['completion'] == 'end' and sys.exit(1); right ="))
    verdicts = await service.grade("job", environment, replies("right", "end", "right"), 1)
    assert [verdict.verdict for verdict in verdicts] == ["Correct", "InfrastructureFailure", "Correct"]
    assert verdicts[1].evidence["tries"] == 2 and verdicts[1].evidence["exitCode"] == 1


async def test_one_reply_a_process_is_slow_and_right(service: GradingService, make: Make) -> None:
    environment = make(TASKS + GOOD + "    sys.exit(0)\n")
    verdicts = await service.grade("job", environment, replies("right", "wrong", "right"), 1)
    assert [verdict.verdict for verdict in verdicts] == ["Correct", "Incorrect", "Correct"]


async def test_greetings_and_our_own_runners_lines_are_passed_over(service: GradingService, make: Make) -> None:
    source = TASKS + "print('loading...'); print('{\"ready\": true}'); print('[1]'); print('\\xff')\n" + GOOD
    verdicts = await service.grade("job", make(source), replies("right", "wrong"), 1)
    assert [verdict.verdict for verdict in verdicts] == ["Correct", "Incorrect"]


async def test_an_answer_too_many_of_our_own_runners_is_never_the_next_ones(
    service: GradingService, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENV, foreign.OUR_RUNNER, "task")
    good = GOOD.replace("evidence={", "id=request['id'], evidence={")
    forge = "if request['completion'] == 'extra': answer(request, id=request['id'])\n    "
    items = [Completion("t0", number, "extra" if number % 3 == 0 else "wrong") for number in range(9)]
    verdicts = await service.grade("job", make(TASKS + good.replace("right =", forge + "right =")), items, 1)
    assert all(verdict.verdict != "Correct" for verdict in verdicts if verdict.sample % 3)


async def test_an_invalid_output_pays_nothing_whatever_it_says(service: GradingService, make: Make) -> None:
    source = TASKS + "for line in sys.stdin:\n    answer(json.loads(line), verdict='InvalidOutput', reward=5)\n"
    (verdict,) = await service.grade("job", make(source), replies("x"), 1)
    assert (verdict.verdict, verdict.reward) == ("InvalidOutput", 0.0)


STEPS = TASKS.replace('!= "grade"', 'not in ("grade", "step")') + (
    "for line in sys.stdin:\n    request = json.loads(line)\n    turns = request['turns']\n"
    "    if sys.argv[1] == 'step':\n"
    "        more = None if len(turns) > 1 else [{'role': 'user', 'content': f'go on after {turns[-1]}'}]\n"
    "        print(json.dumps({'taskId': request['taskId'], 'messages': more}))\n"
    "    else:\n        answer(request, reward=float(len(turns)))\n"
)


async def test_episodes_are_played_by_step_and_graded_as_they_stand(service: GradingService, make: Make) -> None:
    environment = make(STEPS)
    first, last = await service.step("job", environment, [Episode("t0", 0, ("a",)), Episode("t0", 1, ("a", "b"))], 1)
    assert first.messages == [{"role": "user", "content": "go on after a"}] and last.messages is None
    (verdict,) = await service.grade("job", environment, [Completion("t0", 0, turns=("a", "b"))], 1)
    assert verdict.reward == 2.0


async def test_an_image_without_step_says_so(service: GradingService, make: Make) -> None:
    (reply,) = await service.step("job", make(TASKS + GOOD), [Episode("t0", 0, ("a",))], 1)
    assert reply.error is not None and "`nodus-env step` ended without an answer: exit code 2" in reply.error


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import sys; sys.exit(3)", "exit code 3"),
        ("print('no task')", None),
        ("import time; time.sleep(600)", "longer than"),
        ('print(\'{"taskId": "a"}\')', "no prompt"),
        ('print(\'{"taskId": "a", "prompt": "p"}\\n\' * 2)', "same taskId"),
        ('print(\'{"taskId": "a", "prompt": "p", "metadata": {"x": NaN}}\')', "JSON"),
        ('print(\'{"taskId": "\' + \'a\' * 1000 + \'", "prompt": "p"}\')', "characters"),
        ("print('x' * (70 << 20))", "MiB of tasks"),
        ('print(\'{"refused": "no loader"}\'); import sys; sys.exit(3)', "no loader"),
    ],
)
async def test_a_list_of_tasks_is_taken_as_little_on_trust(
    source: str, says: str | None, service: GradingService, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodus.server.grading.service.TASKS_TIMEOUT_S", 4.0)
    if says is None:
        assert (await service.tasks(make(source), "test", 0)).tasks == ()
        return
    with pytest.raises(EnvironmentTasksFailed) as failed:
        await service.tasks(make(source), "test", 0)
    assert says in failed.value.message


async def test_what_is_held_out_is_in_no_train_split(service: GradingService, make: Make) -> None:
    source = (
        "import json, sys\n"
        "rows = {'train': [('a', 'one'), ('b', 'two'), ('c', 'three')], 'test': [('b', 'x'), ('z', 'three')]}\n"
        "for name, prompt in rows[sys.argv[3]]:\n    print(json.dumps({'taskId': name, 'prompt': prompt}))\n"
    )
    environment = make(source)
    assert [task.task_id for task in (await service.tasks(environment, "train", 0)).tasks] == ["a"]
    assert [task.task_id for task in (await service.tasks(environment, "test", 0)).tasks] == ["b", "z"]


HOST = """
import sys
from pathlib import Path
from nodus.server.compute.graders import GraderRoot, GraderSpec
from nodus.server.compute.local.graders import LocalGraders
root = GraderRoot(Path(sys.argv[1]), "nodus-env", {"PATH": "/usr/local/bin"})
graders = LocalGraders()  # the thread that launched a sandbox has to live as long as it does
grader = graders.start(GraderSpec(None, ["grade", sys.argv[2]], 256 << 20, root=root))
print(grader.exchange(bytearray(), 30).decode(), flush=True)
sys.stdin.read()
"""


def test_it_ends_with_the_server_that_is_killed(make: Make, tmp_path: Path) -> None:
    """Whatever it does about that: another session, a child, a closed input."""
    source = (
        "import os, time\nos.fork()\nos.fork() or os.setsid()\nos.close(0)\nprint('up', flush=True)\ntime.sleep(600)"
    )
    root, marker = make(source).root, f"outlives-{tmp_path.name}"
    assert root is not None
    command = [sys.executable, "-c", HOST, str(root.directory), marker]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        assert len(processes_with(marker)) > 2
        server.kill()
    nothing_left_of(marker)
