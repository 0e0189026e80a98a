"""What calls of the client give back beside objects, and how an object's end is told."""

from __future__ import annotations

from typing import NamedTuple

from nodus.client.views import View
from nodus.core.errors import JobFailed

TERMINAL = ("Succeeded", "Failed", "Cancelled")
"""Phases in which a run has ended."""


class Applied(NamedTuple):
    """What `Client.apply` did.

    Example::

        job, outcome = client.apply(document)
    """

    object: View
    """The object as it is now."""
    outcome: str
    """``created``, ``configured`` or ``unchanged``."""


class Plan(NamedTuple):
    """What would come of creating an object.

    Example::

        plan = client.plan(document)
        plan.object.status.estimate.cost_usd.p90  # "0.00"
        plan.blocking  # []
    """

    object: View
    """The object as it would be, with its estimate in ``status.estimate``."""
    etag: str | None
    """`Client.create` with ``if_match=plan.etag`` creates exactly this, or nothing."""

    @property
    def blocking(self) -> list[str]:
        """Why it could not start; empty when nothing is in its way."""
        status = self.object.status
        reasons = [str(reason) for reason in status.get("blockingReasons") or []]
        for reason in (status.get("estimate") or {}).get("blockingReasons") or []:
            reasons.append(str(reason.get("message") or reason.get("code")))
        for condition in status.get("conditions") or []:
            if condition.get("type") == "Blocked" and condition.get("status") == "True":
                reasons.append(str(condition.get("message") or condition.get("reason")))
        return list(dict.fromkeys(reasons))


def located(name: str, project: str | None) -> tuple[str, str | None]:
    """Return an object's name and project: ``nodus/NAME`` is one of the catalog."""
    if name.startswith("nodus/"):
        return name.removeprefix("nodus/"), "nodus"
    return name, project


def ended_otherwise(view: View, hoped_for: str = "its success") -> JobFailed:
    """Return the error for an object whose life ended in another phase than was hoped for."""
    phase, status = str(view.phase), view.status
    reason = status.get("reason") or phase
    how = f"{phase.lower()} without {hoped_for}" if phase == "Succeeded" else phase.lower()
    parts = [f"{view.name} {how}", "" if reason == phase else str(reason), str(status.get("message") or "")]
    kind = str(view.get("kind") or "job").lower()
    look = f"logs job/{view.name}" if kind in ("job", "trainingjob") else f"describe {kind}/{view.name}"
    return JobFailed(
        ": ".join(part for part in parts if part),
        fix=status.get("fix") or f"See `nodus {look}`.",
        details={"reason": reason, "phase": phase},
    )
