"""The matrix of attacks, in the code sandbox and in a grader; after each, something that looks for what it left.

All are graded in a row by one grader in each place: what one breaks shows in the next. More are in test_attacks.py and
test_code_sandbox.py.
"""

from __future__ import annotations

import asyncio
import hashlib
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from nodus.core.clock import FakeClock
from nodus.server.compute.local.graders import LocalGraders
from nodus.server.grading import Completion, EnvironmentLibrary, GradingService, MemoryManifests, Verdict
from tests.integration.grading.attacks import ATTACKS, UNCHANGED, Attack, Expected
from tests.integration.grading.conftest import MakeEnvironment, bundle

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

_TASKS = """
def tasks(split):
    return [{"prompt": f"{split} {number}", "answer": "the-answer-is-4"} for number in range(20)]
"""
CODE_REWARD = f"""
from nodus.grader.code import matches, note, run_code
{_TASKS}
def reward(completion, answer):
    outcome = run_code(completion, "f", [[2]], timeout_s=2.5)
    if outcome.fault is not None:
        return 0.0
    [call] = outcome.calls
    note(call.error or repr(call.value)[:200])
    return float(call.error is None and matches(call.value, int(answer[-1])))
"""
EXECUTING_REWARD = f"""
{_TASKS}
def reward(completion, answer):
    names = {{"value": 0.0}}
    exec(completion, names)
    if (found := names["f"](2)) not in (4, 5):
        raise RuntimeError(repr(found))
    return float(found == 4)
"""
IN_CODE = {name: attack for name, attack in ATTACKS.items() if attack.code}
IN_GRADER = {name: attack for name, attack in ATTACKS.items() if attack.grader}
VERDICTS: Mapping[tuple[str, Expected], str] = {
    ("code", "kept out"): "Correct",
    ("code", "fault"): "Incorrect",
    ("code", "wrong"): "Incorrect",
    ("grader", "kept out"): "Correct",
    ("grader", "fault"): "InfrastructureFailure",
    ("grader", "forged"): "Correct",
    ("grader", "wrong"): "Incorrect",
}
Played = dict[str, tuple[Verdict, Verdict]]


def _play(folder: Path, reward: str, attacks: Mapping[str, Attack]) -> Played:
    """Return the verdict of each attack and of what looks for traces of it, by one grader in a row."""
    data = bundle({"nodus_task.py": reward})
    digest = hashlib.sha256(data).hexdigest()
    (folder / digest).write_bytes(data)
    package = {"source": {"blob": f"sha256:{digest}", "module": "nodus_task"}}
    spec = {"version": "1.0.0", "package": package, "sandbox": {"timeout": "6s", "memory": "256Mi"}}
    texts = [text for attack in attacks.values() for text in (attack.text, UNCHANGED.text)]

    async def grade_all() -> list[Verdict]:
        library = EnvironmentLibrary(folder / "environments", lambda _: folder / digest)
        service = GradingService(library, MemoryManifests(), LocalGraders(), FakeClock())
        try:
            environment = await service.resolve("attacked", spec)
            tasks = (await service.tasks(environment, "test", 0)).tasks
            items = [Completion(tasks[n % len(tasks)].task_id, n, text) for n, text in enumerate(texts)]
            return await service.grade("job", environment, items, 1)
        finally:
            await service.close()

    verdicts = asyncio.run(grade_all())
    return {name: (verdicts[2 * n], verdicts[2 * n + 1]) for n, name in enumerate(attacks)}


@pytest.fixture(scope="module")
def in_code(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return _play(tmp_path_factory.mktemp("code"), CODE_REWARD, IN_CODE)


@pytest.fixture(scope="module")
def in_grader(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return _play(tmp_path_factory.mktemp("grader"), EXECUTING_REWARD, IN_GRADER)


@pytest.mark.parametrize("name", IN_CODE)
def test_attack_by_code_in_its_own_sandbox(name: str, in_code: Played) -> None:
    attack, (verdict, after) = IN_CODE[name], in_code[name]
    assert attack.code is not None
    assert verdict.verdict == VERDICTS["code", attack.code], (verdict.reason, verdict.evidence.get("code"))
    assert attack.reason in (verdict.reason or ""), verdict
    assert after.verdict == "Correct", after.evidence.get("code")


@pytest.mark.parametrize("name", IN_GRADER)
def test_attack_by_a_completion_that_the_scorer_executes(name: str, in_grader: Played) -> None:
    attack, (verdict, after) = IN_GRADER[name], in_grader[name]
    assert attack.grader is not None
    assert verdict.verdict == VERDICTS["grader", attack.grader], verdict
    assert after.verdict == "Correct", after


LEFT_FOR_THE_NEXT: dict[str, str] = {
    "programs that nobody waits for": """
        for _ in range(50):
            here = code._hand_over(control, socket.SOCK_STREAM)
            limits = {"timeoutSeconds": 60, "memoryBytes": 1 << 28}
            request = {"code": "while True: pass", "function": "f", "calls": [], **limits}
            here.sendall(json.dumps(request).encode()); here.shutdown(socket.SHUT_WR); kept.append(here)
        """,
    "connections that hold each other": """
        for _ in range(50):
            pair = socket.socketpair()
            for end in pair: socket.send_fds(control, [b"c"], [end.fileno()])
        socket.send_fds(control, [b"c"], [control.fileno()])
        """,
    "what is no request": """
        for text in (b"", b"{", b"[]", b"{}", b"[" * 100_000, b'{"code": 1, "function": 2}', b"\\xff" * 100):
            with code._hand_over(control, socket.SOCK_STREAM) as here:
                here.sendall(text); here.shutdown(socket.SHUT_WR); here.recv(1)
        control.send(b"no descriptor")
        """,
}


@pytest.mark.parametrize("left", LEFT_FOR_THE_NEXT)
async def test_what_a_scorer_that_executes_leaves_in_its_code_sandbox_is_dropped(
    left: str, service: GradingService, make_environment: MakeEnvironment
) -> None:
    both = CODE_REWARD.replace(
        "    outcome =", "    if completion.startswith('#'):\n        exec(completion, {})\n    outcome ="
    )
    environment = make_environment(both, sandbox={"timeout": "6s", "memory": "256Mi"})
    program = textwrap.dedent(LEFT_FOR_THE_NEXT[left])
    start = (
        "# executed\nimport json, os, socket\nfrom nodus.grader import code\ncontrol, kept = code._State.control, []\n"
    )
    right = "def f(x): return 4"
    tasks = (await service.tasks(environment, "test", 0)).tasks
    texts = [right, f"{start}{program}\nos._exit(0)", right]
    items = [Completion(task.task_id, 0, text) for task, text in zip(tasks, texts, strict=False)]
    before, attack, after = await service.grade("job", environment, items, 1)
    assert (before.verdict, attack.verdict, after.verdict) == ("Correct", "InfrastructureFailure", "Correct"), after
    assert attack.evidence["tries"] == after.evidence["tries"] == 1
    assert after.evidence["processMs"] < 2000
