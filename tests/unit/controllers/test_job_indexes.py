"""What a Job's controller decides about indexes, losses, queues and Volumes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from nodus.core.clock import FakeClock, rfc3339
from nodus.core.kinds import JOB
from nodus.server import outputlists
from nodus.server.controllers import jobslots, jobstatus, memberspec, workingcopies
from nodus.server.controllers.job import Context, JobController
from nodus.server.controllers.runtime import ActionResult, Outcome
from nodus.server.store import Object
from nodus.server.store.volumes import FileEntry
from nodus.testing.compute import FakeBackend

NOW = FakeClock().now()
Make = Callable[..., Object]
Decide = Callable[..., Outcome]
FAILED = {"phase": "Failed", "reason": "Error", "message": "exit 3", "exitCode": 3}
DONE = {"phase": "Succeeded", "exitCode": 0}
RUNS = {"phase": "Running"}


@pytest.fixture
def decide(make_object: Make) -> Decide:
    """Decides about a Job: ``decide({0: [{...status...}], 1: [...]}, completions=3, ...)``."""

    def run(
        attempts: dict[int, list[dict[str, Any]]] | None = None,
        *,
        status: dict[str, Any] | None = None,
        result: ActionResult | None = None,
        revisions: dict[str, int] | None = None,
        **spec: Any,
    ) -> Outcome:
        job = make_object("Job", spec={"command": ["x"], **spec}, status=status or {"phase": "Running"})
        made = tuple(
            make_object(
                "Attempt",
                f"a-{slot}-{epoch}",
                spec={"job": "job", "epoch": epoch, "slot": slot, "state": "Running"},
                status=given,
            )
            for slot, tries in (attempts or {}).items()
            for epoch, given in enumerate(tries, start=1)
        )
        controller = JobController("node-1", FakeBackend(), FakeClock(), None, None)  # type: ignore[arg-type]
        ctx = Context(job, made, "node-1", None, revisions or {})
        return controller.decide(controller.absorb(ctx, result) if result else ctx, NOW)

    return run


def slots(outcome: Outcome) -> list[tuple[int, int]]:
    return [(new.spec["slot"], new.spec["epoch"]) for new in outcome.create]


def test_indexes_start_in_order_as_many_as_may_run_at_once(decide: Decide) -> None:
    outcome = decide(completions=5, parallelism=2, status={"phase": "Queued"})
    assert slots(outcome) == [(0, 1), (1, 1)]
    assert [new.labels["nodus.dev/index"] for new in outcome.create] == ["0", "1"]
    assert outcome.status is not None
    assert outcome.status["attempts"] == {"current": 2, "max": 5, "total": 2}
    assert slots(decide({0: [DONE], 1: [RUNS]}, completions=5, parallelism=2)) == [(2, 1)]
    assert slots(decide({0: [RUNS], 1: [RUNS]}, completions=5, parallelism=2)) == []
    assert len(decide(completions=100).create) == jobslots.DEFAULT_PARALLELISM


def test_index_that_failed_is_tried_again_beside_the_others(decide: Decide) -> None:
    outcome = decide({0: [FAILED], 1: [RUNS]}, completions=2, backoffLimit=1)
    assert slots(outcome) == [(0, 2)]
    assert [event.reason for event in outcome.events] == ["Started", "Retrying"]


def test_first_index_whose_tries_are_used_up_stops_the_others_and_fails_the_job(decide: Decide) -> None:
    outcome = decide({0: [RUNS], 1: [FAILED, FAILED]}, completions=4, backoffLimit=1)
    assert [(u.spec or {}).get("stopReason") for u in outcome.update] == ["JobFailed"]
    assert outcome.create == ()
    stopped = {"phase": "Cancelled", "reason": "JobFailed"}
    status = decide({0: [stopped], 1: [FAILED, FAILED]}, completions=4, backoffLimit=1).status
    assert status is not None
    assert (status["phase"], status["reason"], status["exitCode"]) == ("Failed", "BackoffLimitExceeded", 3)
    assert status["message"] == "index 1: exit 3"
    assert status["indexes"] == {"succeeded": "", "active": "", "failed": "1"}


def test_job_succeeds_when_every_index_has(decide: Decide) -> None:
    outputs = [{"name": "r", "path": "/nodus/outputs/r", "sha256": "0" * 64, "size": 1}]
    outcome = decide({0: [FAILED, {**DONE, "outputs": outputs}], 1: [{**DONE, "outputs": outputs}]}, completions=2)
    assert outcome.status is not None
    assert outcome.status["phase"] == "Succeeded"
    assert outcome.status["progress"] == {"units": {"completed": 2, "total": 2}}
    assert [item["index"] for item in outcome.status["outputs"]] == [0, 1]
    assert JOB.status_model.model_validate(outcome.status)


@pytest.mark.parametrize("state", ["Running", "Cancelled"])
def test_what_ends_a_job_from_outside_has_no_exit_code_of_an_index(decide: Decide, state: str) -> None:
    tried = {**FAILED, "timings": {"finishedTime": rfc3339(NOW)}}
    status = decide(
        {0: [tried, tried], 1: [DONE]}, completions=2, backoffLimit=9, timeout="1m", state=state,
        status={"phase": "Running", "startTime": rfc3339(NOW - timedelta(minutes=2))},
    ).status  # fmt: skip
    assert status is not None
    assert status["reason"] == ("Cancelled" if state == "Cancelled" else "DeadlineExceeded")
    assert "exitCode" not in status


def test_job_with_indexes_left_keeps_running_between_them(decide: Decide) -> None:
    for attempts in ({0: [DONE]}, {0: [DONE], 1: [{"phase": "Pending"}]}):
        status = decide(attempts, completions=3, parallelism=1).status
        assert status is not None
        assert status["phase"] == "Running"


@pytest.mark.parametrize(("state", "reason"), [("Cancelled", "Cancelled"), ("Suspended", "Suspended")])
def test_every_live_index_is_stopped(decide: Decide, state: str, reason: str) -> None:
    outcome = decide({0: [RUNS], 1: [{"phase": "Pending"}], 2: [DONE]}, completions=9, state=state)
    assert [(u.spec or {})["stopReason"] for u in outcome.update] == [reason, reason]
    assert outcome.create == ()


LOST = {"phase": "Lost", "reason": "AttemptLost", "message": "its supervisor ended"}


@pytest.mark.parametrize(
    ("recovery", "lost", "again"),
    [
        ({}, 1, True),
        ({"maxAttempts": 1}, 1, True),
        ({"maxAttempts": 1}, 2, False),
        ({"continuity": "Ephemeral"}, 1, False),
        ({"continuity": "Restartable"}, 3, True),
    ],
)
def test_lost_attempts_are_followed_by_others_as_recovery_says(
    decide: Decide, recovery: dict[str, Any], lost: int, again: bool
) -> None:
    outcome = decide({0: [LOST] * lost}, recovery=recovery)
    assert (len(outcome.create) == 1) is again
    if not again:
        assert outcome.status is not None
        assert (outcome.status["phase"], outcome.status["reason"]) == ("Failed", "AttemptLost")


def test_job_that_waits_too_long_for_a_machine_fails(decide: Decide) -> None:
    placement = {"queueTimeout": "5m"}
    waiting = {"phase": "Pending", "reason": "Unschedulable"}
    soon = decide({0: [waiting]}, placement=placement, status={"phase": "Queued"})
    assert (soon.update, soon.requeue_after_s) == ((), 300.0)
    late = decide({0: [waiting]}, placement={"queueTimeout": "0.0s"}, status={"phase": "Queued"})
    assert [(u.spec or {})["stopReason"] for u in late.update] == ["QueueTimeout"]
    ended = decide({0: [{"phase": "Failed", "reason": "QueueTimeout"}]}, placement=placement, backoffLimit=3).status
    assert ended is not None
    assert (ended["phase"], ended["reason"]) == ("Failed", "QueueTimeout")


def test_what_waits_for_room_past_the_timeout_is_stopped(decide: Decide) -> None:
    status = {"phase": "Running", "startTime": rfc3339(NOW - timedelta(minutes=2))}
    outcome = decide({0: [DONE], 1: [{"phase": "Pending"}]}, completions=2, timeout="1m", status=status)
    assert [(u.spec or {})["stopReason"] for u in outcome.update] == ["DeadlineExceeded"]


def test_volumes_are_committed_once_before_the_job_succeeds(decide: Decide) -> None:
    volumes = [{"volume": "v", "mountPath": "/v"}]
    first = decide({0: [DONE]}, volumes=volumes)
    assert (first.status, first.action.name if first.action else None) == (None, "commit")
    ended = decide({0: [DONE]}, volumes=volumes, result=ActionResult("k", "commit")).status
    assert ended is not None
    assert ended["phase"] == "Succeeded"
    failed = decide({0: [DONE]}, volumes=volumes, result=ActionResult("k", "commit", error="the disk is full")).status
    assert failed is not None
    assert (failed["phase"], failed["reason"]) == ("Failed", "VolumeNotCommitted")
    assert decide({0: [DONE]}, volumes=[{**volumes[0], "readOnly": True}]).action is None


def test_revisions_that_were_not_known_at_first_are_fixed_when_they_are(decide: Decide) -> None:
    status = decide(status={"phase": "Queued", "pinned": {"volumes": {"a": 1}}}, revisions={"b": 4}).status
    assert status is not None
    assert status["pinned"] == {"volumes": {"a": 1, "b": 4}}


def test_declared_output_that_was_not_written_is_told(decide: Decide, make_object: Make) -> None:
    wanted = [{"name": "m", "path": "/workspace/m"}, {"name": "o", "path": "/nodus/outputs"}]
    outcome = decide({0: [DONE]}, outputs=wanted)
    assert [event.message for event in outcome.events if event.reason == "OutputMissing"] == [
        "output 'm' (/workspace/m) was not written"
    ]
    written = {**DONE, "outputs": [{"name": "m", "path": "/workspace/m"}]}
    assert not [event for event in decide({0: [written]}, outputs=wanted).events if event.reason == "OutputMissing"]


@pytest.mark.parametrize(
    ("indexes", "text"), [([], ""), ([4], "4"), ([0, 1, 2], "0-2"), ([5, 0, 1, 3, 6], "0-1,3,5-6")]
)
def test_ranges_are_short(indexes: list[int], text: str) -> None:
    assert jobslots.ranges(indexes) == text


def test_names_of_attempts_of_different_jobs_differ(make_object: Make) -> None:
    def name(job: str, uid: str, slot: int = 0, **spec: Any) -> str:
        return jobslots.attempt_name(make_object("Job", job, uid=uid, spec=spec), jobslots.Slot(slot))

    assert name("train", "u") == "train-1"
    assert name("sweep", "aaaaaa", 3, completions=9) != name("sweep-3", "bbbbbb")
    long = ["x" * 63, "x" * 62 + "y"]
    uids = dict(zip(long, ("aaaaaa", "bbbbbb"), strict=True))
    names = [name(job, uids[job], 999, **spec) for spec in ({}, {"completions": 1000}) for job in long]
    assert len({*names}) == len(names) == 4
    assert all(len(one) <= 63 for one in names)


def test_outputs_beyond_the_listed_ones_are_cut_from_the_status_only(make_object: Make) -> None:
    found = {"phase": "Succeeded", "outputs": [{"name": str(n)} for n in range(outputlists.SHOWN_FILES)]}
    job = make_object("Job", spec={"completions": 2})
    made = jobslots.slots_of(
        job.spec, [make_object("Attempt", spec={"epoch": 1, "slot": slot}, status=found) for slot in (0, 1)]
    )
    told = jobstatus.outputs(job, made)
    assert (len(told["outputs"]), told["outputs"][-1]["index"]) == (outputlists.SHOWN_FILES, 0)
    assert told["outputsTotal"] == {"files": 2 * outputlists.SHOWN_FILES}
    assert [carrier.files for carrier in jobstatus.carriers(job, made)] == 2 * [outputlists.SHOWN_FILES]


# What an attempt is given ---------------------------------------------------------------------------------------


def test_index_epoch_and_checkpoint_are_variables(make_object: Make) -> None:
    recovery = {"checkpoint": {"paths": ["/workspace/ckpt", "/nodus/state/x"], "format": "HF"}}
    job = make_object("Job", spec={"command": ["x"], "completions": 4, "recovery": recovery})
    made = memberspec.build(
        job,
        make_object("Attempt", spec={"epoch": 2, "slot": 3}),
        memberspec.Resolved(kept={"/workspace/ckpt": "/kept/0"}),
        None,
    )
    assert {key: made.env[key] for key in made.env if "INDEX" in key or "COMPL" in key or "CHECK" in key} == {
        "NODUS_INDEX": "3",
        "NODUS_COMPLETIONS": "4",
        "NODUS_CHECKPOINT_DIR": "/workspace/ckpt",
        "NODUS_CHECKPOINT_FORMAT": "HF",
    }
    assert (made.env["NODUS_RESTORED"], made.mounts) == ("1", [("/kept/0", "/workspace/ckpt", False)])
    assert memberspec.kept_paths(job.spec) == ["/workspace/ckpt"]


@pytest.mark.parametrize(
    ("spec", "attempt", "name"),
    [
        ({}, {"epoch": 2}, "state"),
        ({"completions": 3}, {"epoch": 2, "slot": 1}, "states/1"),
        ({"recovery": {"continuity": "Restartable"}}, {"epoch": 2}, "states/0-2"),
        ({"recovery": {"continuity": "Checkpointed"}}, {"epoch": 2}, "state"),
    ],
)
def test_state_is_each_indexs_own_and_new_where_a_run_begins_anew(
    spec: dict[str, Any], attempt: dict[str, Any], name: str
) -> None:
    assert memberspec.state_name(spec, attempt) == name


@pytest.mark.parametrize(("launcher", "variable"), [("Plain", "WORLD_SIZE"), ("Torchrun", "PET_NPROC_PER_NODE")])
def test_gang_of_one_node_finds_its_rendezvous(make_object: Make, launcher: str, variable: str) -> None:
    job = make_object("Job", spec={"command": ["x"], "distributed": {"nodes": 1, "launcher": launcher}})
    env = memberspec.variables(job, make_object("Attempt", spec={"epoch": 1}))
    assert (env["MASTER_ADDR"], env["NNODES"], env[variable]) == ("127.0.0.1", "1", "1")


def test_own_variables_win_over_those_of_secrets(make_object: Make) -> None:
    job = make_object("Job", spec={"command": ["x"], "secrets": ["s"]})
    resolved = memberspec.Resolved({("s", None): {"NODUS_JOB": "another", "A": "b"}})
    env = memberspec.build(job, make_object("Attempt", spec={"epoch": 1}), resolved, None).env
    assert (env["NODUS_JOB"], env["A"]) == ("job", "b")


# Commits of Volumes --------------------------------------------------------------------------------------------


def entry(path: str, content: str = "0") -> FileEntry:
    return FileEntry(path, content * 64, 1)


def test_commit_takes_over_what_was_written_and_removed_and_nothing_else() -> None:
    base = [entry("same"), entry("changed"), entry("gone"), entry("theirs")]
    mine = [entry("same"), entry("changed", "1"), entry("theirs"), entry("new", "2")]
    newest = [entry("same"), entry("changed"), entry("gone"), entry("theirs", "3"), entry("added", "4")]
    merged = {item.path: item.sha256[0] for item in workingcopies.merge(base, mine, newest)}
    assert merged == {"same": "0", "changed": "1", "theirs": "3", "new": "2", "added": "4"}
    assert workingcopies.merge(base, base, newest) == newest


def test_commit_of_a_file_where_a_directory_was_is_a_tree() -> None:
    merged = workingcopies.merge([], [entry("a")], [entry("a/b"), entry("c")])
    assert sorted(item.path for item in merged) == ["a", "c"]
    merged = workingcopies.merge([], [entry("a/b")], [entry("a")])
    assert [item.path for item in merged] == ["a/b"]
