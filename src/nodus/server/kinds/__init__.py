"""Admission: the server half of a kind (defaults, validation, immutability, look-ups), and nothing else."""

from __future__ import annotations

from functools import cache
from typing import Any

from nodus.core.kinds import KINDS, Kind
from nodus.server.kinds.base import Admission, Draft


@cache
def _registry() -> dict[str, Admission[Any]]:
    """Admission by kind name. Kinds without rules of their own get the plain one."""
    from nodus.server.kinds import (
        billing,
        environment,
        identity,
        image,
        job,
        organization,
        sandbox,
        storage,
        trainingjob,
        trainingruntime,
    )

    found: dict[str, Admission[Any]] = {}
    for module in (
        organization,
        identity,
        billing,
        storage,
        environment,
        image,
        trainingruntime,
        trainingjob,
        job,
        sandbox,
    ):
        for admission in module.ADMISSIONS:
            found[admission.kind.name] = admission
    for kind in KINDS.values():
        found.setdefault(kind.name, Admission(kind))
    return found


def admission_of(kind: Kind) -> Admission[Any]:
    """The admission of a kind."""
    return _registry()[kind.name]


__all__ = ["Admission", "Draft", "admission_of"]
