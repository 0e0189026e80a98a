"""Whatever a grader says: it is a verdict that can be stored, sent and summed up, or none; reading it never raises."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodus.grader import code, messages
from nodus.grader import verdicts as runner
from nodus.grader.codebox.plain import NotPlain, loads
from nodus.grader.codebox.server import _read_request
from nodus.server.grading import Completion
from nodus.server.grading.episodes import Episode
from nodus.server.grading.manifests import Manifest
from nodus.server.grading.verdicts import OUTCOMES, Evidence, from_line

ITEM = Completion("t1", 3, "text")
TEXT = st.text(st.characters(codec=None)) | st.sampled_from(["\ud800", "\x00", "x" * 5000, *OUTCOMES])
NUMBERS = (
    st.sampled_from([10**400, -(10**400), 1e308, 2**63, math.nan, math.inf, -math.inf, True])
    | st.integers()
    | st.floats()
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
_TEXTS = dict.fromkeys(("fault", "note", "signal", "outputSHA256", "timedOut", "traceback", "process"), VALUES | TEXT)
_FIGURES = dict.fromkeys(("exitCode", "ms", "peakMemoryBytes", "runs", "oom"), NUMBERS | VALUES)
CODE = st.fixed_dictionaries({}, optional={**_TEXTS, **_FIGURES})
EVIDENCE = st.fixed_dictionaries({}, optional={**_TEXTS, **_FIGURES, "code": CODE})
LINES = st.fixed_dictionaries(
    {"id": st.just(7), "taskId": st.just("t1"), "verdict": st.sampled_from([*OUTCOMES]) | VALUES},
    optional={
        "reward": NUMBERS | VALUES,
        "reason": TEXT | VALUES,
        "messages": VALUES,
        "evidence": VALUES | EVIDENCE,
        "code": CODE,
    },
)
quick = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def storable(value: object) -> bool:
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    text.encode()
    return "\\u0000" not in text and len(text) < 100_000


@quick
@given(LINES)
def test_line_is_a_verdict_that_can_be_kept_or_none(line: dict[str, Any]) -> None:
    verdict = from_line(ITEM, 7, Evidence(["python"], "box", 1.5, json.dumps(line).encode()))
    if verdict is None:
        return
    assert verdict.verdict in OUTCOMES
    assert (verdict.reward is None) == (verdict.verdict == "InfrastructureFailure")
    assert verdict.reward is None or math.isfinite(verdict.reward)
    assert storable([verdict.reason, verdict.reward, verdict.evidence])


@quick
@given(LINES)
def test_line_is_an_environments_answer_that_can_be_kept_or_none(line: dict[str, Any]) -> None:
    reply = Episode("t1", 3, ("one",)).read(7, Evidence(["python"], "box", 1.5, json.dumps(line).encode()))
    if reply is None:
        return
    assert storable([reply.error, reply.evidence])
    assert reply.messages is None or reply.error is None


@quick
@given(st.binary(max_size=200) | LINES.map(lambda line: json.dumps(line).encode()))
def test_what_a_completion_reports_is_a_verdict_or_nothing(data: bytes) -> None:
    found = runner.read_result(data)
    assert found is None or found["verdict"] in runner.VERDICTS
    messages.read(data)


@quick
@given(VALUES)
def test_what_a_program_writes_is_results_or_a_fault(value: object) -> None:
    for text in (
        json.dumps(value),
        json.dumps({"calls": value}),
        json.dumps({"calls": [["returned", json.dumps(value)]]}),
    ):
        calls, fault = code._calls(text, 1)
        assert (fault is None) == (len(calls) == 1)
        _read_request(text.encode())
        try:
            loads(text)
        except NotPlain:
            continue


@quick
@given(
    st.lists(
        VALUES
        | st.fixed_dictionaries(
            {"taskId": TEXT}, optional=dict.fromkeys(("prompt", "metadata", "answer", "tools"), VALUES)
        ),
        max_size=4,
    )
)
def test_what_an_environment_lists_is_tasks_that_can_be_kept_or_a_value_error(lines: list[Any]) -> None:
    try:
        manifest = Manifest.from_lines("d", "test", 0, json.loads(json.dumps(lines)), True)
    except ValueError:
        return
    assert len(manifest.tasks) == len(lines)
    for task in manifest.tasks:
        assert storable(task.public()) and storable(task.answer)
