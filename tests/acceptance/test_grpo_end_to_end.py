"""GRPO from a manifest to an adapter on a real server process, and the same to the byte when parts of it are killed.

A tiny random model comes from a hub of this test's own; the environment is a bundle like those that users bring. One
run is left alone. Two more, of the same configuration, run side by side: under both of them the server is killed, and
the trainer of one of them too.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from nodus.core.clock import SystemClock, parse_rfc3339
from nodus.core.durations import parse_duration
from nodus.server import datadir
from nodus.server.lifecycle import DownOptions, UpOptions, down, up
from nodus.server.store import Store
from nodus.server.store.reconcile import verify
from nodus.testing.eventually import eventually
from nodus.testing.hub import FakeHub

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(400)]

TERMINAL = ("Succeeded", "Failed", "Cancelled")
STEPS = 4
LAUNCHER = b"nodus.trainer.torchrun"
BUNDLE = """
import time

def tasks(split):
    count = {"train": 24, "test": 16}[split]
    return [{"prompt": f"{split} {number}", "answer": number % 2} for number in range(count)]

def reward(completion, answer):
    time.sleep(0.1)  # a step lasts long enough to be interrupted
    return sum(char.isdigit() and int(char) % 2 == answer for char in completion) / 8
"""
PRICES = "compute: {CPU: '3.60'}\ngrading: '0.36'\n"
"""A thousandth of a dollar a second of a core, a tenth of that for graders: everything here costs something."""
# Breaks on replies only: an Environment whose reward fails on its own answers never becomes Ready.
BROKEN = BUNDLE.replace("time.sleep(0.1)", "assert len(completion) < 2, 'the answers are lost'")


class Client:
    """One server, reached with the key of its first start; found again after it was killed."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.key = ""
        self.pid = 0
        self.http = httpx.Client()

    def start(self) -> None:
        self.http.close()
        started = up(UpOptions(data_dir=self.data_dir, port=0, detach=True, issue_key=not self.key))
        self.key, self.pid = self.key or str(started.api_key), started.pid
        self.http = httpx.Client(base_url=started.url, headers={"Authorization": f"Bearer {self.key}"}, timeout=30)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        eventually(lambda: datadir.holder(self.data_dir) is None)

    def get(self, path: str) -> Any:
        answer = self.http.get(f"/apis/nodus.dev/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def run(self, name: str) -> dict[str, Any]:
        return dict(self.get(f"v1beta1/namespaces/default/trainingjobs/{name}")["status"])

    def events(self, name: str, type_: str) -> list[dict[str, Any]]:
        path = f"v1beta1/namespaces/default/trainingjobs/{name}/taskevents"
        return list(self.get(f"{path}?eventType={type_}&limit=500")["items"])

    def finished(self, name: str) -> dict[str, Any]:
        status = eventually(lambda: _if_terminal(self.run(name)), timeout_s=300, every_s=0.2)
        log = self.http.get(f"/apis/nodus.dev/v1/namespaces/default/jobs/{name}/log").text
        assert status["phase"] == "Succeeded", f"{status}\n{log[-3000:]}"
        return status

    def account(self) -> dict[str, Any]:
        return dict(self.get("v1/billingaccounts")["items"][0]["status"])

    def patch(self, name: str, spec: dict[str, Any]) -> None:
        path = f"/apis/nodus.dev/v1beta1/namespaces/default/trainingjobs/{name}"
        headers = {"Content-Type": "application/merge-patch+json"}
        self.http.patch(path, content=json.dumps({"spec": spec}), headers=headers).raise_for_status()

    def adapter(self, name: str) -> str:
        """Digest of the adapter's weights, downloaded and checked against what was announced."""
        path = (
            f"/apis/nodus.dev/v1beta1/namespaces/default/trainingjobs/{name}/outputs/adapter/adapter_model.safetensors"
        )
        grant = self.http.get(path)
        content = httpx.get(grant.headers["Location"]).content
        digest = hashlib.sha256(content).hexdigest()
        assert digest == grant.headers["X-Nodus-SHA256"]
        return digest


def discrepancies(client: Client) -> list[Any]:
    """What an audit of the whole ledger finds."""
    store = Store.open(f"sqlite:///{client.data_dir / 'nodus.db'}", SystemClock(), data_dir=client.data_dir)
    try:
        return list(store.read_sync(verify))
    finally:
        store.close()


def _if_terminal(status: dict[str, Any]) -> dict[str, Any] | None:
    return status if status.get("phase") in TERMINAL else None


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    from nodus.testing.models import tiny_llama

    root = tmp_path_factory.mktemp("grpo")
    model = tiny_llama(root / "tiny", vocabulary="0123456789abcdefghijklmnopqrstuvwxyz ")
    with pytest.MonkeyPatch.context() as patch, FakeHub() as hub:
        hub.add("acme/tiny", {path.name: path.read_bytes() for path in model.iterdir()})
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("HF_HUB_OFFLINE", "0")
        (root / "data").mkdir()
        (root / "data" / "prices.yaml").write_text(PRICES)
        (root / "data" / "nodus.toml").write_text('pricebook = "prices.yaml"\nfunding_slice = "60s"\n')
        client = Client(root / "data")
        client.start()
        try:
            add_environment(client, "digits", BUNDLE)
            yield client
            assert hub.downloads["model.safetensors"] <= 1  # many runs, one import
            eventually(lambda: client.account()["pendingUSD"] == "0.00", timeout_s=60)  # every hold ends
            assert discrepancies(client) == []
        finally:
            client.http.close()
            down(DownOptions(data_dir=root / "data"))


def add_environment(client: Client, name: str, source: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo("nodus_task.py")
        member.size = len(source.encode())
        archive.addfile(member, io.BytesIO(source.encode()))
    content = buffer.getvalue()
    sha256 = hashlib.sha256(content).hexdigest()
    upload = {"sha256": sha256, "size": len(content), "contentType": "application/gzip"}
    grant = client.post("/blobs/v1/namespaces/default/uploads", upload)
    httpx.put(grant["url"], content=content, headers=grant.get("headers", {})).raise_for_status()
    spec = {"version": "1.0.0", "package": {"source": {"blob": f"sha256:{sha256}", "module": "nodus_task"}}}
    body = {"apiVersion": "nodus.dev/v1", "kind": "Environment", "metadata": {"name": name}, "spec": spec}
    client.post("/apis/nodus.dev/v1/namespaces/default/environments", body)
    path = f"v1/namespaces/default/environments/{name}"
    status = eventually(lambda: _if_settled(client.get(path)["status"]), timeout_s=60)
    assert status["phase"] == "Ready", status


def _if_settled(status: dict[str, Any]) -> dict[str, Any] | None:
    return status if status.get("phase") in ("Ready", "Failed") else None


def create(client: Client, name: str, spec: dict[str, Any]) -> None:
    body = {"apiVersion": "nodus.dev/v1beta1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": spec}
    client.post("/apis/nodus.dev/v1beta1/namespaces/default/trainingjobs", body)


def training(environment: str = "digits") -> dict[str, Any]:
    """The spec of a TrainingJob; all runs of this file that train have the same configuration."""
    parameters = {
        "steps": STEPS,
        "numGenerations": 4,
        "batchSize": 8,
        "gradientAccumulation": 1,
        "maxCompletionLength": 8,
        "learningRate": 0.01,
        "saveSteps": 1,
        "evaluationBatchSize": 16,
        "sampling": {"temperature": 1.0},
    }
    return {
        "runtime": "nodus/grpo-lora",
        "model": {"uri": "hf://acme/tiny"},
        "environment": {"name": f"{environment}@1.0.0", "trainTasks": 24, "heldOutTasks": 16},
        "parameters": parameters,
        "resources": {"cpu": 1, "memory": "3Gi"},
    }


def submit(client: Client, name: str, environment: str = "digits") -> None:
    """Create a TrainingJob."""
    create(client, name, training(environment))


def verdicts(events: list[dict[str, Any]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What was graded, without ids and times; of an interrupted run the newest attempt of each."""
    keys = ("phase", "step", "taskId", "sample")
    return {tuple(e[key] for key in keys): (e["outcome"], e["verdict"], e["reward"]) for e in events}


def processes(name: str) -> list[tuple[int, list[bytes]]]:
    """Processes of a run and their arguments, by the environment variable that every one of them has."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"NODUS_TRAINING_JOB={name}".encode() in environment:
            found.append((int(entry.name), command.split(b"\0")))
    return found


def trainer_pids(name: str) -> list[int]:
    """The trainer itself: what torchrun started, and not torchrun."""
    return [pid for pid, words in processes(name) if b"nodus.trainer" in words and LAUNCHER not in words]


def launcher_pids(name: str) -> list[int]:
    """The torchrun of a run, once it is more than a shell that waits to become it."""
    return [pid for pid, words in processes(name) if words[0] == b"python" and LAUNCHER in words]


@dataclass(frozen=True)
class Outcome:
    """What a run came to, without ids and times."""

    verdicts: dict[tuple[Any, ...], tuple[Any, ...]]
    summary: dict[str, Any]
    adapter: str


def outcome(client: Client, name: str) -> Outcome:
    status = client.finished(name)
    return Outcome(verdicts(client.events(name, "Task")), status["summary"], client.adapter(name))


@pytest.fixture(scope="module")
def calm(client: Client) -> Outcome:
    """A run that nobody disturbs."""
    submit(client, "calm")
    return outcome(client, "calm")


def test_undisturbed_run_reports_everything_once(client: Client, calm: Outcome) -> None:
    status = client.run("calm")
    assert len(client.events("calm", "Task")) == len(calm.verdicts) == 16 + STEPS * 8 + 16
    assert [event["step"] for event in client.events("calm", "Metrics")] == list(range(1, STEPS + 1))
    assert [event["stage"] for event in client.events("calm", "Stage")] == ["Baseline", "Training", "Evaluating"]
    assert status["diagnostics"] == {"rewardSignal": "ContrastObserved", "weightsChanged": True}
    assert status["summary"]["comparison"]["tasks"] == 16
    assert {output["name"] for output in status["outputs"]} >= {"results.json", "provenance.json", "manifest.json"}
    assert status["provenance"]["modelSource"]["repo"] == "acme/tiny"


def test_finished_run_tells_what_the_next_one_takes(client: Client, calm: Outcome) -> None:
    status = client.run("calm")
    assert "measured" not in status["estimate"]  # it was the first
    body = {"kind": "TrainingJob", "metadata": {"generateName": "next-"}, "spec": training()}
    planned = client.post("/apis/nodus.dev/v1beta1/namespaces/default/trainingjobs?dryRun=All", body)
    estimate = planned["status"]["estimate"]
    assert estimate["measured"]["runs"] == 1
    took = parse_rfc3339(status["completionTime"]) - parse_rfc3339(status["startTime"])
    assert took.total_seconds() / 2 <= parse_duration(estimate["duration"]["p50"]) <= 2 * took.total_seconds()


def test_killed_server_and_killed_trainer_change_nothing(client: Client, calm: Outcome) -> None:
    for name in ("serverless", "shot"):
        submit(client, name)
    eventually(lambda: client.events("shot", "Metrics"), timeout_s=120)
    client.kill()
    (trainer,) = trainer_pids("shot")
    os.kill(trainer, signal.SIGKILL)
    client.start()

    assert outcome(client, "serverless") == outcome(client, "shot") == calm
    assert client.run("serverless")["attempts"]["total"] == 1
    assert len(client.events("serverless", "Task")) == len(calm.verdicts)  # nothing was graded twice
    assert client.run("shot")["attempts"]["total"] == 2
    assert processes("shot") == []
    attempts = {phase: set() for phase in ("Baseline", "Training", "Evaluation")}
    for event in client.events("shot", "Task"):
        attempts[event["phase"]].add(event["attempt"])
    assert len(attempts["Baseline"]) == 1  # the saved baseline was used again
    assert attempts["Baseline"] != attempts["Evaluation"]


def test_grader_that_cannot_run_ends_the_run_with_its_words(client: Client) -> None:
    add_environment(client, "broken", BROKEN)
    submit(client, "ungraded", environment="broken")
    status = eventually(lambda: _if_terminal(client.run("ungraded")), timeout_s=120, every_s=0.2)
    assert (status["phase"], status["reason"]) == ("Failed", "GraderFailed")
    assert "the answers are lost" in status["message"]
    assert status["attempts"]["total"] == 1  # another try would meet the same grader
    assert {event["outcome"] for event in client.events("ungraded", "Task")} == {"Error"}
    assert "passRate" not in status["summary"]["baseline"]
    assert processes("ungraded") == []
    log = client.http.get("/apis/nodus.dev/v1/namespaces/default/jobs/ungraded/log").text
    assert log.splitlines()[-2].startswith("nodus.trainer: GraderFailed: "), log[-3000:]  # the launcher adds nothing


@pytest.mark.heavy
def test_killed_launcher_takes_the_trainer_along_and_changes_nothing(client: Client, calm: Outcome) -> None:
    submit(client, "unlaunched")
    eventually(lambda: client.events("unlaunched", "Metrics"), timeout_s=120)
    (launcher,), first = launcher_pids("unlaunched"), trainer_pids("unlaunched")
    os.kill(launcher, signal.SIGKILL)
    eventually(lambda: not set(first) & set(trainer_pids("unlaunched")), timeout_s=30)
    assert outcome(client, "unlaunched") == calm
    assert client.run("unlaunched")["attempts"]["total"] == 2
    assert processes("unlaunched") == []


@pytest.mark.heavy
@pytest.mark.parametrize("runtime", ["nodus/evaluate", "nodus/grpo-lora"])
def test_evaluation_scores_the_held_out_tasks_as_the_baseline_of_a_training_does(
    client: Client, calm: Outcome, runtime: str
) -> None:
    name = "scored-by-" + runtime.removeprefix("nodus/")
    spec = {
        "runtime": runtime,
        "mode": "Evaluate",
        "model": {"uri": "hf://acme/tiny"},
        "environment": {"name": "digits@1.0.0", "heldOutTasks": 16},
        "parameters": {"maxCompletionLength": 8, "evaluationBatchSize": 16},
        "resources": {"cpu": 1, "memory": "3Gi"},
    }
    create(client, name, spec)
    status = client.finished(name)
    assert set(status["summary"]) == {"evaluation"}
    assert status["summary"]["evaluation"] == calm.summary["baseline"]
    assert "diagnostics" not in status
    assert {output["name"] for output in status["outputs"]} >= {"results.json", "provenance.json", "manifest.json"}


@pytest.mark.heavy
def test_cancelled_and_deleted_runs_leave_no_process(client: Client, calm: Outcome) -> None:
    for name in ("cancelled", "deleted"):
        submit(client, name)
    eventually(lambda: trainer_pids("cancelled") and trainer_pids("deleted"), timeout_s=60)
    path = "/apis/nodus.dev/v1beta1/namespaces/default/trainingjobs/"
    headers = {"Content-Type": "application/merge-patch+json"}
    client.http.patch(path + "cancelled", content='{"spec":{"state":"Cancelled"}}', headers=headers).raise_for_status()
    client.http.delete(path + "deleted").raise_for_status()
    eventually(lambda: client.run("cancelled")["phase"] == "Cancelled", timeout_s=60)
    eventually(lambda: processes("cancelled") == processes("deleted") == [], timeout_s=60)
    for plural in ("v1beta1/namespaces/default/trainingjobs", "v1/namespaces/default/jobs"):
        assert client.http.get(f"/apis/nodus.dev/{plural}/deleted").status_code == 404


@pytest.mark.heavy
def test_server_killed_in_every_stage_changes_nothing(client: Client, calm: Outcome) -> None:
    submit(client, "hunted")
    client.kill()  # before the model is there
    client.start()
    for stage in ("Baseline", "Training", "Evaluating"):
        eventually(lambda: stage in [event["stage"] for event in client.events("hunted", "Stage")], timeout_s=120)  # noqa: B023
        client.kill()
        client.start()
    assert outcome(client, "hunted") == calm
    assert client.run("hunted")["attempts"]["total"] == 1


@pytest.mark.heavy
def test_suspended_and_resumed_run_is_the_same(client: Client, calm: Outcome) -> None:
    submit(client, "paused")
    eventually(lambda: client.events("paused", "Metrics"), timeout_s=120)
    client.patch("paused", {"state": "Suspended"})
    eventually(lambda: client.run("paused")["phase"] == "Suspended", timeout_s=60)
    assert processes("paused") == []
    client.patch("paused", {"state": "Running"})
    assert outcome(client, "paused") == calm


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_run_suspended_at_its_cap_and_resumed_is_the_same_and_never_costs_more(client: Client) -> None:
    steps = 30
    spec = training()
    spec["parameters"]["steps"] = steps
    create(client, "uncapped", spec)
    whole = outcome(client, "uncapped")
    cost = Decimal(client.run("uncapped")["cost"]["totalUSD"])
    cap = round(cost * 3 / 4, 6)
    create(client, "capped", {**spec, "maxCostUSD": str(cap)})

    def stops() -> dict[str, Any] | None:
        status = client.run("capped")
        assert Decimal(status.get("cost", {}).get("totalUSD", "0")) <= cap
        return status if status["phase"] in ("Suspended", *TERMINAL) else None

    steps_done = []
    while (status := eventually(stops, timeout_s=300, every_s=0.2))["phase"] == "Suspended":
        assert (status["reason"], processes("capped")) == ("MaxCostReached", [])
        steps_done.append(len({event["step"] for event in client.events("capped", "Metrics")}))
        cap += round(cost * 3 / 4, 6)
        client.patch("capped", {"maxCostUSD": str(cap)})
        eventually(lambda: client.run("capped")["phase"] != "Suspended", timeout_s=60)
    assert any(0 < done < steps for done in steps_done), steps_done
    assert outcome(client, "capped") == whole
    bill = client.run("capped")["cost"]
    assert bill["final"] is True
    assert Decimal(bill["totalUSD"]) <= cap
