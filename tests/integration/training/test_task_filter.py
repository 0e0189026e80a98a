"""`taskFilter` from admission to the tasks that a run is given, with the catalog's Reasoning Gym and real graders."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from nodus.core.kinds import ENVIRONMENT
from nodus.grader.catalog.reasoning_gym import FAMILIES
from nodus.server.catalog import read_catalog
from nodus.server.compute.local.graders import LocalGraders
from nodus.server.grading import EnvironmentLibrary, GradingService, StoredManifests
from nodus.server.grading.environments import catalog_status
from nodus.server.services import Services
from nodus.server.store import Store, objects
from nodus.server.training.service import TrainingService
from nodus.server.training.taskfilter import matches, nothing_left, unknown_value
from nodus.testing.hub import FakeHub

REFERENCE = "nodus/reasoning-gym@1.0.0"
FAMILY_TRAIN, FAMILY_TEST = 400, 100


@pytest.fixture
async def training(services: Services, store: Store, tmp_path: Path) -> AsyncIterator[TrainingService]:
    """The service that admission asks, on a server that has the catalog's environment."""
    (spec,) = (
        d["spec"] for d in read_catalog() if d["metadata"]["name"] == "reasoning-gym" and d["kind"] == "Environment"
    )
    status = catalog_status("reasoning-gym", spec)
    store.write_sync(lambda conn: objects.create(conn, ENVIRONMENT, "nodus", "reasoning-gym", spec, status=status))
    library = EnvironmentLibrary(tmp_path / "environments", store.blobs.path)
    grading = GradingService(library, StoredManifests(store), LocalGraders())
    services.training = TrainingService(store, grading)
    yield services.training
    await grading.close()


@pytest.fixture
def filtered(manifest: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    def make(train: int, test: int, **wanted: Any) -> dict[str, Any]:
        environment = {"name": REFERENCE, "trainTasks": train, "heldOutTasks": test}
        return dict(manifest(environment=environment, parameters={"steps": 4, "taskFilter": wanted}))

    return make


@pytest.mark.sandbox
@pytest.mark.timeout(120)
async def test_run_is_given_the_tasks_of_the_families_it_wants(
    training: TrainingService, admit: Any, create: Any, filtered: Callable[..., dict[str, Any]], hub: FakeHub
) -> None:
    for family in FAMILIES:
        run = await create(filtered(FAMILY_TRAIN, FAMILY_TEST, family=family), family.replace("_", "-"))
        files = await training.task_files(run)
        for name, count in {"train.jsonl": FAMILY_TRAIN, "test.jsonl": FAMILY_TEST}.items():
            rows = [json.loads(line) for line in files[name].splitlines()]
            assert [row["metadata"] for row in rows] == [{"family": family}] * count
    two = list(FAMILIES[:2])
    assert (await admit(filtered(2 * FAMILY_TRAIN, 2 * FAMILY_TEST, family=two))).causes == []
    # counted after the filter
    more = await admit(filtered(FAMILY_TRAIN + 1, FAMILY_TEST + 1, family=FAMILIES[0]))
    assert {cause.field: cause.message for cause in more.causes} == {
        "spec.environment.trainTasks": "401 is above the 400 tasks of the train split after taskFilter",
        "spec.environment.heldOutTasks": "101 is above the 100 tasks of the test split after taskFilter",
    }
    wrong = await admit(filtered(8, 8, family="sudoku"))
    assert [(cause.field, cause.message) for cause in wrong.causes] == [
        ("spec.parameters.taskFilter", f"no task has family sudoku; tasks have {', '.join(FAMILIES)}")
    ]
    misspelt = await admit(filtered(8, 8, family=[FAMILIES[0], "nope"]))
    assert [(cause.field, cause.message) for cause in misspelt.causes] == [
        ("spec.parameters.taskFilter", f"no task has family nope; tasks have {', '.join(FAMILIES)}")
    ]


METADATA = [{"family": "odd", "level": 1}, {"family": "even", "level": 2}, {"family": "even", "tags": ["a", "b"]}]


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        ({}, [0, 1, 2]),
        ({"family": "even"}, [1, 2]),
        ({"family": ["even", "odd"]}, [0, 1, 2]),
        ({"family": "even", "level": 2}, [1]),
        ({"tags": ["a", "b"]}, [2]),
        ({"level": None}, [2]),
        ({"level": "2"}, []),
    ],
)
def test_filter_keeps_tasks_with_every_value(wanted: dict[str, Any], kept: list[int]) -> None:
    assert [number for number, metadata in enumerate(METADATA) if matches(metadata, wanted)] == kept


@pytest.mark.parametrize(
    ("listed", "wanted", "message"),
    [
        (METADATA, {"family": "prime"}, "no task has family prime; tasks have even, odd"),
        (METADATA, {"family": ["a", "b"]}, "no task has family a, b; tasks have even, odd"),
        (METADATA, {"famly": "even"}, "no task has famly even; their metadata has family, level, tags"),
        (METADATA, {"family": "odd", "level": 2}, "no task has all of family, level, though some have each"),
        ([{}], {"family": "odd"}, "no task has family odd; tasks of this environment have no metadata"),
        (
            [{"row": n} for n in range(100, 200)],
            {"row": 5},
            "no task has row 5; tasks have " + ", ".join(str(n) for n in range(100, 112)) + " and 88 more",
        ),
    ],
)
def test_filter_that_nothing_passes_is_refused_with_what_there_is(
    listed: list[dict[str, Any]], wanted: dict[str, Any], message: str
) -> None:
    refusal = nothing_left(listed, wanted)
    assert refusal.message == message and refusal.causes[0].field == "spec.parameters.taskFilter"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"family": ["even", "prime"]}, "no task has family prime; tasks have even, odd"),
        ({"level": [1, "2", 3]}, "no task has level 2, 3; tasks have 1, 2"),
        ({"tags": ["a", "b"]}, None),
        ({"family": ["even", "odd"], "level": [1, None]}, None),
        ({"family": "prime"}, None),
    ],
)
def test_every_value_of_a_list_must_be_there(wanted: dict[str, Any], message: str | None) -> None:
    refusal = unknown_value(METADATA, wanted)
    assert (refusal.message if refusal else None) == message
