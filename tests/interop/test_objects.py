"""The published command line writes: apply, create, patch, labels, waits, diffs, edits and deletions of objects."""

from __future__ import annotations

import json

import pytest

from nodus.testing.eventually import eventually
from tests.interop.conftest import Desk

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

JOB = """
apiVersion: nodus.dev/v1
kind: Job
metadata:
  name: {name}
  labels: {{app: interop}}
spec:
  command: [sh, -c, "{command}"]
  resources: {{cpu: "0.1"}}
  timeout: 2m
"""


def job(desk: Desk, name: str, command: str = "true", more: str = "") -> str:
    """Write a Job's manifest and return its file's name."""
    return desk.write(f"{name}.yaml", JOB.format(name=name, command=command) + more)


def test_apply_creates_changes_and_leaves_alone(desk: Desk) -> None:
    job(desk, "apply", "sleep 60")
    assert desk.ok("nodus apply -f apply.yaml --dry-run") == "job/apply created (server dry run)\n"
    assert "nodus.dev/last-applied:" in desk.ok("nodus apply -f apply.yaml --dry-run=client")
    assert "NotFound" in desk.fails("nodus get job/apply")
    assert desk.ok("nodus apply -f apply.yaml") == "job/apply created\n"
    assert desk.ok("nodus apply -f apply.yaml") == "job/apply unchanged\n"
    job(desk, "apply", "sleep 60", "  ttlSecondsAfterFinished: 600\n")
    assert desk.run("nodus diff -f apply.yaml").returncode == 1
    assert desk.ok("nodus apply -f apply.yaml") == "job/apply configured\n"
    assert desk.ok("nodus diff -f apply.yaml") == ""
    assert desk.ok("nodus get job/apply -o jsonpath='{.spec.ttlSecondsAfterFinished}'") == "600"
    job(desk, "apply", "sleep 61")
    said = desk.fails("nodus apply -f apply.yaml")
    assert "Error from server (FieldImmutable)" in said and "spec.command" in said
    assert desk.ok("nodus delete -f apply.yaml --wait") == "job/apply deleted\n"


def test_apply_reads_standard_input_folders_and_prunes(desk: Desk) -> None:
    (desk.home / "all").mkdir()
    for name in ("one", "two"):
        desk.write(f"all/{name}.yaml", JOB.format(name=name, command="true"))
    assert desk.ok("nodus apply -f all/").splitlines() == ["job/one created", "job/two created"]
    (desk.home / "all" / "two.yaml").unlink()
    pruned = desk.ok("nodus apply -f all --prune -l app=interop")
    assert "job/one unchanged" in pruned and "job/two" in pruned
    assert desk.ok("nodus get jobs -l app=interop -o name").split() == ["job.nodus.dev/one"]
    assert desk.ok("nodus apply -f -", stdin=JOB.format(name="three", command="true")) == "job/three created\n"
    assert desk.ok("nodus delete jobs -l app=interop").splitlines() == ["job/one deleted", "job/three deleted"]


def test_estimates_are_printed_from_dry_runs(desk: Desk) -> None:
    job(desk, "planned")
    line = desk.ok("nodus apply -f planned.yaml --dry-run=server -o estimate")
    assert line.startswith("job/planned: 1 node × 0 GPUs · est. $0.00 · starts in ~")
    shown = desk.ok("nodus apply -f planned.yaml --dry-run -o yaml")
    assert "estimate:" in shown and "startup:" in shown


def test_create_names_objects_itself(desk: Desk) -> None:
    desk.write("gen.yaml", JOB.replace("name: {name}", "generateName: gen-").format(command="true"))
    first, second = (desk.ok("nodus create -f gen.yaml -o name") for _ in range(2))
    assert first.startswith("job.nodus.dev/gen-") and first != second
    assert "metadata.name" in desk.fails("nodus apply -f gen.yaml", code=2)
    job(desk, "made")
    assert desk.ok("nodus create -f made.yaml") == "job/made created\n"
    assert desk.ok("nodus create -f made.yaml") == "job/made created\n"  # the same again is the same object
    job(desk, "made", "false")
    assert "Error from server (AlreadyExists)" in desk.fails("nodus create -f made.yaml")


def test_patch_label_annotate(desk: Desk) -> None:
    job(desk, "patched", "sleep 60")
    desk.ok("nodus apply -f patched.yaml")
    assert desk.ok("nodus label job/patched team=nlp tier=gold") == "job/patched labeled\n"
    assert desk.ok("nodus label job/patched tier-") == "job/patched labeled\n"
    assert desk.ok("nodus annotate job/patched note='a b'") == "job/patched annotated\n"
    assert "patched" in desk.ok("nodus get jobs -l 'team in (nlp,cv),!tier' --show-labels")
    assert desk.ok("""nodus patch job/patched --patch '{"metadata":{"labels":{"team":null}}}'""") == (
        "job/patched patched\n"
    )
    patch = json.dumps([{"op": "add", "path": "/metadata/labels/by", "value": "json"}])
    assert desk.ok(f"nodus patch job/patched --type json --patch '{patch}'") == "job/patched patched\n"
    labels = json.loads(desk.ok("nodus get job/patched -o json"))["metadata"]["labels"]
    assert labels == {"app": "interop", "by": "json", "nodus.dev/created-by": "usr_admin"}
    assert "BadRequest" in desk.fails("nodus patch job/patched --patch '{nope'")
    assert "FieldImmutable" in desk.fails("""nodus patch job/patched --patch '{"spec":{"command":["x"]}}'""")
    desk.ok("nodus delete job/patched")


def test_edit_saves_a_merge_patch(desk: Desk) -> None:
    job(desk, "edited")
    desk.ok("nodus apply -f edited.yaml")
    # It sends the version that it read: while the status still changes, that is a conflict.
    desk.ok("nodus wait job/edited --for=jsonpath='{.status.phase}'=Succeeded --timeout=60s")
    desk.write("editor.sh", "#!/bin/sh\nsed -i 's/app: interop/app: edited/' \"$1\"\n")
    (desk.home / "editor.sh").chmod(0o755)
    assert "job/edited" in desk.ok('EDITOR="$PWD/editor.sh" nodus edit job/edited')
    assert desk.ok("nodus get job/edited -o jsonpath='{.metadata.labels.app}'") == "edited"
    desk.ok("nodus delete job/edited")


def test_state_verbs(desk: Desk) -> None:
    job(desk, "stateful", "sleep 120")
    desk.ok("nodus apply -f stateful.yaml")
    desk.ok("nodus wait job/stateful --for=jsonpath='{.status.phase}'=Running --timeout=60s")
    assert desk.ok("nodus suspend job/stateful") == "job/stateful suspended\n"
    desk.ok("nodus wait job/stateful --for=jsonpath='{.status.phase}'=Suspended --timeout=60s")
    assert desk.ok("nodus resume job/stateful") == "job/stateful resumed\n"
    desk.ok("nodus wait job/stateful --for=jsonpath='{.status.phase}'=Running --timeout=60s")
    assert "Invalid" in desk.fails("nodus stop job/stateful")
    assert desk.ok("nodus cancel job/stateful") == "job/stateful canceled\n"
    desk.ok("nodus wait job/stateful --for=jsonpath='{.status.phase}'=Cancelled --timeout=60s")


def test_waits_end_as_the_guide_says(desk: Desk) -> None:
    job(desk, "waited", "sleep 1")
    desk.ok("nodus apply -f waited.yaml")
    late = desk.run("nodus wait job/waited --for=jsonpath='{.status.phase}'=Nonsense --timeout=200ms")
    assert late.returncode == 124
    assert "condition met" in desk.ok("nodus wait job/waited --for=jsonpath='{.status.phase}'=Succeeded --timeout=60s")
    assert "NotFound" in desk.fails("nodus wait job/none --for=delete --timeout=5s")
    done = desk.run(
        "(sleep 0.3; nodus delete job/waited >/dev/null) & nodus wait job/waited --for=delete --timeout=30s"
    )
    assert done.returncode == 0, done.stderr


def test_errors_keep_reason_causes_fix_and_request_id(desk: Desk) -> None:
    job(desk, "bad", more="  timeOut: 2m\n  maxCostUSD: 5\n  recovery: {tries: 2}\n")
    said = desk.fails("nodus apply -f bad.yaml")
    for words in ("Error from server (Invalid)", "spec.timeOut:", "spec.maxCostUSD:", "spec.recovery.tries:", "fix:",
                  "request-id: req_"):  # fmt: skip
        assert words in said
    desk.write("kindless.yaml", "apiVersion: nodus.dev/v1\nkind: Jbo\nmetadata: {name: x}\n")
    assert "Jbo" in desk.fails("nodus apply -f kindless.yaml")


def test_watches_print_each_change_once(desk: Desk) -> None:
    job(desk, "watched", "sleep 0.3")
    desk.ok("nodus apply -f watched.yaml")
    seen = desk.run("timeout 2 nodus get job/watched -w --no-headers").stdout.split("\n")
    phases = [line.split()[1] for line in seen if line.startswith("watched")]
    assert phases[-1] == "Succeeded" and "Running" in phases
    assert phases.count("Succeeded") <= 2  # the object itself, and its replay where it had ended before the watch began
    assert len(seen) == len([line for line in seen if line.startswith("watched")]) + 1  # no row of a bookmark


def test_events_are_listed_and_watched(desk: Desk) -> None:
    job(desk, "eventful")
    desk.ok("nodus apply -f eventful.yaml")
    desk.ok("nodus wait job/eventful --for=jsonpath='{.status.phase}'=Succeeded --timeout=60s")
    eventually(lambda: "Succeeded" in desk.ok("nodus events --for job/eventful"))
    shown = desk.ok("nodus events --for job/eventful")
    assert "Started" in shown and "TYPE" in shown
    replayed = desk.run("timeout 1 nodus events --for job/eventful -w").stdout
    assert "Started" in replayed and "Succeeded" in replayed
    assert "Events:" in desk.ok("nodus describe job/eventful")
