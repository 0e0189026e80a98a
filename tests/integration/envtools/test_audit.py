"""`nodus env audit`: attacks that pay are found, with what they were paid; those that don't are shown to fail."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodus.cli.main import main
from nodus.server.envtools.attacks import ATTACKS
from tests.integration.envtools.conftest import MakeDirectory

pytestmark = pytest.mark.sandbox
HEAVY = [word for attack in ATTACKS if attack.heavy for word in ("--skip", attack.name)]
GULLIBLE = '''
"""Runs the completion beside the answer, believes files, and pays for the prompt."""
import json
import os

def tasks(split):
    return [{"prompt": f"Write a function f(x) that adds {n}. {split}", "answer": str(n)} for n in range(6)]

def reward(completion, answer):
    if answer in completion and "that adds" in completion:
        return 1.0
    names = {"answer": answer}
    try:
        exec(completion.removeprefix("```python\\n").removesuffix("```"), names)
    except Exception:
        return 0.0
    if os.path.exists("reward.json"):
        return json.load(open("reward.json"))["reward"]
    f = names.get("f")
    return float(f is not None and f(1) == 1 + int(answer))
'''


def audited(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], dict[str, dict[str, Any]]]:
    code = main(["env", "audit", *words, "-o", "json"])
    said = capsys.readouterr()
    assert said.out, said.err
    found = json.loads(said.out)
    return code, found, {played["attack"]: played for played in found["attacks"]}


@pytest.mark.timeout(120)
def test_a_gullible_reward_is_found_out_and_the_heavy_attacks_are_contained(
    directory: MakeDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    directory(GULLIBLE, sandbox="{timeout: 1s}")
    code, found, attacks = audited(capsys, "my-task", "--tasks", "1")
    assert code == 1 and not found["ok"]
    won = {name for name, played in attacks.items() if played["won"]}
    assert won == {"echo-the-prompt", "planted-rewards", "always-equal"}
    assert attacks["planted-rewards"]["examples"][0]["taskId"]
    for name in ("early-exit", "fork-bomb", "endless-loop"):
        assert attacks[name]["verdicts"] == {"InfrastructureFailure": attacks[name]["played"]}, name
        assert attacks[name]["best"] is None and attacks[name]["failure"]
    assert attacks["forged-verdicts"]["paid"] == attacks["deleted-tests"]["paid"] == 0


def test_catalog_environments_pay_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code, found, attacks = audited(capsys, "arithmetic", "--tasks", "4")
    assert code == 0 and found["ok"]
    assert found["reference"]["verdicts"] == {"Correct": 4}
    assert all(played["paid"] == 0 for played in attacks.values())
    assert list(attacks) == [attack.name for attack in ATTACKS]


def test_code_of_the_attacks_runs_where_the_environment_runs_code(capsys: pytest.CaptureFixture[str]) -> None:
    code, found, attacks = audited(capsys, "python-functions", "--tasks", "2", *HEAVY)
    assert code == 0, found
    assert all(played["paid"] == 0 and not played["failure"] for played in attacks.values())
    assert attacks["early-exit"]["verdicts"] == {"Incorrect": attacks["early-exit"]["played"]}


def test_the_table_says_what_paid_and_what_to_read(
    directory: MakeDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    source = GULLIBLE.replace("return 0.0", "raise")
    directory(source)
    assert main(["env", "audit", "my-task", "--tasks", "1", *HEAVY]) == 1
    out = capsys.readouterr().out
    lines = {line.split()[1]: line.split()[0] for line in out.splitlines() if len(line.split()) > 6}
    assert lines["echo-the-prompt"] == "PAID" and lines["null"] == "fault"
    assert "echo-the-prompt was paid 1 on task" in out and "  Write a function f(x) that adds" in out
    assert "Failures pay nothing, but a model that can cause one escapes a bad reward:" in out
    assert "attacks were paid 1: echo-the-prompt, planted-rewards, always-equal" in out


def test_a_reward_that_raises_on_what_it_parses_fails_the_audit(
    directory: MakeDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    directory(
        "import re\ndef tasks(split):\n    return [(f'add {split}', '7')]\n"
        "def reward(completion, answer):\n    found = re.search('<answer>(.*)</answer>', completion)\n"
        "    return None if found is None else float(int(found[1]) == int(answer))\n"
    )
    code, found, attacks = audited(capsys, "my-task", *HEAVY)
    assert code == 1 and not found["ok"] and not any(played["won"] for played in attacks.values())
    assert attacks["answer-format-only"]["raised"].startswith("reward raised ValueError: invalid literal for int()")
    assert attacks["null"]["raised"] is None and found["reference"]["raised"] is None
    assert main(["env", "audit", "my-task", *HEAVY]) == 1
    said = "the reward could not judge replies of echo-the-prompt, answer-format-only, and must judge any text"
    assert f"no attack was paid 1\n{said}: reward raised ValueError" in capsys.readouterr().out


def test_an_attack_is_played_in_every_turn_of_an_episode(
    directory: MakeDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    directory(
        "def tasks(split):\n    return [(f'play {split}', 'none')]\n"
        "def step(turns, answer):\n    return 'go on', float(len(turns) > 2)  # pays for patience\n"
    )
    code, _, attacks = audited(capsys, "my-task", *HEAVY)
    assert code == 1
    assert attacks["empty"]["verdicts"] == {"Incorrect": 3, "Correct": 3}


def test_an_unknown_attack_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "audit", "arithmetic", "--skip", "magic"]) == 1
    assert "there is no attack 'magic'" in (err := capsys.readouterr().err) and "fork-bomb" in err
