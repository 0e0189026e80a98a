"""A Job's status, put together from what is known of its attempts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from nodus.server import outputlists
from nodus.server.billing import costs
from nodus.server.controllers import memberspec
from nodus.server.controllers.jobslots import Slot, is_indexed, ranges
from nodus.server.controllers.outcome import EventNote
from nodus.server.outputlists import Carrier

if TYPE_CHECKING:
    from nodus.server.store.ledger import Cost
    from nodus.server.store.objects import Object

_KEPT = ("startTime", "estimate", "pinned", "topology")


def basic(job: Object, slots: Sequence[Slot], image: dict[str, str] | None, cost: Cost, new: int = 0) -> dict[str, Any]:
    """Return what stays of the status from pass to pass, brought up to date.

    Args:
        job: The Job.
        slots: Its indexes.
        image: What its image is taken to be.
        cost: What the books say of it.
        new: How many attempts are about to be created.
    """
    running = [slot.last for slot in slots if slot.phase == "Running" and slot.last is not None]
    status: dict[str, Any] = {
        "attempts": _counts(job, slots, new),
        "observedGeneration": job.generation,
        "cost": costs.to_wire(cost, job.spec.get("maxCostUSD"), running),
        **{name: job.status[name] for name in _KEPT if name in job.status},
    }
    if is_indexed(job.spec):
        done = [slot.index for slot in slots if slot.done]
        status["progress"] = {"units": {"completed": len(done), "total": len(slots)}}
        status["indexes"] = {
            "succeeded": ranges(done),
            "active": ranges([slot.index for slot in slots if slot.live]),
            "failed": ranges([slot.index for slot in slots if slot.phase in ("Failed", "Lost")]),
        }
    elif slots:
        status |= _reported(job, slots[0])
    if image is not None:
        status["image"] = image
    placed = next((slot.last for slot in slots if slot.last is not None and slot.last.status.get("placement")), None)
    if placed is not None:
        status["placement"] = placed.status["placement"]
    return status


def _reported(job: Object, slot: Slot) -> dict[str, Any]:
    """Return what the command says: how far it is, and the newest checkpoint."""
    found: dict[str, Any] = {}
    if slot.progress is not None:
        found["progress"] = slot.progress
    last, interval = slot.last, ((job.spec.get("recovery") or {}).get("checkpoint") or {}).get("interval")
    if slot.checkpoint is not None:
        found["checkpoint"] = {**slot.checkpoint, **({"interval": interval} if interval else {})}
        if last is not None and (restored := last.spec.get("restoreFrom")):
            found["checkpoint"]["restoredFromSeq"] = restored["seq"]
    return found


def _counts(job: Object, slots: Sequence[Slot], new: int) -> dict[str, int]:
    total = sum(len(slot.attempts) for slot in slots) + new
    most = (int(job.spec.get("backoffLimit") or 0) + 1) * len(slots)
    return {"current": total, "max": most, "total": total}


def carriers(job: Object, slots: Sequence[Slot]) -> Iterator[Carrier]:
    """Yield who lists the outputs of a Job: each index's newest attempt, with the index where there are several."""
    for slot in slots:
        if slot.last is not None:
            yield Carrier(slot.last.status, slot.index if is_indexed(job.spec) else None)


def outputs(job: Object, slots: Sequence[Slot]) -> dict[str, Any]:
    """Return the fields of a Job's status that tell of its outputs."""
    found = list(carriers(job, slots))
    items = (
        item if carrier.index is None else {**item, "index": carrier.index}
        for carrier in found
        for item in carrier.status.get("outputs") or ()
    )
    first, files = outputlists.shown(items), sum(carrier.files for carrier in found)
    if not first:
        return {}
    return {"outputs": first, **({"outputsTotal": {"files": files}} if files > len(first) else {})}


def missing_outputs(job: Object, slots: Sequence[Slot]) -> Iterator[EventNote]:
    """Yield a warning for each declared output that a Job which succeeded did not write."""
    for declared in job.spec.get("outputs") or []:
        path = PurePosixPath(declared["path"])
        lacking = [slot.index for slot in slots if not _has(slot, declared["name"], path)]
        if path != PurePosixPath(memberspec.OUTPUT_DIR) and lacking:
            which = f" by index {ranges(lacking)}" if is_indexed(job.spec) else ""
            yield EventNote("Warning", "OutputMissing", f"output {declared['name']!r} ({path}) was not written{which}")


def _has(slot: Slot, name: str, path: PurePosixPath) -> bool:
    status = slot.last.status if slot.last is not None else {}
    below = (PurePosixPath(item.get("path") or "/").is_relative_to(path) for item in status.get("outputs") or ())
    return outputlists.wrote(status, name, below)
