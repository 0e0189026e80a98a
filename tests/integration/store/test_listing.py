"""Lists: selectors and pages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nodus.core.clock import FakeClock
from nodus.core.errors import BadRequest, Expired
from nodus.core.kinds import KINDS
from nodus.server.store import Object, Store, changes, objects

JOB = KINDS["Job"]
MakeJob = Callable[..., Object]


@pytest.fixture
def three(make_job: MakeJob) -> None:
    make_job("a", labels={"app": "web", "tier": "1"}, status={"phase": "Running"})
    make_job("b", labels={"app": "db"}, status={"phase": "Queued"}, spec={"command": ["x"], "deep": {"n": 3}})
    make_job("c", project="other", status={"phase": "Running"})


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(
    ("project", "labels", "fields", "expected"),
    [
        (None, None, None, "abc"),
        ("default", None, None, "ab"),
        ("empty", None, None, ""),
        (None, "app=web", None, "a"),
        (None, "app!=web", None, "bc"),
        (None, "app in (web,db),tier", None, "a"),
        (None, "!app", None, "c"),
        (None, "app notin (db)", None, "ac"),
        (None, {"app": "db"}, None, "b"),
        (None, None, "status.phase=Running", "ac"),
        (None, None, "status.phase!=Running", "b"),
        (None, None, "metadata.name=b", "b"),
        (None, None, "metadata.namespace=other", "c"),
        (None, None, "spec.deep.n=3", "b"),
        ("default", "app", "status.phase=Queued", "b"),
    ],
)
def test_selectors_narrow_a_list(store: Store, project: str, labels: str, fields: str, expected: str) -> None:
    page = store.read_sync(objects.list_, JOB, project, labels=labels, fields=fields)
    assert "".join(obj.name for obj in page.items) == expected


def test_indexes_follow_updates(store: Store, make_job: MakeJob) -> None:
    job = make_job("a", labels={"app": "web"}, status={"phase": "Queued"})
    job = store.write_sync(objects.update, job, labels={"app": "db"})
    store.write_sync(objects.update_status, job.uid, {"phase": "Running"})
    assert store.read_sync(objects.list_, JOB, None, labels="app=web").items == []
    assert store.read_sync(objects.list_, JOB, None, fields="status.phase=Queued").items == []
    assert len(store.read_sync(objects.list_, JOB, None, labels="app=db", fields="status.phase=Running").items) == 1


def test_a_field_longer_than_the_index_is_compared_whole(store: Store, make_job: MakeJob) -> None:
    make_job("a", status={"phase": "x" * 3000 + "1"})
    make_job("b", status={"phase": "x" * 3000 + "2"})
    page = store.read_sync(objects.list_, JOB, None, fields={"status.phase": "x" * 3000 + "2"})
    assert [obj.name for obj in page.items] == ["b"]


def test_pages_neither_repeat_nor_miss_while_others_write(store: Store, make_job: MakeJob) -> None:
    for number in range(10):
        make_job(f"job-{number}")
    seen: list[str] = []
    first = page = store.read_sync(objects.list_, JOB, "default", limit=3)
    while True:
        seen += [obj.name for obj in page.items]
        # Before the cut, after it, and the last object of the page itself.
        make_job(f"job-0{len(seen)}")
        make_job(f"zzz-{len(seen)}")
        store.write_sync(objects.delete, page.items[-1])
        if page.continue_ is None:
            break
        page = store.read_sync(objects.list_, JOB, "default", limit=3, continue_=page.continue_)
        assert page.resource_version == first.resource_version
        assert len(seen) < 30
    assert [name for name in seen if name.startswith("job-")] == [f"job-{number}" for number in range(10)]
    assert len(seen) == len(set(seen))


def test_pages_are_full_under_selectors_no_index_answers(store: Store, make_job: MakeJob) -> None:
    for number in range(30):
        make_job(f"job-{number:02}", spec={"n": number % 10})
    page = store.read_sync(objects.list_, JOB, None, fields="spec.n=7", limit=2)
    assert [obj.name for obj in page.items] == ["job-07", "job-17"]
    page = store.read_sync(objects.list_, JOB, None, fields="spec.n=7", limit=2, continue_=page.continue_)
    assert ([obj.name for obj in page.items], page.continue_) == (["job-27"], None)


def test_a_full_last_page_has_no_continue(store: Store, make_job: MakeJob) -> None:
    make_job("a")
    make_job("b")
    assert store.read_sync(objects.list_, JOB, None, limit=2).continue_ is None


def test_a_continue_token_that_is_none_is_refused(store: Store) -> None:
    for token in ("x", "bm9uZQ==", "é"):
        with pytest.raises(BadRequest, match="continue token"):
            store.read_sync(objects.list_, JOB, None, limit=2, continue_=token)


def test_a_continue_token_older_than_the_changes_is_expired(store: Store, make_job: MakeJob, clock: FakeClock) -> None:
    for name in "abc":
        make_job(name)
    page = store.read_sync(objects.list_, JOB, None, limit=1)
    make_job("d")
    clock.advance(2 * 24 * 3600)
    store.write_sync(changes.prune)
    with pytest.raises(Expired):
        store.read_sync(objects.list_, JOB, None, limit=1, continue_=page.continue_)


def test_a_list_carries_the_version_to_watch_from(store: Store, make_job: MakeJob) -> None:
    make_job("a")
    page = store.read_sync(objects.list_, JOB, None)
    make_job("b")
    found, _ = store.read_sync(changes.read_after, page.resource_version)
    assert [change.name for change in found] == ["b"]
