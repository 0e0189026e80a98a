"""Objects as Python sees them: names in both spellings, near misses, and nothing secret in their text."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

from nodus.client.record import Record, as_record, snake_case
from nodus.client.views import View, as_view

STATUS = {
    "phase": "Running",
    "summary": {"comparison": {"changePP": "45.1"}},
    "usage24h": {"costUSD": "0.10"},
    "provenance": {"parametersSHA256": "ab"},
    "outputs": [{"name": "r", "sizeBytes": 3}],
    "keys": ["A"],
}
JOB = {
    "apiVersion": "nodus.dev/v1", "kind": "Job",
    "metadata": {"name": "j", "namespace": "default", "uid": "u1", "labels": {"team": "a"}},
    "spec": {"maxCostUSD": "2.00", "distributed": {"totalGPUs": 2, "gpusPerNode": 1}},
    "status": STATUS,
}  # fmt: skip


def test_attributes_read_wire_names_in_pythons_spelling() -> None:
    job = as_view(JOB)
    assert job.status.summary.comparison.change_pp == "45.1"
    assert job.spec.max_cost_usd == job.spec.maxCostUSD == "2.00"
    assert (job.spec.distributed.total_gpus, job.spec.distributed.gpus_per_node) == (2, 1)
    assert job.status.usage_24h.cost_usd == "0.10"
    assert job.status.provenance.parameters_sha256 == "ab"
    assert job.status.outputs[0].size_bytes == 3


@pytest.mark.parametrize(
    ("wire", "python"),
    [
        ("maxCostUSD", "max_cost_usd"),
        ("totalGPUs", "total_gpus"),
        ("baseURL", "base_url"),
        ("changePP", "change_pp"),
        ("apiKeyField", "api_key_field"),
        ("p50", "p50"),
        ("ttlSecondsAfterFinished", "ttl_seconds_after_finished"),
    ],
)
def test_wire_names_in_pythons_spelling(wire: str, python: str) -> None:
    assert snake_case(wire) == python
    assert getattr(Record({wire: 1}), python) == 1


def test_items_are_those_of_the_wire() -> None:
    job = as_view(JOB)
    assert job["spec"]["maxCostUSD"] == "2.00"
    assert job.status["keys"] == ["A"]
    assert job.status.get("nothing") is None
    assert json.loads(json.dumps(job)) == JOB == job.to_dict()
    assert type(job.to_dict()["status"]["outputs"][0]) is dict


def test_missing_name_lists_near_ones() -> None:
    with pytest.raises(AttributeError, match=r"no 'chang_pp' here; did you mean 'change_pp'\?"):
        _ = as_view(JOB).status.summary.comparison.chang_pp
    with pytest.raises(AttributeError, match=r"It has: key0, key1, .* and 10 more\."):
        _ = Record({f"key{number}": 1 for number in range(30)}).nothing
    assert not hasattr(Record(), "x")


def test_setting_changes_what_is_read_and_nothing_else() -> None:
    job = as_view(JOB)
    job.spec.max_cost_usd = "40"
    assert job["spec"]["maxCostUSD"] == "40"
    job.metadata.labels = {"team": "b"}
    assert job.metadata.labels.team == "b"
    with pytest.raises(AttributeError, match=r"\['timeout'\] = "):
        job.spec.timeout = "1m"
    assert JOB["spec"]["maxCostUSD"] == "2.00"  # type: ignore[index]


def test_parts_an_object_lacks_are_empty() -> None:
    event = as_view({"kind": "Event", "metadata": {"name": "e"}, "reason": "Placed"})
    assert (event.spec, event.status, event.phase, event.project, event.labels) == ({}, {}, None, None, {})
    assert event.reason == "Placed"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_views_can_be_copied(copied: Any) -> None:
    job = as_view(JOB)
    assert copied(job) == job and type(copied(job)) is View


def test_text_shows_kind_name_and_phase() -> None:
    assert repr(as_view(JOB)) == "<View job default/j Running>"
    assert str(as_view({"kind": "Event", "metadata": {"name": "e"}})) == "<View event e>"


def test_text_never_shows_what_is_secret() -> None:
    secret = as_record({
        "spec": {"stringData": {"PASSWORD": "hush"}, "type": "Opaque"},
        "status": {"key": "nodus_0123456789abcdef0123", "grant": {"sessionToken": "hush", "n": 1}},
        "list": [{"token": "hush"}],
    })  # fmt: skip
    for text in (repr(secret), str(secret), f"{secret}", repr(secret.spec), repr(secret.status.grant)):
        assert "hush" not in text and "0123456789" not in text
    assert "Opaque" in repr(secret) and "'n': 1" in repr(secret)
    assert secret.spec.string_data["PASSWORD"] == "hush"


def test_completion_offers_pythons_names() -> None:
    assert {"max_cost_usd", "distributed", "to_dict"} <= set(dir(as_view(JOB).spec))
