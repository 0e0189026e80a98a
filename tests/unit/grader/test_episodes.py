"""``nodus-env`` with episodes: turns that are graded, the environment's messages between them, tools of tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nodus.grader import messages
from nodus.grader.tasks import BadTask, build_split, public_line
from tests.unit.grader.test_command import run

GUESS = """
def tasks(split):
    return [{"prompt": f"Guess my number, {split}.", "answer": 5}]

def step(turns, answer):
    print("noise")
    for said in turns:
        if int(said) == answer:
            return None, 1.0
    return ("higher" if int(turns[-1]) < answer else "lower"), 0.1 * len(turns)
"""
TOOL = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}


@pytest.fixture
def guess(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(GUESS)
    return tmp_path


def task_of(path: Path) -> str:
    return str(run(path, "tasks", "--split", "test")[0]["taskId"])


def lines(*requests: dict[str, Any]) -> str:
    return "".join(json.dumps(request) + "\n" for request in requests)


def test_info_says_what_plays_and_for_how_long(guess: Path, tmp_path: Path) -> None:
    (info,) = run(guess, "info")
    assert (info["kind"], info["episodes"]) == ("functions", True) and "maxTurns" not in info
    (guess / "single.py").write_text("def tasks(s): return [(s, 1)]\ndef reward(c, a): return 1\n")
    (info,) = run(guess, "info", loader="single")
    assert (info["episodes"], info["maxTurns"]) == (False, 1)


def test_step_answers_each_turn_and_null_at_the_end(guess: Path) -> None:
    task = task_of(guess)
    asked = [{"taskId": task, "turns": turns} for turns in (["3"], ["3", "8"], ["3", "8", "5"])]
    answers = run(guess, "step", stdin=lines(*asked))
    assert [answer["messages"] for answer in answers] == [
        [{"role": "user", "content": "higher"}],
        [{"role": "user", "content": "lower"}],
        None,
    ]
    assert {answer["taskId"] for answer in answers} == {task}


def test_an_episode_is_graded_as_it_stands_and_steps_come_between_grades(guess: Path) -> None:
    task = task_of(guess)
    asked = lines(
        {"id": 1, "taskId": task, "turns": ["3", "8"]},
        {"id": 2, "taskId": task, "turns": ["3", "8"], "step": True},
        {"id": 3, "taskId": task, "completion": "5"},
        {"id": 4, "taskId": task, "turns": ["x"]},
        {"id": 5, "taskId": task, "turns": ["x"], "step": True},
    )
    one, two, three, four, five = run(guess, "grade", stdin=asked)
    assert (one["id"], one["verdict"], one["reward"]) == (1, "Incorrect", 0.2)
    assert (two["id"], two["messages"]) == (2, [{"role": "user", "content": "lower"}]) and "verdict" not in two
    assert (three["verdict"], three["reward"]) == ("Correct", 1.0)
    assert "reward raised ValueError" in four["reason"]
    assert five["verdict"] == "InfrastructureFailure" and "step raised ValueError" in five["reason"]
    assert "int(said)" in five["evidence"]["traceback"]


def test_single_turn_environment_ends_after_the_first_turn(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def tasks(s): return [(s, 1)]\ndef reward(c, a): return float(c)\n")
    task = task_of(tmp_path)
    (answer,) = run(tmp_path, "step", stdin=lines({"taskId": task, "turns": ["x"]}))
    assert answer["messages"] is None
    (verdict,) = run(tmp_path, "grade", stdin=lines({"taskId": task, "turns": ["1", "0"]}))
    assert verdict["reward"] == 1.0  # of several turns, the first is the reply


@pytest.mark.parametrize(
    "request_",
    [
        {"turns": []},
        {"turns": "text"},
        {"turns": ["a", 1]},
        {"turns": [["a"]]},
        {"turns": None},
        {"completion": "a", "turns": ["a"]},
        {},
    ],
)
def test_request_without_turns_is_answered_with_a_failure(guess: Path, request_: dict[str, Any]) -> None:
    (answer,) = run(guess, "step", stdin=lines({"taskId": task_of(guess), **request_}))
    assert answer["verdict"] == "InfrastructureFailure" and "turns: a list of texts" in answer["reason"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return 5, 0", "message of type int"),
        ("return 'next'", "expected (message or None, reward)"),
        ("return 'x' * (10 << 20), 0", "at most 65536 are allowed"),
        ("return [{'role': 'assistant', 'content': 'I say 5'}], 0", "role 'assistant'"),
        ("return [{'role': 'user', 'content': 'a', 'reward': 'x'}], 0", "'reward'"),
        ("return [], 0", "0 messages"),
        ("return ['a'] * 65, 0", "message of type list"),
        ("return [{'role': 'user', 'content': ''}] * 65, 0", "65 messages"),
        ("return '\\ud800', 0", "surrogate"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import os; os._exit(0)", "exit code 0 and no verdict"),
        ("import os; os.abort()", "SIGABRT"),
        ("import time; time.sleep(60)", "step ran longer than 1 s"),
        ("while True: pass", "step ran longer than 1 s"),
    ],
)
def test_hostile_step_costs_its_own_turn_and_nothing_else(tmp_path: Path, body: str, reason: str) -> None:
    (tmp_path / "mine.py").write_text(
        "def tasks(s): return [(s, 1)]\n"
        "def step(turns, answer):\n"
        "    if turns == ['ok']: return 'go on', 0\n"
        f"    {body}\n"
    )
    task = task_of(tmp_path)
    asked = lines({"id": 1, "taskId": task, "turns": ["bad"]}, {"id": 2, "taskId": task, "turns": ["ok"]})
    bad, good = run(tmp_path, "step", "--timeout", "1", stdin=asked)
    assert (bad["id"], bad["verdict"], bad["reward"]) == (1, "InfrastructureFailure", None)
    assert reason in bad["reason"]
    assert good["messages"] == [{"role": "user", "content": "go on"}]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"messages": 5}',
        b'{"messages": null}{"messages": null}',
        b'{"messages": null, "verdict": "Correct"}',
        b'{"verdict": "Correct", "reward": 1.0}',
        b'{"verdict": "InfrastructureFailure", "reward": 1.0}',
        b'{"messages": [{"role": "user"}]}',
        b'{"messages": [{"role": "user", "content": "a", "extra": "b"}]}',
        b'{"messages": [{"role": ["user"], "content": "a"}]}',
        b"[" * 30000,
        b"\xff",
    ],
)
def test_what_an_episodes_process_writes_counts_only_when_it_is_an_answer(data: bytes) -> None:
    assert messages.read(data) is None


def test_answers_of_tools_keep_who_they_are_from() -> None:
    answer = [{"role": "tool", "content": "é", "name": "add", "tool_call_id": "1"}]
    assert messages.read(messages.write(answer)) == {"messages": answer}
    assert messages.read(messages.write(None)) == {"messages": None}


def test_tools_are_published_where_a_task_has_them() -> None:
    with_tools, without = build_split(
        "e", "1", "train", [{"prompt": "a", "tools": [TOOL]}, {"prompt": "b", "tools": None}]
    )
    assert public_line(with_tools) == {"taskId": with_tools.id, "prompt": "a", "metadata": {}, "tools": [TOOL]}
    assert "tools" not in public_line(without)


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        (TOOL, "no list"),
        ([5], "has the tool 5"),
        ([{}], "has the tool {}"),
        ([{"name": "add"}], "has the tool"),
        ([{"type": "function", "function": {"name": " "}}], "has the tool"),
        ([{"type": "function", "function": {"name": "a", "parameters": []}}, 1], "has the tool 1"),
        ([{"type": "function", "function": {"name": "a", "parameters": [1]}}], "has the tool"),
        ([TOOL, TOOL], "two tools of one name: add"),
        ([{**TOOL, "x": {1}}], "not JSON"),
        ([TOOL] * 200, "no list of at most 128"),
        ([{"type": "function", "function": {"name": "a", "description": "x" * 300_000}}], "262144 characters"),
    ],
)
def test_tools_that_are_no_schemas_are_refused(tools: object, message: str) -> None:
    with pytest.raises(BadTask, match=message):
        build_split("e", "1", "train", [{"prompt": "a", "tools": tools}])
