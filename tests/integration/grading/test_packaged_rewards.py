"""Rewards as rl.train packages them, checked and graded as the server does it."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodus.recipes.bundle import TASK_MODULE, make_bundle
from nodus.recipes.tasks import check_tasks, split_tasks
from nodus.server.grading import Completion, GradingService, ResolvedEnvironment
from nodus.server.grading.selfcheck import check

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(60)]

SOLUTION = "def double(n):\n    return 2 * n"
TASKS = [(f"Write double(n). ({number})", SOLUTION) for number in range(40)]
RUNS_CODE: dict[str, str] = {
    "in a helper": """
        CASES = [[2], [5]]

        def outcome_of(text):
            import nodus.grader.code
            return nodus.grader.code.run_code(text, "double", CASES, timeout_s=1)

        def reward(completion, answer):
            if not completion:
                return None
            outcome = outcome_of(completion)
            return float(outcome.fault is None and [call.value for call in outcome.calls] == [4, 10])
    """,
    "by name": """
        from nodus.grader.code import matches, run_code as run

        def reward(completion, answer):
            if not completion:
                return None
            outcome = run(completion, "double", [[2], [5]], timeout_s=1)
            return float(outcome.fault is None and matches([call.value for call in outcome.calls], [4, 10]))
    """,
    "from the package": """
        from nodus.grader import code

        def reward(completion, answer):
            if not completion:
                return None
            outcome = code.run_code(completion, "double", [[2], [5]], timeout_s=1)
            return float(outcome.fault is None and [call.value for call in outcome.calls] == [4, 10])
    """,
}
Packaged = Callable[[str], tuple[str, dict[str, Any]]]


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment_names: list[str]) -> Packaged:
    """Return a function from a reward's file to an environment's name and spec, as rl.train makes them."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(text: str) -> tuple[str, dict[str, Any]]:
        (tmp_path / "my_reward.py").write_text(textwrap.dedent(text))
        module = __import__("my_reward")
        sys.modules.pop("my_reward")
        bundle = make_bundle(module.reward, *split_tasks(check_tasks(TASKS), None))
        (tmp_path / bundle.sha256).write_bytes(bundle.archive)
        environment_names.append(bundle.environment_name)
        package = {"source": {"blob": f"sha256:{bundle.sha256}", "module": TASK_MODULE}}
        return bundle.environment_name, {"version": "1.0.0", "package": package}

    return make


async def _verdicts(service: GradingService, environment: ResolvedEnvironment, texts: list[str]) -> list[str]:
    tasks = (await service.tasks(environment, "test", 0)).tasks
    items = [Completion(tasks[0].task_id, sample, text) for sample, text in enumerate(texts)]
    return [verdict.verdict for verdict in await service.grade("job", environment, items, 1)]


@pytest.mark.parametrize("text", RUNS_CODE.values(), ids=RUNS_CODE)
async def test_packaged_reward_has_code_run_in_the_code_sandbox(
    text: str, service: GradingService, packaged: Packaged
) -> None:
    name, spec = packaged(text)
    checked = await check(service, name, spec, "check")
    assert checked.splits == {"train": 24, "test": 16}
    environment = await service.resolve(name, spec)
    texts = [SOLUTION, "def double(n): return 5", "def double(n):\n    while True: pass", "import os; os._exit(0)", ""]
    expected = ["Correct", "Incorrect", "Incorrect", "Incorrect", "InvalidOutput"]
    assert await _verdicts(service, environment, texts) == expected
