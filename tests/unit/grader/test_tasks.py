from __future__ import annotations

import json
from typing import Any

import pytest

from nodus.grader.tasks import BadTask, build_split, ordered, public_line, read_task, task_id, without_shared


def test_task_ids_never_change() -> None:
    """Runs of last year compare with runs of today by these ids."""
    assert task_id("arithmetic", "2.0.0", "test", "What is 2 + 2? Reply with only the number.", 0) == "32c75afcc941b434"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße?"}]
    assert task_id("chat", "1.0.0", "train", messages, 3) == "4a2c0f27ce077b4b"


@pytest.mark.parametrize(
    "other",
    [
        ("b", "1.0.0", "test", "p", 0),
        ("a", "1.0.1", "test", "p", 0),
        ("a", "1.0.0", "train", "p", 0),
        ("a", "1.0.0", "test", "q", 0),
        ("a", "1.0.0", "test", "p", 1),
        ("a", "1.0.0", "test", [{"role": "user", "content": "p"}], 0),
    ],
)
def test_task_id_depends_on_everything_that_identifies_a_task(other: tuple[Any, ...]) -> None:
    assert task_id(*other) != task_id("a", "1.0.0", "test", "p", 0)


def test_order_of_a_seed_never_changes() -> None:
    tasks = build_split("a", "1.0.0", "train", [(str(number), None) for number in range(8)])
    assert [task.prompt for task in ordered(tasks, 42)] == ["3", "4", "6", "7", "2", "5", "0", "1"]
    assert [task.prompt for task in ordered(tasks, 0)] != [task.prompt for task in ordered(tasks, 42)]


def test_repeated_prompt_gets_ids_of_its_own() -> None:
    tasks = build_split("a", "1.0.0", "train", [("same", 1), ("same", 2), ("other", 3)])
    assert len({task.id for task in tasks}) == 3


def test_held_out_prompt_is_dropped_from_train_wherever_it_repeats() -> None:
    train = build_split("a", "1.0.0", "train", [("x", 1), ("y", 1), ("x", 2)])
    test = build_split("a", "1.0.0", "test", [("x", 1), ("x", 9)])
    assert [task.prompt for task in without_shared(train, test)] == ["y"]
    assert len(test) == 2


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (("p", "a"), ("p", "a", {})),
        (["p", None], ("p", None, {})),
        ({"prompt": "p", "answer": {1, 2}}, ("p", {1, 2}, {})),
        ({"prompt": "p", "metadata": {"family": "x"}}, ("p", None, {"family": "x"})),
        ({"prompt": "p", "metadata": None}, ("p", None, {})),
    ],
)
def test_task_is_a_pair_or_a_dict(raw: object, expected: object) -> None:
    assert read_task(raw, 0, "train")[:3] == expected


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("just text", r"tasks\('train'\)\[7\] is str; expected a \(prompt, answer\) pair or a dict"),
        ({"question": "?"}, "has no 'prompt'; it has question"),
        (("", "a"), "has an empty prompt"),
        ((5, "a"), "has a prompt of type int"),
        (([{"role": "user"}], "a"), "has a prompt of type list"),
        ({"prompt": "p", "metadata": {"x": {1}}}, "has metadata that is not JSON"),
        ({"prompt": "p", "metadata": ["x"]}, "has metadata of type list"),
    ],
)
def test_bad_task_is_named_by_its_place(raw: object, message: str) -> None:
    with pytest.raises(BadTask, match=message):
        read_task(raw, 7, "train")


def test_answers_are_printed_only_when_asked_for() -> None:
    (task,) = build_split("a", "1.0.0", "train", [{"prompt": "p", "answer": "secret", "metadata": {"m": 1}}])
    assert "secret" not in json.dumps(public_line(task))
    assert public_line(task, answers=True)["answer"] == "secret"
    (odd,) = build_split("a", "1.0.0", "train", [("p", {1})])
    with pytest.raises(BadTask, match="is not JSON"):
        public_line(odd, answers=True)
