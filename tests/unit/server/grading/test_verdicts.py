"""What of a runner's line counts, and what the host adds."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from nodus.server.grading import Completion, Manifest, Task
from nodus.server.grading import exact_match as exact
from nodus.server.grading.verdicts import Evidence, Verdict, failed, from_line

ITEM = Completion("t1", 3, "text")


def line(**changes: Any) -> bytes:
    return json.dumps({"id": 7, "taskId": "t1", "verdict": "Correct", "reward": 1.0, **changes}).encode()


def read(data: bytes, **evidence: Any) -> Verdict | None:
    return from_line(ITEM, 7, Evidence(["python"], "box", 1.5, data, **evidence))


def test_evidence_is_the_hosts_own() -> None:
    data = line(evidence={"process": ["forged"], "isolation": "forged", "oom": True, "exitCode": 0, "ms": 1.25})
    verdict = read(data)
    assert verdict is not None
    assert verdict.evidence == {
        "process": ["python"],
        "exitCode": 0,
        "durationMs": 1.5,
        "outputSHA256": hashlib.sha256(data).hexdigest(),
        "oom": False,
        "tries": 1,
        "isolation": "box",
        "processMs": 1.25,
    }


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Correct",
        b"[1]",
        line(id=8),
        line(taskId="t2"),
        line(verdict="Best"),
        line(reward=None),
        line(reward="1"),
        line(reward=True),
        line(reward=float("nan")),
        line(reward=float("inf")),
        b"[" * 100_000,
    ],
)
def test_line_that_is_not_a_verdict_on_this_completion_does_not_count(data: bytes) -> None:
    assert read(data) is None


def test_failure_never_carries_a_reward() -> None:
    verdict = read(line(verdict="InfrastructureFailure", reward=0.0, reason="x" * 5000), oom=True)
    assert verdict is not None
    assert (verdict.reward, verdict.outcome) == (None, "Error")
    assert verdict.reason is not None and verdict.reason.startswith("out of memory: x") and len(verdict.reason) < 2100
    assert failed(ITEM, "lost", Evidence([], "box", 0.0)).reward is None


@pytest.mark.parametrize("reward", [1e300, -1e10, 10**400])
def test_reward_that_overflows_what_comes_after_it_is_a_fault_of_the_reward(reward: float) -> None:
    found = read(line(reward=reward))
    assert found is not None and (found.verdict, found.reward) == ("InfrastructureFailure", None)
    assert found.reason is not None and "a reward is from -1e+09 to 1e+09" in found.reason


def test_what_a_reward_says_can_be_stored_and_sent() -> None:
    said = "\ud800\x00boom"
    evidence = {"traceback": said, "signal": said}
    found = read(line(verdict="InfrastructureFailure", reason=said, evidence=evidence))
    assert found is not None
    lost = failed(ITEM, said, Evidence([], "box", 0.0), traceback=said)
    for text in (
        found.reason,
        found.evidence["traceback"],
        found.evidence["signal"],
        lost.reason,
        lost.evidence["traceback"],
    ):
        assert text == "?\\0boom"


@pytest.mark.parametrize(
    ("verdict", "reward", "outcome"),
    [("Correct", 1.0, "Passed"), ("Incorrect", 0.4, "Failed"), ("InvalidOutput", 0.0, "Failed")],
)
def test_outcomes(verdict: str, reward: float, outcome: str) -> None:
    found = read(line(verdict=verdict, reward=reward))
    assert found is not None and (found.outcome, found.reward) == (outcome, reward)


def test_exact_match_grades_inside_the_server() -> None:
    answers = {"t1": "12"}
    for text, expected in (("it is 12", "Correct"), ("13", "Incorrect"), ("none", "InvalidOutput")):
        verdict = exact.grade(Completion("t1", 0, text), answers, exact.matcher("last-integer"))
        assert verdict.verdict == expected
        assert verdict.evidence["process"] == ["nodus-server:exact-match"]
    unknown = exact.grade(Completion("t2", 0, "12"), answers, exact.matcher("last-integer"))
    assert (unknown.verdict, unknown.reward) == ("InfrastructureFailure", None)


@pytest.mark.parametrize("answer", ["twelve", None, ["12"], "9" * 5000 + "x"])
def test_answer_that_is_no_number_is_a_fault_of_the_environment(answer: Any) -> None:
    verdict = exact.grade(Completion("t1", 0, "12"), {"t1": answer}, exact.matcher("last-integer"))
    assert (verdict.verdict, verdict.reward) == ("InfrastructureFailure", None)
    assert "can't be compared as a number" in str(verdict.reason)


def test_exact_match_compares_the_whole_text_unless_the_name_says_otherwise() -> None:
    match = exact.matcher("anything")
    assert [match(text, "Paris") for text in (" Paris\n", "paris", " ")] == [True, False, None]


def test_manifest_survives_storage_and_publishes_no_answer() -> None:
    tasks = (Task("t1", "p", {"m": 1}, "secret"), Task("t2", [{"role": "user", "content": "q"}], {}, None))
    manifest = Manifest("sha256:0", "test", 5, tasks, True)
    again = Manifest.from_json("sha256:0", "test", 5, json.loads(json.dumps(manifest.to_json())))
    assert again == manifest
    assert "secret" not in manifest.jsonl()
    assert [json.loads(row)["taskId"] for row in manifest.jsonl(1).splitlines()] == ["t1"]


@pytest.mark.parametrize(
    "lines",
    [
        [{"prompt": "p"}],
        [{"taskId": "", "prompt": "p"}],
        [{"taskId": "a", "prompt": 5}],
        [{"taskId": "a", "prompt": "p", "metadata": []}],
        [{"taskId": "a", "prompt": "p"}, {"taskId": "a", "prompt": "q"}],
        ["text"],
        [{"taskId": "a", "prompt": "\ud800"}],
        [{"taskId": "a", "prompt": "p", "metadata": {"k": "\x00"}}],
    ],
)
def test_manifest_of_something_that_is_no_task_list_is_refused(lines: list[Any]) -> None:
    with pytest.raises(ValueError):
        Manifest.from_lines("sha256:0", "test", 0, lines, False)


def test_prompts_about_escapes_are_taken() -> None:
    manifest = Manifest.from_lines("sha256:0", "test", 0, [{"taskId": "a", "prompt": "what is \\u0000 in ü?"}], False)
    assert manifest.tasks[0].prompt == "what is \\u0000 in ü?"
