"""`gsm8k-full`: listed where the operator has GSM8K, in whatever form; Failed with its fix where that can't be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nodus.core.clock import FakeClock
from nodus.core.kinds import ENVIRONMENT
from nodus.server import bootstrap, catalog
from nodus.server.api.auth import CATALOG_PROJECT
from nodus.server.catalogdata import CatalogDataMissing, prepare_gsm8k
from nodus.server.compute.local.graders import LocalGraders
from nodus.server.compute.local.probe import probe
from nodus.server.grading import EnvironmentLibrary, GradingService, MemoryManifests
from nodus.server.grading.verdicts import Completion
from nodus.server.settings import Settings
from nodus.server.store import Object, objects

ROWS = {
    "train": [("Two and two?", "Two and two are 4.\n#### 4"), ("A thousand\u2028and one?", "Count.\n#### 1,001")],
    "test": [("Half of one?", "#### 0.5"), ("Three less five?", "#### -2")],
}


def write(directory: Path, form: str = "{split}.jsonl", **changed: list[tuple[str, str]]) -> Path:
    """Write GSM8K's two splits below a directory."""
    for split, rows in (ROWS | changed).items():
        file = directory / "gsm8k" / form.format(split=split)
        file.parent.mkdir(parents=True, exist_ok=True)
        listed = [{"question": question, "answer": answer} for question, answer in rows]
        if file.suffix == ".parquet":
            pyarrow = pytest.importorskip("pyarrow")
            parquet = pytest.importorskip("pyarrow.parquet")
            parquet.write_table(pyarrow.Table.from_pylist(listed), file)
        else:
            file.write_text("".join(json.dumps(row) + "\n" for row in listed))
    return directory


def started(tmp_path: Path, data: Path | None) -> Object | None:
    """Start a server on one data directory and return its `gsm8k-full`."""
    settings = Settings(data_dir=tmp_path / "data", catalog_data=data, insecure_no_sync=True)
    settings.data_dir.mkdir(mode=0o700, exist_ok=True)
    services, _ = bootstrap.open_services(settings, FakeClock())
    try:
        return services.store.read_sync(objects.find, ENVIRONMENT, CATALOG_PROJECT, "gsm8k-full")
    finally:
        services.store.close()


def test_it_is_listed_with_its_data_alone(tmp_path: Path) -> None:
    assert started(tmp_path, None) is None
    found = started(tmp_path, write(tmp_path / "operator"))
    assert found is not None and found.status["phase"] == "Ready"
    assert found.status["splits"] == {"train": 2, "test": 2}
    again = started(tmp_path, tmp_path / "operator")
    assert again is not None and again.resource_version == found.resource_version


def test_its_digest_is_that_of_the_rows_in_whatever_form(tmp_path: Path) -> None:
    digests = {
        form: prepare_gsm8k(write(tmp_path / str(number), form), tmp_path / "environments").digest
        for number, form in enumerate(("{split}.jsonl", "{split}.parquet", "main/{split}-00000-of-00001.parquet"))
    }
    assert len(set(digests.values())) == 1
    other = write(tmp_path / "other", test=[("Half of one?", "#### 0.25")])
    assert prepare_gsm8k(other, tmp_path / "environments").digest not in digests.values()


def test_data_that_goes_leaves_it_failed_with_the_fix(tmp_path: Path) -> None:
    ready = started(tmp_path, write(tmp_path / "operator"))
    gone = started(tmp_path, None)
    back = started(tmp_path, tmp_path / "operator")
    assert ready and gone and back
    assert (gone.status["phase"], gone.status["reason"]) == ("Failed", "CatalogDataMissing")
    assert "catalog_data" in gone.status["message"]
    assert back.status["phase"] == "Ready" and "reason" not in back.status
    assert back.status["digest"] == ready.status["digest"]


@pytest.mark.parametrize(
    ("split", "content", "words"),
    [
        ("test", None, "has no test.jsonl and no test.parquet"),
        ("train", "{not json", "can't be read"),
        ("train", '{"question": "x", "answer": "no number"}\n', "is none of GSM8K"),
        ("test", "[1]\n", "a line is no object"),
    ],
)
def test_data_that_is_wrong_is_failed_with_the_place(
    tmp_path: Path, split: str, content: str | None, words: str
) -> None:
    directory = write(tmp_path / "operator")
    file = directory / "gsm8k" / f"{split}.jsonl"
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(CatalogDataMissing):
        prepare_gsm8k(directory, tmp_path / "environments")
    found = started(tmp_path, directory)
    assert found is not None and found.status["phase"] == "Failed"
    assert words in found.status["message"] and str(directory) in found.status["message"]


@pytest.mark.sandbox
async def test_its_rows_are_listed_and_graded_from_the_operators_files(tmp_path: Path) -> None:
    if not probe().ok:
        pytest.skip("this machine cannot isolate")
    root = tmp_path / "environments"
    made = prepare_gsm8k(write(tmp_path / "operator"), root)
    (document,) = catalog.read_catalog(directories=(catalog.OPTIONAL_DIRECTORY,))
    spec: dict[str, Any] = document["spec"]
    spec["package"]["catalog"]["data"] = made.digest
    service = GradingService(EnvironmentLibrary(root, Path), MemoryManifests(), LocalGraders())
    try:
        environment = await service.resolve("gsm8k-full", spec)
        tasks = (await service.list_tasks(environment, "train", 0)).tasks
        assert {str(task.answer) for task in tasks} == {"4", "1001"}
        right = next(task for task in tasks if task.answer == "1001")
        replies = [Completion(right.task_id, 0, "So it is 1,001."), Completion(right.task_id, 1, "1002")]
        verdicts = await service.grade("job", environment, replies)
        assert [verdict.verdict for verdict in verdicts] == ["Correct", "Incorrect"]
    finally:
        await service.close()
