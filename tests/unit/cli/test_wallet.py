"""`nodus billing`, `get usage`, `get transactions`, `admin grant`, `create budget`: what is asked, what is printed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodus.cli import main as cli
from tests.unit.client.fake_server import Asked, FakeServer, Reply, serving

Run = Callable[..., tuple[int, str, str]]
V1 = "/apis/nodus.dev/v1"
LINE = {
    "apiVersion": "nodus.dev/v1", "kind": "UsageRecord", "metadata": {"name": "usage-7"},
    "object": {"kind": "TrainingJob", "name": "my-grpo"}, "meter": "ComputeSeconds", "segment": "Running",
    "quantity": "600", "unit": "seconds", "amountUSD": "0.013333334", "periodStartTime": "2026-01-31T12:00:00Z",
    "transaction": "transaction-7",
}  # fmt: skip
CAPTURE = {
    "apiVersion": "nodus.dev/v1", "kind": "Transaction", "metadata": {"name": "transaction-7"}, "type": "Capture",
    "time": "2026-01-31T12:10:00Z", "amountUSD": "-0.50", "balanceAfterUSD": "24.50",
    "reference": {"kind": "Job", "name": "train"}, "cause": "compute/local-cpu", "description": "a, b",
}  # fmt: skip


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeServer]:
    monkeypatch.setenv("HOME", str(tmp_path))
    with serving() as found:
        monkeypatch.setenv("NODUS_API_URL", found.url)
        monkeypatch.setenv("NODUS_API_KEY", "nodus_k")
        yield found


@pytest.fixture
def run(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        code = cli.main(list(words))
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def items(*found: dict[str, Any], token: str | None = None) -> Reply:
    return Reply({"items": list(found), "metadata": {"continue": token} if token else {}})


@pytest.mark.parametrize("words", [("get", "usage"), ("billing", "usage")])
def test_usage_line_by_line(run: Run, server: FakeServer, words: tuple[str, ...]) -> None:
    server.script = lambda asked: items(LINE)
    code, out, _ = run(*words, "--object", "tj/my-grpo", "--since", "30d", "--field-selector", "segment=Running")
    assert code == 0
    assert out.splitlines() == [
        "START                  OBJECT                METER            SEGMENT   QUANTITY   AMOUNT",
        "2026-01-31T12:00:00Z   trainingjob/my-grpo   ComputeSeconds   Running   600        $0.013333334",
    ]
    (asked,) = server.asked
    assert asked.path == f"{V1}/usagerecords"
    assert asked.query["since"] == "30d"
    assert asked.query["fieldSelector"] == "segment=Running,object.kind=TrainingJob,object.name=my-grpo"


def test_usage_as_csv_over_pages_has_one_header_and_plain_amounts(run: Run, server: FakeServer) -> None:
    pages = {None: items(LINE, token="t"), "t": items(LINE)}
    server.script = lambda asked: pages[asked.query.get("continue")]
    assert run("get", "usage", "-o", "csv")[1].splitlines() == [
        "START,OBJECT,METER,SEGMENT,QUANTITY,AMOUNT,UNIT,OFFERING,COVERED,TRANSACTION",
        *["2026-01-31T12:00:00Z,trainingjob/my-grpo,ComputeSeconds,Running,600,0.013333334,seconds,,,transaction-7"]
        * 2,
    ]


def test_usage_as_objects(run: Run, server: FakeServer) -> None:
    server.script = lambda asked: items(LINE)
    assert json.loads(run("get", "usage", "-o", "json")[1])["items"] == [LINE]
    assert "TRANSACTION" in run("get", "usage", "-o", "wide")[1]
    assert "START" not in run("get", "usage", "--no-headers")[1]
    server.script = lambda asked: Reply(LINE)
    assert yaml.safe_load(run("get", "usage", "usage-7", "-o", "yaml")[1]) == LINE
    assert server.asked[-1].path == f"{V1}/usagerecords/usage-7"
    assert run("get", "usage", "usage-7", "--since", "1d")[0] == 2


def test_usage_summed(run: Run, server: FakeServer) -> None:
    rows = [
        {"group": {"member": "usr_ada", "label:example.com/team": "nlp"}, "amountUSD": "1.25", "quantity": "5"},
        {"group": {"member": "usr_bob", "label:example.com/team": ""}, "amountUSD": "0.50"},
    ]
    server.script = lambda asked: Reply({"kind": "UsageSummary", "rows": rows, "totalUSD": "1.75"})
    words = ("get", "usage", "--group-by", "member,label:example.com/team")
    assert run(*words)[1].splitlines() == [
        "MEMBER   TEAM   AMOUNT",
        "ada      nlp    $1.25",
        "bob             $0.50",
    ]
    assert server.asked[-1].query["groupBy"] == "member,label:example.com/team"
    assert run(*words, "-o", "csv")[1] == "MEMBER,TEAM,QUANTITY,AMOUNT\nada,nlp,5,1.25\nbob,,,0.50\n"
    assert json.loads(run(*words, "-o", "json")[1])["totalUSD"] == "1.75"
    server.script = lambda asked: Reply({"kind": "UsageSummary", "rows": []})
    assert run("get", "usage", "--group-by", "day") == (0, "", "No usage in this range.\n")


def test_nothing_is_said_apart(run: Run, server: FakeServer) -> None:
    server.script = lambda asked: items()
    assert run("get", "usage") == (0, "", "No usage in this range.\n")
    assert run("get", "transactions") == (0, "", "No transactions in this range.\n")
    code, out, _ = run("get", "transactions", "-o", "csv")
    assert (code, out) == (0, "TIME,TYPE,AMOUNT,BALANCE,REFERENCE,CAUSE,DESCRIPTION\n")


def test_transactions(run: Run, server: FakeServer) -> None:
    server.script = lambda asked: items(CAPTURE)
    assert run("get", "transactions", "--type", "Capture")[1].splitlines() == [
        "TIME                   TYPE      AMOUNT   BALANCE   REFERENCE",
        "2026-01-31T12:10:00Z   Capture   -$0.50   $24.50    job/train",
    ]
    assert server.asked[-1].query["fieldSelector"] == "type=Capture"
    code, _, said = run("get", "transactions", "--type", "Refund")
    assert (code, "'Refund' is not one of" in said) == (2, True)
    assert run("billing", "transactions", "-o", "csv")[1].splitlines()[1] == (
        '2026-01-31T12:10:00Z,Capture,-0.50,24.50,job/train,compute/local-cpu,"a, b"'
    )


@pytest.mark.parametrize("about", ["train", "job/", "nope/x", ""])
def test_an_object_is_kind_and_name(run: Run, about: str) -> None:
    assert run("get", "usage", "--object", about)[0] == 2


@pytest.mark.parametrize(
    "words", ["get usage --since yesterday", "get transactions --until 2026-13-01", "billing usage --since ''"]
)
def test_a_time_that_is_none_is_wrong_usage(run: Run, server: FakeServer, words: str) -> None:
    code, _, err = run(*shlex.split(words))
    assert (code, server.asked) == (2, [])
    assert "is no time; write a duration back from now (30d), a date, or an RFC 3339 time" in err


def account(**status: Any) -> dict[str, Any]:
    return {"kind": "BillingAccount", "metadata": {"name": "default"}, "status": {"availableUSD": "19.25", **status}}


def test_billing_is_a_summary_with_the_fullest_budget(run: Run, server: FakeServer) -> None:
    budgets = [
        {"metadata": {"name": name}, "spec": {"limitUSD": limit}, "status": {"percentUsed": percent}}
        for name, limit, percent in (("a", "20", 10), ("b", "300.00", 80))
    ]
    whole = account(
        grantedUSD="25.00",
        pendingUSD="4.00",
        monthToDate={"month": "2026-01", "spentUSD": "1.75", "coveredUSD": "0.02"},
    )

    def script(asked: Asked) -> Reply:
        return items(*budgets) if asked.path.endswith("budgets") else Reply(whole)

    server.script = script
    assert run("billing")[1].splitlines() == [
        "Available     $19.25   granted $25.00",
        "Held           $4.00   set aside for what runs now",
        "This month     $1.75   budget b 80% of $300.00",
        "Covered        $0.02   borne by the server this month, charged to nobody",
    ]
    assert json.loads(run("billing", "-o", "json")[1]) == whole


def test_billing_of_a_key_that_sees_less(run: Run, server: FakeServer) -> None:
    server.script = lambda asked: items() if asked.path.endswith("budgets") else Reply(account())
    assert run("billing")[1] == "Available     $19.25   granted -\n"


@pytest.mark.parametrize(
    "words", ["top-up 20 --no-open", "redeem X", "auto-recharge --off", "portal --print", "receipts"]
)
def test_what_buys_credits_says_how_they_are_added_here(run: Run, server: FakeServer, words: str) -> None:
    code, _, err = run("billing", *words.split())
    assert code == 1
    assert "no payment provider" in err and "nodus admin grant --amount" in err
    assert server.asked == []


def test_a_grant_is_sent_once_with_a_reference(run: Run, server: FakeServer) -> None:
    made = {**account(), "grant": {"amountUSD": "25.00", "reference": "k", "added": True}}
    server.script = lambda asked: Reply(made, 201)
    assert run("admin", "grant", "--amount", "25", "--note", "May", "--idempotency-key", "k")[1] == (
        "granted $25.00; $19.25 can be spent\n"
    )
    (asked,) = server.asked
    assert (asked.method, asked.path) == ("POST", f"{V1}/billingaccounts/default/grants")
    assert asked.json == {"amountUSD": "25", "note": "May", "reference": "k"}
    made["grant"]["added"] = False
    assert run("admin", "grant", "--amount", "25", "--idempotency-key", "k")[1] == (
        "granted before under 'k'; $19.25 can be spent\n"
    )
    run("admin", "grant", "--amount", "25")
    run("admin", "grant", "--amount", "25")
    assert server.asked[-1].json["reference"] != server.asked[-2].json["reference"]
    assert run("admin", "grant")[0] == 2


def test_a_budget_from_flags(run: Run, server: FakeServer) -> None:
    members = [{"metadata": {"name": "ada"}, "spec": {"email": "Ada@example.com"}}]
    server.script = lambda asked: items(*members)

    def planned(*words: str) -> Any:
        code, out, err = run("create", "budget", "b", *words, "--dry-run=client", "-o", "yaml")
        assert code == 0, err
        return yaml.safe_load(out)

    assert planned("--limit", "2000", "--period", "Monthly", "--scope-project", "research") == {
        "apiVersion": "nodus.dev/v1", "kind": "Budget", "metadata": {"name": "b"},
        "spec": {"limitUSD": "2000", "period": "Monthly", "scope": {"project": "research"}},
    }  # fmt: skip
    assert server.asked == []
    spec = planned(
        *("--limit", "5", "--scope-member", "ada@example.com", "--scope-label", "team=nlp", "--scope-label", "x/y="),
        *("--action", "notify", "--threshold", "90", "--threshold", "10"),
    )["spec"]
    assert spec == {
        "limitUSD": "5", "action": "Notify", "thresholds": [10, 90],
        "scope": {"member": "ada", "selector": {"matchLabels": {"team": "nlp", "x/y": ""}}},
    }  # fmt: skip
    assert planned("--limit", "5", "--scope-member", "bob")["spec"]["scope"] == {"member": "bob"}
    assert run("create", "budget", "b", "--limit", "5", "--scope-member", "eve@example.com")[0] == 1
    for words in (["--scope-label", "team"], ["--scope-label", "a b=c"], ["--threshold", "0"], ["--period", "Weekly"]):
        assert run("create", "budget", "b", "--limit", "5", *words)[0] == 2
    assert run("create", "budget", "b")[0] == 2
