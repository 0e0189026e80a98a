"""The archive: what is in it, that it is the same every time, and that the reward was tried before."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodus.errors import RewardError, TasksError
from nodus.recipes.bundle import LIMIT_BYTES, check_requirements, make_bundle
from nodus.recipes.bundling import package_reward
from nodus.recipes.errors import RewardNotTried
from nodus.recipes.local_check import try_reward
from nodus.recipes.tasks import Task
from nodus.testing.eventually import eventually

TRAIN: list[Task] = [{"prompt": f"p{n}", "answer": str(n)} for n in range(4)]
TEST: list[Task] = [{"prompt": "q", "answer": "q"}]
RewardOf = Callable[[str], Any]


@pytest.fixture
def reward_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RewardOf:
    """Write a file and return the reward in it."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str) -> Any:
        name = f"my_reward_{len(list(tmp_path.iterdir()))}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        module = __import__(name)
        sys.modules.pop(name)
        return module.reward

    return write


GOOD = """
    def reward(completion, answer):
        if not completion:
            return None
        return float(completion == answer)
"""


def test_bundle_holds_module_reward_and_tasks(reward_of: RewardOf) -> None:
    bundle = make_bundle(reward_of(GOOD), TRAIN, TEST)
    with tarfile.open(fileobj=io.BytesIO(bundle.archive)) as archive:
        names = archive.getnames()
        data = archive.extractfile("nodus_task_data.json")
        assert data is not None
        assert json.load(data) == {"train": TRAIN, "test": TEST}
    assert names == ["nodus_reward.py", "nodus_task.py", "nodus_task_data.json"]


def test_bundle_is_the_same_for_the_same_content(reward_of: RewardOf) -> None:
    first, second = make_bundle(reward_of(GOOD), TRAIN, TEST), make_bundle(reward_of(GOOD), TRAIN, TEST)
    other = make_bundle(reward_of(GOOD), TRAIN[:3], TEST)
    assert first.archive == second.archive
    assert first.environment_name == second.environment_name == f"rl-{first.digest[:12]}"
    assert other.environment_name != first.environment_name


def test_unpacked_bundle_answers_like_an_environment(reward_of: RewardOf, tmp_path: Path) -> None:
    bundle = make_bundle(reward_of(GOOD), TRAIN, TEST)
    root = tmp_path / "unpacked"
    with tarfile.open(fileobj=io.BytesIO(bundle.archive)) as archive:
        archive.extractall(root, filter="data")
    sys.path.insert(0, str(root))
    try:
        import nodus_task  # type: ignore[import-not-found]

        assert [task["prompt"] for task in nodus_task.tasks("test")] == ["q"]
        assert nodus_task.reward("1", "1") == 1.0
    finally:
        sys.path.remove(str(root))
        sys.modules.pop("nodus_task", None)
        sys.modules.pop("nodus_reward", None)


FAILS: dict[str, tuple[str, str, str]] = {
    "raises on an empty reply": (
        """
        def reward(completion, answer):
            return float(completion[0] == answer[0])
        """,
        ':3: reward("", ...) raised IndexError: string index out of range',
        "Return None or 0",
    ),
    "raises on an answer": (
        """
        def helper(text):
            return int(text) / 0
        def reward(completion, answer):
            return helper(completion)
        """,
        ":3: reward('0', ...) raised ZeroDivisionError: division by zero",
        "Correct the line",
    ),
    "returns a string": (
        """
        def reward(completion, answer):
            return "good"
        """,
        ":2: reward('0', ...) returned 'good', a str",
        "Return a number from -1e9 to 1e9",
    ),
    "returns nan": (
        """
        def reward(completion, answer):
            return float("nan")
        """,
        ":2: reward('0', ...) returned nan, a float",
        "Return a number",
    ),
    "returns a huge number": ("def reward(completion, answer):\n    return 10**400\n", ", a int", "-1e9 to 1e9"),
    "returns a list": ("def reward(completion, answer):\n    return [1.0]\n", "returned [1.0], a list", "-1e9 to 1e9"),
    "reads a file": (
        """
        WORDS = open("words-that-are-not-there.txt").read() if not __name__.startswith("my_reward") else ""
        def reward(completion, answer):
            return completion in WORDS
        """,
        ":2: the reward's module can't be loaded on its own: FileNotFoundError",
        "Files don't go along",
    ),
    "asks the network": (
        """
        import urllib.request
        def reward(completion, answer):
            return float(urllib.request.urlopen("http://127.0.0.1:9/").status == 200)
        """,
        ":4: reward('0', ...) raised URLError: <urlopen error [Errno 97] the grader has no network>",
        "into the tasks",
    ),
    "ends the process": (
        """
        import os
        def reward(completion, answer):
            os._exit(3)
        """,
        "ended the process (exit code 3)",
        "don't call exit",
    ),
    "exits": (
        """
        import sys
        def reward(completion, answer):
            sys.exit("bye")
        """,
        ":4: reward('0', ...) raised SystemExit: bye",
        "Correct",
    ),
}


@pytest.mark.parametrize(("text", "message", "fix"), FAILS.values(), ids=list(FAILS))
def test_reward_that_does_not_work_fails_here(reward_of: RewardOf, text: str, message: str, fix: str) -> None:
    with pytest.raises(RewardError) as raised:
        make_bundle(reward_of(text), TRAIN, TEST)
    assert message in raised.value.message
    assert fix in str(raised.value.fix)


def test_file_of_this_machine_is_as_absent_as_in_the_grader(reward_of: RewardOf, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("words")
    text = f"""
        def reward(completion, answer):
            with open({str(tmp_path / "words.txt")!r}) as file:
                return completion in file.read()
    """
    with pytest.raises(RewardError, match=r":3: reward\('0', ...\) raised FileNotFoundError") as raised:
        make_bundle(reward_of(text), TRAIN, TEST)
    assert "Files don't go along" in str(raised.value.fix)


def test_reward_may_use_files_of_its_own(reward_of: RewardOf) -> None:
    text = """
        import tempfile
        def reward(completion, answer):
            with tempfile.NamedTemporaryFile("w+") as file:
                file.write(completion)
                file.flush()
                return open(file.name).read() == answer
    """
    assert make_bundle(reward_of(text), TRAIN, TEST).train == 4


@pytest.mark.parametrize("value", ["None", "True", "0", "-1", "0.5", "1e6"])
def test_reward_may_return_numbers_bools_and_none(reward_of: RewardOf, value: str) -> None:
    assert make_bundle(reward_of(f"def reward(completion, answer):\n    return {value}\n"), TRAIN, TEST).train == 4


def test_reward_may_print(reward_of: RewardOf) -> None:
    text = """
        import sys
        def reward(completion, answer):
            print("noise")
            sys.stderr.write("noise")
            return 1.0
    """
    assert make_bundle(reward_of(text), TRAIN, TEST).test == 1


def test_bundle_over_the_limit_names_what_is_large(reward_of: RewardOf) -> None:
    import random

    noise = random.Random(1)
    tasks: list[Task] = [
        {"prompt": "".join(noise.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=1000)), "answer": "x"}
        for _ in range(LIMIT_BYTES // 500)
    ]
    with pytest.raises(TasksError, match=r"at most 512 fit: nodus_task_data\.json"):
        make_bundle(reward_of(GOOD), tasks, TEST)


@pytest.mark.parametrize(
    "requirement", ["rapidfuzz", "rapidfuzz>=3", "rapidfuzz==3; python_version<'3'", "git+https://x/y"]
)
def test_pip_wants_exact_versions(requirement: str) -> None:
    with pytest.raises(RewardError, match="is not an exact version"):
        check_requirements([requirement])


def test_pip_wants_a_list() -> None:
    with pytest.raises(RewardError, match="pip is the text"):
        check_requirements("rapidfuzz==3.0.0")


def test_reward_that_hangs_is_ended(reward_of: RewardOf) -> None:
    packaged = package_reward(reward_of("def reward(completion, answer):\n    while True:\n        pass\n"))
    with pytest.raises(RewardError, match=r"did not return within 0\.5 s") as raised:
        try_reward(packaged, "1", {"nodus_reward.py": packaged.text.encode()}, timeout_s=0.5)
    assert "make it quick" in str(raised.value.fix)


def test_process_that_a_reward_leaves_behind_is_ended(reward_of: RewardOf) -> None:
    text = """
        import subprocess
        def reward(completion, answer):
            subprocess.Popen(["sleep", "600"], close_fds=False)
            return 1.0
    """
    assert make_bundle(reward_of(text), TRAIN, TEST).train == 4


USES_A_LIBRARY = """
    def reward(completion, answer):
        from math_verify import parse, verify
        return verify(parse(answer), parse(completion))
"""


def test_library_of_the_grader_that_is_here_too_is_used_to_try_the_reward(reward_of: RewardOf) -> None:
    assert make_bundle(reward_of(USES_A_LIBRARY), TRAIN, TEST).train == 4


def test_library_of_the_grader_that_is_not_here_leaves_the_try_to_the_server(
    reward_of: RewardOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.warns(
        RewardNotTried, match=r":\d+: reward\(\) was not tried on this machine, .* 'math_verify'"
    ) as seen:
        bundle = make_bundle(reward_of(USES_A_LIBRARY), TRAIN, TEST)
    assert bundle.train == 4 and "pip install math-verify" in str(seen[0].message)


RUNS_CODE: dict[str, str] = {
    "from the module": """
        from nodus.grader.code import matches, run_code
        def reward(completion, answer):
            return _score(completion, answer)
        def _score(completion, answer):
            outcome = run_code(completion, "double", [[2], [5]])
            return outcome.fault is None and [call.value for call in outcome.calls] == [4, 10]
    """,
    "the module, in a helper": """
        def outcome_of(text):
            import nodus.grader.code
            return nodus.grader.code.run_code(text, "double", [[2], [5]])
        def reward(completion, answer):
            outcome = outcome_of(completion)
            return outcome.fault is None and [call.value for call in outcome.calls] == [4, 10]
    """,
    "from the package": """
        from nodus.grader import code as box
        def reward(completion, answer):
            outcome = box.run_code(completion, "double", [[2], [5]])
            return outcome.fault is None and [call.value for call in outcome.calls] == [4, 10]
    """,
}


@pytest.mark.parametrize("text", RUNS_CODE.values(), ids=RUNS_CODE)
def test_reward_that_runs_code_is_tried_with_what_runs_it(reward_of: RewardOf, text: str) -> None:
    reward = reward_of(text)
    task: Task = {"prompt": "p", "answer": "def double(n): return 2 * n"}
    assert make_bundle(reward, [task], TEST).train == 1
    strict = text.replace("return outcome", "assert outcome.fault is None, outcome.fault\n            return outcome")
    with pytest.raises(RewardError, match="the code defines no function 'double'"):
        make_bundle(reward_of(strict), [task], TEST)


def test_program_that_a_reward_has_run_ends_with_the_try(reward_of: RewardOf) -> None:
    marker = f"left-{os.getpid()}"
    text = """
        from nodus.grader.code import run_code
        def reward(completion, answer):
            return float(run_code(completion, "f", [[]], timeout_s=50).timed_out)
    """
    shell = ["/bin/sh", "-c", f"sleep 50; : {marker}"]
    program = f"import subprocess, time\ndef f():\n    subprocess.Popen({shell})\n    time.sleep(50)"
    packaged = package_reward(reward_of(text))
    try_reward(packaged, program, {"nodus_reward.py": packaged.text.encode()}, timeout_s=2)
    eventually(lambda: marker not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout)


# Packages that go along
@pytest.fixture
def wheelhouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an index of one small package, which pip uses instead of its own."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    info = "tiny_scoring-1.2.dist-info"
    content = {
        "closeness/__init__.py": "def score(a, b):\n    return float(a == b)\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny-scoring\nVersion: 1.2\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*content, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / "tiny_scoring-1.2-py3-none-any.whl", "w") as wheel:
        for name, text in (content | {f"{info}/RECORD": record}).items():
            wheel.writestr(name, text)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


USES_A_PACKAGE = """
    def reward(completion, answer):
        from closeness import score
        return score(completion, answer)
"""


def test_packages_go_along_unpacked(reward_of: RewardOf, wheelhouse: Path) -> None:
    first, second = (make_bundle(reward_of(USES_A_PACKAGE), TRAIN, TEST, ["tiny-scoring==1.2"]) for _ in range(2))
    with tarfile.open(fileobj=io.BytesIO(first.archive)) as archive:
        names = [name for name in archive.getnames() if name.startswith("site/")]
    assert names == [
        "site/closeness/__init__.py",
        "site/tiny_scoring-1.2.dist-info/METADATA",
        "site/tiny_scoring-1.2.dist-info/WHEEL",
    ]
    assert first.archive == second.archive


def test_package_that_is_not_named_is_missing(reward_of: RewardOf, wheelhouse: Path) -> None:
    with pytest.raises(RewardError, match="the grader has no module 'closeness'"):
        make_bundle(reward_of(USES_A_PACKAGE), TRAIN, TEST)


def test_package_that_cannot_be_fetched_gives_pips_reason(reward_of: RewardOf, wheelhouse: Path) -> None:
    with pytest.raises(RewardError, match=r"can't be fetched: ERROR: .*tiny-scoring==9"):
        make_bundle(reward_of(USES_A_PACKAGE), TRAIN, TEST, ["tiny-scoring==9"])
