"""Bodies of a run's own calls: completions to grade, episodes to go on with. Every mistake of a body in one refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nodus.core.errors import Cause, Invalid
from nodus.server.api.http import json_type
from nodus.server.grading.episodes import MAX_TURNS

ITEMS_LIMIT = 4096
PHASES = ("Baseline", "Training", "Evaluation")
_CAUSES = 20

_KEY_SCHEMA: dict[str, Any] = {
    "taskId": {"type": "string", "minLength": 1, "maxLength": 253},
    "sample": {"type": "integer", "minimum": 0, "description": "Which completion of the task; 0 when absent."},
}
_TURNS_SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {"type": "string"},
    "minItems": 1,
    "maxItems": MAX_TURNS,
    "description": "The model's turns of an episode, in order.",
}


def _body_schema(name: str, item: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["phase", "step", name],
        "properties": {
            "phase": {"enum": list(PHASES)},
            "step": {"type": "integer", "minimum": 0, "description": "Optimizer step; 0 outside of training."},
            name: {"type": "array", "minItems": 1, "maxItems": ITEMS_LIMIT, "items": {"type": "object", **item}},
        },
    }


GRADINGS: dict[str, Any] = _body_schema(
    "completions",
    {
        "required": ["taskId"],
        "oneOf": [{"required": ["completion"]}, {"required": ["turns"]}],
        "properties": {
            **_KEY_SCHEMA,
            "completion": {"type": "string"},
            "turns": {**_TURNS_SCHEMA, "description": "In place of a completion: an episode, graded as it stands."},
        },
    },
)
STEPS: dict[str, Any] = _body_schema(
    "episodes", {"required": ["taskId", "turns"], "properties": {**_KEY_SCHEMA, "turns": _TURNS_SCHEMA}}
)
VERDICTS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "verdicts": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["taskId", "sample", "verdict", "outcome", "reward"],
                "properties": {
                    **_KEY_SCHEMA,
                    "verdict": {"enum": ["Correct", "Incorrect", "InvalidOutput", "InfrastructureFailure"]},
                    "outcome": {"enum": ["Passed", "Failed", "Error"]},
                    "reward": {"type": ["number", "null"], "description": "Null exactly for InfrastructureFailure."},
                    "reason": {"type": "string"},
                },
            },
        }
    },
}
REPLIES: dict[str, Any] = {
    "type": "object",
    "properties": {
        "replies": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["taskId", "sample"],
                "properties": {
                    **_KEY_SCHEMA,
                    "messages": {
                        "type": ["array", "null"],
                        "description": "Chat messages that follow the model's turn; null once the episode has ended.",
                        "items": {
                            "type": "object",
                            "required": ["role", "content"],
                            "properties": {
                                "role": {"enum": ["system", "user", "tool"]},
                                **{key: {"type": "string"} for key in ("content", "name", "tool_call_id")},
                            },
                        },
                    },
                    "error": {"type": "string", "description": "In place of messages: why it could not run."},
                },
            },
        }
    },
}


def read_gradings(body: dict[str, Any]) -> tuple[str, int, list[dict[str, Any]]]:
    """Return phase, step and completions of a body that asks for verdicts.

    Raises:
        Invalid: With every mistake, up to twenty.
    """
    return _read(body, "completions", _completion_causes)


def read_steps(body: dict[str, Any]) -> tuple[str, int, list[dict[str, Any]]]:
    """Return phase, step and episodes of a body that asks for an environment's replies.

    Raises:
        Invalid: With every mistake, up to twenty.
    """
    return _read(body, "episodes", _episode_causes)


def _read(
    body: dict[str, Any], name: str, causes_of: Callable[[Any, str], list[Cause]]
) -> tuple[str, int, list[dict[str, Any]]]:
    causes: list[Cause] = []
    phase, step, items = body.get("phase"), body.get("step"), body.get(name)
    if phase not in PHASES:
        causes.append(Cause("phase", "FieldValueInvalid", f"{shown(phase)} is not one of {', '.join(PHASES)}"))
    if not _is_count(step):
        causes.append(Cause("step", "FieldValueInvalid", f"a whole number from 0 is expected, this is {shown(step)}"))
    if not isinstance(items, list) or not 0 < len(items) <= ITEMS_LIMIT:
        causes.append(Cause(name, "FieldValueInvalid", f"a list of 1 to {ITEMS_LIMIT} is expected"))
        items = []
    for key in body.keys() - {"phase", "step", name}:
        causes.append(Cause(str(key), "FieldValueNotSupported", "unknown field"))
    for number, item in enumerate(items):
        causes.extend(causes_of(item, f"{name}[{number}]"))
        if len(causes) > _CAUSES:
            break
    if causes:
        raise Invalid(f"the {name} can't be graded as sent", causes=causes)
    return str(phase), int(step or 0), items


def _completion_causes(item: Any, path: str) -> list[Cause]:
    causes = _key_causes(item, path)
    if not isinstance(item, dict):
        return causes
    if "turns" in item:
        if "completion" in item:
            causes.append(Cause(path, "FieldValueInvalid", "it has both completion and turns; send one of them"))
        return causes + _turns_causes(item["turns"], path)
    completion = item.get("completion")
    if not isinstance(completion, str):
        words = f"text is expected, this is a {json_type(completion)}; send an episode's as turns"
        causes.append(Cause(f"{path}.completion", "FieldValueInvalid", words))
    return causes


def _episode_causes(item: Any, path: str) -> list[Cause]:
    causes = _key_causes(item, path)
    return causes + _turns_causes(item.get("turns"), path) if isinstance(item, dict) else causes


def _key_causes(item: Any, path: str) -> list[Cause]:
    if not isinstance(item, dict):
        return [Cause(path, "FieldValueInvalid", f"an object is expected, this is a {json_type(item)}")]
    causes = []
    task_id = item.get("taskId")
    if not isinstance(task_id, str) or not 0 < len(task_id) <= 253:
        causes.append(Cause(f"{path}.taskId", "FieldValueInvalid", "a string of 1 to 253 characters is expected"))
    if not _is_count(item.get("sample", 0)):
        causes.append(Cause(f"{path}.sample", "FieldValueInvalid", "a whole number from 0 is expected"))
    return causes


def _turns_causes(turns: Any, path: str) -> list[Cause]:
    if not isinstance(turns, list) or not 0 < len(turns) <= MAX_TURNS:
        what = f"{len(turns)} turns" if isinstance(turns, list) else f"a {json_type(turns)}"
        words = f"a list of 1 to {MAX_TURNS} turns is expected, this is {what}"
        return [Cause(f"{path}.turns", "FieldValueInvalid", words)]
    wrong = [number for number, turn in enumerate(turns) if not isinstance(turn, str)]
    return [
        Cause(f"{path}.turns[{number}]", "FieldValueInvalid", f"text is expected, this is a {json_type(turns[number])}")
        for number in wrong
    ]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def shown(value: Any) -> str:
    """Return a value of a body for a message, cut."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
