"""Pass rates, comparison and reward signal, each against values worked out by hand."""

from dataclasses import replace

import pytest

from nodus.server.training import summary
from nodus.server.training.summary import GroupCounts, Verdict


def verdict(phase: str, task: int, outcome: str, *, attempt: int = 1, step: int = 0, sample: int = 0) -> Verdict:
    reward = {"Passed": 1.0, "Failed": 0.0, "Error": None}[outcome]
    return Verdict(attempt, phase, step, f"t{task:03}", sample, outcome, reward)


def phase(name: str, passed: int, failed: int, errors: int = 0, first: int = 0) -> list[Verdict]:
    outcomes = ["Passed"] * passed + ["Failed"] * failed + ["Error"] * errors
    return [verdict(name, first + number, outcome) for number, outcome in enumerate(outcomes)]


def summarise(rows: list[Verdict], tasks: int, **options: object) -> dict[str, object]:
    given = {"baseline": True, "final": True} | options
    return summary.summary(rows, held_out_tasks=tasks, **given)  # type: ignore[arg-type]


def test_summary_of_a_run_that_learned() -> None:
    rows = phase("Baseline", 8, 12) + phase("Evaluation", 15, 5)
    assert summarise(rows, 20) == {
        "baseline": {
            "tasks": 20,
            "passed": 8,
            "failed": 12,
            "errors": 0,
            "inProgress": False,
            "passRate": "0.4000",
            "worstPassRate": "0.4000",
            "bestPassRate": "0.4000",
            "meanReward": "0.4000",
        },
        "evaluation": {
            "tasks": 20,
            "passed": 15,
            "failed": 5,
            "errors": 0,
            "inProgress": False,
            "passRate": "0.7500",
            "worstPassRate": "0.7500",
            "bestPassRate": "0.7500",
            "meanReward": "0.7500",
        },
        "comparison": {
            "tasks": 20,
            "unscored": 0,
            "comparable": True,
            "measurable": True,
            "gained": 7,
            "lost": 0,
            "changePP": "35.0",
            "resolutionPP": "5.0",
            # 7 gains, 0 losses: (8 - 1) / 22 +- 1.96 sqrt((9/22 - (7/22)^2) / 22)
            "intervalPP": ["8.6", "55.0"],
            "boundsPP": ["35.0", "35.0"],
            "pValue": "0.0156",  # 2 / 2^7
            "reason": "Comparable",
            "note": "the interval excludes no change",
        },
    }


@pytest.mark.parametrize(
    ("before", "after", "tasks", "reason", "change"),
    [
        ((7, 8, 0), (10, 5, 0), 15, "TooFewTasks", "20.0"),
        ((0, 20, 0), (0, 20, 0), 20, "NonePassed", "0.0"),
        ((20, 0, 0), (20, 0, 0), 20, "AllPassed", "0.0"),
        ((0, 20, 0), (20, 0, 0), 20, "Comparable", "100.0"),
        ((8, 12, 0), (9, 11, 0), 20, "SmallestStep", "5.0"),
        ((9, 11, 0), (8, 12, 0), 20, "SmallestStep", "-5.0"),
        ((8, 12, 0), (8, 12, 0), 20, "Comparable", "0.0"),
        ((8, 10, 0), (12, 8, 0), 20, "IncompleteEvents", None),
        ((8, 12, 0), (8, 8, 0), 20, "IncompleteEvents", None),
        ((8, 6, 6), (8, 12, 0), 20, "TooFewTasks", "0.0"),
    ],
)
def test_comparison_reason(
    before: tuple[int, int, int], after: tuple[int, int, int], tasks: int, reason: str, change: str | None
) -> None:
    result = summarise(phase("Baseline", *before) + phase("Evaluation", *after), tasks)["comparison"]
    assert isinstance(result, dict)
    assert result["reason"] == reason
    assert result.get("changePP") == change
    assert result["comparable"] == (reason in ("Comparable", "SmallestStep"))


def test_comparison_of_other_tasks_is_refused_without_a_change() -> None:
    rows = phase("Baseline", 8, 12) + phase("Evaluation", 8, 12, first=5)
    result = summarise(rows, 20)["comparison"]
    assert result == {
        "tasks": 15,
        "unscored": 10,
        "comparable": False,
        "measurable": False,
        "reason": "DifferentTasks",
        "note": "10 tasks were graded on one side only",
    }


def test_comparison_leaves_errors_out_and_bounds_what_they_could_have_changed() -> None:
    rows = phase("Baseline", 8, 12) + phase("Evaluation", 12, 6, errors=2)
    result = summarise(rows, 20)["comparison"]
    assert isinstance(result, dict)
    assert (result["tasks"], result["unscored"], result["reason"]) == (18, 2, "Comparable")
    assert result["changePP"] == "22.2"  # 4 of 18
    assert result["boundsPP"] == ["10.0", "30.0"]  # (4 - 2) / 20 and (4 + 2) / 20
    assert "2 tasks could not be scored" in str(result["note"])


def test_halves_round_away_from_zero_and_nothing_is_minus_zero() -> None:
    rows = phase("Baseline", 9, 7) + phase("Evaluation", 8, 8)
    result = summarise(rows, 16)["comparison"]
    assert isinstance(result, dict)
    assert (result["resolutionPP"], result["changePP"]) == ("6.3", "-6.3")
    same = summarise(phase("Baseline", 8, 8) + phase("Evaluation", 8, 8), 16)["comparison"]
    assert isinstance(same, dict) and same["changePP"] == "0.0"


def test_error_is_in_no_rate() -> None:
    only = summary.phase_summary(summary.phase_result(phase("Baseline", 3, 1, errors=4), "Baseline", 8))
    assert (only["passRate"], only["meanReward"], only["errors"]) == ("0.7500", "0.7500", 4)
    assert (only["worstPassRate"], only["bestPassRate"]) == ("0.3750", "0.8750")


def test_phase_that_only_errored_has_no_rate() -> None:
    only = summary.phase_summary(summary.phase_result(phase("Baseline", 0, 0, errors=4), "Baseline", 4))
    assert "passRate" not in only and "meanReward" not in only


def test_newest_attempt_of_each_sample_counts_whatever_the_order() -> None:
    first = [replace(row, attempt_index=1) for row in phase("Baseline", 20, 0)]
    second = [replace(row, attempt_index=2) for row in phase("Baseline", 5, 5)]
    for rows in (first + second, second + first):
        result = summary.phase_summary(summary.phase_result(rows, "Baseline", 20))
        assert (result["tasks"], result["passed"], result["inProgress"]) == (20, 15, False)


def test_summary_has_only_what_the_run_asks_for() -> None:
    rows = phase("Baseline", 8, 12) + phase("Evaluation", 15, 5)
    assert set(summarise(rows, 20, baseline=False)) == {"evaluation"}
    assert set(summarise(rows, 20, final=False)) == {"baseline"}
    assert summarise([], 20) == {}


def test_phase_in_progress_says_so() -> None:
    running = summarise(phase("Baseline", 3, 2), 20)
    assert running["baseline"]["inProgress"] is True  # type: ignore[index]
    assert "comparison" not in running


def test_several_samples_of_a_task_give_pass_at_k() -> None:
    rows = [verdict("Evaluation", 0, "Passed"), verdict("Evaluation", 0, "Failed", sample=1)]
    rows += [verdict("Evaluation", 1, "Failed"), verdict("Evaluation", 1, "Failed", sample=1)]
    result = summary.phase_summary(summary.phase_result(rows, "Evaluation", 2))
    assert (result["samplesPerTask"], result["passRate"], result["passAtK"]) == (2, "0.2500", "0.5000")


@pytest.mark.parametrize(("wins", "losses", "p"), [(0, 0, 1.0), (7, 0, 2 / 128), (5, 5, 1.0), (8, 2, 112 / 1024)])
def test_mcnemar_p_is_the_exact_binomial(wins: int, losses: int, p: float) -> None:
    assert summary.mcnemar_p(wins, losses) == pytest.approx(p)


def test_paired_interval_stays_within_all_and_nothing() -> None:
    low, high = summary.paired_interval(20, 0, 20)
    assert -1 <= low <= high <= 1
    assert summary.paired_interval(0, 0, 16)[0] == pytest.approx(-summary.paired_interval(0, 0, 16)[1])


@pytest.mark.parametrize(
    ("counts", "finished", "signal"),
    [
        (GroupCounts(0, 0), False, "InsufficientEvidence"),
        (GroupCounts(0, 0), True, "InsufficientEvidence"),
        (GroupCounts(7, 0), False, "InsufficientEvidence"),
        (GroupCounts(8, 0), False, "NoRewardContrast"),
        (GroupCounts(1, 0), True, "NoRewardContrast"),
        (GroupCounts(9, 1), False, "ContrastObserved"),
    ],
)
def test_reward_signal(counts: GroupCounts, finished: bool, signal: str) -> None:
    assert summary.reward_signal(counts, finished=finished) == signal
