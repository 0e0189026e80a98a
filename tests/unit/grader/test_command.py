"""``nodus-env`` as the guide shows it: in a shell, without a sandbox."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nodus.server.compute.local.mounts import package_root

RUNNER = Path(package_root(), "nodus", "grader")

GUIDE = """
import re
ANSWER = re.compile(r"<answer>\\s*([A-Za-z]+)\\s*</answer>")

def tasks(split):
    words = ["valley", "apple"] if split == "train" else ["apple", "pear"]
    print("noise on stdout")
    return [{"prompt": f"Spell the word backwards inside <answer>.\\n\\nWord: {w}", "answer": w[::-1]} for w in words]

def reward(completion, answer):
    print('{"id": 0, "verdict": "Correct", "reward": 1.0}')
    found = ANSWER.findall(completion)
    if not found:
        return None
    return 1.0 if found[-1].lower() == answer else 0.0
"""


def run(path: Path, *arguments: str, stdin: str = "", loader: str = "mine", code: int = 0) -> list[dict[str, Any]]:
    command = [sys.executable, str(RUNNER), "--path", str(path), "--loader", loader, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def guide(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(GUIDE)
    return tmp_path


def test_info_says_what_the_environment_is(guide: Path) -> None:
    (info,) = run(guide, "--name", "words", "--version", "1.2.3", "info")
    assert info["splits"] == {"train": 1, "test": 2}  # the held-out "apple" is not trained on
    assert (info["name"], info["version"], info["loader"], info["protocol"]) == ("words", "1.2.3", "mine", 1)


def test_tasks_are_the_same_in_every_process_and_hold_no_answer(guide: Path) -> None:
    first = run(guide, "tasks", "--split", "test", "--seed", "7")
    assert first == run(guide, "tasks", "--split", "test", "--seed", "7")
    assert [set(task) for task in first] == [{"taskId", "prompt", "metadata"}] * 2
    assert "elppa" not in json.dumps(first)


def test_grade_answers_each_line_in_order_and_ignores_what_rewards_print(guide: Path) -> None:
    tasks = {task["answer"]: task["taskId"] for task in run(guide, "tasks", "--split", "test", "--answers")}
    replies = [("elppa", "<answer>elppa</answer>"), ("raep", "<answer>no</answer>"), ("elppa", "none")]
    lines = "".join(json.dumps({"taskId": tasks[a], "completion": text}) + "\n" for a, text in replies)
    verdicts = run(guide, "grade", stdin=lines + "not json\n")
    graded = [(v.get("taskId"), v["verdict"], v["reward"]) for v in verdicts[:3]]
    assert graded == [
        (tasks["elppa"], "Correct", 1.0),
        (tasks["raep"], "Incorrect", 0.0),
        (tasks["elppa"], "InvalidOutput", 0.0),
    ]
    assert verdicts[3]["verdict"] == "InfrastructureFailure"
    assert all(v["evidence"]["exitCode"] == 0 for v in verdicts[:3])


def test_every_line_is_answered_whatever_it_holds(guide: Path) -> None:
    (task, *_) = run(guide, "tasks", "--split", "test")
    ids: list[Any] = [None, True, 1.5, "x" * 100_000, [1, [2]], {"a": {"b": None}}, "\ud800", -(10**30)]
    good = [{"id": each, "taskId": task["taskId"], "completion": "<answer>no</answer>"} for each in ids]
    bad: list[bytes] = [
        *(b"", b"{", b"[]", b"null", b"1", b'"text"', b"\xff\xfe{}", b"\x00", b"[" * 200_000, b'{"a":' * 50_000),
        *(b'{"id": NaN}', b'{"id": ' + b"1" * 5000 + b"}", b'{"taskId": 1, "taskId": {}, "completion": "a"}'),
        json.dumps({"taskId": task["taskId"]}).encode(),
        json.dumps({"taskId": task["taskId"], "completion": 1}).encode(),
        json.dumps({"taskId": task["taskId"], "turns": []}).encode(),
        *(json.dumps({"taskId": each, "completion": "a"}).encode() for each in ids),
        json.dumps({"taskId": task["taskId"], "completion": "a", "turns": ["a"]}).encode(),
        b'{"taskId": "x", "completion": "' + b"y" * (2 << 20) + b'"}',
    ]
    lines = [*bad, *(json.dumps(each).encode() for each in good), b'{"taskId": "no line end"']
    command = [sys.executable, str(RUNNER), "--path", str(guide), "--loader", "mine", "grade"]
    done = subprocess.run(command, input=b"\n".join(lines), capture_output=True, timeout=60)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, len(answers)) == (0, len(lines)), done.stderr
    assert {answer["verdict"] for answer in answers[: len(bad)]} == {"InfrastructureFailure"}
    assert [(answer["id"], answer["verdict"]) for answer in answers[len(bad) : -1]] == [
        (each, "Incorrect") for each in ids
    ]


def test_daemon_of_a_reward_in_a_shell_dies_but_nothing_else_does(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, time\n"
        "def tasks(split): return [(split, 'a')]\n"
        "def reward(completion, answer):\n"
        "    time.sleep(30)\n"
    )
    with subprocess.Popen(["sleep", "30"]) as bystander:
        (task,) = run(tmp_path, "tasks", "--split", "test")
        line = json.dumps({"taskId": task["taskId"], "completion": "x"})
        (verdict,) = run(tmp_path, "grade", "--timeout", "0.5", stdin=line)
        assert "longer than 0.5 s" in verdict["reason"]
        assert bystander.poll() is None
        bystander.kill()


@pytest.mark.parametrize(
    ("source", "loader", "message"),
    [
        ("x = 1", "mine", "module mine has neither tasks(split) and reward(completion, answer)"),
        ("def tasks(s): return []", "mine", "without reward"),
        ("def load_environment(): return object()", "mine", "object object without tasks and reward"),
        ("def load_environment(): return object()", "mine:other", "nor other()"),
        ("import does_not_exist", "mine", "No module named 'does_not_exist'"),
        ("def f(:", "mine", "SyntaxError"),
        ("raise SystemExit(0)", "mine", "SystemExit"),
        ("def tasks(s): return 5\ndef reward(c, a): return 1", "mine", "tasks('test') failed: TypeError"),
        ("def tasks(s): raise OSError('disk')\ndef reward(c, a): return 1", "mine", "disk"),
        ("def tasks(s): return ['x']\ndef reward(c, a): return 1", "mine", "tasks('test')[0] is str"),
    ],
)
def test_environment_that_cannot_be_loaded_is_refused_in_a_sentence(
    tmp_path: Path, source: str, loader: str, message: str
) -> None:
    (tmp_path / "mine.py").write_text(source)
    (answer,) = run(tmp_path, "info", loader=loader, code=3)
    assert message in answer["refused"]


def test_traceback_begins_at_the_environments_own_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def broken():\n    raise KeyError('column')\n\nbroken()\n")
    (answer,) = run(tmp_path, "info", code=3)
    lines = answer["traceback"].splitlines()
    assert lines[1].strip().startswith("File") and "mine.py" in lines[1]
    assert "importlib" not in answer["traceback"]


def test_vendored_packages_and_loader_functions_are_found(tmp_path: Path) -> None:
    (tmp_path / "site" / "vendored").mkdir(parents=True)
    (tmp_path / "site" / "vendored" / "__init__.py").write_text("WORD = 'hello'\n")
    (tmp_path / "mine.py").write_text(
        "import vendored\n"
        "class Environment:\n"
        "    def tasks(self, split): return [(vendored.WORD + split, 1)]\n"
        "    def reward(self, completion, answer): return answer\n"
        "def load_environment(): return Environment()\n"
        "def other(): return Environment()\n"
    )
    assert run(tmp_path, "tasks", "--split", "train")[0]["prompt"] == "hellotrain"
    assert run(tmp_path, "tasks", "--split", "test", loader="mine:other")[0]["prompt"] == "hellotest"


def test_runner_loads_nothing_but_the_standard_library() -> None:
    code = (
        f"import sys; sys.path.insert(0, {package_root()!r}); import nodus.grader.main\n"
        "print([m for m in sys.modules if m.split('.')[0] not in sys.stdlib_module_names and not m.startswith('nodus')"
        " and m != '__main__'])"
    )
    done = subprocess.run([sys.executable, "-S", "-s", "-P", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_reader_that_stops_reading_is_no_fault(guide: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, str(RUNNER), "--path", str(guide), "--loader", "mine", "tasks", "--split", "test"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=write_end, stderr=subprocess.PIPE, timeout=60)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, b"")
