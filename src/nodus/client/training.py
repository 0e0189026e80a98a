"""TrainingJob: start a run, follow it, read what it scored, fetch what it made."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nodus.client.blocking import blocking, blocking_class, blocking_iterator, blocking_question
from nodus.client.client import Client, default_client
from nodus.client.dollars import usd
from nodus.client.handles import Run, started
from nodus.client.http import new_key
from nodus.client.outcomes import Plan
from nodus.client.outputs import Outputs
from nodus.client.record import Record, as_record
from nodus.client.resources import JsonObject
from nodus.client.transport import pause
from nodus.core.errors import NodusError, NotFound

MAX_EXAMPLE_TRAIN_TASKS = 512
PAGE = 500


@dataclass(frozen=True, slots=True)
class Update:
    """Something new about a run."""

    type: Literal["Stage", "Metrics", "Scores", "End"]
    """A stage began; a step was made; held-out tasks were scored; the run ended."""
    stage: str = ""
    """CachingModel, Baseline, Training, Evaluating, or the phase where no stage is known."""
    message: str = ""
    """Why it waits, or why it ended."""
    metrics: Record = field(default_factory=Record)
    """With Metrics: step, totalSteps, reward, loss, kl and more. With Scores: the summary so far."""


class TrainingJob(Run):
    """One training run.

    Example::

        run = nodus.TrainingJob.from_example("nodus/graph-coloring@1.0.0")
        run.watch()
        print(run.summary.comparison.change_pp)
        run.outputs.download("./outputs")
    """

    kind = "TrainingJob"

    # ------------------------------------------------------------------------------------------------ starting
    @blocking_class
    async def create(
        cls: type[TrainingJob],
        spec: Mapping[str, Any],
        *,
        name: str | None = None,
        generate_name: str = "run-",
        labels: Mapping[str, str] | None = None,
        project: str | None = None,
        client: Client | None = None,
    ) -> TrainingJob:
        """Plan a run and start exactly what was planned.

        Args:
            spec: As in a manifest: runtime, model, environment, parameters, ...
            name: The run's name, which stands for one run: with the same spec as one that is there, that one is
                returned, with a warning. The server makes a name from ``generate_name`` when None.
            generate_name: Beginning of a made name.
            labels: Labels to find it by.
            project: Another project than the client's own.
            client: Another server than the configured one.

        Raises:
            Invalid: With every mistake of the spec in ``causes``.
            Conflict: When the plan is blocked, such as by a GPU type that is not there.
        """
        client = client or default_client()
        document = _document(spec, {"name": name} if name else {"generateName": generate_name}, labels)
        plan = await client.plan.aio(document, project=project)
        _refuse_blocked(plan)
        made = await client.resources.create_or_find(
            document, project=project, if_match=plan.etag, idempotency_key=new_key("trainingjob")
        )
        return TrainingJob(started(made), client)

    @blocking_question
    async def preview(
        cls: type[TrainingJob],
        spec: Mapping[str, Any],
        *,
        labels: Mapping[str, str] | None = None,
        project: str | None = None,
        client: Client | None = None,
    ) -> Plan:
        """Return what a run would take, and start nothing.

        Example::

            plan = nodus.TrainingJob.preview({"runtime": "nodus/grpo-lora", "model": {...}, "environment": {...}})
            print(plan.object.status.estimate.cost_usd, plan.object.status.estimate.duration)
            print(plan.blocking)  # why it could not start; [] when nothing is in its way

        Args:
            spec: As in a manifest.
            labels: Those it would have; Budgets may count it by them.
            project: Another project than the client's own.
            client: Another server than the configured one.

        Raises:
            Invalid: With every mistake of the spec in ``causes``.
        """
        client = client or default_client()
        return await client.plan.aio(_document(spec, {"generateName": "run-"}, labels), project=project)

    @blocking_class
    async def from_example(
        cls: type[TrainingJob],
        reference: str,
        *,
        name: str | None = None,
        max_cost: float | str | None = None,
        project: str | None = None,
        client: Client | None = None,
    ) -> TrainingJob:
        """Start a run from a catalog Environment's example.

        Args:
            reference: ``nodus/NAME[@VERSION][:EXAMPLE]``; the example may be left out where there is one only.
            name: The run's name.
            max_cost: Cap in dollars.
            project: Where the run goes.
            client: Another server than the configured one.

        Raises:
            NotFound: When the environment, the version or the example does not exist; names those that do.
        """
        client = client or default_client()
        where, wanted = _parse_example(reference)
        environment = await client.resources.get("Environment", where.name, project=where.project or project)
        example = _find_example(environment, where, wanted)
        label = f"{where.name}.{example['name']}"
        spec = _example_spec(environment, where, example) | {"maxCostUSD": usd(max_cost)}
        return await TrainingJob.create.aio(
            spec,
            name=name,
            generate_name=f"{where.name}-",
            labels={"example.nodus.dev/name": label},
            project=project,
            client=client,
        )

    # ------------------------------------------------------------------------------------------------ following
    @blocking_iterator
    async def updates(self, every: float = 2.0) -> AsyncGenerator[Update, None]:
        """Yield what happens from now on, starting with what has happened: stages, scores, every step's metrics.

        Ends when the run does, also when it failed; `raise_if_failed` tells.

        Args:
            every: Seconds between looks.
        """
        last_stage, last_scores = ("", ""), Record()
        cursor = _Cursor(self, "Metrics")
        while True:
            await self.refresh.aio()
            stage = str((self.status.get("progress") or {}).get("stage") or self.phase or "Queued")
            shown = (stage, "" if self.status.get("progress") else str(self.status.get("message") or ""))
            new_stage = not self.done and shown != last_stage
            last_stage = shown
            if new_stage and stage == "Training":
                yield Update("Stage", stage, shown[1])
            if self.status.get("job"):
                async for event in cursor.fresh():
                    yield Update("Metrics", stage, metrics=event)
            # Steps that were made before this stage began come before it.
            if new_stage and stage != "Training":
                yield Update("Stage", stage, shown[1])
            scores = Record(self.status.get("summary") or {})
            if scores != last_scores:
                last_scores = scores
                yield Update("Scores", stage, metrics=scores)
            if self.done:
                yield Update("End", str(self.phase), str(self.status.get("message") or ""))
                return
            await pause(every)

    @blocking
    async def watch(self, every: float = 2.0) -> TrainingJob:
        """Show the run until it ends: each stage, then reward, loss and KL of every step, then the comparison.

        On a terminal a live table; elsewhere a line for each.

        Args:
            every: Seconds between looks.

        Raises:
            JobFailed: When the run did not succeed.
        """
        from nodus.client.following import display_for

        with display_for(self) as view:
            async for update in self.updates.aio(every=every):
                view.show(update)
        self.raise_if_failed()
        return self

    # -------------------------------------------------------------------------------------------------- results
    @blocking
    async def tasks(self, phase: str | None = None, outcome: str | None = None) -> list[Record]:
        """Return the graded tasks so far.

        Args:
            phase: ``Baseline``, ``Training`` or ``Evaluation``; all when None.
            outcome: ``Passed``, ``Failed`` or ``Error``; all when None.

        Returns:
            Records with ``task_id``, ``phase``, ``step``, ``sample``, ``outcome``, ``verdict``, ``reward`` and, where
            it was kept, ``completion``.
        """
        cursor = _Cursor(self, "Task", phase=phase)
        return [event async for event in cursor.fresh() if outcome is None or event.get("outcome") == outcome]

    @blocking
    async def prompts(self, split: str = "test") -> dict[str, Any]:
        """Return the run's prompts by task id; answers stay on the server.

        Args:
            split: ``test`` for the held-out tasks, ``train`` for those it trains on.
        """
        found = await self.client.api.call("POST", await self._path("tasks"), body={}, idempotency_key=new_key("tasks"))
        lines = [json.loads(line) for line in found["files"].get(f"{split}.jsonl", "").split("\n") if line]
        return {str(task["taskId"]): task["prompt"] for task in lines}

    @blocking
    async def metrics(self) -> list[Record]:
        """Return the metrics of every step so far, the newest attempt's where a step was made twice."""
        cursor = _Cursor(self, "Metrics")
        by_step: dict[int, Record] = {}
        async for event in cursor.fresh():
            by_step[int(event["step"])] = event
        return [by_step[step] for step in sorted(by_step)]

    @property
    def summary(self) -> Record:
        """Scores before and after, and their comparison, as last read; empty before there are any."""
        return Record(self.status.get("summary") or {})

    @property
    def outputs(self) -> Outputs:
        """The files the run wrote."""
        path = f"/apis/nodus.dev/v1beta1/namespaces/{self.project}/trainingjobs/{self.name}/outputs"
        return Outputs(self.client.api, path, f"training job {self.name!r}")


class _Cursor:
    """Reads task events in order, each once."""

    def __init__(self, run: TrainingJob, event_type: str, phase: str | None = None) -> None:
        self._run, self._after = run, None
        self._query: dict[str, object] = {"eventType": event_type, "limit": PAGE, "phase": phase}
        self._seen: set[tuple[str, str]] = set()

    async def fresh(self) -> AsyncGenerator[Record, None]:
        path = await self._run._path("taskevents")
        while True:
            page = await self._run.client.api.call("GET", path, query=self._query | {"after": self._after})
            for event in page.get("items") or []:
                key = (str(event.get("attempt")), str(event.get("id")))
                if key not in self._seen:
                    self._seen.add(key)
                    yield as_record(event)
            if not page.get("continue"):
                # The last page has no token: it is read again next time, and `_seen` drops what was known.
                return
            self._after = page["continue"]


def _document(spec: Mapping[str, Any], metadata: Mapping[str, Any], labels: Mapping[str, str] | None) -> JsonObject:
    return {
        "apiVersion": "nodus.dev/v1beta1",
        "kind": "TrainingJob",
        "metadata": {**metadata, "labels": dict(labels)} if labels else dict(metadata),
        "spec": {key: value for key, value in spec.items() if value is not None},
    }


def _refuse_blocked(plan: Plan) -> None:
    """Raise when the plan says that the run could not start."""
    if plan.blocking:
        raise NodusError(
            f"the run could not start here: {'; '.join(plan.blocking)}",
            fix="Change the request, or create it with `nodus apply` to have it wait in the queue.",
        )


@dataclass(frozen=True, slots=True)
class _Where:
    project: str | None
    name: str
    version: str | None


def _parse_example(reference: str) -> tuple[_Where, str | None]:
    path, _, example = reference.partition(":")
    catalog = path.startswith("nodus/")
    name, _, version = path.removeprefix("nodus/").partition("@")
    if not name or "/" in name:
        raise NodusError(f"{reference!r} names no example", fix="Write it like nodus/graph-coloring@1.0.0:EXAMPLE.")
    return _Where("nodus" if catalog else None, name, version or None), example or None


def _find_example(environment: JsonObject, where: _Where, wanted: str | None) -> JsonObject:
    spec = environment.get("spec") or {}
    if where.version is not None and where.version != spec.get("version"):
        raise NotFound(
            f"environment {where.name!r} has version {spec.get('version')}, not {where.version}",
            fix=f"Use {where.name}@{spec.get('version')}.",
        )
    examples: list[JsonObject] = list(spec.get("examples") or [])
    names = ", ".join(str(example["name"]) for example in examples) or "none"
    matching = [example for example in examples if wanted is None or example["name"] == wanted]
    if not matching:
        raise NotFound(
            f"environment {where.name!r} has no example {wanted or 'at all'!r}", fix=f"Its examples: {names}."
        )
    if len(matching) > 1:
        raise NodusError(
            f"environment {where.name!r} has several examples: {names}",
            fix=f"Add :EXAMPLE, as in {where.name}:{matching[0]['name']}.",
        )
    return matching[0]


def _example_spec(environment: JsonObject, where: _Where, example: JsonObject) -> JsonObject:
    spec = environment["spec"]
    splits = (environment.get("status") or {}).get("splits") or {}
    declared = ((spec.get("splits") or {}).get("train") or {}).get("size")
    train = min(MAX_EXAMPLE_TRAIN_TASKS, int(declared or splits.get("train") or MAX_EXAMPLE_TRAIN_TASKS))
    mode = example.get("mode") or "Train"
    reference = f"{'nodus/' if where.project == 'nodus' else ''}{where.name}@{spec['version']}"
    tasks: JsonObject = {"name": reference, "heldOutTasks": example.get("tasks"), "seed": 42}
    if mode == "Train":
        tasks["trainTasks"] = train
    return {
        "runtime": example["runtime"],
        "mode": mode,
        "model": example["model"],
        "environment": {key: value for key, value in tasks.items() if value is not None},
        "parameters": dict(example.get("parameters") or {}),
    }
