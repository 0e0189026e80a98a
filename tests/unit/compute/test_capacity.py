"""Who gets which part of the machine."""

from __future__ import annotations

import pytest

from nodus.server.compute.local.capacity import Machine, Share, Shares

GIB = 1 << 30


@pytest.fixture
def shares() -> Shares:
    return Shares(Machine((0, 1, 2, 3), 8 * GIB, ("/dev/nvidia0",)))


def test_parts_are_given_until_none_is_left_and_come_back(shares: Shares) -> None:
    assert shares.take("a", 3, GIB) is None
    assert shares.take("b", 2, GIB) == "waiting for 2 CPUs; 1 of 4 are free"
    assert shares.take("b", 1, 8 * GIB) == "waiting for 8 GiB of memory; 7 GiB are free"
    assert shares.give_back("a")
    assert shares.take("b", 2, GIB) is None
    assert not shares.give_back("a")


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ((5, GIB, 0), "it asks for 5 CPUs and this machine has 4 for runs"),
        ((1, 9 * GIB, 0), "it asks for 9 GiB of memory and this machine has 8 GiB"),
        ((1, GIB, 2), "it asks for 2 GPUs and this machine has 1"),
    ],
)
def test_what_never_fits_is_told_apart(shares: Shares, request_: tuple[float, int, int], problem: str) -> None:
    assert shares.take("a", *request_) == problem


def test_same_key_is_given_once(shares: Shares) -> None:
    for _ in range(3):
        assert shares.take("a", 4, GIB) is None
    assert shares.capacity().free_cpu == 0


def test_members_get_cores_of_their_own_while_there_are_some(shares: Shares) -> None:
    for key in ("a", "b", "c"):
        shares.take(key, 1, GIB)
    shares.take("d", 0.5, GIB)
    shares.take("e", 0.5, GIB)
    cores = [share.cores for key in "abcde" if (share := shares.of(key)) is not None]
    assert cores == [(0,), (1,), (2,), (3,), (3,)]


def test_gpus_are_given_one_by_one(shares: Shares) -> None:
    assert shares.take("a", 1, GIB, 1) is None
    assert shares.take("b", 1, GIB, 1) == "waiting for 1 GPU; 0 of 1 are free"
    assert getattr(shares.of("a"), "gpus", None) == ("/dev/nvidia0",)


def test_what_ran_before_a_restart_counts(shares: Shares) -> None:
    shares.restore("a", Share(4, GIB, (0, 1, 2, 3)))
    assert shares.take("b", 1, GIB) == "waiting for 1 CPU; 0 of 4 are free"


def test_this_machine_keeps_a_share_for_graders_and_the_server() -> None:
    here = Machine.this_one()
    assert here.cores
    assert here.memory_bytes > 0
