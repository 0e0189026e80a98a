"""What the examples say after a run: which tasks they show, the picture, and an honest verdict."""

from __future__ import annotations

import io
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from nodus.client.record import Record
from nodus.examples import quickstart, rl
from nodus.examples.plots import write_plot
from nodus.examples.report import choose_tasks
from nodus.recipes.bundling import package_reward
from nodus.recipes.tasks import check_tasks, split_tasks


def outcomes(**by_task: str) -> dict[str, Record]:
    return {task: Record(outcome=outcome) for task, outcome in by_task.items()}


def test_learnt_tasks_are_shown_and_one_that_was_not() -> None:
    before = outcomes(a="Failed", b="Failed", c="Failed", d="Passed", e="Failed")
    after = outcomes(a="Passed", b="Passed", c="Passed", d="Passed", e="Failed")
    assert choose_tasks(before, after, 3) == ["a", "b", "e"]


def test_nothing_learnt_shows_what_there_is() -> None:
    before, after = (
        outcomes(a="Failed", b="Passed", c="Failed"),
        outcomes(a="Failed", b="Passed", c="Failed", d="Passed"),
    )
    assert choose_tasks(before, after, 3) == ["a", "b", "c"]
    assert choose_tasks({}, after, 3) == []


def test_everything_learnt_shows_learnt_ones() -> None:
    before, after = outcomes(a="Failed", b="Failed", c="Failed"), outcomes(a="Passed", b="Passed", c="Passed")
    assert choose_tasks(before, after, 3) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (44.0, "The model learnt: +44.0 points"),
        (30.0, "+30.0 points: less than the 35"),
        (3.0, "+3.0 points: this run fell short of the 25"),
        (-2.0, "-2.0 points: this run fell short of the 25"),
        (None, "can't be compared"),
    ],
)
def test_verdict_is_honest(change: float | None, expected: str) -> None:
    assert expected in quickstart.verdict(change)


def test_picture_is_valid_and_shows_both_rates(tmp_path: Path) -> None:
    metrics: list[dict[str, Any]] = [{"step": step, "reward": step / 40} for step in range(1, 41)] + [
        {"step": 41, "reward": None}
    ]
    summary = {"baseline": {"passRate": "0.39"}, "evaluation": {"passRate": "0.83"}}
    path = write_plot(tmp_path / "deep" / "training.svg", metrics, summary, "GRPO <on> arithmetic & more")
    text = "".join(ElementTree.parse(path).getroot().itertext())
    assert "GRPO <on> arithmetic & more" in text and "39%" in text and "83%" in text


@pytest.mark.parametrize("metrics", [[], [{"step": 1, "reward": -0.5}]])
def test_picture_of_little_is_valid_too(tmp_path: Path, metrics: list[dict[str, Any]]) -> None:
    ElementTree.parse(write_plot(tmp_path / "training.svg", metrics, {}, "nothing"))


def test_local_server_is_meant_where_another_context_is_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nodus.client.config import config_path, save_context

    data_dir = tmp_path / "data"
    monkeypatch.setenv("NODUS_DATA_DIR", str(data_dir))
    save_context(config_path(), name="work", url="http://far:1", org="work", api_key="nodus_far")
    assert quickstart.local_client().connection.url == "http://far:1"
    save_context(config_path(), name="here", url="http://127.0.0.1:9", org="o", api_key="nodus_near", data_dir=data_dir)
    assert quickstart.local_client().connection.api_key == "nodus_near"
    monkeypatch.setenv("NODUS_CONTEXT", "work")
    assert quickstart.local_client().connection.api_key == "nodus_far"


@pytest.mark.parametrize("device", ["CPU", "GPU"])
def test_own_reward_example_can_be_sent(device: str) -> None:
    tasks = rl.tasks_for(rl.SHORT_WORDS if device == "CPU" else rl.WORDS, ["robin"])
    train, test = split_tasks(check_tasks(tasks), None)
    assert len(test) >= 16 and len(train) >= 34
    assert "tasks_for" not in package_reward(rl.reward).text
    # Whatever the recipe doesn't name itself becomes a parameter of the runtime.
    assert rl.settings(device)["steps"] >= 16


def test_own_reward_example_scores_as_it_says() -> None:
    prompt, answer = rl.tasks_for(["valley"], ["at"])[0]
    assert answer == "yellav"
    assert [message["role"] for message in prompt] == ["user", "assistant", "user"]
    assert rl.reward(prompt[1]["content"], "ta") == 1.0
    assert rl.reward("<answer>nope</answer>", answer) == 0.0
    assert rl.reward("<answer>yellow</answer>", answer) == pytest.approx(1 / 3)
    assert rl.reward("", answer) is None


@pytest.mark.parametrize("main", [quickstart.main])
def test_server_that_is_not_there_is_said_in_two_lines(
    main: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NODUS_API_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("NODUS_API_KEY", "nodus_x")
    assert main([]) == 1
    out = capsys.readouterr().out
    assert "can't be reached" in out and "nodus up" in out


def test_replies_stay_on_one_line_and_are_no_markup() -> None:
    from rich.console import Console

    from nodus.examples.report import _one_line

    out = io.StringIO()
    Console(file=out, width=200).print(_one_line("a\n[bold]b[/bold]   c"))
    assert out.getvalue() == "a [bold]b[/bold] c\n"


@pytest.mark.parametrize("example", [quickstart, rl])
def test_help_starts_nothing(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        example.main(["--help"])
    assert leaving.value.code == 0
    assert "--output" in capsys.readouterr().out
