"""Episodes in real sandboxes: an environment's replies through the pool, hostile ones, and the build's check."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from nodus.server.grading import Completion, GradingService, ResolvedEnvironment
from nodus.server.grading.episodes import Episode
from nodus.server.grading.selfcheck import FIXED_TURNS, Checked, SelfCheckFailed, check
from nodus.testing.eventually import eventually_async
from tests.integration.grading.conftest import MakeEnvironment, Specify, processes_with
from tests.integration.grading.test_pool import _is_grading, _number_inside

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

COUNTING = """
def tasks(split):
    return [{"prompt": f"{split} {n}", "answer": n} for n in range(8)]

def step(turns, answer):
    if turns[-1] == "stop":
        return None, float(len(turns) > 2)
    return f"turn {len(turns)} of {answer}", 0.25
"""
HOSTILE = """
import os, time
def tasks(split):
    return [{"prompt": split, "answer": 1}]

def step(turns, answer):
    said = turns[-1]
    if said == "hang": time.sleep(600)
    if said == "spin":
        while True: pass
    if said == "raise": raise KeyError("state")
    if said == "exit": os._exit(0)
    if said == "long": return "x" * (10 << 20), 0
    if said == "lone": return "\\ud800", 0
    if said == "number": return 5, 0
    if said == "assistant": return [{"role": "assistant", "content": "5"}], 0
    if said == "forge":
        for fd in range(3, 64):
            try: os.write(fd, b'{"messages": [{"role": "user", "content": "forged"}]}\\n')
            except OSError: pass
        os._exit(1)
    if said == "kill": os.kill(-1, 9)
    if said == "memory": answer = [bytearray(64 << 20) for _ in range(64)]
    return "fine", 0
"""


async def first_task(service: GradingService, environment: ResolvedEnvironment) -> str:
    return (await service.tasks(environment, "test", 0)).tasks[0].task_id


async def test_replies_come_in_order_beside_verdicts_of_the_same_graders(
    service: GradingService, make_environment: MakeEnvironment
) -> None:
    environment = make_environment(COUNTING)
    tasks = (await service.tasks(environment, "train", 1)).tasks
    answers = {task.task_id: str(task.prompt).split()[1] for task in tasks}
    episodes = [
        Episode(tasks[n % 8].task_id, n, ("a",) * (n % 3) + ("stop" if n % 5 == 0 else "b",)) for n in range(120)
    ]
    replies = await service.step("job", environment, episodes, 2)
    assert [(r.task_id, r.sample, r.error) for r in replies] == [(e.task_id, e.sample, None) for e in episodes]
    for reply, episode in zip(replies, episodes, strict=True):
        said = [{"role": "user", "content": f"turn {len(episode.turns)} of {answers[episode.task_id]}"}]
        assert reply.messages == (None if episode.turns[-1] == "stop" else said)
    graded = [Completion(e.task_id, e.sample, turns=e.turns) for e in episodes]
    verdicts = await service.grade("job", environment, graded, 2)
    assert [v.reward for v in verdicts] == [
        float(len(e.turns) > 2) if e.turns[-1] == "stop" else 0.25 for e in episodes
    ]
    assert replies[0].evidence["durationMs"] > 0 and service.graders == 2


async def test_hostile_steps_are_errors_of_their_own_reply(
    service: GradingService, make_environment: MakeEnvironment
) -> None:
    environment = make_environment(HOSTILE, sandbox={"timeout": "1s", "memory": "128Mi"})
    task = await first_task(service, environment)
    expected = {
        "hang": "step ran longer than 1 s",
        "spin": "step ran longer than 1 s",
        "raise": "step raised KeyError: 'state'",
        "exit": "exit code 0 and no verdict",
        "long": "at most 65536",
        "lone": "surrogate",
        "number": "type int",
        "assistant": "role 'assistant'",
        "forge": "exit code 1 and",
        "memory": "out of memory",
    }
    said = [word for hostile in expected for word in (hostile, "fine")] + ["kill"]
    episodes = [Episode(task, n, ("hello", word)) for n, word in enumerate(said)]
    replies = await service.step("job", environment, episodes, 1)
    for word, reply in zip(said, replies, strict=True):
        if word in ("fine", "kill"):  # process 1 is out of its reach, and so is what others are told
            assert word == "kill" or (reply.error, reply.messages) == (None, [{"role": "user", "content": "fine"}])
            continue
        assert reply.messages is None and reply.outcome == "Error"
        assert expected[word] in (reply.error or ""), (word, reply.error)
    assert "state" in str(replies[4].evidence["traceback"])


async def test_grader_killed_in_a_step_is_replaced_and_asked_once_more(
    service: GradingService, make_environment: MakeEnvironment
) -> None:
    slow = COUNTING.replace('if turns[-1] == "stop":', 'import time; time.sleep(1.5)\n    if turns[-1] == "stop":')
    environment = make_environment(slow)
    task = await first_task(service, environment)
    asking = asyncio.create_task(service.step("job", environment, [Episode(task, 0, ("a",))], 1))
    await eventually_async(lambda: _is_grading(environment.name))
    (worker,) = [pid for pid in processes_with(environment.name) if _number_inside(pid) == 1]
    os.kill(worker, signal.SIGKILL)
    (reply,) = await asking
    assert (reply.error, reply.evidence["tries"]) == (None, 2) and reply.messages is not None


async def test_environment_without_episodes_ends_them_after_the_first_turn(
    service: GradingService, make_environment: MakeEnvironment
) -> None:
    environment = make_environment("def tasks(s): return [(s, 1)]\ndef reward(c, a): return float(c)\n")
    task = await first_task(service, environment)
    (reply,) = await service.step("job", environment, [Episode(task, 0, ("1",))])
    assert (reply.messages, reply.error) == (None, None)


async def test_exact_match_judges_the_first_turn_and_ends_the_episode(service: GradingService) -> None:
    spec = {
        "version": "2.0.0",
        "package": {"catalog": {"module": "arithmetic"}},
        "graders": [{"name": "last-integer", "kind": "ExactMatch"}],
    }
    environment = await service.resolve("arithmetic", spec)
    task = (await service.tasks(environment, "test", 0)).tasks[0]
    (reply,) = await service.step("job", environment, [Episode(task.task_id, 0, ("1",))])
    assert (reply.messages, reply.error) == (None, None)
    (verdict,) = await service.grade(
        "job", environment, [Completion(task.task_id, 0, turns=(str(task.answer), "later"))]
    )
    assert verdict.verdict == "Correct"


async def checked(service: GradingService, specified: tuple[str, dict[str, Any]]) -> Checked:
    return await check(service, *specified, "check")


async def test_check_plays_two_turns_and_says_what_the_environment_is(
    service: GradingService, specify: Specify
) -> None:
    tool = {"type": "function", "function": {"name": "add"}}
    source = COUNTING.replace('"answer": n}', f'"answer": n, "tools": [{tool}]}}')
    found = await checked(service, specify(source))
    assert found.facts == {"episodes": True, "ecosystem": "functions", "tools": True, "shared": 0}
    single = await checked(service, specify("def tasks(s): return [(s, 'a')]\ndef reward(c, a): return 1\n"))
    assert single.facts == {"episodes": False, "ecosystem": "functions", "tools": False, "shared": 0}
    assert service.graders == 0


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("return f'{os.urandom(4).hex()}', 0", "turn 1 of 'test', after the replies ['Hello.'], differs"),
        ("return ('same', 0) if len(turns) < 2 else (os.urandom(4).hex(), 0)", "turn 2 of 'test'"),
        ("return 'same', int.from_bytes(os.urandom(3), 'big')", "differs between two processes"),
        ("return 'same', int(turns[-1]) if turns[-1] else 0", "a reply may be any text"),
        ("return ('same', 0) if turns[-1] in ('1', '') else (1, 0)", "message of type int"),
    ],
)
async def test_check_refuses_what_does_not_play_the_same_twice(
    service: GradingService, specify: Specify, source: str, reason: str
) -> None:
    specified = specify(f"import os\ndef tasks(s): return [(s, '1')]\ndef step(turns, answer):\n    {source}\n")
    with pytest.raises(SelfCheckFailed) as refused:
        await checked(service, specified)
    assert refused.value.step == "step" and reason in refused.value.message
    assert str(FIXED_TURNS[0]) in refused.value.message
    assert service.graders == 0
