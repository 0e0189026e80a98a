"""Merging and checking `spec.parameters` against a runtime's JSON Schema."""

from typing import Any

import pytest

from nodus.core.errors import Cause
from nodus.server.training import parameters

RUNTIME: dict[str, Any] = {
    "parameters": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "steps": {"type": "integer", "minimum": -1, "maximum": 1000000, "default": 50},
            "learningRate": {"type": "number", "minimum": 0, "maximum": 1, "default": 1e-6},
            "method": {"type": "string", "enum": ["Full", "LoRA", "QLoRA"], "default": "LoRA"},
            "lrScheduler": {"type": "string", "enum": ["cosine", "linear", "constant"], "default": "cosine"},
            "gradientCheckpointing": {"type": "boolean", "default": True},
            "maxCompletionLength": {"type": "integer", "minimum": 8, "maximum": 32768, "default": 64},
            "maxTurns": {"type": "integer", "minimum": 1, "maximum": 31},
            "taskFilter": {"type": "object", "maxProperties": 2},
            "lora": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "r": {"type": "integer", "minimum": 1, "maximum": 1024, "default": 8},
                    "alpha": {"type": "integer", "minimum": 1, "maximum": 4096, "default": 16},
                    "targetModules": {},
                },
            },
            "sampling": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "temperature": {"type": "number", "minimum": 0, "maximum": 5, "default": 0.7},
                    "topP": {"type": "number", "minimum": 0, "maximum": 1, "default": 1},
                },
            },
        },
    },
    "defaults": {"parameters": {"maxCompletionLength": 128}},
}


def test_merge_nothing_given_takes_schema_defaults_then_runtime_defaults() -> None:
    assert parameters.merge(RUNTIME, None) == {
        "steps": 50,
        "learningRate": 1e-6,
        "method": "LoRA",
        "lrScheduler": "cosine",
        "gradientCheckpointing": True,
        "maxCompletionLength": 128,
        "lora": {"r": 8, "alpha": 16},
        "sampling": {"temperature": 0.7, "topP": 1},
    }


def test_merge_keeps_the_defaults_beside_a_nested_value() -> None:
    merged = parameters.merge(RUNTIME, {"lora": {"r": 4}, "steps": 5.0, "taskFilter": {"family": "sums"}})
    assert merged["lora"] == {"r": 4, "alpha": 16}
    assert merged["steps"] == 5 and isinstance(merged["steps"], int)
    assert merged["taskFilter"] == {"family": "sums"}


def test_merge_changes_neither_input() -> None:
    given = {"lora": {"r": 4}}
    parameters.merge(RUNTIME, given)["lora"]["r"] = 99
    assert given == {"lora": {"r": 4}}
    assert RUNTIME["parameters"]["properties"]["lora"]["properties"]["r"]["default"] == 8


def test_check_valid_parameters_gives_no_cause() -> None:
    given = {"steps": -1, "lora": {"r": 16, "targetModules": "all-linear"}, "sampling": {"topP": 0.9}}
    assert parameters.check(RUNTIME, given) == []
    assert parameters.check(RUNTIME, None) == []


def test_check_lists_every_fault_with_its_path() -> None:
    given = {
        "learning_rate": 1e-4,
        "steps": "40",
        "method": "lora",
        "maxTurns": 32,
        "gradientCheckpointing": 1,
        "lora": {"r": 0, "rank": 8},
        "sampling": {"temperature": -1},
        "taskFilter": {"a": 1, "b": 2, "c": 3},
    }
    assert parameters.check(RUNTIME, given) == [
        Cause("spec.parameters.gradientCheckpointing", "FieldValueTypeInvalid", "1 is not true or false"),
        Cause(
            "spec.parameters.learning_rate", "FieldValueNotSupported", "unknown parameter: did you mean learningRate?"
        ),
        Cause("spec.parameters.lora.r", "FieldValueInvalid", "0 is out of range: 1 to 1024 is allowed"),
        Cause("spec.parameters.lora.rank", "FieldValueNotSupported", "unknown parameter: did you mean lora.r?"),
        Cause("spec.parameters.maxTurns", "FieldValueInvalid", "32 is out of range: 1 to 31 is allowed"),
        Cause(
            "spec.parameters.method",
            "FieldValueNotSupported",
            "'lora' is not one of Full, LoRA, QLoRA: did you mean LoRA?",
        ),
        Cause("spec.parameters.sampling.temperature", "FieldValueInvalid", "-1 is out of range: 0 to 5 is allowed"),
        Cause("spec.parameters.steps", "FieldValueTypeInvalid", "'40' is not a whole number; write 40 without quotes"),
        Cause("spec.parameters.taskFilter", "FieldValueInvalid", "has 3 keys; at most 2 are allowed"),
    ]


@pytest.mark.parametrize(
    ("unknown", "meant"),
    [
        ("learning_rate", "learningRate"),
        ("lr", "learningRate"),
        ("learningrate", "learningRate"),
        ("learnningRate", "learningRate"),
        ("max_tokens", "maxCompletionLength"),
        ("temperature", "sampling.temperature"),
        ("sampling.top_p", "sampling.topP"),
        ("lora_r", "lora.r"),
        ("lora.target_modules", "lora.targetModules"),
        ("bananas", None),
    ],
)
def test_suggestion_finds_what_was_meant(unknown: str, meant: str | None) -> None:
    names = [path for path, _ in parameters.leaves(RUNTIME["parameters"])]
    assert parameters.suggestion(unknown, names) == meant


def test_check_unknown_far_from_every_name_lists_what_there_is() -> None:
    (cause,) = parameters.check(RUNTIME, {"lora": {"bananas": 1}})
    assert cause.message == "unknown parameter; the runtime has lora.alpha, lora.r, lora.targetModules"


def test_check_dotted_key_says_how_to_nest_it() -> None:
    (cause,) = parameters.check(RUNTIME, {"lora.r": 8})
    assert cause == Cause("spec.parameters.lora.r", "FieldValueNotSupported", "write it nested: lora: {r: ...}")


@pytest.mark.parametrize("given", [[], "steps=3", 7])
def test_check_parameters_that_are_no_mapping(given: object) -> None:
    (cause,) = parameters.check(RUNTIME, given)
    assert cause.field == "spec.parameters"
    assert cause.message.endswith("is not a mapping")


def test_check_refuses_nan_which_no_bound_would() -> None:
    (cause,) = parameters.check(RUNTIME, {"sampling": {"temperature": float("nan")}})
    assert cause == Cause("spec.parameters.sampling.temperature", "FieldValueInvalid", "nan is not a finite number")


@pytest.mark.parametrize(
    ("schema", "field", "words"),
    [
        ({"type": "objekt"}, "spec.parameters.type", "is not JSON Schema"),
        (
            {"properties": {"x": {"$ref": "http://169.254.169.254/latest"}}},
            "spec.parameters.properties.x.$ref",
            "refers out of the schema",
        ),
        ({"properties": {"x": {"pattern": "(a+)+$"}}}, "spec.parameters.properties.x.pattern", "regular expressions"),
        ({"patternProperties": {".*": {}}}, "spec.parameters.patternProperties", "regular expressions"),
    ],
)
def test_schema_that_is_none_or_unsafe_is_refused(schema: dict[str, Any], field: str, words: str) -> None:
    (cause,) = parameters.schema_causes({"parameters": schema})
    assert cause.field == field and words in cause.message


def test_schema_with_a_parameter_named_pattern_and_a_reference_inside_itself_is_fine() -> None:
    schema = {"$defs": {"n": {"type": "integer"}}, "properties": {"pattern": {"$ref": "#/$defs/n"}}}
    assert parameters.schema_causes({"parameters": schema}) == []
    (cause,) = parameters.check({"parameters": schema}, {"pattern": "x"})
    assert cause.field == "spec.parameters.pattern"


def test_runtime_whose_defaults_break_its_schema_is_refused() -> None:
    faults = parameters.schema_causes(RUNTIME | {"defaults": {"parameters": {"steps": "many"}}})
    assert [cause.field for cause in faults] == ["spec.defaults.parameters.steps"]


def test_check_never_fetches_a_remote_reference() -> None:
    schema = {"properties": {"x": {"$ref": "http://127.0.0.1:9/schema"}}}
    (cause,) = parameters.check({"parameters": schema}, {"x": 1})
    assert cause.field == "spec.runtime"
