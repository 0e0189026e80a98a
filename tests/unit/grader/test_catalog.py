"""The environments that ship: their sizes, their tasks and their rewards."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

from nodus.grader.catalog import arithmetic, graph_coloring, reasoning_gym
from nodus.grader.tasks import build_split, canonical_prompt, without_shared
from nodus.server.catalog import read_catalog
from nodus.server.grading import exact_match

ENVIRONMENTS = {d["metadata"]["name"]: d["spec"] for d in read_catalog() if d["kind"] == "Environment"}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_declared_sizes_are_the_real_ones(name: str) -> None:
    spec = ENVIRONMENTS[name]
    module: Any = importlib.import_module(f"nodus.grader.catalog.{spec['package']['catalog']['module']}")
    test = build_split(name, spec["version"], "test", module.tasks("test"))
    train = without_shared(build_split(name, spec["version"], "train", module.tasks("train")), test)
    assert {"train": {"size": len(train)}, "test": {"size": len(test)}} == spec["splits"]
    assert not {canonical_prompt(t.prompt) for t in train} & {canonical_prompt(t.prompt) for t in test}
    assert len({task.id for task in [*train, *test]}) == len(train) + len(test)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_metadata_gives_no_answer_away(name: str) -> None:
    module: Any = importlib.import_module(f"nodus.grader.catalog.{ENVIRONMENTS[name]['package']['catalog']['module']}")
    for task in build_split(name, "1.0.0", "test", module.tasks("test"))[:50]:
        assert set(task.metadata) <= {"family", "vertices", "edges"}


def test_arithmetic_is_every_pair_from_2_to_20_once() -> None:
    tasks = [*arithmetic.tasks("train"), *arithmetic.tasks("test")]
    expected = {f"What is {a} + {b}? Reply with only the number." for a in range(2, 21) for b in range(2, 21)}
    assert len(tasks) == 361 and {prompt for prompt, _ in tasks} == expected
    assert len(arithmetic.tasks("test")) == 128


def test_arithmetic_holds_out_both_orders_of_a_sum() -> None:
    held_out = {prompt for prompt, _ in arithmetic.tasks("test")}
    for prompt, _ in arithmetic.tasks("train"):
        a, b = prompt.removeprefix("What is ").partition("?")[0].split(" + ")
        assert f"What is {b} + {a}? Reply with only the number." not in held_out


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("12", 1.0),
        ("7 + 5 = 12", 1.0),
        ("The answer is 12.", 1.0),
        ("12.0", 1.0),
        ("12 dozen is 144, no: 12", 1.0),
        ("12 (or 12.5?)", 1.0),
        ("12, then 13", 0.0),
        ("-12", 0.0),
        ("5-12", 1.0),
        ("112", 0.0),
        ("1 2", 0.0),
        ("9" * 5000, 0.0),
        ("12.5", None),
        ("twelve", None),
        ("", None),
        ("١٢", None),
    ],
)
def test_arithmetic_grades_the_last_integer_alike_in_the_runner_and_in_the_server(
    completion: str, expected: float | None
) -> None:
    assert arithmetic.reward(completion, "12") == expected
    inside = exact_match.matcher("last-integer")(completion, "12")
    assert (None if inside is None else float(inside)) == expected


def test_graph_coloring_accepts_any_valid_colouring_and_nothing_else() -> None:
    answer = {"vertices": 3, "edges": [[0, 1], [1, 2]]}

    def grade(text: str) -> float | None:
        return graph_coloring.reward(text, answer)

    assert grade('{"0": 1, "1": 2, "2": 1}') == grade('{"0": 3, "1": 1, "2": 2}') == 1.0
    assert grade('Let me see: {"0": 1, "1": 1, "2": 1}. Better:\n```json\n{"0": 1, "1": 2, "2": 3}\n```') == 1.0
    assert grade('{"0": 1, "1": 1, "2": 2}') == 0.0
    assert grade('{"0": 1, "1": 2}') == grade('{"0": 1, "1": 2, "2": 4}') == grade('{"0": true, "1": 2, "2": 3}') == 0.0
    assert grade('{"0": 1, "1": 2, "2": 1, "3": 1}') == 0.0
    assert grade("1, 2, 1") is None and grade("{0: 1, 1: 2, 2: 1}") is None and grade("{" * 100_000) is None


def test_graph_coloring_graphs_have_a_solution() -> None:
    import itertools

    for task in graph_coloring.tasks("test")[:40]:
        vertices, edges = task["answer"]["vertices"], task["answer"]["edges"]
        solutions = itertools.product((1, 2, 3), repeat=vertices)
        good = next(s for s in solutions if all(s[a] != s[b] for a, b in edges))
        reply = json.dumps({str(vertex): color for vertex, color in enumerate(good)})
        assert graph_coloring.reward(reply, task["answer"]) == 1.0


def test_reasoning_gym_scores_reference_answers_and_names_families() -> None:
    families = set()
    for task in reasoning_gym.tasks("test")[::25]:
        family, index = task["answer"]
        families.add(task["metadata"]["family"])
        reference = reasoning_gym._datasets()[family][index]["answer"]
        assert (
            reasoning_gym.reward(f"<answer>wrong</answer> I mean <answer>{reference}</answer>", task["answer"]) == 1.0
        )
        assert reasoning_gym.reward(reference, task["answer"]) == 1.0
        assert reasoning_gym.reward("", task["answer"]) is None
    assert families == set(reasoning_gym.FAMILIES)


def test_reasoning_gym_runs_nothing_of_a_reply() -> None:
    hostile = "__import__('os')._exit(7)"
    for task in reasoning_gym.tasks("train")[::200]:
        score = reasoning_gym.reward(f"<answer>{hostile}</answer>", task["answer"])
        assert score is not None and score < 1
