"""Tasks: their forms, their mistakes named by position, and the split."""

from __future__ import annotations

from typing import Any

import pytest

from nodus.errors import TasksError
from nodus.recipes.tasks import check_tasks, split_tasks


def pairs(count: int) -> list[tuple[str, str]]:
    """Return tasks that all differ."""
    return [(f"prompt {number}", str(number)) for number in range(count)]


def test_pairs_and_dicts_become_tasks() -> None:
    tasks = check_tasks([("p", "a"), ["q", 3], {"prompt": "r", "answer": None, "metadata": {"level": 2}}])
    assert tasks == [
        {"prompt": "p", "answer": "a"},
        {"prompt": "q", "answer": 3},
        {"prompt": "r", "answer": None, "metadata": {"level": 2}},
    ]


def test_prompt_may_be_chat_messages() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    assert check_tasks([(messages, "4")])[0]["prompt"] == messages


def test_generator_of_tasks_is_read_once() -> None:
    assert len(check_tasks((f"p{n}", n) for n in range(5))) == 5


def _deep() -> Any:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


def _endless() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


WRONG: dict[str, tuple[Any, str]] = {
    "no pair": (("p", "a", "b"), "neither a (prompt, answer) pair nor a dict"),
    "a text": ("prompt", "neither a (prompt, answer) pair"),
    "a number": (3, "neither a (prompt, answer) pair"),
    "an unknown key": ({"prompt": "p", "answer": "a", "level": 1}, "has the key 'level'"),
    "no answer": ({"prompt": "p"}, "has no 'answer'"),
    "no prompt": ({"answer": "a"}, "has no 'prompt'"),
    "an empty prompt": (("  ", "a"), "the prompt is empty"),
    "a number for a prompt": ((3, "a"), "the prompt is 3 (int)"),
    "messages without roles": (([{"content": "x"}], "a"), "the prompt is"),
    "a tuple for an answer": (("p", (1, 2)), "would arrive at the reward as [1, 2] (list)"),
    "a set for an answer": (("p", {1}), "which JSON can't carry"),
    "nan for an answer": (("p", float("nan")), "which JSON can't carry"),
    "half a character": (("p \ud800", "a"), "holds '\\ud800', half of a character"),
    "half a character in an answer": (("p", {"x": ["\udfff"]}), "half of a character"),
    "an answer without end": (("p", _endless()), "which JSON can't carry"),
    "a deep answer": (("p", _deep()), "nested too deeply"),
    "an object in a message": (([{"role": "user", "content": "x", "tool": object()}], "a"), "which JSON can't carry"),
    "numbers as keys": (("p", {1: "x"}), "would arrive at the reward as"),
    "metadata that is no dict": ({"prompt": "p", "answer": "a", "metadata": [1]}, "metadata is [1] (list)"),
}


@pytest.mark.parametrize(("task", "message"), WRONG.values(), ids=list(WRONG))
def test_bad_task_is_refused_by_its_position(task: Any, message: str) -> None:
    with pytest.raises(TasksError) as raised:
        check_tasks([("p", "a"), task])
    assert raised.value.message.startswith("tasks[1]")
    assert message in raised.value.message
    assert raised.value.fix


@pytest.mark.parametrize("tasks", ["text", {"p": "a"}, None, 3])
def test_tasks_that_are_no_list_are_refused(tasks: Any) -> None:
    with pytest.raises(TasksError, match="tasks is a"):
        check_tasks(tasks)


def test_no_tasks_are_refused() -> None:
    with pytest.raises(TasksError, match="is empty"):
        check_tasks([])


@pytest.mark.parametrize(("count", "held_out"), [(17, 16), (40, 16), (80, 16), (100, 20), (1000, 200)])
def test_a_fifth_and_at_least_sixteen_are_held_out(count: int, held_out: int) -> None:
    train, test = split_tasks(check_tasks(pairs(count)), None)
    assert (len(train), len(test)) == (count - held_out, held_out)


def test_split_depends_on_the_tasks_alone() -> None:
    tasks = check_tasks(pairs(50))
    assert split_tasks(tasks, None) == split_tasks(tasks, None)


def test_split_takes_from_everywhere() -> None:
    _, test = split_tasks(check_tasks(pairs(100)), None)
    positions = [int(task["answer"]) for task in test]
    assert min(positions) < 30 and max(positions) > 70


def test_too_few_tasks_are_refused() -> None:
    with pytest.raises(TasksError, match="16 tasks are too few"):
        split_tasks(check_tasks(pairs(16)), None)


def test_repeated_prompts_count_once() -> None:
    train, test = split_tasks(check_tasks(pairs(20) * 3), None)
    assert (len(train), len(test)) == (12, 16)
    assert len({task["prompt"] for task in test}) == 16
    with pytest.raises(TasksError, match="8 different prompts are too few"):
        split_tasks(check_tasks(pairs(8) * 10), None)


def test_prompt_in_both_splits_is_dropped_from_training() -> None:
    train, test = split_tasks(check_tasks(pairs(5)), check_tasks(pairs(2)))
    assert [task["answer"] for task in train] == ["2", "3", "4"]
    assert len(test) == 2


def test_nothing_left_to_train_on_is_refused() -> None:
    with pytest.raises(TasksError, match="nothing is left to train on"):
        split_tasks(check_tasks(pairs(3)), check_tasks(pairs(3)))
