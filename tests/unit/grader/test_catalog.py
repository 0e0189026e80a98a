"""The environments that ship: their sizes, their tasks and their rewards."""

from __future__ import annotations

import hashlib
import importlib
import json
import time
from importlib import resources
from typing import Any

import pytest

from nodus.grader.adapters import adapt
from nodus.grader.catalog import (
    arithmetic,
    graph_coloring,
    gsm8k,
    letter_counting_legacy,
    python_functions,
    reasoning_gym,
)
from nodus.grader.codebox.plain import loads
from nodus.grader.loading import Environment
from nodus.grader.tasks import build_split, canonical_prompt, ordered, without_shared
from nodus.server.catalog import read_catalog
from nodus.server.grading import exact_match

ENVIRONMENTS = {d["metadata"]["name"]: d["spec"] for d in read_catalog() if d["kind"] == "Environment"}
# A digest of the ids, prompts and answers of both splits in the order of seed 42: other tasks need another version.
RELEASED = {
    "arithmetic": ("2.0.0", "1755e27d8a1ef9e8"),
    "graph-coloring": ("1.0.0", "e1e6a8d1c6568815"),
    "gsm8k": ("1.0.0", "b22830a0a94aad08"),
    "letter-counting-legacy-eval": ("1.0.0", "a1282d6cdf817672"),
    "letter-counting-legacy-rl": ("1.0.0", "90a5f7efb94b3363"),
    "python-functions": ("1.0.0", "64cf71ce9da43506"),
    "reasoning-gym": ("1.0.0", "c553d13d28467d0e"),
}


def loaded(name: str) -> Any:
    """Return what has an environment's ``tasks`` and ``reward``."""
    package = ENVIRONMENTS[name]["package"]
    module = importlib.import_module(f"nodus.grader.catalog.{package['catalog']['module']}")
    where, _, function = package.get("loader", "").partition(":")
    assert where in ("", module.__name__), "what is loaded must be what the digest is of"
    return getattr(module, function)() if function else module


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_declared_sizes_are_the_real_ones(name: str) -> None:
    spec = ENVIRONMENTS[name]
    module = loaded(name)
    test = build_split(name, spec["version"], "test", module.tasks("test"))
    train = without_shared(build_split(name, spec["version"], "train", module.tasks("train")), test)
    assert {"train": {"size": len(train)}, "test": {"size": len(test)}} == spec["splits"]
    assert not {canonical_prompt(t.prompt) for t in train} & {canonical_prompt(t.prompt) for t in test}
    assert len({task.id for task in [*train, *test]}) == len(train) + len(test)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_tasks_and_their_order_are_those_of_the_release(name: str) -> None:
    spec = ENVIRONMENTS[name]
    module = loaded(name)
    environment = Environment(name, spec["version"], adapt(module, name))
    lines = [[t.id, t.prompt, t.answer] for split in ("train", "test") for t in ordered(environment.split(split), 42)]
    found = hashlib.sha256(json.dumps(lines).encode()).hexdigest()[:16]
    assert (name, spec["version"], found) == (name, *RELEASED[name])


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_metadata_gives_no_answer_away(name: str) -> None:
    module = loaded(name)
    for task in build_split(name, "1.0.0", "test", module.tasks("test"))[:50]:
        assert set(task.metadata) <= {"family", "vertices", "edges", "row", "source", "function"}


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


def test_gsm8k_is_the_hundred_rows_that_ship_every_second_held_out() -> None:
    rows = {split: [task["metadata"]["row"] for task in gsm8k.tasks(split)] for split in ("train", "test")}
    assert sorted(rows["train"] + rows["test"])[1::2] == rows["test"] and len(rows["train"]) == 50
    for task in [*gsm8k.tasks("train"), *gsm8k.tasks("test")]:
        assert task["answer"].isascii() and task["answer"].isdigit()
        assert gsm8k.reward(f"So it is {int(task['answer']):,}.", task["answer"]) == 1.0


def test_gsm8k_ships_the_licence_of_its_rows() -> None:
    notice = resources.files("nodus.grader.catalog.gsm8k").joinpath("NOTICE").read_text(encoding="utf-8")
    assert "Copyright (c) 2021 OpenAI" in notice and "Permission is hereby granted" in notice


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("1430", 1.0),
        ("She paid 1300 + 130 = $1,430.00.", 1.0),
        ("#### 1430", 1.0),
        (r"\boxed{1430}", 1.0),
        ("1400, 1430", 1.0),
        ("5-1430", 1.0),
        ("1430, I checked it 2 times", 0.0),
        ("-1430", 0.0),
        ("-$1,430", 0.0),
        ("−1430", 0.0),
        ("1430.5", 0.0),
        ("1,4300", 0.0),
        ("14 30", 0.0),
        ("0" * 5000 + "1430", 0.0),
        ("1430" + "," * 5000, 1.0),
        ("fourteen hundred thirty", None),
        ("", None),
        ("١٤٣٠", None),
    ],
)
def test_gsm8k_grades_the_last_number_alike_in_the_runner_and_in_the_server(
    completion: str, expected: float | None
) -> None:
    assert gsm8k.reward(completion, "1430") == expected
    inside = exact_match.matcher("last-number")(completion, "1430")
    assert (None if inside is None else float(inside)) == expected


def test_last_number_of_a_long_reply_takes_no_time() -> None:
    started = time.perf_counter()
    for text in ("1,000" * 100_000, "9" * 500_000, "-$" * 250_000, "1." * 250_000):
        exact_match.matcher("last-number")(text, "1")
    assert time.perf_counter() - started < 5


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


def test_legacy_letter_counting_is_the_slices_of_the_guide() -> None:
    entries = reasoning_gym_entries()
    evaluation, training = letter_counting_legacy.evaluation(), letter_counting_legacy.training()
    slices = {
        "eval test": (evaluation.tasks("test"), entries[:64]),
        "rl train": (training.tasks("train"), entries[:64]),
        "rl test": (training.tasks("test"), entries[64:128]),
    }
    for name, (tasks, expected) in slices.items():
        assert [[message["role"] for message in task["prompt"]] for task in tasks] == [["system", "user"]] * 64, name
        assert [task["prompt"][1]["content"] for task in tasks] == [entry["question"] for entry in expected], name
        rewards = [
            training.reward(entry["answer"], task["answer"]) for entry, task in zip(expected, tasks, strict=True)
        ]
        assert rewards == [1.0] * 64, name
    assert evaluation.tasks("train") == []


def reasoning_gym_entries() -> list[dict[str, Any]]:
    """The generator's entries, as its own library lists them."""
    import reasoning_gym as library

    return list(library.create_dataset("letter_counting", seed=42, size=200))


def test_legacy_letter_counting_scores_the_raw_completion_as_the_generator_does() -> None:
    import reasoning_gym as library

    dataset = library.create_dataset("letter_counting", seed=42, size=200)
    for index, task in enumerate(letter_counting_legacy.training().tasks("train")[:20]):
        entry = dataset[index]
        for reply in (
            entry["answer"],
            f" {entry['answer']}",
            f"It is {entry['answer']}.",
            "none",
            "",
            "__import__('os')",
        ):
            assert letter_counting_legacy.reward(reply, task["answer"]) == dataset.score_answer(reply, entry)
        assert letter_counting_legacy.reward(entry["answer"], task["answer"]) == 1.0
        assert 0 < letter_counting_legacy.reward(f"{entry['answer']}\n", task["answer"]) < 1


def test_legacy_letter_counting_examples_have_every_number_of_the_guide() -> None:
    evaluation, training = (ENVIRONMENTS[f"letter-counting-legacy-{name}"]["examples"][0] for name in ("eval", "rl"))
    assert evaluation["parameters"] == {"maxCompletionLength": 256, "evaluationBatchSize": 1}
    assert evaluation["model"] == training["model"] and "Qwen3-1.7B@" in training["model"]["uri"]
    assert training["parameters"] == {
        "steps": 50,
        "learningRate": 5e-6,
        "lrScheduler": "linear",
        "warmupRatio": 0,
        "numGenerations": 8,
        "generationBatchSize": 8,
        "batchSize": 1,
        "gradientAccumulation": 4,
        "maxCompletionLength": 64,
        "sampling": {"temperature": 1.2, "topP": 0.95, "topK": 50},
        "lora": {"r": 8, "alpha": 16, "dropout": 0, "targetModules": "all-linear"},
        "precision": "bf16",
        "gradientCheckpointing": True,
    }


def _double() -> dict[str, Any]:
    prompt = 'import math\n\ndef helper(x): return x\n\ndef double(x):\n    """Return 2 x."""\n'
    return {"prompt": prompt, "function": "double"}


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        ("I don't know.", None),
        ("", None),
        ("   \n", None),
        ("```\n```", None),
        ("```json\n{}\n```", None),
        ("```python\ndef double(x): return 2\n```", "BEFORE def double(x): return 2\n"),
        (
            "```py\ndef double(x): return 1\n```\nbetter:\n```\ndef double(x): return 2",
            "BEFORE def double(x): return 2",
        ),
        (
            "```python\ndef double(x): return 2\n```\n```python\nprint(double(1))\n```",
            "BEFORE def double(x): return 2\n",
        ),
        ("```python\ndouble = lambda x: 2\n```", "BEFORE double = lambda x: 2\n"),
        ("def double(x): return 2", "BEFORE def double(x): return 2"),
        ("\n    return 2 * x", "PROMPT     return 2 * x"),
        ("```python\n    return 2 * x\n```", "PROMPT     return 2 * x\n"),
        ("```python\nx = 1\n```", "BEFORE x = 1\n"),
    ],
)
def test_python_functions_takes_the_code_of_a_reply(reply: str, program: str | None) -> None:
    answer = _double()
    before = answer["prompt"].partition("def double")[0]
    expected = program and program.replace("BEFORE ", before).replace("PROMPT ", answer["prompt"])
    assert python_functions.program(reply, answer) == expected


def test_python_functions_has_all_of_humaneval_and_publishes_no_expected_result() -> None:
    tasks = [*python_functions.tasks("train"), *python_functions.tasks("test")]
    sources = {task["metadata"]["source"] for task in tasks}
    assert {f"HumanEval/{number}" for number in range(164)} < sources and len(sources) == 180
    for task in tasks:
        assert len(loads(task["answer"]["calls"])) == len(loads(task["answer"]["expected"])) > 0
        assert task["answer"]["expected"] not in task["prompt"]


HOSTILE = ["```" + " " * 200_000, "```\n" * 50_000, "``` " * 50_000, "double" + " " * 200_000, "`" * 200_000]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_python_functions_reads_a_hostile_reply_in_no_time(text: str) -> None:
    begun = time.process_time()
    python_functions.program(text, _double())
    assert time.process_time() - begun < 1.0
