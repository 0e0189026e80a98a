"""Everything a TrainingJob's spec comes to, with every mistake in it: the one path from a spec to a compiled Job.

Admission calls it to refuse or to preview, the controller to create the Job; reads the store, writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nodus.core.errors import Cause
from nodus.core.kinds import SECRET, VOLUME
from nodus.core.sizes import quantity
from nodus.server import accelerators
from nodus.server.store import objects, volumes
from nodus.server.training import compile as compiler
from nodus.server.training import lookups, parameters, rules
from nodus.server.training.compile import Compiled, EnvironmentPin, ModelPin, RuntimePin
from nodus.server.training.references import BadReference, HubModel, LibraryModel, parse_model
from nodus.server.training.resources import Chosen, Notice, choose

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.training.models import Pin

INVALID, REQUIRED, UNSUPPORTED = "FieldValueInvalid", "FieldValueRequired", "FieldValueNotSupported"


@dataclass(slots=True)
class Plan:
    """A spec with its references resolved. With causes, only what could be resolved is there."""

    causes: list[Cause] = field(default_factory=list)
    warnings: list[Notice] = field(default_factory=list)
    blocking: list[Notice] = field(default_factory=list)
    runtime: RuntimePin | None = None
    environment: EnvironmentPin | None = None
    model: ModelPin | None = None
    chosen: Chosen | None = None
    compiled: Compiled | None = None

    def reject(self, path: str, message: str, reason: str = INVALID) -> None:
        """Note a mistake."""
        self.causes.append(Cause(path, reason, message))


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a plan takes beside the store."""

    name: str
    """The TrainingJob's name, or the prefix its name is generated from."""
    project: str
    spec: Mapping[str, Any]
    pin: Pin | None = None
    """The model of `spec.model.uri`, pinned; None where it could not be, or there is none."""
    model: ModelPin | None = None
    """The model once it is imported; wins over `pin`."""
    splits: Mapping[str, int] | None = None
    """Sizes of the splits after `taskFilter`, where they were counted."""
    environment_digest: str | None = None
    """Digest of the environment version, where it is not the newest, whose status has it."""


def make_plan(conn: Connection, inputs: Inputs) -> Plan:
    """Resolve and check a TrainingJob's spec.

    Args:
        conn: a transaction, read-only here.
        inputs: the decoded spec and what was looked up outside of the store.
    """
    plan = Plan()
    spec = inputs.spec
    try:
        plan.runtime = lookups.runtime(conn, inputs.project, str(spec.get("runtime")))
    except BadReference as error:
        plan.reject("spec.runtime", str(error))
    _resolve_environment(conn, plan, inputs)
    _resolve_model(conn, plan, inputs)
    _check_unsupported(plan, spec)
    plan.causes.extend(rules.evaluation_causes(spec))
    plan.causes.extend(rules.duration_causes(spec))
    if plan.runtime is not None:
        _check_against_runtime(conn, plan, inputs, plan.runtime)
    if not plan.causes and plan.runtime is not None and plan.chosen is not None:
        plan.compiled = compiler.compile_job(
            name=inputs.name,
            project=inputs.project,
            spec=spec,
            runtime=plan.runtime,
            environment=plan.environment,
            model=plan.model,
            chosen=plan.chosen,
        )
        _add_warnings(plan)
    return plan


def _resolve_environment(conn: Connection, plan: Plan, inputs: Inputs) -> None:
    text = parameters.lookup(inputs.spec, "environment.name")
    if not isinstance(text, str):
        return
    try:
        found = lookups.environment(conn, inputs.project, text)
    except BadReference as error:
        plan.reject("spec.environment.name", str(error))
        return
    status = found.object.status if found.current else {}
    if found.current and status.get("phase") != "Ready":
        state = status.get("phase") or "Pending"
        detail = status.get("message") or "wait until it is Ready"
        plan.reject("spec.environment.name", f"Environment {found.ref} is {state}: {detail}")
    if inputs.spec.get("mode", "Train") not in (found.spec.get("modes") or ["Train", "Evaluate"]):
        modes = " and ".join(found.spec["modes"])
        plan.reject("spec.environment.name", f"{found.ref} is for {modes} only")
    declared = found.spec.get("splits") or {}
    sizes = {split: int(declared[split]["size"]) for split in ("train", "test") if declared.get(split)}
    sizes |= {split: int(size) for split, size in (status.get("splits") or {}).items()}
    filtered = inputs.splits is not None
    sizes |= dict(inputs.splits or {})
    plan.environment = EnvironmentPin(
        name=str(found.ref.object),
        version=found.ref.version,
        digest=str(status.get("digest") or inputs.environment_digest or ""),
        graders=tuple(found.spec.get("graders") or ()),
        train_size=sizes.get("train"),
        test_size=sizes.get("test"),
        episodes=status.get("episodes"),
    )
    wanted = inputs.spec["environment"]
    counts = {name: wanted.get(name) for name in ("trainTasks", "heldOutTasks")}
    plan.causes.extend(rules.count_causes(counts, sizes, filtered))


def _resolve_model(conn: Connection, plan: Plan, inputs: Inputs) -> None:
    source = inputs.spec.get("model")
    if not isinstance(source, Mapping):
        return
    if inputs.model is not None:
        plan.model = inputs.model
        return
    uri, volume = source.get("uri"), source.get("volume")
    if (uri is None) == (volume is None):
        plan.reject("spec.model", "name either uri or volume", REQUIRED if uri is None else INVALID)
        return
    secret = source.get("secret")
    if secret and objects.find(conn, SECRET, inputs.project, secret) is None:
        plan.reject("spec.model.secret", f"no Secret {secret!r} in project {inputs.project}")
    if isinstance(volume, Mapping):
        plan.model = _volume_model(conn, plan, inputs.project, volume)
        return
    try:
        ref: HubModel | LibraryModel = parse_model(str(uri))
    except BadReference as error:
        plan.reject("spec.model.uri", str(error))
        return
    pin = inputs.pin
    if pin is not None:
        plan.model = ModelPin(uri=str(uri), revision=pin.revision, repo=pin.repo, volume=pin.volume)
    elif isinstance(ref, HubModel):
        plan.model = ModelPin(uri=str(uri), revision=ref.revision or "", repo=ref.repo)


def _volume_model(conn: Connection, plan: Plan, project: str, source: Mapping[str, Any]) -> ModelPin | None:
    name = str(source.get("name"))
    found = objects.find(conn, VOLUME, project, name)
    if found is None:
        plan.reject("spec.model.volume.name", f"no Volume {name!r} in project {project}")
        return None
    newest = int(found.status.get("revision") or 0)
    if found.status.get("phase") != "Ready" or not newest:
        state = "is empty" if found.status.get("phase") == "Ready" else f"is {found.status.get('phase') or 'Pending'}"
        plan.reject("spec.model.volume.name", f"Volume {name!r} {state}; upload the model and wait until it is Ready")
        return None
    revision = int(source.get("revision") or newest)
    if revision > newest:
        plan.reject("spec.model.volume.revision", f"Volume {name!r} has no revision {revision}; the newest is {newest}")
        return None
    names = {entry.path for entry in volumes.tree(conn, found.uid, revision)}
    if "config.json" not in names:
        plan.reject("spec.model.volume.name", f"revision {revision} of Volume {name!r} has no config.json: no model")
        return None
    digest = found.status.get("digest") if revision == newest else None
    return ModelPin(
        uri=f"volume://{name}@{revision}", revision=str(revision), volume=name, volume_revision=revision, digest=digest
    )


def _check_against_runtime(conn: Connection, plan: Plan, inputs: Inputs, runtime: RuntimePin) -> None:
    spec = inputs.spec
    _check_mode_and_inputs(plan, spec, runtime)
    task = str(spec.get("task") or runtime.spec.get("task"))
    plan.causes.extend(rules.node_causes(spec, runtime.name, task))
    faults = parameters.check(runtime.spec, spec.get("parameters"))
    plan.causes.extend(faults)
    given = dict(spec.get("resources") or {})
    for name in ("cpu", "memory"):
        if name in given and not _is_amount(given[name]):
            words = "is no positive amount; write it like " + ("2 or 500m" if name == "cpu" else "16Gi")
            plan.reject(f"spec.resources.{name}", f"{given.pop(name)!r} {words}")
    method = _method(runtime, spec)
    plan.chosen = choose(
        runtime.spec,
        given=given,
        model=plan.model.repo if plan.model else "",
        method=method,
        shapes=lookups.shapes(conn),
        canonical=_family,
    )
    for unknown in plan.chosen.unknown_types:
        plan.reject("spec.resources.gpu.type", unknown)
    if faults:
        return
    merged = parameters.merge(runtime.spec, spec.get("parameters"))
    plan.causes.extend(rules.device_causes(merged, plan.chosen.gpus))
    plan.causes.extend(rules.length_causes(merged))
    if spec.get("mode", "Train") != "Train":
        return
    devices = max(1, plan.chosen.gpus)
    plan.causes.extend(rules.training_causes(merged))
    batches = list(rules.batch_causes(merged, devices))
    plan.causes.extend(batches or rules.prompt_causes(merged, devices, compiler.train_tasks(spec, plan.environment)))


def _family(spelling: str) -> str:
    return accelerators.find(spelling).family


def _is_amount(value: Any) -> bool:
    try:
        return quantity(value) > 0
    except ValueError:
        return False


def _check_mode_and_inputs(plan: Plan, spec: Mapping[str, Any], runtime: RuntimePin) -> None:
    mode, modes = spec.get("mode", "Train"), runtime.spec.get("modes") or ["Train"]
    if mode not in modes:
        plan.reject("spec.mode", f"{runtime.name} runs in mode {' and '.join(modes)}, not {mode}", UNSUPPORTED)
    task, own = spec.get("task"), runtime.spec.get("task")
    if task is not None and task != own and (own, task) != ("SFT", "Pretrain"):
        plan.reject("spec.task", f"{runtime.name} does {own}, not {task}", UNSUPPORTED)
    requires = {"model": True} | dict(runtime.spec.get("requires") or {})
    for name in ("model", "data", "environment", "teacher"):
        given = spec.get(name) is not None
        if requires.get(name) and not given:
            plan.reject(f"spec.{name}", f"{runtime.name} needs it", REQUIRED)
        if not requires.get(name) and given:
            plan.reject(f"spec.{name}", f"{runtime.name} takes none", UNSUPPORTED)
    if spec.get("environment") is not None and runtime.spec.get("environmentTasks") != "AttemptAPI":
        plan.reject("spec.runtime", f"{runtime.name} does not fetch tasks through the attempt API", UNSUPPORTED)


def _check_unsupported(plan: Plan, spec: Mapping[str, Any]) -> None:
    """Refuse what is declared and not built yet: never accepted and then ignored."""
    for name, words in (
        ("exportTo", "export to a Volume is not available yet; download the outputs with nodus cp"),
        ("tracking", "tracking servers are not available yet; nodus shows stages and metrics itself"),
    ):
        if spec.get(name) is not None:
            plan.reject(f"spec.{name}", words, UNSUPPORTED)


def _method(runtime: RuntimePin, spec: Mapping[str, Any]) -> str:
    given = parameters.lookup(spec, "parameters.method")
    if isinstance(given, str):
        return given
    return str(parameters.defaults_of(runtime.spec).get("method", "Full"))


def _add_warnings(plan: Plan) -> None:
    if plan.chosen is not None:
        plan.warnings.extend(plan.chosen.warnings)
        plan.blocking.extend(plan.chosen.blocking)
    params = plan.compiled.params if plan.compiled else {}
    evaluation, environment = params.get("evaluation") or {}, params.get("environment") or {}
    tasks, minimum = environment.get("heldOutTasks") or 0, evaluation.get("minComparisonTasks") or 0
    if evaluation.get("baseline") and evaluation.get("final") and tasks < minimum:
        plan.warnings.append(
            Notice(
                "TooFewTasks",
                f"{tasks} held-out tasks: a comparison needs {minimum}, so the change will not be comparable",
                "raise environment.heldOutTasks",
            )
        )
    turns = parameters.lookup(params, "parameters.maxTurns") or 1
    if plan.environment is not None and plan.environment.episodes and turns == 1:
        message = f"{plan.environment.name} answers the model's replies, but with maxTurns 1 the first alone is graded"
        plan.warnings.append(Notice("FirstReplyOnly", message, "set parameters.maxTurns"))
