"""One implementation for both ways of calling."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator

import pytest

from nodus.client.blocking import (
    blocking,
    blocking_class,
    blocking_function,
    blocking_iterator,
    is_blocking,
    run_blocking,
)
from nodus.client.transport import pause


class Thing:
    """Something with each sort of call."""

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self.closed = False

    @blocking_class
    async def make(cls: type[Thing], value: int) -> Thing:
        """Make one."""
        return cls(value)

    @blocking
    async def add(self, amount: int, *, times: int = 1) -> int:
        """Add."""
        await pause(0)
        self.value += amount * times
        return self.value

    @blocking_iterator
    async def count(self, limit: int) -> AsyncGenerator[int, None]:
        """Count."""
        try:
            for number in range(limit):
                await pause(0)
                yield number
        finally:
            self.closed = True


class SubThing(Thing):
    """A constructor returns the class it is called on."""


@blocking_function
async def double(value: int) -> int:
    """Double."""
    return value * 2


def test_call_blocks() -> None:
    thing = Thing.make(3)
    assert (thing.add(2, times=2), double(4), list(thing.count(3))) == (7, 8, [0, 1, 2])


async def test_aio_awaits() -> None:
    thing = await Thing.make.aio(3)
    assert (await thing.add.aio(2), await double.aio(4)) == (5, 8)
    assert [number async for number in thing.count.aio(3)] == [0, 1, 2]


async def test_blocking_call_works_inside_a_running_loop() -> None:
    assert (Thing(1).add(1), list(Thing().count(2))) == (2, [0, 1])
    assert not is_blocking()


def test_constructor_returns_the_class_it_is_called_on() -> None:
    assert type(SubThing.make(1)) is SubThing


def test_leaving_an_iteration_early_closes_it() -> None:
    thing = Thing()
    for number in thing.count(10):
        if number == 1:
            break
    # The generator object is gone with the loop; CPython closes it at once.
    assert thing.closed


def test_blocking_mode_ends_with_the_call_and_between_items() -> None:
    numbers = Thing().count(3)
    next(numbers)
    assert not is_blocking()
    Thing().add(1)
    assert not is_blocking()


def test_foreign_await_is_refused() -> None:
    async def sleeps() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="something other than"):
        run_blocking(sleeps())


def test_error_passes_through() -> None:
    @blocking_function
    async def fail() -> None:
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        fail()
    assert not is_blocking()


def test_name_doc_and_signature_are_the_functions_own() -> None:
    assert (double.__name__, double.__doc__) == ("double", "Double.")
    assert str(inspect.signature(Thing().add)) == "(amount: 'int', *, times: 'int' = 1) -> 'int'"
