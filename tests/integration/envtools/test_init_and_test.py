"""`nodus env init` and `nodus env test`: what is written passes at once, and what would fail a build fails here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nodus.cli.main import main
from tests.integration.envtools.conftest import MakeDirectory

pytestmark = pytest.mark.sandbox
GOOD = """
def tasks(split):
    return [{"prompt": f"say {split} {n}", "answer": f"{split} {n}"} for n in range(4)]

def reward(completion, answer):
    return None if not completion else float(completion == answer)
"""
PARSING = """
import re

def tasks(split):
    return [{{"prompt": f"say {{split}} {{n}} in <answer> tags", "answer": f"{{split}} {{n}}"}} for n in range(4)]

def reward(completion, answer):
    found = re.search("<answer>(.*)</answer>", completion)
    return None if found is None else {pay}
"""


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["env", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def report_of(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code, out, err = run(capsys, "test", *words, "-o", "json")
    assert out, err
    return code, json.loads(out)


@pytest.mark.parametrize("kind", ["episodes", pytest.param("functions", marks=pytest.mark.heavy)])
def test_a_skeleton_passes_its_own_tests_and_the_check(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "init", "word-task", "--kind", kind)
    assert code == 0 and "next: nodus env test word-task" in out
    own = subprocess.run(
        [sys.executable, "-m", "unittest", "discover", "-s", "tests"], cwd="word-task", capture_output=True, check=False
    )
    assert own.returncode == 0, own.stderr.decode()
    code, report = report_of(capsys, "word-task")
    assert code == 0 and report["ok"], report
    assert report["environment"] == "word-task@1.0.0"
    assert [check["state"] for check in report["checks"]] == ["ok"] * len(report["checks"])
    assert "answer" not in report["sample"]
    assert [message["role"] for message in report["episode"]] == ["assistant", "user"] * 2 * (kind == "episodes")
    assert {item["verdict"] for item in report["graded"] if item["reply"] == "its answer"} <= {"Correct", "Incorrect"}
    assert {item["verdict"] for item in report["graded"] if item["reply"] == "nothing"} == {"InvalidOutput"}
    assert not list(Path("word-task").rglob("*.egg-info")) and not Path("word-task/build").exists()


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["verifiers", "openenv", "reasoning-gym", "verl"])
def test_skeletons_of_other_ecosystems_pass_with_their_own_libraries(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "init", "word-task", "--kind", kind)
    code, report = report_of(capsys, "word-task")
    assert code == 0 and report["ok"], report
    assert {check["name"]: check["found"] for check in report["checks"]}["load"].startswith(kind)
    assert not any((item["reward"] or 0) >= 1 for item in report["graded"] if item["reply"] == "nothing")


def test_a_skeleton_overwrites_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    code, _, err = run(capsys, "init", "mine")
    assert code == 1 and "is there already" in err
    assert [path.name for path in Path("mine").iterdir()] == ["notes.txt"]


def test_the_report_shows_a_task_and_the_verdicts(directory: MakeDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    directory(GOOD)
    code, out, _ = run(capsys, "test", "my-task")
    assert code == 0
    assert "my-task@1.2.3 from my-task" in out
    assert "4 train, 4 test; listed twice in two processes, equal" in out
    assert "a task of test, as the model sees it" in out and "  say test" in out
    assert "its answer   Correct" in out and "nothing      InvalidOutput" in out


def test_a_file_alone_is_an_environment(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my_task.py").write_text(GOOD)
    code, report = report_of(capsys, "my_task.py")
    assert code == 0 and report["environment"] == "my-task@0.0.0"


@pytest.mark.parametrize(
    ("source", "step", "words"),
    [
        ("import random\n" + GOOD.replace('f"say', 'f"{random.random()} say'), "tasks", "differ between two processes"),
        (GOOD.replace("float(", "wrong("), "grade", "NameError"),
        (PARSING.format(pay="wrong(found[1] == answer)"), "grade", "name 'wrong' is not defined"),
        (PARSING.format(pay="{'test 2': 1.0}[answer]"), "reward", "KeyError"),
        pytest.param(GOOD.replace("def reward", "def score"), "load", "", marks=pytest.mark.heavy),
        pytest.param(
            "import nowhere_to_be_found\n" + GOOD,
            "load",
            "No module named 'nowhere_to_be_found'",
            marks=pytest.mark.heavy,
        ),
        ("import time\n" + GOOD.replace("float(", "time.time() % 1 * float("), "reward", "was paid"),
    ],
    ids=[
        "random tasks",
        "raising reward",
        "raising when parsed",
        "raising on another task",
        "no reward",
        "missing module",
        "random reward",
    ],
)
def test_what_would_fail_a_build_fails_here_with_its_step(
    source: str, step: str, words: str, directory: MakeDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    directory(source)
    code, report = report_of(capsys, "./my-task")
    assert code == 1 and not report["ok"]
    failed = [check for check in report["checks"] if check["state"] == "FAIL"]
    assert len(failed) == 1, report
    assert failed[0]["name"] == step
    assert words in failed[0]["found"] + str(report["traceback"])


def test_train_tasks_with_a_held_out_prompt_are_counted(
    directory: MakeDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    directory(GOOD.replace("{split} {n}", "{n}", 1).replace("range(4)", "range(4 if split == 'test' else 6)"))
    code, report = report_of(capsys, "my-task")
    assert code == 0
    found = {check["name"]: check["found"] for check in report["checks"]}
    assert found["tasks"].startswith("2 train, 4 test")
    assert found["shared"] == "4 tasks of train have a held-out prompt, and were left out of train"


def test_episodes_that_differ_fail_at_their_step(directory: MakeDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    step = "def step(turns, answer):\n    return str(time.time()), 0.0\n"
    directory("import time\n" + GOOD.partition("def reward")[0] + step)
    code, report = report_of(capsys, "my-task")
    assert code == 1
    (failed,) = [check for check in report["checks"] if check["state"] == "FAIL"]
    assert failed["name"] == "step" and "differs between two processes" in failed["found"]


def test_declared_sizes_are_checked(directory: MakeDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    directory(GOOD, splits="{train: {size: 4}, test: {size: 5}}")
    code, report = report_of(capsys, "my-task")
    assert code == 1
    assert any("test has 4 tasks; the manifest declares" in check["found"] for check in report["checks"])


@pytest.mark.parametrize(
    ("file", "old", "new", "step", "words"),
    [
        pytest.param(
            "pyproject.toml",
            'py-modules = ["word_task"]',
            "py-modules = []",
            "install",
            "it brings no module",
            marks=pytest.mark.heavy,
        ),
        ("environment.yaml", "version: 1.0.0}", "version: 1.0.1}", "package", "names the package's version '1.0.1'"),
        ("pyproject.toml", 'build-backend = "setuptools', 'build-backend = "nowhere', "wheel", "can't make a wheel"),
    ],
    ids=["no module", "two versions", "no backend"],
)
def test_a_package_that_cannot_be_built_fails_at_its_step(
    file: str, old: str, new: str, step: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "init", "word-task")
    text = Path("word-task", file).read_text()
    assert old in text
    Path("word-task", file).write_text(text.replace(old, new))
    code, report = report_of(capsys, "word-task")
    (check,) = report["checks"]
    assert (code, check["state"], check["name"]) == (1, "FAIL", step)
    assert words in check["found"]


def test_a_package_has_its_dependencies_alone_as_on_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "init", "word-task")
    module = Path("word-task/word_task.py")
    module.write_text(f"import numpy\n{module.read_text()}")
    code, report = report_of(capsys, "word-task")
    assert code == 1 and "No module named 'numpy'" in json.dumps(report)


def test_what_is_no_environment_is_refused_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    for what, words in (
        ("./nowhere", "there is no nowhere"),
        ("/", "names no environment"),
        ("somewhere-else", "can't be reached"),
        ("arithmetic@9.9.9", "the catalog has no arithmetic@9.9.9; it has arithmetic@2.0.0"),
    ):
        code, out, err = run(capsys, "test", what)
        assert code == 1 and words in out + err, (what, err)


def test_the_catalog_is_checked_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    for what in ("arithmetic-v2", "nodus/arithmetic@2.0.0"):
        code, report = report_of(capsys, what)
        assert code == 0 and report["from"] == "the catalog"
        assert all(item["verdict"] == "Correct" for item in report["graded"] if item["reply"] == "its answer")
