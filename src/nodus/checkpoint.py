"""Checkpoints of a run: be asked for one before the run is suspended, or save one unasked.

Save into ``nodus.state_dir()``, which is there again in the next attempt, whole files or none (write, then rename).
Nodus never restores a process: a program that begins with ``nodus.restored()`` loads what it saved. Outside of a run
nothing happens.

Example::

    nodus.checkpoint.subscribe()
    for step in range(start, steps):
        train(step)
        if nodus.checkpoint.requested():
            save(nodus.state_dir() / "state.pt")
            nodus.checkpoint.ack()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nodus.runtime.sending import in_nodus
from nodus.runtime.subscription import Subscription
from nodus.runtime.supervisor import call

__all__ = ["ack", "commit", "on_request", "pending_request", "requested", "subscribe"]

_subscription = Subscription()


def subscribe() -> None:
    """Listen for requests without a callback: ask :func:`requested` where it is safe to save, then :func:`ack`."""
    _subscription.listen()


def on_request(callback: Callable[[], None]) -> None:
    """Call ``callback`` on a thread whenever a checkpoint is asked for; when it returns, the checkpoint is saved.

    One that raises has saved nothing: the error goes to stderr, and the program goes on.
    """
    _subscription.listen(callback)


def requested() -> bool:
    """Tell whether a checkpoint is asked for that :func:`ack` has not answered."""
    return _subscription.pending is not None


def pending_request() -> str | None:
    """Return the id of the request that :func:`requested` tells of: take it before saving, and give it to :func:`ack`.

    A request that comes while the program saves stays pending that way.
    """
    return _subscription.pending


def ack(seq: str | None = None) -> None:
    """Say that the files of a checkpoint are complete.

    Args:
        seq: The request that is answered; the newest when left out.
    """
    _subscription.answer(seq)


def commit() -> dict[str, Any]:
    """Say, unasked, that what is in the state directory now is a checkpoint.

    Returns:
        Its ``seq``, ``time`` and ``size`` in bytes, as in ``status.checkpoint``; empty outside of a run.

    Raises:
        nodus.errors.TooManyRequests: More than two a second.
        nodus.errors.Unsupported: The run keeps no state (``recovery.continuity: Restartable``).
    """
    return call("POST", "/_nodus/v1/checkpoints", {}) if in_nodus() else {}
