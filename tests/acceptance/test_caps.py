"""Runs that cost something, on a real server: suspended at their cap, resumed when it is raised, never charged more."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from nodus.server.datadir import holder
from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up
from nodus.testing.eventually import eventually
from tests.acceptance.commands import Run, command_line, is_in

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(180)]

RATE = Decimal("0.1")
"""Dollars a second of a core."""
COUNTS = """
import nodus, pathlib, sys, time
kept = nodus.state_dir() / "count"
count = int(kept.read_text()) if kept.exists() else 0
print("from", count, flush=True)
nodus.checkpoint.subscribe()
while not (nodus.state_dir() / "end").exists():
    count += 1
    time.sleep(0.02)
    if nodus.checkpoint.requested():
        request = nodus.checkpoint.pending_request()
        kept.write_text(str(count))
        nodus.checkpoint.ack(request)
print("done", count, flush=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    data_dir = tmp_path_factory.mktemp("caps") / "data"
    data_dir.mkdir()
    (data_dir / "prices.yaml").write_text("compute: {CPU: '360'}\n")
    (data_dir / "nodus.toml").write_text('pricebook = "prices.yaml"\nfunding_slice = "10s"\n')
    yield up(UpOptions(data_dir=data_dir, port=0, detach=True, issue_key=True))
    down(DownOptions(data_dir=data_dir))


@pytest.fixture
def nodus(server: Started, tmp_path: Path) -> Run:
    return command_line(server, tmp_path, NODUS_DATA_DIR=str(server.data_dir))


def cost_of(job: dict[str, Any]) -> Decimal:
    return Decimal(job["status"]["cost"]["totalUSD"])


def start(nodus: Run, tmp_path: Path, name: str, cap: str, project: str = "default") -> None:
    spec = {
        "image": "nodus/base", "command": ["python3", "-c", COUNTS], "resources": {"cpu": 1, "memory": "512Mi"},
        "maxCostUSD": cap,
    }  # fmt: skip
    manifest = {"apiVersion": "nodus.dev/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
    (tmp_path / f"{name}.json").write_text(json.dumps(manifest))
    nodus("apply", "-p", project, "-f", str(tmp_path / f"{name}.json"))


def finish(server: Started, job: dict[str, Any]) -> None:
    (Path(server.data_dir) / "jobs" / job["metadata"]["uid"] / "state" / "end").write_text("")


def test_a_run_is_suspended_at_its_cap_and_goes_on_from_its_checkpoint_when_that_is_raised(
    server: Started, nodus: Run, tmp_path: Path
) -> None:
    start(nodus, tmp_path, "capped", "0.60")
    job = is_in(nodus, "job/capped", "Suspended")
    assert job["status"]["reason"] == "MaxCostReached"
    assert "0.60" in job["status"]["message"]
    assert job["status"]["fix"]
    assert RATE * 3 < cost_of(job) <= Decimal("0.60")
    assert "heldUSD" not in job["status"]["cost"]
    before = cost_of(job)

    nodus("patch", "job/capped", "--type", "merge", "-p", '{"spec":{"maxCostUSD":"5.00"}}')
    job = is_in(nodus, "job/capped", "Running")
    assert Decimal(job["status"]["cost"]["heldUSD"]) > 0
    assert job["status"]["cost"]["rateUSDPerHour"] == "360.00"
    finish(server, job)
    job = is_in(nodus, "job/capped", "Succeeded")
    first = nodus("logs", "job/capped").splitlines()[0]
    assert int(first.removeprefix("from ")) > 50
    assert before < cost_of(job) < Decimal("5.00")
    assert job["status"]["cost"]["final"] is True
    seconds = Decimal(str(job["status"]["cost"]["bySegment"]["runningSeconds"]))
    assert abs(cost_of(job) - seconds * RATE) < Decimal("0.000001")
    nodus("admin", "ledger", "verify")


def test_a_run_without_its_server_is_paused_where_its_money_ends_and_is_charged_for_no_more(
    server: Started, nodus: Run, tmp_path: Path
) -> None:
    start(nodus, tmp_path, "alone", "2.00")
    job = is_in(nodus, "job/alone", "Running")
    attempts = json.loads(nodus("get", "attempts", "-l", "nodus.dev/job=alone", "-o", "json"))["items"]
    status = Path(server.data_dir) / "attempts" / attempts[0]["metadata"]["uid"] / "status.json"
    found = holder(Path(server.data_dir))
    assert found is not None
    os.kill(found, signal.SIGKILL)

    def paused() -> float | None:
        moment: float | None = json.loads(status.read_text())["times"].get("pausedAt")
        return moment

    at = eventually(paused, timeout_s=30)
    assert at is not None
    log = status.parent / "log"
    size = sum(file.stat().st_size for file in log.iterdir())
    assert size >= 0
    gone_s = time.time() - at
    again = up(UpOptions(data_dir=Path(server.data_dir), port=int(server.url.rsplit(":", 1)[1]), detach=True))
    assert again.url == server.url

    def goes_on() -> bool:
        return "pausedAt" not in json.loads(status.read_text())["times"]

    eventually(goes_on, timeout_s=30)
    finish(server, job)
    job = is_in(nodus, "job/alone", "Succeeded")
    times = json.loads(status.read_text())["times"]
    assert times["paused"] >= gone_s
    assert times["ran"] < times["finished"] - times["started"] - gone_s + 1
    assert abs(cost_of(job) - Decimal(str(round(times["ran"], 6))) * RATE) < Decimal("0.000002")
    nodus("admin", "ledger", "verify")


def test_a_cap_that_pays_for_no_start_is_told_with_amounts_and_a_deleted_run_owes_what_it_used(
    server: Started, nodus: Run, tmp_path: Path
) -> None:
    start(nodus, tmp_path, "tiny", "0.10")
    job = is_in(nodus, "job/tiny", "Suspended")
    assert job["status"]["reason"] == "MaxCostReached"
    assert cost_of(job) == 0
    nodus("delete", "job/tiny")

    before = balance(nodus)
    start(nodus, tmp_path, "deleted", "2.00")
    is_in(nodus, "job/deleted", "Running")
    nodus("delete", "job/deleted")

    def settled() -> bool:
        now = balance(nodus)
        return now["held"] == 0 and now["spent"] > before["spent"]

    assert eventually(settled, timeout_s=40)
    nodus("admin", "ledger", "verify")


def balance(nodus: Run) -> dict[str, Decimal]:
    status = json.loads(nodus("get", "billingaccounts", "-o", "json"))["items"][0]["status"]
    return {"held": Decimal(status["pendingUSD"]), "spent": Decimal(status["spentUSD"])}


def test_a_run_that_a_budget_stops_goes_on_when_the_budget_is_raised(
    server: Started, nodus: Run, tmp_path: Path
) -> None:
    nodus("create", "project", "small")
    nodus("create", "budget", "small", "--limit", "0.50", "--period", "Total", "--scope-project", "small")
    start(nodus, tmp_path, "budgeted", "5.00", "small")
    job = is_in(nodus, "job/budgeted", "Suspended", project="small")
    assert job["status"]["reason"] == "BudgetExceeded"
    assert "'small'" in job["status"]["message"]
    assert cost_of(job) <= Decimal("0.50")
    nodus("patch", "budget/small", "-p", '{"spec":{"limitUSD":"5.00"}}')
    job = is_in(nodus, "job/budgeted", "Running", project="small")
    finish(server, job)
    is_in(nodus, "job/budgeted", "Succeeded", project="small")
    nodus("admin", "ledger", "verify")


def test_a_sandbox_stops_at_its_cap_and_starts_again_when_that_is_raised(server: Started, nodus: Run) -> None:
    nodus("create", "sandbox", "box", "--cpu", "1", "--memory", "512Mi", "--max-cost", "0.40")
    nodus("wait", "sandbox/box", "--for=jsonpath={.status.phase}=Running", "--timeout=30s")
    nodus("exec", "sandbox/box", "--", "sh", "-c", "echo kept > /workspace/file")
    box = is_in(nodus, "sandbox/box", "Stopped")
    assert (box["status"]["stopReason"], box["status"]["cost"]["limitUSD"]) == ("MaxCostReached", "0.40")
    assert Decimal(0) < cost_of(box) <= Decimal("0.40")
    left = re.search(r"has \$([0-9.]+) of its cap", box["status"]["message"])  # as it is after the last charge
    assert left is not None
    assert Decimal(left[1]) == Decimal("0.40") - cost_of(box)
    nodus("patch", "sandbox/box", "-p", '{"spec":{"maxCostUSD":"5.00"}}')
    nodus("start", "sandbox/box")
    nodus("wait", "sandbox/box", "--for=jsonpath={.status.phase}=Running", "--timeout=30s")
    assert nodus("exec", "sandbox/box", "--", "cat", "/workspace/file") == "kept\n"
    nodus("delete", "sandbox/box")
