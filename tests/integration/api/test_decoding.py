"""Strict decoding: every mistake of a manifest, with its path, in one answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.api.conftest import Api
from tests.integration.api.helpers import BETA, JOBS, TRAINING_JOBS, V1, causes, job


async def test_every_mistake_is_in_one_answer(api: Api) -> None:
    body = job(
        timeout=5, maxCostUSD=5, resources={"gpu": "H1000:2", "memmory": "1Gi"}, env=[{"name": "A", "valu": "x"}],
        volumes=[{"volume": "nope", "mountPath": "relative"}], timeOut="5m",
    )  # fmt: skip
    body["metadata"]["labels"] = {"bad key!": "x"}
    body["extra"] = 1
    status = await api.fails(422, "Invalid", "POST", JOBS, json=body)

    assert set(causes(status)) == {
        "extra",
        "metadata.labels.bad key!",
        "spec.timeout",
        "spec.maxCostUSD",
        "spec.resources.memmory",
        "spec.resources.gpu.type[0]",
        "spec.env[0].valu",
        "spec.env[0]",
        "spec.volumes[0].mountPath",
        "spec.timeOut",
    }
    assert status["details"]["kind"] == "jobs"


@pytest.mark.parametrize(
    ("spec", "path", "hint"),
    [
        ({"timeOut": "5m"}, "spec.timeOut", "did you mean 'timeout'?"),
        ({"max_cost_usd": "5"}, "spec.max_cost_usd", "did you mean 'maxCostUSD'?"),
        ({"workingDir": "data"}, "spec.workingDir", "a path from / on, like /workspace/data, is expected, not 'data'"),
        ({"resources": {"memory": "16GB"}}, "spec.resources.memory", "a quantity, like 4, 500m or 16Gi, is expected"),
        ({"resources": {"memory": "9" * 400}}, "spec.resources.memory", "a quantity, like 4, 500m or 16Gi, is"),
        ({"resources": {"memmory": "1Gi"}}, "spec.resources.memmory", "did you mean 'memory'?"),
        ({"volumes": [{"volume": "v", "mountpath": "/v"}]}, "spec.volumes[0].mountpath", "did you mean 'mountPath'?"),
    ],
)
async def test_near_misses_are_suggested(api: Api, spec: dict[str, Any], path: str, hint: str) -> None:
    found = causes(await api.fails(422, "Invalid", "POST", JOBS, json=job(**spec)))
    assert hint in found[path]


async def test_unknown_fields_have_the_reason_clients_look_for(api: Api) -> None:
    status = await api.fails(422, "Invalid", "POST", JOBS, json=job(secretz=["a"]))
    assert status["details"]["causes"][0]["reason"] == "FieldValueNotSupported"


async def test_money_as_a_number_is_refused_with_the_right_form(api: Api) -> None:
    for amount in (5, 5.0, True, "5,00", "-1", "1e3", "1.0000000001", "9000000001", "999999999999"):
        found = causes(await api.fails(422, "Invalid", "POST", JOBS, json=job(maxCostUSD=amount)))
        assert list(found) == ["spec.maxCostUSD"]


async def test_accelerators_are_found_by_every_spelling_and_near_misses_named(api: Api) -> None:
    for number, spelling in enumerate(["H100", "h100-sxm-80g", "rtx4090-24g", "RTX-4090", "A100-80G", "L40S:2"]):
        await api.ok("POST", JOBS, json=job(f"g{number}", resources={"gpu": spelling}))
    found = causes(await api.fails(422, "Invalid", "POST", JOBS, json=job(resources={"gpu": "RTX-4900"})))
    assert "RTX-4090" in found["spec.resources.gpu.type[0]"]


async def test_references_to_nothing_are_named_together(api: Api) -> None:
    body = job(
        env=[{"name": "T", "valueFrom": {"secretKeyRef": {"name": "no-secret", "key": "k"}}}],
        secrets=["other-secret"], volumes=[{"volume": "no-volume", "mountPath": "/v"}],
        source={"blob": "sha256:" + "0" * 64}, image="docker.io/library/python",
    )  # fmt: skip
    assert set(causes(await api.fails(422, "Invalid", "POST", JOBS, json=body))) == {
        "spec.env[0].valueFrom.secretKeyRef.name",
        "spec.secrets[0].name",
        "spec.volumes[0].volume",
        "spec.source.blob",
        "spec.image",
    }


async def test_what_is_not_built_is_refused_and_not_ignored(api: Api) -> None:
    body = job(sidecars=[{"a": 1}], completions=3, distributed={"nodes": 2})
    found = causes(await api.fails(422, "Unsupported", "POST", JOBS, json=body))
    assert set(found) == {"spec.sidecars", "spec.completions", "spec.distributed.nodes"}


@pytest.mark.parametrize("name", ["", "Upper", "a_b", "-a", "a" * 64, "a/b", "ä", "a b", 5, None, ["a"]])
async def test_bad_names_are_refused(api: Api, name: Any) -> None:
    body = job() | {"metadata": {"name": name}}
    assert "metadata.name" in causes(await api.fails(422, "Invalid", "POST", JOBS, json=body))


async def test_labels_and_annotations_are_checked(api: Api) -> None:
    body = job()
    body["metadata"] |= {
        "labels": {"ok": "fine", "number": 5, "long": "x" * 64, "example.com/app": "ok", "a/b/c": "x"},
        "annotations": {"number": 1, "large": "x" * (256 * 1024)},
        "finalizers": "not-a-list",
    }
    assert set(causes(await api.fails(422, "Invalid", "POST", JOBS, json=body))) == {
        "metadata.labels.number",
        "metadata.labels.long",
        "metadata.labels.a/b/c",
        "metadata.annotations.number",
        "metadata.annotations",
        "metadata.finalizers",
    }


async def test_trainingjob_mistakes_come_together(api: Api) -> None:
    body = {
        "apiVersion": "nodus.dev/v1beta1",
        "kind": "TrainingJob",
        "metadata": {"name": "bad"},
        "spec": {
            "runtime": "nodus/grpo-lara",
            "model": {"uri": "library://smollm2-135m-instruct"},
            "environment": {"name": "nodus/nothing@1.0.0", "trainTask": 5},
            "maxCostUSD": 5,
            "unknown": True,
        },
    }
    found = causes(await api.fails(422, "Invalid", "POST", TRAINING_JOBS, json=body))

    assert found.keys() >= {
        "spec.runtime",
        "spec.environment.name",
        "spec.environment.trainTask",
        "spec.maxCostUSD",
        "spec.unknown",
    }
    assert "nodus/grpo-lora" in found["spec.runtime"]


async def test_trainingjob_parameters_are_checked_with_near_misses(api: Api) -> None:
    body = {
        "metadata": {"name": "bad"},
        "spec": {
            "runtime": "nodus/grpo-lora",
            "model": {"uri": "library://smollm2-135m-instruct"},
            "environment": {"name": "nodus/nothing@1.0.0"},
            "parameters": {"learning_rate": 1e-4, "steps": "many"},
        },
    }
    found = causes(await api.fails(422, "Invalid", "POST", TRAINING_JOBS, json=body))

    assert "learningRate" in found["spec.parameters.learning_rate"]
    assert "spec.parameters.steps" in found


async def test_examples_of_writable_kinds_are_admitted_or_refused_for_a_reference(api: Api) -> None:
    from nodus.core.kinds import KINDS

    for kind in KINDS.values():
        if "create" not in kind.verbs:
            continue
        base = V1 if kind.version == "v1" else BETA
        path = f"{base}/namespaces/default/{kind.plural}" if kind.namespaced else f"{base}/{kind.plural}"
        answer = await api.call("POST", path, json=dict(kind.example))
        if answer.status_code != 201:
            assert answer.status_code == 422, (kind.name, answer.text)
            assert all("unknown field" not in message for message in causes(answer.json()).values()), answer.text
