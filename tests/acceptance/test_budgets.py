"""Money on a real server with the real command line: a Budget stops a run and lets it go on; the books add up."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from nodus.server.lifecycle import DownOptions, Started, UpOptions, down, up
from nodus.testing.eventually import eventually
from tests.acceptance.commands import Run, command_line, get, is_in

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.heavy, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    data_dir = tmp_path_factory.mktemp("budgets") / "data"
    data_dir.mkdir()
    (data_dir / "prices.yaml").write_text("compute: {CPU: '360'}\n")  # ten cents a second
    (data_dir / "nodus.toml").write_text('pricebook = "prices.yaml"\nfunding_slice = "10s"\n')
    yield up(UpOptions(data_dir=data_dir, port=0, detach=True, issue_key=True))
    down(DownOptions(data_dir=data_dir))


@pytest.fixture
def nodus(server: Started, tmp_path: Path) -> Run:
    return command_line(server, tmp_path)


def status(nodus: Run, name: str, phase: str) -> dict[str, Any]:
    """The status of an object once it is in a phase."""
    return dict(is_in(nodus, name, phase)["status"])


def test_a_budget_stops_a_run_and_lets_it_go_on(nodus: Run, tmp_path: Path) -> None:
    nodus("create", "budget", "small", "--limit", "0.30", "--period", "Total", "--scope-label", "team=nlp")
    manifest = {
        "apiVersion": "nodus.dev/v1", "kind": "Job", "metadata": {"name": "train", "labels": {"team": "nlp"}},
        "spec": {"command": ["sleep", "4"], "resources": {"cpu": 1}},
    }  # fmt: skip
    (tmp_path / "train.json").write_text(json.dumps(manifest))
    nodus("apply", "-f", str(tmp_path / "train.json"))
    stopped = status(nodus, "job/train", "Suspended")
    assert (stopped["reason"], "'small'" in stopped["message"]) == ("BudgetExceeded", True)
    held = get(nodus, "budget/small")["status"]
    assert Decimal(held["spentUSD"]) == Decimal(stopped["cost"]["totalUSD"]) <= Decimal("0.30")

    nodus("patch", "budget/small", "--patch", '{"spec": {"limitUSD": "5.00"}}')
    ended = status(nodus, "job/train", "Succeeded")
    cost = Decimal(ended["cost"]["totalUSD"])
    assert ended["cost"]["final"] and cost >= Decimal("0.40")

    # The books say the same, however they are read.
    budget = get(nodus, "budget/small")["status"]
    assert (Decimal(budget["spentUSD"]), budget["heldUSD"]) == (cost, "0.00")
    usage = list(csv.DictReader(io.StringIO(nodus("get", "usage", "--object", "job/train", "-o", "csv"))))
    assert sum(Decimal(line["AMOUNT"]) for line in usage) == cost
    summed = json.loads(nodus("get", "usage", "--group-by", "label:team,member", "-o", "json"))
    assert [(row["group"], Decimal(row["amountUSD"])) for row in summed["rows"]] == [
        ({"label:team": "nlp", "member": "usr_admin"}, cost)
    ]
    newest = nodus("get", "transactions", "--no-headers").splitlines()[0].split()
    account = json.loads(nodus("billing", "-o", "json"))["status"]
    assert newest[1] == "Capture" and newest[3] == f"${account['availableUSD']}"
    assert Decimal(account["availableUSD"]) == Decimal("25.00") - cost == Decimal(account["grantsUSD"])

    def told() -> bool:
        return "50% of $0.30 is spent" in nodus("events", "--for", "budget/small", "--no-headers")

    assert eventually(told, timeout_s=20)
    nodus("delete", "job/train")
    after = json.loads(nodus("get", "usage", "--group-by", "label:team,object", "-o", "json"))
    assert [tuple(row["group"].values()) for row in after["rows"]] == [("nlp", "job/train")]
