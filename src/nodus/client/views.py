"""Objects as the client returns them."""

from __future__ import annotations

from typing import Any

from nodus.client.record import Record, as_record

_PARTS = ("metadata", "spec", "status")


class View(Record):
    """An object of any kind, as the server sent it.

    A `Record` of the whole object, with the parts that everybody asks for at hand. It is what was read: nothing
    changes on the server until the view goes back with `Client.replace`. Its text shows kind, name and phase only.

    Example::

        job = client.get("job", "hello")
        job.phase  # "Running"
        job.spec.max_cost_usd
        job["metadata"]["uid"]
        print(job)  # <View job default/hello Running>
    """

    def __getattr__(self, name: str) -> Any:
        # A part that an object lacks reads as empty, so that `view.status.get("phase")` works for every kind.
        return Record() if name in _PARTS and name not in self else super().__getattr__(name)

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.metadata.get("name") or "")

    @property
    def project(self) -> str | None:
        """The project it lives in; None for kinds that live in none."""
        project = self.metadata.get("namespace")
        return None if project is None else str(project)

    @property
    def uid(self) -> str:
        """What tells it from another object that had its name before."""
        return str(self.metadata.get("uid") or "")

    @property
    def labels(self) -> Record:
        """Its labels; empty when it has none."""
        labels: Record = self.metadata.get("labels") or Record()
        return labels

    @property
    def phase(self) -> str | None:
        """Where it is in its life; None for kinds without a life."""
        phase = self.status.get("phase")
        return None if phase is None else str(phase)

    def __repr__(self) -> str:
        kind = str(self.get("kind") or "object").lower()
        where = f"{self.project}/{self.name}" if self.project else self.name
        return f"<View {kind} {where} {self.phase or ''}".rstrip() + ">"


def as_view(obj: Any) -> View:
    """Return an object of the wire as a View."""
    return obj if isinstance(obj, View) else View(as_record(obj))
