"""One implementation, two calling styles.

The logic of the client is written once, as ``async def``. The decorators here turn it into an ordinary blocking call
whose ``.aio`` twin is the coroutine itself::

    class TrainingJob:
        @blocking
        async def cancel(self) -> None: ...


    run.cancel()  # blocks
    await run.cancel.aio()  # inside an event loop

A blocking call drives the coroutine by hand on the calling thread. That works because the only things the client's
logic awaits are its own input and output functions (`nodus.client.transport`), and those block instead of suspending
while `is_blocking` is true. No event loop is started, so a blocking call also works inside a running one (Jupyter),
and the command line never pays for importing asyncio.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextvars import ContextVar
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
S = TypeVar("S")

_BLOCKING: ContextVar[bool] = ContextVar("nodus_blocking", default=False)


def is_blocking() -> bool:
    """Return whether the running coroutine is driven by a blocking call, so that it must not suspend."""
    return _BLOCKING.get()


def run_blocking(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine of the client's logic to its end on this thread.

    Args:
        coroutine: One that awaits nothing but the client's own input and output.

    Raises:
        RuntimeError: When the coroutine suspends, which means it awaited something foreign.
    """
    token = _BLOCKING.set(True)
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: R = done.value
        return result
    finally:
        _BLOCKING.reset(token)
    coroutine.close()
    raise RuntimeError("client logic awaited something other than the client's own input and output")


def iterate_blocking(source: AsyncGenerator[T, None]) -> Iterator[T]:
    """Turn an async generator of the client's logic into an ordinary one; closing either closes both."""
    try:
        while True:
            try:
                # asend's awaitable has send(), which is all that run_blocking uses of a coroutine.
                item = run_blocking(source.asend(None))
            except StopAsyncIteration:
                return
            yield item
    finally:
        run_blocking(source.aclose())


class BlockingCall(Generic[P, R]):
    """A function that blocks, with the coroutine function it stands for as ``aio``."""

    def __init__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> None:
        self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", "call")
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:  # noqa: D102 - the wrapped function's is shown
        return run_blocking(self.__wrapped__(*args, **kwargs))

    def aio(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Return the coroutine, to be awaited in an event loop."""
        return self.__wrapped__(*args, **kwargs)


class BlockingIterator(Generic[P, T]):
    """A generator function that blocks between items, with the async generator function as ``aio``."""

    def __init__(self, function: Callable[P, AsyncGenerator[T, None]]) -> None:
        self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", "call")
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:  # noqa: D102 - the wrapped function's is shown
        return iterate_blocking(self.__wrapped__(*args, **kwargs))

    def aio(self, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        """Return the async iterator, for ``async for`` in an event loop."""
        return self.__wrapped__(*args, **kwargs)


class blocking(Generic[S, P, R]):
    """Decorate an ``async def`` method: calling it blocks, ``.aio`` awaits."""

    def __init__(self, method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> None:
        self.__wrapped__ = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: Any) -> blocking[S, P, R]: ...
    @overload
    def __get__(self, instance: S, owner: Any = None) -> BlockingCall[P, R]: ...
    def __get__(self, instance: S | None, owner: Any = None) -> blocking[S, P, R] | BlockingCall[P, R]:
        if instance is None:
            return self
        return BlockingCall(MethodType(self.__wrapped__, instance))


class blocking_class(Generic[P]):
    """Decorate an ``async def`` constructor, which takes the class first: calling it blocks, ``.aio`` awaits."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]]) -> None:
        self.__wrapped__ = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: object, owner: type[T]) -> BlockingCall[P, T]:
        return BlockingCall(MethodType(self.__wrapped__, owner))


class blocking_question(Generic[P, R]):
    """Decorate an ``async def`` of the class that answers something: calling it blocks, ``.aio`` awaits."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> None:
        self.__wrapped__ = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: object, owner: type) -> BlockingCall[P, R]:
        return BlockingCall(MethodType(self.__wrapped__, owner))


class blocking_iterator(Generic[S, P, T]):
    """Decorate an async generator method: iterating it blocks, ``.aio`` is for ``async for``."""

    def __init__(self, method: Callable[Concatenate[S, P], AsyncGenerator[T, None]]) -> None:
        self.__wrapped__ = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: Any) -> blocking_iterator[S, P, T]: ...
    @overload
    def __get__(self, instance: S, owner: Any = None) -> BlockingIterator[P, T]: ...
    def __get__(self, instance: S | None, owner: Any = None) -> blocking_iterator[S, P, T] | BlockingIterator[P, T]:
        if instance is None:
            return self
        return BlockingIterator(MethodType(self.__wrapped__, instance))


def blocking_function(function: Callable[P, Coroutine[Any, Any, R]]) -> BlockingCall[P, R]:
    """Decorate an ``async def`` at module level: calling it blocks, ``.aio`` awaits."""
    return BlockingCall(function)
