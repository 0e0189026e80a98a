"""Environments of other ecosystems, in sandboxes with the real libraries, graded as those libraries grade."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyarrow import parquet

from nodus.core.errors import EnvironmentTasksFailed
from nodus.server.compute.local import pythons
from nodus.server.compute.local.mounts import package_root
from nodus.server.grading import Completion, GradingService, ResolvedEnvironment
from nodus.server.grading.episodes import Episode
from nodus.server.grading.selfcheck import SelfCheckFailed, check
from tests.integration.grading.conftest import MakeEnvironment, Specify
from tests.integration.grading.ecosystems import environment_of
from tests.interop._published import Unreachable

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(180)]

HERE = Path(__file__).with_name("adapted")
REPLIES = 100
Reply = tuple[Any, list[str]]
"""What it answers (a seed, an entry's index or a row's number), and the model's turns."""


def openenv(version: str) -> tuple[Path, ...]:
    """Return a version of OpenEnv over what the graders' own one needs: its web front end is not used in process."""
    return (environment_of([f"openenv=={version}"], dependencies=False), *map(Path, pythons.own().packages))


def openenv_core() -> tuple[Path, ...]:
    return (environment_of(["openenv-core==0.3.0"], dependencies=False), *map(Path, pythons.own().packages))


def skyrl() -> tuple[Path, ...]:
    return (environment_of(["skyrl-gym==0.4.0", "pyarrow==26.0.1"], pins="skyrl.txt"),)


def rows() -> list[dict[str, Any]]:
    """Return rows as datasets for verl and SkyRL have them; ``gsm8k`` and ``aime`` read other keys of it."""
    return [
        {
            "prompt": [{"role": "system", "content": "Be brief."}] * (number % 2)
            + [{"role": "user", "content": f"What is {number} + 5?"}],
            "data_source": ("sums", "products")[number % 2],
            "env_class": ("gsm8k", "aime")[number % 2],
            "reward_spec": {"method": "rule", "ground_truth": str(number + 5)},
            "reward_model": {"style": "rule", "ground_truth": str(number + 5)},
            "extra_info": {"index": number, "split": "train", "answer": str(number + 5)},
        }
        for number in range(40)
    ]


def rows_file() -> bytes:
    stream = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows()), stream)
    return stream.getvalue()


def guesses(rng: random.Random) -> Reply:
    """Return a game: halving what is left, or guessing at random, or not guessing at all."""
    seed = rng.randrange(1000)
    secret = random.Random(seed).randrange(100)
    texts = [str(secret), str(rng.randrange(100)), f" {rng.randrange(100)}\n", "none", "", str(rng.randrange(100))]
    return seed, [rng.choice(texts) for _ in range(rng.randrange(1, 7))]


@cache
def entries() -> list[dict[str, Any]]:
    from tests.integration.grading.adapted.puzzles import load_environment

    return list(load_environment())


def puzzle_answers(rng: random.Random) -> Reply:
    index = rng.randrange(60)
    right = str(entries()[index]["answer"] or "")
    kinds = [
        f"<answer>{right}</answer>", f"Let me think.\n<answer>1</answer>, no: <answer>\n{right}\n</answer>", right,
        f"The answer is {right}.", right[: rng.randrange(len(right) + 1)] or "?", f"<answer>{right} + 1</answer>", "7",
        "x", f"['{right}']", '{"0": 1, "1": 2}', "(1 + 2) * 3", "<answer>x**2 + C", f"{right}\n\n", "I can't tell.",
    ]  # fmt: skip
    return index, [rng.choice(kinds)]


def sums(rng: random.Random) -> Reply:
    number = rng.randrange(40)
    right = number + 5
    kinds = [
        f"#### {right}", f"Answer: {right}", f"So {right}.\n#### {right}\nAnswer: {right}", f"#### {right + 1}",
        f"Answer: {right + 1}", f"\\boxed{{{right}}}", str(right), "####", "",
        f"Answer: ${right}$", "no idea",
    ]  # fmt: skip
    return number, [rng.choice(kinds)]


class Ecosystem(NamedTuple):
    """A library and an environment made with it.

    Attributes:
        module: The environment, a file of ``adapted/``.
        kind: What its adapter is.
        packages: Makes the directories of its packages; None: the graders' own libraries have it.
        reply: Makes a reply.
    """

    module: str
    kind: str
    packages: Callable[[], tuple[Path, ...]] | None
    reply: Callable[[random.Random], Reply]


ECOSYSTEMS = {
    "openenv 0.10.0": Ecosystem("number_game", "openenv", lambda: openenv("0.10.0"), guesses),
    "openenv-core 0.3.0": Ecosystem("number_game", "openenv", openenv_core, guesses),
    "openenv of the graders": Ecosystem("number_game", "openenv", None, guesses),
    "reasoning-gym 0.1.25": Ecosystem("puzzles", "reasoning-gym", None, puzzle_answers),
    "verl": Ecosystem("sums_of_verl", "verl", None, sums),
    "skyrl-gym 0.4.0": Ecosystem("sums_of_skyrl", "skyrl", skyrl, sums),
}


def made(ecosystem: Ecosystem, make_environment: MakeEnvironment) -> ResolvedEnvironment:
    """Return an ecosystem's environment as a build of its package leaves it."""
    source = (HERE / f"{ecosystem.module}.py").read_text()
    resolved = make_environment(source, files={"rows.parquet": rows_file()})
    packages = ecosystem.packages() if ecosystem.packages else ()
    return dataclasses.replace(resolved, packages=packages)


def library_rewards(ecosystem: Ecosystem, replies: Sequence[Reply]) -> list[float]:
    """Return what the library itself gives for replies, in a process without Nodus."""
    packages = ecosystem.packages() if ecosystem.packages else tuple(map(Path, pythons.own().packages))
    asked = [[rows()[what] if ecosystem.module.startswith("sums") else what, turns] for what, turns in replies]
    done = subprocess.run(
        [sys.executable, "-S", str(HERE / "library_grades.py"), ecosystem.module],
        input=json.dumps(asked),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, packages)), "MPLCONFIGDIR": "/tmp"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    return [float(reward) for reward in json.loads(done.stdout.splitlines()[-1])]


PUBLISHED = {
    "number_game": {"seed"},
    "puzzles": {"family"},
    "sums_of_verl": {"data_source", "env_class"},
    "sums_of_skyrl": {"data_source", "env_class"},
}


async def by_what(service: GradingService, environment: ResolvedEnvironment, module: str) -> dict[Any, str]:
    """Return the ids of the tasks by what they are: a seed, an entry's index or a row's number."""
    tasks = [task for split in ("train", "test") for task in (await service.tasks(environment, split, 0)).tasks]
    # nothing of a solution is published
    assert {key for task in tasks for key in task.metadata} == PUBLISHED[module]
    if module == "number_game":
        return {task.metadata["seed"]: task.task_id for task in tasks}
    by_prompt = {json.dumps(task.prompt): task.task_id for task in tasks}
    prompts: list[Any] = (
        [entry["question"] for entry in entries()] if module == "puzzles" else [r["prompt"] for r in rows()]
    )
    return {number: by_prompt[json.dumps(prompt)] for number, prompt in enumerate(prompts)}


REPRESENTATIVE = ("openenv 0.10.0", "reasoning-gym 0.1.25", "verl", "skyrl-gym 0.4.0")
CASES = [pytest.param(name, marks=[] if name in REPRESENTATIVE else [pytest.mark.heavy]) for name in ECOSYSTEMS]


@pytest.mark.parametrize("name", CASES)
async def test_replies_are_graded_as_their_library_grades_them(
    name: str, service: GradingService, make_environment: MakeEnvironment
) -> None:
    ecosystem = ECOSYSTEMS[name]
    try:
        environment = made(ecosystem, make_environment)
    except Unreachable as error:
        pytest.skip(f"{name} is not installed here, and the package index can't be reached: {error}")
    ids = await by_what(service, environment, ecosystem.module)
    rng = random.Random(4)
    replies = [ecosystem.reply(rng) for _ in range(REPLIES)]
    items = [Completion(ids[what], number, turns=tuple(turns)) for number, (what, turns) in enumerate(replies)]
    verdicts = await service.grade("job", environment, items, 1)
    rewards = library_rewards(ecosystem, replies)
    assert [verdict.reward for verdict in verdicts] == pytest.approx(rewards)
    for verdict, reward in zip(verdicts, rewards, strict=True):
        assert verdict.verdict in (["Correct"] if reward >= 1 else ["Incorrect", "InvalidOutput"]), verdict
    assert len(set(rewards)) > 2 and min(rewards) < 1 <= max(rewards)
    if ecosystem.kind == "openenv":
        await check_turns(service, environment, ids[900])


async def check_turns(service: GradingService, environment: ResolvedEnvironment, task: str) -> None:
    """Play the game of seed 900, turn by turn."""
    secret = random.Random(900).randrange(100)
    turns = [[str(secret - 1)], [str(secret - 1), str(secret + 1)], ["none"], [str(secret)], ["none"] * 5]
    replies = await service.step("job", environment, [Episode(task, n, tuple(t)) for n, t in enumerate(turns)])
    said = [reply.messages and reply.messages[0]["content"] for reply in replies]
    assert said == ["Higher.", "Lower.", "That is no number.", None, None], replies


BUILDS = [
    pytest.param("verl", "What is", id="verl"),
    pytest.param("openenv of the graders", "Guess my number", id="openenv", marks=pytest.mark.heavy),
    pytest.param("reasoning-gym 0.1.25", "", id="reasoning-gym", marks=pytest.mark.heavy),
]


@pytest.mark.parametrize(("name", "asks"), BUILDS)
async def test_build_takes_the_environment(name: str, asks: str, service: GradingService, specify: Specify) -> None:
    ecosystem = ECOSYSTEMS[name]
    files: dict[str, str | bytes] = {"rows.parquet": rows_file()}
    found = await check(service, *specify((HERE / f"{ecosystem.module}.py").read_text(), files=files), "check")
    assert found.facts["ecosystem"] == ecosystem.kind and found.facts["episodes"] == (ecosystem.kind == "openenv")
    assert all(asks in str(task.prompt) for manifest in found.manifests.values() for task in manifest.tasks)
    assert min(found.splits.values()) > 0


async def test_build_that_is_refused_says_why(service: GradingService, specify: Specify) -> None:
    name, spec = specify((HERE / "sums_of_verl.py").read_text(), files={"rows.parquet": b"no parquet"})
    with pytest.raises(SelfCheckFailed, match=r"rows.parquet can't be read as a parquet file: .*magic bytes"):
        await check(service, name, spec, "check")


_SKYRL_ROW = """
import json, sys
from types import SimpleNamespace
import pyarrow as pa
from pyarrow import parquet
from nodus.grader.adapters import Refused, adapt
for name, changes in json.load(sys.stdin):
    row = {"prompt": [{"role": "user", "content": "?"}], "env_class": name, "reward_spec": {"ground_truth": "5"}}
    parquet.write_table(pa.Table.from_pylist([{**row, **changes}]), "row.parquet")
    try:
        adapt(SimpleNamespace(train_files="row.parquet"), "row")
        print("taken")
    except Refused as refusal:
        print(refusal)
"""
SKYRL_ROWS: list[tuple[str, dict[str, Any], str]] = [
    ("gsm8k", {}, "taken"),
    ("aime", {"reward_model": {"ground_truth": "5"}}, "taken"),
    ("gsm8k_multi_turn", {}, "'gsm8k_multi_turn' is of 5 turns; only those of one turn run here"),
    ("searchcode", {}, "'searchcode' is of 2 turns; only those of one turn run here"),
    ("search", {}, "row 0 of row.parquet can't be made the SkyRL-gym environment 'search': "),
    ("text2sql", {}, "row 0 of row.parquet can't be made the SkyRL-gym environment 'text2sql': "),
    ("lcb", {}, "'lcb' runs the model's code in the process that grades"),
    ("aime", {}, "can't be made the SkyRL-gym environment 'aime': AssertionError: reward_model field is required"),
    ("gsm9k", {}, "row 0 of row.parquet has the env_class 'gsm9k'; skyrl-gym knows aime, gsm8k, gsm8k_multi_turn, lcb"),
    ("gsm8k", {"env_class": 5}, "row 0 of row.parquet has no env_class that names a SkyRL-gym environment"),
]


def test_skyrl_environments_that_cannot_grade_here_are_refused_in_a_sentence(tmp_path: Path) -> None:
    try:
        packages = skyrl()
    except Unreachable as error:
        pytest.skip(f"skyrl-gym is not installed here, and the package index can't be reached: {error}")
    done = subprocess.run(
        [sys.executable, "-S", "-c", _SKYRL_ROW],
        input=json.dumps([[name, changes] for name, changes, _ in SKYRL_ROWS]),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([package_root(), *map(str, packages)])},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    said = done.stdout.splitlines()
    assert len(said) == len(SKYRL_ROWS)
    for (_, _, expected), line in zip(SKYRL_ROWS, said, strict=True):
        assert expected in line


@pytest.mark.heavy
async def test_game_of_textarena_is_played(service: GradingService, make_environment: MakeEnvironment) -> None:
    """Its constructor resets the game, whose history a later reset keeps: no episode sees another's."""
    packages = (environment_of(["textarena==0.7.4"], pins="textarena.txt"), *openenv("0.10.0"))
    environment = dataclasses.replace(make_environment((HERE / "mastermind.py").read_text()), packages=packages)
    tasks = {t.metadata["seed"]: t for t in (await service.tasks(environment, "test", 0)).tasks}
    assert sorted(tasks) == list(range(800, 805))
    assert all(str(task.prompt).count("You are playing Mastermind") == 1 for task in tasks.values())
    secret = "".join(map(str, _mastermind(packages, 800)))
    right = f"[{' '.join(secret)}]"
    turns: list[tuple[str, ...]] = [("[1 2 3 4]",), ("[1 2 3 4]", "no move"), ("[1 2 3 4]", right)]
    ids = tasks[800].task_id
    replies = await service.step("job", environment, [Episode(ids, n, t) for n, t in enumerate(turns)])
    said = [reply.messages and reply.messages[0]["content"] for reply in replies]
    assert str(said[0]).startswith("[GAME] Submitted [1 2 3 4]. Feedback: ") and "You are playing" not in str(said[0])
    assert "invalid" in str(said[1]) and "Submitted" not in str(said[1]) and said[2] is None
    verdicts = await service.grade("job", environment, [Completion(ids, n, turns=t) for n, t in enumerate(turns)])
    assert [verdict.verdict for verdict in verdicts] == ["Incorrect", "Incorrect", "Correct"], verdicts


def _mastermind(packages: Sequence[Path], seed: int) -> list[int]:
    """Return the secret of a game, as the library makes it."""
    code = (
        "import json, sys, textarena; game = textarena.make('Mastermind-v0')\n"
        "game.reset(num_players=1, seed=int(sys.argv[1])); print(json.dumps(game.state.game_state['secret_code']))"
    )
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, packages))}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(seed)], env=env, capture_output=True, check=True, timeout=60
    )
    return [int(digit) for digit in json.loads(done.stdout.splitlines()[-1])]


async def test_file_that_the_build_fetched_is_read_without_network(
    service: GradingService, make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    """The hub's cache is what a build with a network leaves; graders read it, and refuse what is not in it."""
    commit = "0123456789" * 4
    kept = tmp_path / "cache" / ".cache" / "huggingface" / "hub" / "datasets--acme--sums"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text(commit)
    (kept / "snapshots" / commit).mkdir(parents=True)
    (kept / "snapshots" / commit / "train.parquet").write_bytes(rows_file())
    source = (HERE / "sums_of_verl.py").read_text()
    for name, found in (("train", 40), ("test", None)):
        fetched = source.replace('"rows.parquet"', f'"hf://datasets/acme/sums/{name}.parquet"')
        environment = dataclasses.replace(make_environment(fetched), cache=tmp_path / "cache")
        if found:
            (task, *rest) = (await service.tasks(environment, "test", 0)).tasks
            assert len(rest) == found // 5 - 1
            (verdict,) = await service.grade("job", environment, [Completion(task.task_id, 0, "no idea")], 1)
            assert verdict.reward == -1.0
        else:
            with pytest.raises(EnvironmentTasksFailed, match=r"sums/test.parquet is not among what was fetched when"):
                await service.tasks(environment, "test", 0)
