"""``nodus top``."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import click

from nodus.cli.options import objects_argument
from nodus.cli.session import Session, connected
from nodus.cli.tables import TablePrinter
from nodus.cli.targets import Target, parse_targets
from nodus.client.resources import JsonObject
from nodus.core.sizes import size_text

COLUMNS = ("NAME", "GPU", "GPU MEM", "CPU", "MEMORY", "$/H", "SPEND")
NOTHING = "-"


@click.command()
@objects_argument("[KIND [NAME]]", required=False)
@click.option("--no-headers", is_flag=True, help="Leave out the header line.")
@connected()
def command(session: Session, what: tuple[str, ...], no_headers: bool) -> None:
    """Show what runs use right now: CPU, memory, GPU and money. Without a kind, of jobs.

    CPU is in thousandths of a core; a TrainingJob uses what the Job of its name uses.

    \b
    Examples:
      nodus top jobs
      nodus top sandbox dev
    """
    targets = parse_targets(session, what or ("jobs",))
    kinds = {target.kind.kind for target in targets}
    if len(kinds) != 1:
        raise click.UsageError("name one kind, such as `nodus top jobs`.")
    rows = [row for target in targets for row in _rows(session, target)]
    printer = TablePrinter(headers=not no_headers)
    if not rows:
        click.echo(f"No {targets[0].kind.plural} run right now.", err=True)
        return
    definitions = [{"name": name} for name in COLUMNS]
    for line in printer.lines({"columnDefinitions": definitions, "rows": [{"cells": row} for row in rows]}):
        print(line)


def _rows(session: Session, target: Target) -> list[list[str]]:
    project = target.project or session.project
    if target.name is None:
        objects = session.run(session.resources.list(target.kind, project=project))
        objects = [obj for obj in objects if (obj.get("status") or {}).get("phase") in ("Running", "Recovering")]
    else:
        objects = [session.run(session.get(target.kind, target.name, project=project))]
    if not objects:
        return []
    # The Job that a TrainingJob makes has its name, and is what runs.
    kind = "Job" if target.kind.kind == "TrainingJob" else target.kind.kind
    used = _Usage(session, project, kind, target.name)
    return [used.row(obj) for obj in objects]


class _Usage:
    """The series of a kind's objects, by name."""

    def __init__(self, session: Session, project: str, kind: str, name: str | None) -> None:
        self._session, self._path = session, f"/metrics/v1/namespaces/{project}/api/v1/query"
        self._labels = f'kind="{kind}"' + (f',name="{name}"' if name else "")
        self.gpu = self._series("avg", "nodus_container_gpu_utilization_percent")
        self.gpu_memory = self._series("sum", "nodus_container_gpu_memory_bytes")
        self.cpu = self._series("sum", "nodus_container_cpu_millis")
        self.memory = self._series("sum", "nodus_container_memory_bytes")

    def _series(self, function: str, series: str) -> dict[str, float]:
        query = f"{function} by (name) ({series}{{{self._labels}}})"
        answer: Any = self._session.run(
            self._session.api.call(
                "POST",
                self._path,
                body=urlencode({"query": query, "timeout": "10s"}).encode(),
                headers={"Content-Type": "application/x-www-form-urlencoded"},
            )
        )
        result = (answer.get("data") or {}).get("result") or []
        return {str(item["metric"].get("name")): float(item["value"][1]) for item in result}

    def row(self, obj: JsonObject) -> list[str]:
        """Return the cells of an object; a dash where nothing is measured."""
        name = str(obj["metadata"]["name"])
        cost = (obj.get("status") or {}).get("cost") or {}
        gpu, cpu = self.gpu.get(name), self.cpu.get(name)
        return [
            name,
            NOTHING if gpu is None else f"{gpu:.0f}%",
            _size(self.gpu_memory.get(name)),
            NOTHING if cpu is None else f"{cpu:.0f}m",
            _size(self.memory.get(name)),
            NOTHING if cost.get("rateUSDPerHour") is None else f"${cost['rateUSDPerHour']}",
            NOTHING if cost.get("totalUSD") is None else f"${cost['totalUSD']}",
        ]


def _size(value: float | None) -> str:
    return NOTHING if value is None else size_text(int(value))
