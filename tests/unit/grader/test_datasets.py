"""Parquet files made for verl: which rows become tasks, what scores them, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from nodus.grader.adapters import Refused, adapt
from nodus.grader.loading import Environment, load
from nodus.grader.verdicts import classify


def row(number: int = 1, **changes: Any) -> dict[str, Any]:
    made = {
        "prompt": [{"role": "user", "content": f"What is {number} + 1?"}],
        "data_source": "sums",
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(number + 1)},
        "extra_info": {"index": number, "split": "train", "answer": str(number + 1)},
    } | changes
    return {key: value for key, value in made.items() if value is not Ellipsis}


def write(path: Path, *rows: dict[str, Any]) -> str:
    parquet.write_table(pa.Table.from_pylist(list(rows)), path)
    return str(path)


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    return float(solution_str == ground_truth)


@pytest.fixture
def numbers(tmp_path: Path) -> str:
    return write(tmp_path / "numbers.parquet", *map(row, range(10)))


def loaded(score: Any = compute_score, **names: Any) -> Environment:
    return Environment("sums", "1.0.0", adapt(SimpleNamespace(compute_score=score, **names), "sums"))


def test_every_fifth_row_is_held_out_without_val_files(numbers: str) -> None:
    sums = loaded(train_files=numbers)
    asked = [task.prompt[0]["content"] for task in sums.split("test")]  # type: ignore[index]
    assert asked == ["What is 4 + 1?", "What is 9 + 1?"] and len(sums.split("train")) == 8
    assert (sums.adapter.kind, sums.adapter.episodes) == ("verl", False)


def test_val_files_are_held_out_and_what_they_ask_is_dropped_from_train(numbers: str, tmp_path: Path) -> None:
    sums = loaded(train_files=[numbers], val_files=write(tmp_path / "val.parquet", row(3), row(30)))
    assert [task.prompt[-1]["content"] for task in sums.split("test")] == ["What is 3 + 1?", "What is 30 + 1?"]  # type: ignore[index]
    assert len(sums.split("train")) == 9


def test_rows_repeated_for_epochs_are_one_task_each(tmp_path: Path) -> None:
    repeated = write(tmp_path / "epochs.parquet", *(row(number % 10) for number in range(1000)))
    sums = loaded(train_files=[repeated, repeated])
    assert (len(sums.split("train")), len(sums.split("test"))) == (8, 2)


def test_nothing_of_the_solution_is_published(numbers: str) -> None:
    for task in loaded(train_files=numbers).split("train"):
        assert task.metadata == {"data_source": "sums"} and task.prompt[0].keys() == {"role", "content"}  # type: ignore[union-attr,index]


def test_module_is_the_environment_and_its_paths_are_its_own(numbers: str, tmp_path: Path) -> None:
    (tmp_path / "sums_of_verl.py").write_text(
        'train_files = "numbers.parquet"\n'
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"
    )
    assert len(load("sums_of_verl", [str(tmp_path)], "sums", "1.0.0").by_id()) == 10


# What scores


def seen(**given: Any) -> dict[str, Any]:
    return {"score": 1.0, "given": given}


async def awaited(data_source: str, solution_str: str, ground_truth: str, extra_info: Any) -> dict[str, float]:
    await asyncio.sleep(0)
    return {"score": 0.5 if solution_str == ground_truth else -1.0}


@pytest.mark.parametrize(
    ("score", "reply", "verdict", "reward"),
    [
        (compute_score, "2", "Correct", 1.0),
        (compute_score, "", "Incorrect", 0.0),
        (seen, "", "Correct", 1.0),
        (awaited, "2", "Incorrect", 0.5),
        (awaited, "3", "Incorrect", -1.0),
        (lambda **given: True, "", "Correct", 1.0),
        (lambda **given: {"score": 2, "acc": False}, "", "Correct", 2.0),
        (lambda **given: {"score": float("nan")}, "", "InfrastructureFailure", None),
        (lambda **given: "1.0", "", "InfrastructureFailure", None),
        (lambda **given: [1.0], "", "InfrastructureFailure", None),
    ],
)
def test_verdict_of_what_compute_score_returns(
    tmp_path: Path, score: Any, reply: str, verdict: str, reward: float | None
) -> None:
    sums = loaded(score, train_files=write(tmp_path / "one.parquet", row()))
    result = classify(sums.adapter.grade(sums.split("train")[0], [reply]))
    assert (result["verdict"], result["reward"]) == (verdict, reward)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (None, "compute_score returned None; expected a number, a bool, or a dict with 'score'"),
        ({"reward": 1}, "compute_score returned a dict without 'score'; it has reward"),
        ({"score": None}, "compute_score returned None"),
    ],
)
def test_compute_score_that_returns_no_score_is_a_fault(tmp_path: Path, result: Any, reason: str) -> None:
    sums = loaded(lambda **given: result, train_files=write(tmp_path / "one.parquet", row()))
    with pytest.raises(TypeError, match=reason):
        sums.adapter.grade(sums.split("train")[0], ["2"])


def test_compute_score_gets_what_verl_gives_it(tmp_path: Path) -> None:
    given: dict[str, Any] = {}
    sums = loaded(lambda **more: given.update(more) or 1, train_files=write(tmp_path / "one.parquet", row()))
    sums.adapter.grade(sums.split("train")[0], ["2"])
    extra = {"index": 1, "split": "train", "answer": "2", "num_turns": 2, "rollout_reward_scores": {}}
    assert given == {"data_source": "sums", "solution_str": "2", "ground_truth": "2", "extra_info": extra}
    assert all(type(value) in (dict, str) for value in given.values())  # no arrays, whose truth is no bool


# What is refused, each in one sentence


def no_parquet(path: Path) -> str:
    path.write_text('{"prompt": "What?"}')
    return str(path)


def cut_off(path: Path) -> str:
    whole = write(path, *map(row, range(1000)))
    path.write_bytes(path.read_bytes()[:-100])
    return whole


USER, SYSTEM = {"role": "user", "content": "What?"}, {"role": "system", "content": "Be brief."}
ONE = "row 0 of made.parquet has"
FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no parquet": (no_parquet, "made.parquet can't be read as a parquet file: "),
    "cut off": (cut_off, "made.parquet can't be read as a parquet file: "),
    "no rows": (lambda path: write(path, *[]), "made.parquet has no rows"),
    "not there": (lambda path: "none.parquet", "none.parquet is no file of the package; a relative path starts at"),
    "a directory": (lambda path: str(path.parent), "is no file of the package"),
    "a URL": (lambda path: "https://example.com/a.parquet", "is no path and not of the form hf://datasets/OWNER/NAME"),
    "half of a URL": (lambda path: "hf://datasets/a.parquet", "is no path and not of the form hf://datasets/OWNER"),
    "a number": (lambda path: 5, "train_files is int; expected the path of a parquet file, or a list of them"),
    "numbers": (lambda path: [5], "train_files is list; expected the path of a parquet file"),
    "nothing": (lambda path: [], "train_files names no file; expected the path of a parquet file"),
    "no prompt": (lambda path: write(path, row(prompt=...)), f"{ONE} no prompt; its columns are data_source, ability"),
    "text": (lambda path: write(path, row(prompt="What?")), f"{ONE} a prompt of type str; expected a list of chat mes"),
    "no messages": (
        lambda path: write(path, row(prompt=[USER]), row(prompt=[])),
        "row 1 of made.parquet has a prompt of no messages; expected one user message, after a system message at most",
    ),
    "three messages": (
        lambda path: write(path, row(prompt=[SYSTEM, USER, USER])),
        f"{ONE} a prompt of system, user, us",
    ),
    "wrong order": (lambda path: write(path, row(prompt=[USER, SYSTEM])), f"{ONE} a prompt of user, system; expected"),
    "an assistant": (
        lambda path: write(path, row(prompt=[USER, {"role": "assistant", "content": "No."}])),
        f"{ONE} a prompt of user, assistant",
    ),
    "no content": (
        lambda path: write(path, row(prompt=[{"role": "user"}])),
        f"{ONE} a prompt whose content is no text",
    ),
    "images": (
        lambda path: write(path, row(images=["a.png"])),
        f"{ONE} images; only prompts of text can be trained on",
    ),
    "no truth": (lambda path: write(path, row(reward_model={"style": "rule"})), f"{ONE} no reward_model.ground_truth"),
    "no reward_model": (lambda path: write(path, row(reward_model=...)), f"{ONE} no reward_model.ground_truth"),
    "no source": (lambda path: write(path, row(data_source=...)), f"{ONE} no data_source for compute_score"),
    "odd extra_info": (
        lambda path: write(path, row(extra_info="x")),
        f"{ONE} extra_info of type str; expected a struct",
    ),
}


@pytest.mark.parametrize(("make", "reason"), FILES.values(), ids=FILES)
def test_files_that_cannot_be_used_are_refused_in_a_sentence(
    tmp_path: Path, make: Callable[[Path], Any], reason: str
) -> None:
    with pytest.raises(Refused) as caught:
        loaded(train_files=make(tmp_path / "made.parquet"))
    assert reason in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        (5, "compute_score is int; expected verl's reward function"),
        (
            lambda solution: 1,
            "compute_score can't be called with data_source, solution_str, ground_truth, extra_info by",
        ),
    ],
)
def test_compute_score_of_another_form_is_refused(numbers: str, score: Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        loaded(score, train_files=numbers)


def test_row_without_env_class_needs_compute_score(numbers: str) -> None:
    with pytest.raises(Refused, match="has no env_class that names a SkyRL-gym environment, and the module no compute"):
        adapt(SimpleNamespace(train_files=numbers), "sums")


# What a build fetches


def test_file_of_the_hub_is_read_where_the_build_left_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    kept = tmp_path / "datasets--acme--sums"
    commit = "0123456789" * 4
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text(commit)
    (kept / "snapshots" / commit / "data").mkdir(parents=True)
    write(kept / "snapshots" / commit / "data" / "train.parquet", *map(row, range(10)))
    for revision in ("", f"@{commit}"):
        assert len(loaded(train_files=f"hf://datasets/acme/sums{revision}/data/train.parquet").by_id()) == 10
    for missing in ("acme/sums/data/test.parquet", "acme/products/train.parquet"):
        with pytest.raises(
            Refused, match="is not among what was fetched when the environment was built, and grading has"
        ):
            loaded(train_files=f"hf://datasets/{missing}")
