"""The libraries that rewards may import: there, in real sandboxes, or named when an environment is built."""

from __future__ import annotations

import dataclasses
import platform
from pathlib import Path
from typing import Any

import pytest

from nodus.server.compute.local import gradersandbox, pythons
from nodus.server.grading import Completion, GradingService
from nodus.server.grading.libraries import GraderLibraryMissing
from nodus.server.grading.selfcheck import SelfCheckFailed, check
from tests.integration.grading.conftest import MakeEnvironment, Specify

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

ONE_TASK = """
def tasks(split):
    return [{{"prompt": split, "answer": {answer!r}}}]
"""
NUMPY = """
import numpy as np

def reward(completion, answer):
    return bool(np.allclose(np.array(eval(completion, {}) if completion else [0]), answer))
"""
SYMPY = """
def reward(completion, answer):
    import sympy
    return sympy.simplify(sympy.sympify(completion or "0") - sympy.sympify(answer)) == 0
"""
REGEX = """
import regex

def reward(completion, answer):
    return bool(regex.fullmatch(r"(?:[^()]|(\\((?:[^()]|(?1))*\\)))+", completion)) and answer in completion
"""
JSONSCHEMA = """
import json
from jsonschema import Draft202012Validator

def reward(completion, answer):
    try:
        return Draft202012Validator(answer).is_valid(json.loads(completion))
    except ValueError:
        return None
"""
MATH_VERIFY = """
from math_verify import parse, verify

def reward(completion, answer):
    return verify(parse(answer), parse(completion))
"""
REASONING_GYM = """
import reasoning_gym

DATA = reasoning_gym.create_dataset("leg_counting", size=3, seed=1)

def reward(completion, answer):
    return DATA.score_answer(DATA[0]["answer"] if completion == answer else completion, DATA[0])
"""
OPENENV = """
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

class Guess(Action):
    text: str

class Game(Environment):
    def reset(self, seed=None, episode_id=None, **more):
        self.steps = 0
        return Observation(done=False)

    def step(self, action: Guess, timeout_s=None, **more):
        self.steps += 1
        return Observation(done=True, reward=float(action.text == "open"))

    @property
    def state(self):
        return State(step_count=self.steps)

def reward(completion, answer):
    game = Game()
    game.reset(seed=1)
    return game.step(Guess(text=completion)).reward
"""
GRADED: dict[str, tuple[str, Any, str, str]] = {
    # library: the reward, the answer, a correct completion, an incorrect one
    "numpy": (NUMPY, [0.5, 1.5], "[0.5, 1.5]", "[1, 2]"),
    "sympy": (SYMPY, "(x + 1)**2", "x**2 + 2*x + 1", "x**2 + 1"),
    "regex": (REGEX, "b", "a(b(c))", "a(b(c)"),
    "jsonschema": (JSONSCHEMA, {"type": "object", "required": ["a"]}, '{"a": 1}', '{"b": 1}'),
    "math-verify": (MATH_VERIFY, "$\\frac{1}{2}$", "The answer is $0.5$", "$\\frac{1}{3}$"),
    "reasoning-gym": (REASONING_GYM, "yes", "yes", "no"),
    "openenv": (OPENENV, "", "open", "shut"),
}


@pytest.mark.parametrize("library", GRADED)
async def test_reward_grades_with_a_library_of_the_grader(
    library: str, service: GradingService, specify: Specify
) -> None:
    reward, answer, right, wrong = GRADED[library]
    name, spec = specify(ONE_TASK.format(answer=answer) + reward)
    found = await check(service, name, spec, "check")
    assert found.grader["python"] == platform.python_version() and found.grader["libraries"][library]
    environment = await service.resolve(name, spec)
    (task,) = (await service.tasks(environment, "test", 0)).tasks
    items = [Completion(task.task_id, n, text) for n, text in enumerate((right, wrong))]
    verdicts = await service.grade("job", environment, items)
    assert [v.verdict for v in verdicts] == ["Correct", "Incorrect"], [(v.reason, v.evidence) for v in verdicts]


async def test_library_imported_in_a_function_is_loaded_before_the_fork(
    service: GradingService, make_environment: MakeEnvironment
) -> None:
    source = """
import sys

def reward(completion, answer):
    loaded = [name for name in ("sympy", "math_verify", "numpy.random") if name in sys.modules]
    if completion == "never":
        import numpy, sympy
        from math_verify import verify
    return len(loaded) == 3
"""
    environment = make_environment(ONE_TASK.format(answer="a") + source)
    (task,) = (await service.tasks(environment, "test", 0)).tasks
    (verdict,) = await service.grade("job", environment, [Completion(task.task_id, 0, "x")])
    assert verdict.verdict == "Correct", verdict.evidence


async def test_reward_sees_nothing_of_the_server(service: GradingService, make_environment: MakeEnvironment) -> None:
    source = """
import importlib, os, sys

def reward(completion, answer):
    for name in [name for name in sys.modules if name.split(".")[0] == "nodus"]:
        del sys.modules[name]
    for name in ("nodus.server", "nodus.core", "nodus.client"):
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        return 0
    return not any(os.listdir(f"{path}/nodus") for path in sys.path if os.path.isdir(f"{path}/nodus/server"))
"""
    environment = make_environment(ONE_TASK.format(answer="a") + source)
    (task,) = (await service.tasks(environment, "test", 0)).tasks
    (verdict,) = await service.grade("job", environment, [Completion(task.task_id, 0, "x")])
    assert verdict.verdict == "Correct", verdict.evidence


@pytest.fixture
def only_packages(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that gives graders other directories of installed packages than the server's own."""

    def give(*directories: Path) -> None:
        python = dataclasses.replace(pythons.own(), packages=tuple(map(str, directories)))
        monkeypatch.setattr(gradersandbox.pythons, "own", lambda: python)

    return give


async def test_installed_server_beside_the_libraries_is_hidden(
    service: GradingService, make_environment: MakeEnvironment, only_packages: Any, tmp_path: Path
) -> None:
    packages = tmp_path / "packages"
    (packages / "nodus" / "server").mkdir(parents=True)
    for place in ("nodus", "nodus/server"):
        (packages / place / "__init__.py").write_text("")
    (packages / "useful.py").write_text("value = 1.0")
    only_packages(packages)
    source = """
import os, sys
import useful

def reward(completion, answer):
    (place,) = [path for path in sys.path if path.endswith("site-packages")]
    return useful.value if os.listdir(place + "/nodus") == [] else 0
"""
    environment = make_environment(ONE_TASK.format(answer="a") + source)
    (task,) = (await service.tasks(environment, "test", 0)).tasks
    (verdict,) = await service.grade("job", environment, [Completion(task.task_id, 0, "x")])
    assert verdict.verdict == "Correct", verdict.evidence


LAZY = """
def reward(completion, answer):
    if completion == "met in the middle of training":
        import sympy
    return 1.0
"""


async def test_missing_library_is_named_when_the_environment_is_built(
    service: GradingService, specify: Specify, only_packages: Any, tmp_path: Path
) -> None:
    only_packages(tmp_path)
    name, spec = specify(ONE_TASK.format(answer="a") + LAZY)
    with pytest.raises(GraderLibraryMissing, match="imports sympy, which graders of this server lack") as caught:
        await check(service, name, spec, "check")
    assert "scripts/setup" in str(caught.value.fix) and "pip install 'nodus-platform[environments]'" in str(
        caught.value.fix
    )


async def test_missing_library_that_a_reward_does_without_is_no_fault(
    service: GradingService, specify: Specify, only_packages: Any, tmp_path: Path
) -> None:
    only_packages(tmp_path)
    guarded = "try:\n    import sympy\nexcept ImportError:\n    sympy = None\n\n"
    source = guarded + "def reward(c, a):\n    return sympy is None"
    found = await check(service, *specify(ONE_TASK.format(answer="a") + source), "check")
    assert found.grader == {"python": platform.python_version(), "libraries": {}}


async def test_vendored_library_comes_first_and_is_what_is_reported(service: GradingService, specify: Specify) -> None:
    source = ONE_TASK.format(answer="a") + "import regex\n\ndef reward(c, a):\n    return regex.mine"
    files = {
        "site/regex/__init__.py": "mine = 1.0",
        "site/regex-0.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: regex\nVersion: 0.5\n",
    }
    found = await check(service, *specify(source, files=files), "check")
    assert found.grader["libraries"]["regex"] == "0.5"


# compiled modules for another Python


async def test_bundle_for_a_python_that_is_not_here_fails_its_build(service: GradingService, specify: Specify) -> None:
    source = ONE_TASK.format(answer="a") + "def reward(c, a):\n    return 1"
    name, spec = specify(source, files={"site/fast.cpython-27-x86_64-linux-gnu.so": b""})
    with pytest.raises(SelfCheckFailed, match=r"compiled for Python 2\.7, and graders here run Python") as caught:
        await check(service, name, spec, "check")
    assert "Build the bundle with Python" in caught.value.message and "python2.7 on the server's PATH" in str(
        caught.value.message
    )


async def test_bundle_for_another_python_of_the_host_is_graded_by_it(
    service: GradingService, specify: Specify, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other Python is the server's own under another name: what is shown is that the grader is started with it."""
    own = pythons.own()
    tag = own.tag.replace(own.version.replace(".", ""), "399")
    other = dataclasses.replace(own, version="3.99", tag=tag, packages=(str(tmp_path / "packages"),))
    monkeypatch.setattr(pythons, "_known", {"3.99": other})
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "only_there.py").write_text("import sys\nfound = 'python3.99' in __file__")
    source = ONE_TASK.format(answer="a") + "import only_there\n\ndef reward(c, a):\n    return only_there.found"
    name, spec = specify(source, files={f"site/fast.{tag}.so": b""})
    found = await check(service, name, spec, "check")
    assert found.grader["libraries"] == {}
    environment = await service.resolve(name, spec)
    assert environment.python == "3.99"
    (task,) = (await service.tasks(environment, "test", 0)).tasks
    (verdict,) = await service.grade("job", environment, [Completion(task.task_id, 0, "x")])
    assert verdict.verdict == "Correct", verdict.evidence
    lazy = specify(source + "\n    import sympy", files={f"site/fast.{tag}.so": b""})
    with pytest.raises(GraderLibraryMissing, match=r"graders of python3\.99 lack") as caught:
        await check(service, *lazy, "check")
    assert "python3.99 -m pip install sympy" in str(caught.value.fix)
