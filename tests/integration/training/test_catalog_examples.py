"""The examples of the catalog's environments are TrainingJobs that a server admits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nodus.core.kinds import ENVIRONMENT
from nodus.server.catalog import read_catalog
from nodus.server.grading.environments import catalog_status
from nodus.server.store import Store, objects

EXAMPLES = {
    f"{document['metadata']['name']}:{example['name']}": (document, example)
    for document in read_catalog()
    if document["kind"] == "Environment"
    for example in document["spec"]["examples"]
}


@pytest.fixture
def job_of(store: Store) -> Callable[[str], dict[str, Any]]:
    """Returns the TrainingJob of an example, its Environment in the catalog's project."""

    def make(reference: str) -> dict[str, Any]:
        document, example = EXAMPLES[reference]
        name, spec = document["metadata"]["name"], document["spec"]
        if store.read_sync(objects.find, ENVIRONMENT, "nodus", name) is None:
            status = catalog_status(name, spec)
            store.write_sync(lambda conn: objects.create(conn, ENVIRONMENT, "nodus", name, spec, status=status))
        environment = {"name": f"nodus/{name}@{spec['version']}", "heldOutTasks": example["tasks"], "seed": 42}
        if example["mode"] == "Train":
            environment["trainTasks"] = min(spec["splits"]["train"]["size"], 64)
        model = example["model"] if "@" in example["model"]["uri"] else {"uri": "hf://acme/tiny"}
        runtime, parameters = example["runtime"], dict(example["parameters"])
        job = {"runtime": runtime, "model": model, "environment": environment, "parameters": parameters}
        return job | {"mode": example["mode"]}

    return make


@pytest.mark.parametrize("reference", [name for name in EXAMPLES if not name.startswith("arithmetic:")])
async def test_example_is_admitted(reference: str, admit: Any, job_of: Callable[[str], dict[str, Any]]) -> None:
    admitted = await admit(job_of(reference))
    assert [f"{cause.field}: {cause.message}" for cause in admitted.causes] == []
    assert admitted.status["pinned"]["heldOutTasks"] == EXAMPLES[reference][1]["tasks"]


async def test_legacy_evaluation_is_not_to_be_trained_on(admit: Any, job_of: Callable[[str], dict[str, Any]]) -> None:
    job = job_of("letter-counting-legacy-eval:letter-counting")
    environment = {**job["environment"], "trainTasks": 8}
    training = {**job, "mode": "Train", "runtime": "nodus/grpo-lora", "environment": environment, "parameters": {}}
    admitted = await admit(training)
    assert any("Evaluate" in cause.message for cause in admitted.causes)
