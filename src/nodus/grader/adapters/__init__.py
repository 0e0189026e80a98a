"""Adapters: what brings the environments of one ecosystem to the one form that the runner lists and grades.

An adapter is chosen by the names of the loaded object's classes and attributes, so that nothing heavy is imported for
an environment that doesn't use it. Each module here is a :class:`Choice`; the first one that recognises an object
adapts it. Adding an ecosystem is adding a module and its place in ``CHOICES``.
"""

from __future__ import annotations

from typing import Any, Protocol

from nodus.grader.adapters import datasets, functions, openenv, reasoning_gym, verifiers
from nodus.grader.adapters.base import Adapter, EnvironmentFault, Message, Refused


class Choice(Protocol):
    """A module of this package."""

    def recognises(self, found: object) -> bool:
        """Tell whether an object is an environment of this ecosystem; imports nothing."""
        ...

    def adapt(self, found: Any) -> Adapter:
        """Return the adapter of an object that was recognised.

        Raises:
            Refused: When it can't be graded here.
        """
        ...


CHOICES: tuple[Choice, ...] = (functions, verifiers, openenv, reasoning_gym, datasets)


def prepare() -> None:
    """Do what must be done before an environment is imported, so that it can be refused before its constructors run."""
    verifiers.prepare()


def adapt(found: object, loader: str) -> Adapter:
    """Return the adapter of a loaded environment.

    Args:
        found: What the loader gave: an object, or the module itself.
        loader: What it was asked for as, for messages.

    Raises:
        Refused: When it is of no kind that can be graded, or of a kind that can't be graded here.
        EnvironmentFault: When the environment's own code fails.
    """
    verifiers.refuse_recorded()
    for choice in CHOICES:
        if choice.recognises(found):
            return choice.adapt(found)
    raise Refused(functions.describe_unknown(found, loader))


__all__ = ["CHOICES", "Adapter", "Choice", "EnvironmentFault", "Message", "Refused", "adapt", "prepare"]
