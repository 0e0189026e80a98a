"""Objects: names, compare-and-swap, what counts as a change, deletion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection

from nodus.core.clock import FakeClock
from nodus.core.errors import AlreadyExists, Conflict, NotFound, StaleLease
from nodus.core.kinds import KINDS
from nodus.server.store import Fence, Object, Store, changes, leases, objects

JOB, ATTEMPT, PROJECT = KINDS["Job"], KINDS["Attempt"], KINDS["Project"]
MakeJob = Callable[..., Object]


def changes_after(store: Store, rv: int) -> list[tuple[str, str]]:
    found, _ = store.read_sync(changes.read_after, rv)
    return [(change.type, change.name) for change in found]


def names(store: Store, kind: str = "Job") -> list[str]:
    return [obj.name for obj in store.read_sync(objects.list_, KINDS[kind], None).items]


def test_create_returns_what_get_finds(store: Store, make_job: MakeJob) -> None:
    spec = {"z": 1, "a": [1.0, None, True, "é\0\ud800"]}
    made = make_job("j", spec=spec, labels={"app": "x"}, annotations={"n": "v"}, status={"phase": "Queued"})
    found = store.read_sync(objects.get, JOB, "default", "j")
    assert found == made
    assert list(found.spec) == ["z", "a"]
    assert found.spec == spec
    assert (found.generation, found.resource_version) == (1, 1)


def test_wire_form_of_an_object(store: Store, make_job: MakeJob) -> None:
    made = make_job("j", labels={"app": "x"}, status={"phase": "Queued"})
    assert made.to_wire() == {
        "apiVersion": "nodus.dev/v1",
        "kind": "Job",
        "metadata": {
            "name": "j",
            "namespace": "default",
            "uid": made.uid,
            "resourceVersion": "1",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "x"},
        },
        "spec": {"command": ["true"]},
        "status": {"phase": "Queued"},
    }


def test_create_of_a_taken_name_is_refused_and_changes_nothing(store: Store, make_job: MakeJob) -> None:
    first = make_job("j")
    with pytest.raises(AlreadyExists, match='"j" already exists'):
        make_job("j", labels={"other": "x"})
    assert store.read_sync(objects.get, JOB, "default", "j") == first
    assert changes_after(store, first.resource_version) == []


def test_one_name_in_two_projects_and_two_kinds(store: Store, make_job: MakeJob) -> None:
    make_job("j", project="one")
    make_job("j", project="two")
    store.write_sync(objects.create, ATTEMPT, "one", "j", {})
    assert names(store) == ["j", "j"]


def test_org_kinds_have_no_project_and_unique_names(store: Store) -> None:
    made = store.write_sync(objects.create, PROJECT, None, "research", {})
    assert made.project is None
    assert store.read_sync(objects.find, PROJECT, "ignored", "research") == made
    with pytest.raises(AlreadyExists):
        store.write_sync(objects.create, PROJECT, None, "research", {})


def test_missing_objects_are_not_found(store: Store) -> None:
    with pytest.raises(NotFound, match=r'jobs.nodus.dev "nope" not found'):
        store.read_sync(objects.get, JOB, "default", "nope")
    with pytest.raises(NotFound):
        store.read_sync(objects.get_by_uid, "0" * 36)
    assert store.read_sync(objects.find, JOB, "default", "nope") is None


def test_update_swaps_only_what_was_read(store: Store, make_job: MakeJob) -> None:
    read = make_job("j")
    newer = store.write_sync(objects.update, read, labels={"a": "1"})
    with pytest.raises(Conflict, match="changed since resourceVersion 1"):
        store.write_sync(objects.update, read, labels={"a": "2"})
    assert store.read_sync(objects.get_by_uid, read.uid) == newer


def test_update_of_the_spec_raises_the_generation(store: Store, make_job: MakeJob) -> None:
    made = make_job("j")
    labelled = store.write_sync(objects.update, made, labels={"a": "1"})
    assert labelled.generation == 1
    changed = store.write_sync(objects.update, labelled, spec={"command": ["false"]})
    assert (changed.generation, changed.resource_version) == (2, 3)


def test_update_that_changes_nothing_leaves_no_change(store: Store, make_job: MakeJob) -> None:
    made = make_job("j", labels={"a": "1"})
    assert store.write_sync(objects.update, made, labels={"a": "1"}, spec={"command": ["true"]}) == made
    assert changes_after(store, made.resource_version) == []


def test_update_that_changes_nothing_still_notices_a_conflict(store: Store, make_job: MakeJob) -> None:
    made = make_job("j")
    store.write_sync(objects.update_status, made.uid, {"phase": "Running"})
    with pytest.raises(Conflict):
        store.write_sync(objects.update, made, labels={})


def test_update_status_replaces_the_whole_status(store: Store, make_job: MakeJob) -> None:
    made = make_job("j", status={"phase": "Queued", "message": "waiting"})
    done = store.write_sync(objects.update_status, made.uid, {"phase": "Running"})
    assert done == replace(made, status={"phase": "Running"}, resource_version=2)
    assert store.read_sync(objects.get_by_uid, made.uid) == done


def test_update_status_to_an_equal_one_leaves_no_change(store: Store, make_job: MakeJob) -> None:
    made = make_job("j", status={"a": 1, "b": 2})
    assert store.write_sync(objects.update_status, made.uid, {"b": 2, "a": 1}) == made
    assert changes_after(store, made.resource_version) == []


def test_update_status_checks_version_and_lease(store: Store, make_job: MakeJob) -> None:
    made = make_job("j")
    with pytest.raises(Conflict):
        store.write_sync(objects.update_status, made.uid, {"phase": "X"}, expect_rv=made.resource_version + 1)
    token = store.write_sync(leases.acquire, "Job/j", "me", 60)
    assert token is not None
    store.write_sync(objects.update_status, made.uid, {"phase": "A"}, fence=Fence("Job/j", token))
    with pytest.raises(StaleLease):
        store.write_sync(objects.update_status, made.uid, {"phase": "B"}, fence=Fence("Job/j", token - 1))
    assert store.read_sync(objects.get_by_uid, made.uid).status == {"phase": "A"}


def test_a_function_that_raises_leaves_nothing(store: Store, make_job: MakeJob) -> None:
    made = make_job("j")

    def two_then_fail(conn: Connection) -> None:
        objects.update_status(conn, made.uid, {"phase": "Running"})
        objects.create(conn, JOB, "default", "k", {})
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        store.write_sync(two_then_fail)
    assert names(store) == ["j"]
    assert store.read_sync(objects.get_by_uid, made.uid) == made
    assert make_job("k").resource_version == made.resource_version + 1, "numbers of what was undone are given again"


def test_delete_takes_dependents_along(store: Store, make_job: MakeJob) -> None:
    job = make_job("j")
    attempt = store.write_sync(objects.create, ATTEMPT, "default", "j-0", {}, owner=job)
    store.write_sync(objects.create, ATTEMPT, "default", "j-0-child", {}, owner=attempt)
    store.write_sync(objects.delete, job, "Background")
    assert names(store) == names(store, "Attempt") == []
    assert changes_after(store, 3) == [("DELETED", "j"), ("DELETED", "j-0"), ("DELETED", "j-0-child")]


def test_delete_foreground_removes_dependents_first(store: Store, make_job: MakeJob) -> None:
    job = make_job("j")
    store.write_sync(objects.create, ATTEMPT, "default", "j-0", {}, owner=job)
    store.write_sync(objects.delete, job, "Foreground")
    gone = [pair for pair in changes_after(store, 2) if pair[0] == "DELETED"]
    assert gone == [("DELETED", "j-0"), ("DELETED", "j")]


def test_delete_foreground_waits_for_finalizers_below(store: Store, make_job: MakeJob, clock: FakeClock) -> None:
    job = make_job("j")
    held = store.write_sync(objects.create, ATTEMPT, "default", "j-0", {}, owner=job, finalizers=["nodus.dev/stop"])
    store.write_sync(objects.delete, job, "Foreground")
    waiting = store.read_sync(objects.get_by_uid, job.uid)
    held = store.read_sync(objects.get_by_uid, held.uid)
    assert waiting.deleted_at == held.deleted_at == clock.now()
    store.write_sync(objects.update, held, finalizers=[])
    assert names(store) == names(store, "Attempt") == []


def test_delete_orphan_leaves_dependents(store: Store, make_job: MakeJob) -> None:
    job = make_job("j")
    store.write_sync(objects.create, ATTEMPT, "default", "j-0", {}, owner=job)
    store.write_sync(objects.delete, job, "Orphan")
    assert names(store) == []
    assert store.read_sync(objects.get, ATTEMPT, "default", "j-0").owner_references == []


def test_delete_keeps_what_another_owner_holds(store: Store, make_job: MakeJob) -> None:
    one, two = make_job("one"), make_job("two")
    shared = store.write_sync(objects.create, ATTEMPT, "default", "shared", {}, owner=one)
    other = {"apiVersion": "nodus.dev/v1", "kind": "Job", "name": "two", "uid": two.uid}
    store.write_sync(objects.update, shared, owner_references=[*shared.owner_references, other])
    store.write_sync(objects.delete, one)
    assert store.read_sync(objects.get_by_uid, shared.uid).owner_references == [other]
    store.write_sync(objects.delete, two)
    assert names(store, "Attempt") == []


def test_delete_with_finalizers_marks_until_the_last_goes(store: Store, make_job: MakeJob, clock: FakeClock) -> None:
    job = make_job("j", finalizers=["a", "b"])
    store.write_sync(objects.delete, job)
    marked = store.read_sync(objects.get_by_uid, job.uid)
    assert (marked.deleted_at, marked.finalizers) == (clock.now(), ["a", "b"])
    store.write_sync(objects.delete, marked)
    assert store.read_sync(objects.get_by_uid, job.uid) == marked, "asking twice changes nothing"
    marked = store.write_sync(objects.update, marked, finalizers=["b"])
    store.write_sync(objects.update, marked, finalizers=[])
    assert store.read_sync(objects.find_by_uid, job.uid) is None


def test_delete_of_what_is_gone_is_not_found(store: Store, make_job: MakeJob) -> None:
    job = make_job("j")
    store.write_sync(objects.delete, job)
    with pytest.raises(NotFound):
        store.write_sync(objects.delete, job)


def test_a_reused_name_is_another_object(store: Store, make_job: MakeJob) -> None:
    first = make_job("j")
    store.write_sync(objects.delete, first)
    second = make_job("j")
    assert second.uid != first.uid
    with pytest.raises(Conflict):
        store.write_sync(objects.update, first, labels={"a": "1"})


def test_reads_see_one_moment(store: Store, make_job: MakeJob) -> None:
    make_job("a")

    def twice(conn: Connection) -> tuple[Any, Any]:
        before = objects.list_(conn, JOB, None).items
        make_job("b")
        return before, objects.list_(conn, JOB, None).items

    before, after = store.read_sync(twice)
    assert before == after
    assert names(store) == ["a", "b"]
