"""SkyRL-gym environments, built from a row as SkyRL builds them, of one turn."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from nodus.grader.adapters.base import Message, Refused
from nodus.grader.adapters.parquet import Row

_RUNS_CODE = "lcb"


class Environments:
    """The environments that rows name.

    Args:
        rows: All rows; the first of each ``env_class`` is tried.

    Raises:
        Refused: When a row names none, or one that is unknown, can't be built here, or is of more than one turn.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        tried: set[str] = set()
        for row in rows:
            name = row.values.get("env_class")
            if not isinstance(name, str):
                raise Refused(
                    f"{row.place} has no env_class that names a SkyRL-gym environment, and the module no compute_score"
                )
            if name not in tried:
                tried.add(name)
                _try(row, name)

    def prompt(self, row: Row) -> list[Message]:
        """Return what a row's environment tells the model.

        Raises:
            Refused: When it can't be built for this row.
        """
        try:
            said, _ = _make(row.values, {"max_turns": 1}).init(copy.deepcopy(row.values["prompt"]))
        except Exception as error:  # noqa: BLE001 - an environment may raise anything
            raise Refused(f"{row.place} can't be made its SkyRL-gym environment: {_said(error)}") from None
        return list(said)

    def score(self, row: Row, reply: str) -> object:
        """Return the reward of a reply."""
        environment = _make(row.values, {"max_turns": 1})
        environment.init(copy.deepcopy(row.values["prompt"]))
        return environment.step(reply)["reward"]


def _make(values: dict[str, Any], more: dict[str, Any]) -> Any:
    import skyrl_gym
    from omegaconf import DictConfig

    extras = {key: value for key, value in values.items() if key not in ("prompt", "env_class")}
    return skyrl_gym.make(values["env_class"], env_config=DictConfig({}), extras={**extras, **more})


def _try(row: Row, name: str) -> None:
    """Build an environment, without the bound on turns that SkyRL's generator would set, and take a step in it."""
    _check_registered(row, name)
    more: dict[str, Any] = {} if row.values.get("extra_info") is not None else {"extra_info": {}}
    try:
        environment = _make(row.values, more)
    except Exception as error:  # noqa: BLE001 - an environment may raise anything
        raise Refused(f"{row.place} can't be made the SkyRL-gym environment {name!r}: {_said(error)}") from None
    turns = getattr(environment, "max_turns", 1)
    if turns > 1:
        raise Refused(f"the SkyRL-gym environment {name!r} is of {turns} turns; only those of one turn run here")
    try:
        environment.init(copy.deepcopy(row.values["prompt"]))
        ended = bool(environment.step("")["done"])
    except Exception as error:  # noqa: BLE001 - an environment may raise anything
        what = f"the SkyRL-gym environment {name!r} fails on an empty reply to {row.place}"
        raise Refused(f"{what}: {_said(error)}") from None
    if not ended:
        raise Refused(f"the SkyRL-gym environment {name!r} goes on after one turn; only those of one turn run here")


def _check_registered(row: Row, name: str) -> None:
    try:
        from skyrl_gym.envs.registration import registry
    except ImportError as error:
        raise Refused(
            f"{row.place} names the SkyRL-gym environment {name!r}, which needs skyrl-gym; add it to the package's "
            f"dependencies ({error})"
        ) from None
    if name not in registry:
        raise Refused(f"{row.place} has the env_class {name[:60]!r}; skyrl-gym knows {', '.join(sorted(registry))}")
    if name == _RUNS_CODE or f".{_RUNS_CODE}." in str(registry[name].entry_point):
        raise Refused(
            f"the SkyRL-gym environment {name!r} runs the model's code in the process that grades, where it could "
            "forge its own verdict; write a reward with run_code instead"
        )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]
