"""Environments that score without a process for each completion: which may, and that verdicts are the same."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nodus.grader.direct import is_pure
from tests.unit.grader.test_command import RUNNER

REPLIES = ["", "x", "<answer>1</answer>", '{"0": 1, "1": 2}', "{" * 5000, "[" * 5000, "\ud800", "9" * 5000, "\0"]


def verdicts(loader: str, *, private: bool, count: int) -> list[dict[str, Any]]:
    """Grade a few replies to the first tasks, as a host does (in the grader's process) or as a shell does (forked)."""
    base = [sys.executable, str(RUNNER), "--loader", f"nodus.grader.catalog.{loader}"]
    listed = subprocess.run(
        [*base, "tasks", "--split", "test", "--answers"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[:count]
    tasks = [json.loads(line) for line in listed]
    asked = [
        {"id": f"{task['taskId']}{n}", "taskId": task["taskId"], "completion": text}
        for task in tasks
        for n, text in enumerate([*REPLIES, json.dumps(task["answer"])])
    ]
    lines = "".join(json.dumps(request) + "\n" for request in asked)
    if not private:
        done = subprocess.run([*base, "grade"], input=lines, capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]
    read_end, write_end = os.pipe()
    command = [*base, "--output-fd", str(write_end), "grade"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[write_end], text=True) as runner,
        open(read_end) as results,
    ):
        os.close(write_end)
        assert runner.stdin is not None
        ready = json.loads(results.readline())
        assert ready["pure"] is True
        runner.stdin.write(lines)
        runner.stdin.close()
        found = [json.loads(line) for line in results]
    assert runner.returncode == 0
    return found


@pytest.mark.parametrize(
    ("loader", "count"), [("graph_coloring", 24), ("letter_counting_legacy:evaluation", 8), ("reasoning_gym", 8)]
)
def test_verdicts_are_those_of_a_process_for_each_completion(loader: str, count: int) -> None:
    pytest.importorskip("reasoning_gym") if loader != "graph_coloring" else None
    without, with_fork = verdicts(loader, private=True, count=count), verdicts(loader, private=False, count=count)
    assert len(without) == len(with_fork) == count * (len(REPLIES) + 1)
    for one, other in zip(without, with_fork, strict=True):
        assert "exitCode" not in one["evidence"] and other["evidence"]["exitCode"] == 0
        for verdict in (one, other):
            del verdict["evidence"]
        assert one == other


def test_only_a_reviewed_module_of_the_catalog_is_pure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("graph_coloring", "python_functions"):
        importlib.import_module(f"nodus.grader.catalog.{name}")
    assert is_pure("nodus.grader.catalog.graph_coloring")
    assert not is_pure("nodus.grader.catalog.python_functions")  # code of completions runs in forks alone
    (tmp_path / "boasting.py").write_text("PURE = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import boasting  # type: ignore[import-not-found]

    assert boasting.PURE and not is_pure("boasting") and not is_pure("boasting:load_environment")
    assert not is_pure("nodus.grader.catalog.not_loaded")


def test_bundle_that_holds_a_module_of_the_catalogs_name_gets_the_catalogs(tmp_path: Path) -> None:
    own = tmp_path / "nodus" / "grader" / "catalog"
    own.mkdir(parents=True)
    for directory in (own, own.parent, own.parent.parent):
        (directory / "__init__.py").write_text("")
    (own / "graph_coloring.py").write_text("PURE = True\ndef tasks(s): return []\ndef reward(c, a): return 1\n")
    (own / "mine.py").write_text("PURE = True\ndef tasks(s): return [(s, 1)]\ndef reward(c, a): return 1\n")
    base = [sys.executable, str(RUNNER), "--path", str(tmp_path), "--loader"]
    info = subprocess.run([*base, "nodus.grader.catalog.graph_coloring", "info"], capture_output=True, text=True)
    assert json.loads(info.stdout)["splits"] == {"train": 1000, "test": 200}
    mine = subprocess.run([*base, "nodus.grader.catalog.mine", "info"], capture_output=True, text=True)
    assert "No module named" in json.loads(mine.stdout)["refused"]


def test_timer_ends_it_in_the_middle_of_c_code() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(RUNNER.parents[1])!r})\n"
        "import signal\n"
        "from nodus.grader import process\n"
        "process.end_at_alarm()\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.2)\n"
        "import re; re.match('(a*)*b', 'a' * 64)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=30)
    assert done.returncode == signal.SIGALRM
