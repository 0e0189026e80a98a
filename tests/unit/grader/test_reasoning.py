"""Reasoning Gym: its datasets as tasks, its own scores, and no reply that runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodus.grader.adapters import Refused, adapt
from nodus.grader.loading import Environment
from nodus.grader.reasoning import UnsafeExpression, answer_of, check_expression, import_library
from nodus.grader.verdicts import classify

EVALUATING = ("string_insertion", "spiral_matrix", "binary_matrix", "n_queens")
PARSING = ("countdown", "puzzle24", "polynomial_multiplication", "simple_integration", "intermediate_integration")


@pytest.fixture(scope="module")
def library() -> Any:
    return import_library()


def loaded(dataset: Any) -> Environment:
    return Environment("puzzles", "1.0.0", adapt(dataset, "puzzles"))


def test_every_fifth_entry_is_held_out_and_no_solution_is_published(library: Any) -> None:
    dataset = library.create_dataset("letter_counting", size=10, seed=7)
    puzzles = loaded(dataset)
    assert [task.answer.private for task in puzzles.split("test")] == [4, 9] and len(puzzles.split("train")) == 8
    task = puzzles.split("test")[1]
    assert (task.prompt, task.metadata) == (dataset[9]["question"], {"family": "letter_counting"})
    assert (puzzles.adapter.kind, puzzles.adapter.episodes) == ("reasoning-gym", False)


def test_families_of_a_composite_are_named_and_score_their_own(library: Any) -> None:
    from reasoning_gym.composite import DatasetSpec

    families = ("leg_counting", "countdown")
    mixed = library.create_dataset(
        "composite", size=20, seed=3, datasets=[DatasetSpec(name=name, weight=1.0, config={}) for name in families]
    )
    puzzles = loaded(mixed)
    tasks = puzzles.by_id().values()
    assert {task.metadata["family"] for task in tasks} == set(families)
    for task in tasks:
        assert puzzles.adapter.grade(task, [f"<answer>{task.answer}</answer>"]) == 1.0


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<answer>1</answer> or <answer> 2\n</answer>", "2"),
        ("The answer is 2", "The answer is 2"),
        ("<answer>1", "<answer>1"),
        ("<answer>1\n2</answer> bye", "1\n2"),
        ("<answer> </answer>", ""),
        (" \n", ""),
    ],
)
def test_answer_is_the_last_one_marked_or_everything(completion: str, answer: str) -> None:
    assert answer_of(completion) == answer


@pytest.mark.parametrize(
    ("reply", "verdict", "reward"),
    [
        ("<answer>{}</answer>", "Correct", 1.0),
        ("{}\n", "Correct", 1.0),
        ("{}{}", "Incorrect", 0.5),
        ("no", "Incorrect", 0.0),
        ("", "InvalidOutput", 0.0),
        ("<answer></answer>", "InvalidOutput", 0.0),
    ],
)
def test_partial_credit_is_the_reward_and_only_all_of_it_is_correct(
    library: Any, reply: str, verdict: str, reward: float
) -> None:
    dataset = library.create_dataset("letter_counting", size=5, seed=7)
    puzzles = loaded(dataset)
    result = classify(puzzles.adapter.grade(puzzles.split("test")[0], [reply.replace("{}", dataset[4]["answer"])]))
    assert (result["verdict"], result["reward"]) == (verdict, reward)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda library: reseeding(library), "a ReseedingDataset has no end; return the dataset that it wraps"),
        (
            lambda library: library.create_dataset("leg_counting", size=100_001, seed=1),
            "the dataset has 100001 entries; expected 1 to 100000: create it with another size",
        ),
    ],
)
def test_dataset_that_cannot_be_listed_is_refused(library: Any, make: Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        adapt(make(library), "puzzles")


def reseeding(library: Any) -> Any:
    from reasoning_gym.dataset import ReseedingDataset

    return ReseedingDataset(library.create_dataset("leg_counting", size=5, seed=1))


def test_object_that_only_looks_like_a_dataset_is_none() -> None:
    looks = SimpleNamespace(score_answer=lambda answer, entry: 1.0, size=5)
    with pytest.raises(Refused, match="gave a SimpleNamespace object without tasks and reward"):
        adapt(looks, "puzzles")


# Scorers that evaluate a reply


@pytest.mark.parametrize("family", [*EVALUATING, *PARSING])
def test_reply_is_never_run(library: Any, family: str, tmp_path: Path) -> None:
    dataset = library.create_dataset(family, size=1, seed=5)
    planted = tmp_path / "planted"
    calls = [f"open({str(planted)!r}, 'w')", f"__import__('os').system('touch {planted}')"]
    attacks = [*calls, f"(lambda: {calls[0]})()", f"[{calls[0]}]", f"exec({calls[0]!r})", f"1 + ({calls[0]} or 0)"]
    scores = [dataset.score_answer(attack, dataset[0]) for attack in attacks]
    assert max(scores) <= 0.05 and not planted.exists()


@pytest.mark.parametrize("family", PARSING)
def test_reply_that_would_take_forever_to_evaluate_is_wrong(library: Any, family: str) -> None:
    dataset = library.create_dataset(family, size=1, seed=5)
    assert max(dataset.score_answer(text, dataset[0]) for text in ("9**9**9**9", "(9**999)**999", "99999!")) <= 0.05


@pytest.mark.parametrize("family", [*EVALUATING, *PARSING])
def test_solutions_still_score(library: Any, family: str) -> None:
    dataset = library.create_dataset(family, size=5, seed=11)
    entries = [dataset[index] for index in range(5)]
    assert [dataset.score_answer(entry["answer"], entry) for entry in entries] == [1.0] * 5


@pytest.mark.parametrize(
    "text",
    ["1 + 2*(3 - 4)/5", "-x**2 + C", "sin(x)*exp(2*x)/3", "5! - 4", "2**(1/2)", "x^2", "1.5e3", "sqrt(2)", "1 == 2"],
)
def test_expression_is_fine(text: str) -> None:
    check_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "a b", "x.y", "f(x)", "eval(1)", "'a'", "x[0]", "lambda: 1", "(1, 2)", "[1]", "1 if x else 2", "__x__",
        "x := 1", "sin(x)(x)", "sin.func", "f'{x}'", "sin(x=1)", "1" * 501, "(" * 400, "9**9**9", "(9**200)**200",
        "True", "1j", "9!!", "2**-9999999", "2**(10**5)", "2**99999999999999999999",
    ],
)  # fmt: skip
def test_more_than_an_expression_is_not(text: str) -> None:
    with pytest.raises(UnsafeExpression):
        check_expression(text)
