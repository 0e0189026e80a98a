"""The published command line looks around: discovery, identity, the catalog, explain, top, events."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.interop.conftest import Desk, cells

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]


def test_kinds_come_from_discovery_with_a_cold_cache_and_a_warm_one(desk: Desk) -> None:
    for _ in range(2):
        rows = {row[-1]: row for row in cells(desk.ok("nodus api-resources"))}
        assert rows["TrainingJob"] == ["trainingjobs", "tj", "nodus.dev/v1beta1", "true", "TrainingJob"]
        assert rows["Event"] == ["events", "nodus.dev/v1", "false", "Event"]
    assert {"Job", "Attempt", "Environment", "Volume", "Secret", "TrainingRuntime", "APIKey", "Project"} <= set(rows)
    shutil.rmtree(desk.home / ".nodus")
    assert "jobs" in desk.ok("nodus api-resources")


def test_guide_browses_the_catalog(desk: Desk) -> None:
    header, *rows = cells(desk.ok("nodus get environments -n nodus"))
    assert header == ["NAME", "VERSION", "CATEGORY", "MODES", "PHASE"]
    assert ["graph-coloring", "1.0.0", "Reasoning", "Train, Evaluate", "Ready"] in rows
    assert ["arithmetic", "2.0.0", "Math", "Train, Evaluate", "Ready"] in rows
    described = desk.ok("nodus describe environment/graph-coloring -n nodus")
    for line in ("Name:     graph-coloring", "Project:  nodus", "Kind:     Environment", "Phase:    Ready"):
        assert line in described
    assert "sampleTask:" in desk.ok("nodus get environment/graph-coloring -n nodus -o yaml")


def test_guide_chooses_a_runtime(desk: Desk) -> None:
    header, *rows = cells(desk.ok("nodus get trainingruntimes -n nodus"))
    assert header[0] == "NAME" and {row[0] for row in rows} >= {"grpo-lora", "evaluate"}
    shown = desk.ok("nodus get trainingruntime/grpo-lora -n nodus -o yaml")
    for part in ("parameters:", "presets:", "secondsPerStep:", "environmentTasks: AttemptAPI"):
        assert part in shown


def test_outputs_of_get(desk: Desk) -> None:
    one = "nodus get environment/arithmetic -n nodus -o"
    assert json.loads(desk.ok(f"{one} json"))["spec"]["version"] == "2.0.0"
    assert desk.ok(f"{one} name") == "environment.nodus.dev/arithmetic\n"
    assert desk.ok(f"{one} jsonpath='{{.spec.version}}'") == "2.0.0"
    assert desk.ok(f"{one} go-template='{{{{.spec.category}}}}'") == "Math"
    assert cells(desk.ok(f"{one} custom-columns=N:.metadata.name,V:.spec.version")) == [
        ["N", "V"], ["arithmetic", "2.0.0"],
    ]  # fmt: skip
    assert "arithmetic" in desk.ok("nodus get environments/arithmetic -n nodus --no-headers")
    many = desk.ok("nodus get environments -n nodus -o name")
    assert "environment.nodus.dev/graph-coloring" in many.split()


def test_machines_on_offer(desk: Desk) -> None:
    header, *rows = cells(desk.ok("nodus get gpus"))
    assert header[0] == "NAME" and rows[0][0] == "local-cpu"
    assert desk.ok("nodus get gpus --gpu H100 --count 8") == ""


def test_who_one_is_and_what_one_may(desk: Desk) -> None:
    shown = dict(line.split(":", 1) for line in desk.ok("nodus whoami").splitlines())
    assert float(shown.pop("Available").strip().removeprefix("$")) >= 25  # other tests of this server grant credits
    assert {key: value.strip() for key, value in shown.items()} == {
        "Principal": "APIKey usr_admin", "Org": "nodus", "Role": "Owner", "Project": "default", "Scopes": "*",
    }  # fmt: skip
    assert desk.ok("nodus auth can-i create jobs") == "yes\n"
    reader = desk.ok("nodus create apikey reader --scopes jobs:read --projects default").split()[-1]
    desk.variables["NODUS_API_KEY"] = reader
    assert desk.ok("nodus auth can-i get jobs") == "yes\n"
    assert desk.run("nodus auth can-i create jobs").stdout == "no\n"
    assert "Forbidden" in desk.fails("nodus create secret s --from-literal A=b")
    assert "No resources found" in desk.run("nodus get jobs -l none=here").stderr


def test_explain_reads_our_schemas(desk: Desk) -> None:
    job = desk.ok("nodus explain jobs")
    assert "KIND:       Job" in job and "A command run to completion" in job
    field = desk.ok("nodus explain job.spec.resources.gpu")
    assert "FIELD: gpu" in field
    assert "maxCostUSD" in desk.ok("nodus explain tj.spec --recursive")
    assert "does not exist" in desk.fails("nodus explain job.spec.nope")


def test_unknown_objects_kinds_and_projects(desk: Desk) -> None:
    missing = desk.fails("nodus get job/nope")
    assert 'Error from server (NotFound): jobs "nope" not found' in missing and "request-id: req_" in missing
    assert 'projects "other" not found' in desk.fails("nodus get job/nope -p other")
    assert "jbos" in desk.fails("nodus get jbos")


def test_bad_key(desk: Desk) -> None:
    desk.variables["NODUS_API_KEY"] = "nodus_" + "x" * 43
    said = desk.fails("nodus get jobs")
    assert "Unauthorized" in said and "nodus_x" not in said
