"""Datasets made for verl or SkyRL: a module that names parquet files, ``train_files`` and perhaps ``val_files``.

With ``compute_score``, verl's custom reward function scores a reply. Without, each row's ``env_class`` names the
SkyRL-gym environment that does. A row holds its solution, so it stays in the grader's process; what is published beside
the prompt is where the row is from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nodus.grader.adapters import parquet, skyrl
from nodus.grader.adapters.base import Adapter, Message, Refused, Solution, held_out
from nodus.grader.adapters.parquet import Row
from nodus.grader.adapters.waiting import finished
from nodus.grader.tasks import Task

_TURNS = 2
"""``num_turns`` of a dialogue of a prompt and one reply, as verl counts them."""
_KEYWORDS = ("data_source", "solution_str", "ground_truth", "extra_info")


class Dataset:
    """The rows of a dataset, of either kind.

    Args:
        kind: ``verl`` or ``skyrl``.
        rows: Split to its rows.
        prompt: What the model is told of a row.
        score: Scores a reply to a row.
    """

    episodes = False

    def __init__(
        self,
        kind: str,
        rows: Mapping[str, Sequence[Row]],
        prompt: Callable[[Row], list[Message]],
        score: Callable[[Row, str], object],
    ) -> None:
        self.kind = kind
        self._rows, self._prompt, self._score = rows, prompt, score

    def tasks(self, split: str) -> Sequence[object]:
        """List a split's rows."""
        return [
            {"prompt": self._prompt(row), "answer": _solution(row), "metadata": _published(row.values)}
            for row in self._rows[split]
        ]

    def grade(self, task: Task, turns: Sequence[str]) -> object:
        """Return the score of the first turn."""
        return self._score(task.answer.private, turns[0])

    def reply(self, task: Task, turns: Sequence[str]) -> list[Message] | None:
        """Return None: a row is one question."""
        return None


def recognises(found: object) -> bool:
    """Tell whether it names parquet files to train on."""
    return hasattr(found, "train_files")


def adapt(found: Any) -> Adapter:
    """Return the adapter of a module or an object with ``train_files``.

    Raises:
        Refused: When files can't be read, rows lack what scores them, or their environments can't be used here.
    """
    here = os.path.dirname(getattr(found, "__file__", None) or "")
    listed = {key: _files(getattr(found, key, None), key) for key in ("train_files", "val_files")}
    if not listed["train_files"]:
        raise Refused("train_files names no file; expected the path of a parquet file, or a list of them")
    train = parquet.read(listed["train_files"], here)
    if listed["val_files"]:
        rows = {"train": train, "test": parquet.read(listed["val_files"], here)}
    else:
        rows = {
            split: [row for index, row in enumerate(train) if held_out(index) == (split == "test")]
            for split in ("train", "test")
        }
    score = getattr(found, "compute_score", None)
    if score is None:
        played = skyrl.Environments([row for split in rows.values() for row in split])
        return Dataset("skyrl", rows, played.prompt, played.score)
    _check_signature(score)
    for split in rows.values():
        for row in split:
            _check_verl(row)
    return Dataset("verl", rows, lambda row: row.values["prompt"], lambda row, reply: _computed(score, row, reply))


def _files(given: object, key: str) -> list[str]:
    if given is None:
        return []
    if isinstance(given, str | os.PathLike):
        return [os.fspath(given)]
    if isinstance(given, Iterable):
        listed = list(given)
        if all(isinstance(name, str | os.PathLike) for name in listed):
            return [os.fspath(name) for name in listed]
    raise Refused(f"{key} is {type(given).__name__}; expected the path of a parquet file, or a list of them")


def _check_signature(score: object) -> None:
    if not callable(score):
        raise Refused(f"compute_score is {type(score).__name__}; expected verl's reward function")
    import inspect  # late, like all that only some environments need: forks copy what is there

    try:
        inspect.signature(score).bind(**dict.fromkeys(_KEYWORDS))
    except TypeError as error:
        raise Refused(
            f"compute_score can't be called with {', '.join(_KEYWORDS)} by keyword, as verl does: {error}"
        ) from None
    except ValueError:
        return  # a function of a compiled module says nothing of its parameters


def _check_verl(row: Row) -> None:
    values = row.values
    model = values.get("reward_model")
    if not isinstance(model, Mapping) or model.get("ground_truth") is None:
        raise Refused(f"{row.place} has no reward_model.ground_truth for compute_score")
    if not isinstance(values.get("data_source"), str):
        raise Refused(f"{row.place} has no data_source for compute_score")
    if not isinstance(values.get("extra_info"), Mapping | None):
        raise Refused(f"{row.place} has extra_info of type {type(values['extra_info']).__name__}; expected a struct")


def _computed(score: Callable[..., Any], row: Row, reply: str) -> object:
    """Return what verl makes of a reply: a number, or the ``score`` of a dict."""
    values = row.values
    extra = {"num_turns": _TURNS, "rollout_reward_scores": {}, **(values.get("extra_info") or {})}
    result = finished(
        score(
            data_source=values["data_source"],
            solution_str=reply,
            ground_truth=values["reward_model"]["ground_truth"],
            extra_info=extra,
        )
    )
    if isinstance(result, Mapping):
        if "score" not in result:
            raise TypeError(
                f"compute_score returned a dict without 'score'; it has {', '.join(map(str, result))[:200]}"
            )
        result = result["score"]
    if result is None:
        raise TypeError("compute_score returned None; expected a number, a bool, or a dict with 'score'")
    return result


def _solution(row: Row) -> Solution:
    for key in ("reward_model", "reward_spec"):
        if isinstance(part := row.values.get(key), Mapping) and part.get("ground_truth") is not None:
            return Solution(str(part["ground_truth"]), row)
    return Solution("", row)


def _published(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: values[key] for key in ("data_source", "env_class") if isinstance(values.get(key), str)}
