"""The same command with the published program and with ours, against the same server: the same exit code and output."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.interop.conftest import Desk

pytestmark = [pytest.mark.acceptance, pytest.mark.sandbox, pytest.mark.timeout(300)]

MANIFEST = """
apiVersion: nodus.dev/v1
kind: Job
metadata: {name: same, labels: {app: same}}
spec:
  command: [sh, -c, "echo one; echo two; echo r > /workspace/o"]
  outputs: [{name: o, path: /workspace/o}]
  resources: {cpu: "0.1"}
"""
SAME = """
nodus get jobs -l app=same -o wide
nodus get jobs -l app=same -o custom-columns=N:.metadata.name,P:.status.phase,X:.nope
nodus get job/same -o jsonpath='{.status.phase} {.spec.command[*]} {.metadata.labels.app}'
nodus get job/none -p other
nodus logs job/same
nodus apply -f same.yaml
nodus apply -f same.yaml --dry-run
nodus wait job/none --for=delete
nodus create secret same --from-literal A=b
nodus nope
nodus apply -f missing.yaml
nodus apply -f broken.yaml
nodus patch job/same --patch 'not json'
nodus get jobs --field-selector status.phse=Running
""".strip().splitlines()
NEW = "nodus create secret same --from-literal A=b"
OTHER = "nodus create secret same --from-literal A=c"
MORE = """
nodus get jobs -l app=same
nodus get jobs -l app=same -A
nodus get job/same
nodus get job same
nodus get jobs -l app=same -o name
nodus get jobs -l app=same --show-labels --no-headers
nodus get job/same -o go-template='{{range .spec.command}}{{.}} {{end}}'
nodus get jobs --field-selector metadata.name=same -o name
nodus get environments -n nodus
nodus get trainingruntimes -n nodus
nodus get gpus
nodus get jobs -l app=nope
nodus get jobs --field-selector status.phase=Succeeded,metadata.name=same -o name
nodus get job/none
nodus get nope
nodus auth can-i create jobs
nodus api-resources
nodus logs job/same --tail 1
nodus logs job/none
nodus wait job/same --for=jsonpath='{.status.phase}'=Succeeded --timeout=5s
nodus diff -f same.yaml
nodus label job/same a=b
nodus label job/same a-
nodus annotate job/same a=b
nodus patch job/same --patch '{"metadata":{"labels":{"z":"1"}}}'
nodus stop job/same
nodus suspend job/none
nodus delete job/none
nodus delete job/none --ignore-not-found
nodus create secret same --from-literal A=c
nodus create volume same --size 1Gi --dry-run
nodus cp job/same:outputs/nope ./x
nodus run
nodus get jobs --nope
""".strip().splitlines()


def plain(text: str) -> str:
    """Return output without what time and width change."""
    text = re.sub(r"\b\d+(s|m|h)(\d+s)?\b", "AGE", re.sub(r"req_\w+", "req_", text))
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


@pytest.fixture(scope="module")
def made() -> Iterator[dict[str, bool]]:
    yield {}


@pytest.mark.parametrize("command", [*SAME, *(pytest.param(line, marks=pytest.mark.heavy) for line in MORE)])
def test_same_code_and_output(desk: Desk, ours: Desk, made: dict[str, bool], command: str) -> None:
    desk.write("same.yaml", MANIFEST)
    desk.write("broken.yaml", "a: [")
    if not made:
        desk.ok("nodus apply -f same.yaml")
        desk.ok("nodus wait job/same --for=jsonpath='{.status.phase}'=Succeeded --timeout=60s")
        made["job"] = True
    before = {NEW: "nodus delete secret/same --ignore-not-found", OTHER: NEW}.get(command)
    if before is not None:
        desk.ok(before)
    theirs = desk.run(command)
    if before is not None:
        desk.ok(before)
    mine = ours.run(command)
    assert (mine.returncode, plain(mine.stdout)) == (theirs.returncode, plain(theirs.stdout)), mine.stderr
    assert bool(mine.stderr) == bool(theirs.stderr), (theirs.stderr, mine.stderr)
