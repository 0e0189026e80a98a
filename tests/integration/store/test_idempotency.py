"""Idempotency keys."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, text

from nodus.core.clock import FakeClock
from nodus.core.errors import IdempotencyKeyReused, RequestInProgress
from nodus.server.signing import Signer
from nodus.server.store import Store, idempotency
from nodus.server.store.idempotency import Reply

REPLY = Reply(201, {"ETag": '"x"'}, b'{"kind":"Job"}')


def begin(store: Store, key: str = "k", request_hash: str = "sha256:1", scope: str = "me") -> Reply | None:
    return store.write_sync(idempotency.begin, scope, key, request_hash)


def complete(store: Store, key: str = "k") -> None:
    store.write_sync(idempotency.complete, "me", key, REPLY)


def test_the_same_request_gets_the_same_answer(store: Store) -> None:
    assert begin(store) is None
    complete(store)
    assert begin(store) == REPLY
    assert begin(store, scope="somebody else") is None


def test_another_request_with_the_key_is_refused(store: Store) -> None:
    begin(store)
    for _ in range(2):
        with pytest.raises(IdempotencyKeyReused, match="'k' was used for another request"):
            begin(store, request_hash="sha256:2")
        complete(store)


def test_a_request_that_still_runs_is_told_to_wait(store: Store) -> None:
    begin(store)
    with pytest.raises(RequestInProgress) as raised:
        begin(store)
    assert raised.value.retry_after_s == 1.0


def test_an_abandoned_request_may_be_repeated(store: Store) -> None:
    begin(store)
    store.write_sync(idempotency.abandon, "me", "k")
    assert begin(store, request_hash="sha256:2") is None


def test_abandoning_does_not_forget_an_answer(store: Store) -> None:
    begin(store)
    complete(store)
    store.write_sync(idempotency.abandon, "me", "k")
    assert begin(store) == REPLY


def test_a_dead_servers_request_is_taken_over_after_a_while(store: Store, clock: FakeClock) -> None:
    begin(store)
    clock.advance(idempotency.ABANDONED_S - 1)
    with pytest.raises(RequestInProgress):
        begin(store)
    clock.advance(1)
    assert begin(store) is None


def test_a_key_is_free_again_after_24_hours(store: Store, clock: FakeClock) -> None:
    begin(store)
    complete(store)
    clock.advance(24 * 3600 - 1)
    assert begin(store) == REPLY
    clock.advance(1)
    assert begin(store, request_hash="sha256:2") is None


def test_a_failure_in_the_same_transaction_leaves_no_record(store: Store) -> None:
    def fail(conn: Connection) -> None:
        assert idempotency.begin(conn, "me", "k", "sha256:1") is None
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        store.write_sync(fail)
    assert begin(store) is None


def test_a_reply_with_a_secret_is_not_kept_in_clear(store: Store) -> None:
    signer = Signer({1: b"k" * 32})
    secret = Reply(201, {}, b'{"status":{"key":"nodus_verysecret"}}')
    begin(store)
    store.write_sync(idempotency.complete, "me", "k", secret, sealer=signer)
    stored = store.read_sync(lambda conn: conn.execute(text("SELECT body FROM idempotency")).scalar_one())
    assert b"verysecret" not in bytes(stored)
    assert store.write_sync(idempotency.begin, "me", "k", "sha256:1", sealer=signer) == secret


def test_expired_records_are_pruned_in_batches(store: Store, clock: FakeClock) -> None:
    for number in range(5):
        begin(store, key=str(number))
    clock.advance(24 * 3600)
    begin(store, key="fresh")
    assert [store.write_sync(idempotency.prune, batch=3) for _ in range(3)] == [3, 2, 0]
    with pytest.raises(RequestInProgress):
        begin(store, key="fresh")
