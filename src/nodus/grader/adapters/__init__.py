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


def exported(module: object) -> Any:
    """Return what a module without a loader exports as its environment, as its ecosystem finds it; None where nothing.

    Raises:
        Exception: Any that making it raises.
    """
    return verifiers.found_in(module)


def refusal_of(error: BaseException) -> Refused | None:
    """Return the refusal that an environment's own exception was raised for or comes to, or None."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, Refused):
            return Refused(str(cause))
        if (explained := verifiers.explain(cause)) is not None:
            return explained
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return None


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


__all__ = [
    "CHOICES", "Adapter", "Choice", "EnvironmentFault", "Message", "Refused",
    "adapt", "exported", "prepare", "refusal_of",
]  # fmt: skip
