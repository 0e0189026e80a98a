"""Leases and nodes: one holder at a time, tokens that only grow."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, text

from nodus.core.errors import StaleLease
from nodus.server.store import Store, leases, nodes


def expire(store: Store) -> None:
    """Let every lease and node run out; the database's own clock can't be turned."""

    def past(conn: Connection) -> None:
        conn.execute(text("UPDATE leases SET expires_us = 1"))
        conn.execute(text("UPDATE nodes SET expires_us = 1"))

    store.write_sync(past)


def acquire(store: Store, owner: str, key: str = "Job/1", ttl_s: float = 60) -> int | None:
    return store.write_sync(leases.acquire, key, owner, ttl_s)


def check(store: Store, token: int, key: str = "Job/1") -> None:
    store.write_sync(leases.check, key, token)


def test_only_one_owner_gets_a_lease(store: Store) -> None:
    token = acquire(store, "a")
    assert token is not None
    assert acquire(store, "b") is None
    check(store, token)
    assert store.read_sync(leases.holder, "Job/1") == "a"
    assert acquire(store, "b", "Job/2") is not None


def test_an_expired_lease_is_taken_over_and_its_token_is_stale(store: Store) -> None:
    old = acquire(store, "a")
    expire(store)
    new = acquire(store, "b")
    assert old is not None
    assert new is not None
    assert new > old
    check(store, new)
    with pytest.raises(StaleLease, match="taken over"):
        check(store, old)
    assert not store.write_sync(leases.renew, "Job/1", old, 60)


def test_an_expired_lease_nobody_took_is_still_its_owners(store: Store) -> None:
    token = acquire(store, "a")
    assert token is not None
    expire(store)
    check(store, token)
    assert store.write_sync(leases.renew, "Job/1", token, 60)
    assert acquire(store, "b") is None


def test_the_same_owner_gets_it_again_with_a_new_token(store: Store) -> None:
    old = acquire(store, "a")
    new = acquire(store, "a")
    assert old is not None
    assert new is not None
    assert new > old
    with pytest.raises(StaleLease):
        check(store, old)


def test_a_released_lease_is_free_and_its_token_stale(store: Store) -> None:
    token = acquire(store, "a")
    assert token is not None
    assert store.write_sync(leases.release, "Job/1", token)
    assert not store.write_sync(leases.release, "Job/1", token)
    with pytest.raises(StaleLease):
        check(store, token)
    assert acquire(store, "b") is not None


def test_all_leases_of_a_dead_owner_are_given_back(store: Store) -> None:
    for key in ("Job/1", "Job/2"):
        acquire(store, "dead", key)
    acquire(store, "alive", "Job/3")
    assert store.write_sync(leases.release_owner, "dead") == 2
    assert acquire(store, "b", "Job/1") is not None
    assert acquire(store, "b", "Job/3") is None


def test_tokens_grow_over_pruning(store: Store) -> None:
    old = acquire(store, "a")
    assert old is not None
    expire(store)
    assert store.write_sync(leases.prune) == 1
    new = acquire(store, "b")
    assert new is not None
    assert new > old


def test_a_check_of_a_lease_that_never_was_is_stale(store: Store) -> None:
    with pytest.raises(StaleLease):
        check(store, 1, "Job/none")


def test_two_stores_race_for_200_leases_and_each_has_one_winner(open_store: Callable[[], Store]) -> None:
    stores = {"a": open_store(), "b": open_store()}
    rounds = 200

    def race(owner: str) -> list[int | None]:
        return [acquire(stores[owner], owner, f"Job/{number}") for number in range(rounds)]

    with ThreadPoolExecutor(2) as threads:
        ours, theirs = threads.map(race, stores)
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert (mine is None) != (other is None), f"round {number}: {mine} and {other}"


def test_one_lease_handed_to_and_fro_200_times_never_has_two_valid_tokens(open_store: Callable[[], Store]) -> None:
    stores = {"a": open_store(), "b": open_store()}
    tokens: list[int] = []

    def step(conn: Connection, owner: str) -> int | None:
        token = leases.acquire(conn, "Job/1", owner, 60)
        if token is not None:
            leases.check(conn, "Job/1", token)
            leases.release(conn, "Job/1", token)
        return token

    def race(owner: str) -> None:
        for _ in range(200):
            token = stores[owner].write_sync(step, owner)
            assert token is not None, "it was free whenever a transaction looked"
            tokens.append(token)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(race, stores))
    assert len(set(tokens)) == 400


def test_a_node_that_is_not_heard_of_is_lost(store: Store) -> None:
    for node in ("n1", "n2"):
        store.write_sync(nodes.heartbeat, node, "127.0.0.1", {"cpu": 2}, 30)
    expire(store)
    store.write_sync(nodes.heartbeat, "n2", "127.0.0.1", {"cpu": 4}, 30)
    found = store.read_sync(nodes.list_)
    assert [(node.id, node.capacity, node.alive) for node in found] == [
        ("n1", {"cpu": 2}, False),
        ("n2", {"cpu": 4}, True),
    ]
    store.write_sync(nodes.remove, "n1")
    assert [node.id for node in store.read_sync(nodes.list_)] == ["n2"]
