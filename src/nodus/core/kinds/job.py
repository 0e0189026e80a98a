"""Job: a command run to completion in a sandbox, with retries as Attempts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from nodus.core.kinds.base import AGE, NAME, PHASE, RUN_PHASES, USD, Column, Duration, Kind, Model, RunState, dollars
from nodus.core.kinds.resources import (
    Cost,
    Distributed,
    EnvVar,
    Network,
    OutputFile,
    OutputPath,
    OutputsTotal,
    Placement,
    Resources,
    RunStatus,
    SecretReference,
    VolumeMount,
)


class GitSource(Model):
    """Source from a git repository."""

    repo: str = Field(min_length=1, max_length=2000)
    """Clone URL; https."""
    ref: str | None = Field(default=None, min_length=1, max_length=250)
    """Branch, tag or commit; the default branch when unset. Pinned to its commit at admission."""
    path: str | None = Field(default=None, min_length=1, max_length=500)
    """Directory inside the repository; the whole when unset."""


class Source(Model):
    """Files unpacked into the working directory before the command starts."""

    blob: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$")
    """A tar.gz blob."""
    git: GitSource | None = None
    """A git repository."""


class Input(Model):
    """A blob that the command finds as a read-only file."""

    name: str | None = None
    """What it is called in messages."""
    path: str = Field(pattern=r"^/")
    """Absolute path of the file in the run."""
    blob: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    """An uploaded blob of the project."""


class CheckpointPolicy(Model):
    """What is saved of a run, and how often."""

    paths: list[str] = Field(default_factory=list, max_length=16)
    """Directories that hold the state, kept from attempt to attempt; ``/nodus/state`` always is."""
    interval: Duration | None = None
    """How often the command is asked to save, if it subscribed to that; see ``nodus.checkpoint``."""
    format: str | None = None
    """Name of the checkpoint format, as ``NODUS_CHECKPOINT_FORMAT``."""


class Recovery(Model):
    """How a run goes on after its machine is lost."""

    continuity: Literal["Checkpointed", "Restartable", "Ephemeral"] | None = None
    """Checkpointed (unless set) goes on with its state, Restartable begins anew, Ephemeral fails."""
    max_attempts: int | None = Field(default=None, ge=1, le=100)
    """Restarts after a loss, for each index; 10 when unset."""
    checkpoint: CheckpointPolicy | None = None
    """What to save."""


class JobSpec(Model):
    """What to run."""

    image: str = "nodus/base"
    """A managed image, such as ``nodus/base``."""
    image_ref: str | dict[str, Any] | None = None
    """A built image; none can be built yet."""
    command: list[str] = Field(default_factory=list)
    """Program and arguments; run as written, without a shell."""
    args: list[str] = Field(default_factory=list)
    """Appended to the command."""
    working_dir: str | None = Field(default=None, pattern=r"^/")
    """Working directory; /workspace when unset."""
    env: list[EnvVar] = Field(default_factory=list)
    """Environment variables."""
    secrets: list[SecretReference] = Field(default_factory=list)
    """Secrets whose keys become environment variables."""
    volumes: list[VolumeMount] = Field(default_factory=list)
    """Volumes to mount."""
    source: Source | None = None
    """Files for the working directory."""
    inputs: list[Input] = Field(default_factory=list, max_length=100)
    """Blobs that appear as read-only files."""
    outputs: list[OutputPath] = Field(default_factory=list, max_length=100)
    """Paths collected when the run ends."""
    resources: Resources | None = None
    """CPU, memory, disk and GPUs."""
    distributed: Distributed | None = None
    """A gang of nodes."""
    placement: Placement | None = None
    """Where it may run."""
    recovery: Recovery | None = None
    """What happens when the machine is lost."""
    network: Network | None = None
    """Egress policy; no network by default."""
    completions: int | None = Field(default=None, ge=1, le=10000)
    """How many indexes must succeed; each is run with its own ``NODUS_INDEX``, from 0."""
    parallelism: int | None = Field(default=None, ge=1, le=1000)
    """How many indexes run at once, where there is room; 16 when unset."""
    backoff_limit: int = Field(default=0, ge=0, le=100)
    """Further attempts after a failed one, for each index."""
    timeout: Duration | None = None
    """Bound on the run's time, all attempts together."""
    expected_duration: Duration | None = None
    """For the estimate."""
    complete_by_time: str | None = None
    """RFC 3339 time to be done by."""
    max_cost_usd: USD | None = Field(default=None, alias="maxCostUSD")
    """Cap on the whole run."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=10**9)
    """Delete this long after the end."""
    scaledown_window: Duration | None = None
    """How long the machine stays warm."""
    sidecars: list[dict[str, Any]] = Field(default_factory=list)
    """Helper processes."""
    init_command: list[str] | None = None
    """Run before the command, in the same sandbox; a failure is the attempt's."""
    state: RunState = "Running"
    """What the user wants: Running, Suspended or Cancelled."""


class AttemptCounts(Model):
    """Attempts of a run."""

    current: int = 0
    """Number of the newest attempt, from 1."""
    max: int = 1
    """Attempts allowed."""
    total: int = 0
    """Attempts made."""


class Indexes(Model):
    """How far the indexes of a run with completions are, as ranges such as ``0-3,5``."""

    succeeded: str = ""
    """Those that succeeded."""
    active: str = ""
    """Those that wait for room or run."""
    failed: str = ""
    """Those whose newest attempt failed."""


class JobStatus(RunStatus):
    """How the run is doing."""

    attempts: AttemptCounts | None = None
    """Attempts made and allowed."""
    indexes: Indexes | None = None
    """With completions: where each index is."""
    pinned: dict[str, Any] | None = None
    """What was fixed at admission: the revision of each Volume, the commit of a git source."""
    progress: dict[str, Any] | None = None
    """Stage, units and metrics that the command reported; with completions, how many indexes succeeded."""
    outputs: list[OutputFile] = Field(default_factory=list)
    """Collected files; the first some hundred, the ``outputs`` subresource has all."""
    outputs_total: OutputsTotal | None = None
    """How many there are, where that is not all."""
    image: dict[str, Any] | None = None
    """Resolved image: reference, digest, user."""
    placement: dict[str, Any] | None = None
    """Offering it runs on."""
    topology: dict[str, Any] | None = None
    """Of a distributed Job: nodes, GPUs of each and in all, as resolved once."""
    checkpoint: dict[str, Any] | None = None
    """Newest checkpoint that the command saved: seq, time, size, trigger, attempt, restoredFromSeq."""
    exit_code: int | None = None
    """Exit code of the newest finished attempt."""


def _done(wire_object: Mapping[str, Any], now: datetime) -> str | None:
    units = ((wire_object.get("status") or {}).get("progress") or {}).get("units") or {}
    return f"{units.get('completed', 0)}/{units['total']}" if "total" in units else None


JOB = Kind(
    name="Job",
    plural="jobs",
    singular="job",
    version="v1",
    scope="Project",
    spec_model=JobSpec,
    status_model=JobStatus,
    summary="A command run to completion in a sandbox, with retries as Attempts.",
    columns=(
        NAME,
        PHASE,
        Column("Reason", "status.reason", description="Why it is in that phase"),
        Column("Attempt", "status.attempts.current", description="Newest attempt"),
        Column("Done", _done, wide=True, description="With completions: how many indexes succeeded"),
        Column("Cost", dollars("status.cost.totalUSD"), description="Cost so far"),
        AGE,
        Column("Image", "status.image.reference", wide=True, description="Image it runs in"),
        Column("Exit", "status.exitCode", wide=True, description="Exit code"),
    ),
    subresources=("log", "outputs"),
    immutable=(
        "image",
        "imageRef",
        "command",
        "args",
        "workingDir",
        "env",
        "secrets",
        "volumes",
        "source",
        "inputs",
        "outputs",
        "resources",
        "distributed",
        "placement",
        "completions",
        "recovery",
        "network",
        "initCommand",
        "sidecars",
    ),
    raise_only=("maxCostUSD",),
    phases=RUN_PHASES,
    selectable_fields=("status.phase", "spec.image"),
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "Job",
        "metadata": {"name": "hello"},
        "spec": {"command": ["echo", "hello"], "timeout": "5m", "resources": {"cpu": 1, "memory": "1Gi"}},
    },
)


class AttemptSpec(Model):
    """Which try of a run this is."""

    job: str | None = None
    """The Job's name; unset for a Sandbox's."""
    sandbox: str | None = None
    """The Sandbox's name."""
    epoch: int = Field(ge=1)
    """1 for the first try (of its index), and one more for each next."""
    slot: int = Field(default=0, ge=0)
    """Completion index; 0 for a run without completions."""
    rank: int = Field(default=0, ge=0)
    """Rank in the gang."""
    node: str | None = None
    """The host that owns it."""
    state: Literal["Running", "Stopped"] = "Running"
    """What the Job or Sandbox wants of it."""
    restore_from: dict[str, Any] | None = None
    """The checkpoint that it goes on from: ``attempt`` and ``seq``."""
    stop_reason: str | None = None
    """Why it is to stop: Cancelled, Suspended, DeadlineExceeded; of a Sandbox's: Stopped, Idle, MaxLifetime."""
    needs_usd: USD | None = Field(default=None, alias="needsUSD")
    """Where it stops because its grading could not be paid for: what must be free for that before it is tried again."""


class AttemptStatus(Model):
    """How the try went."""

    phase: str | None = None
    """Where it is."""
    reason: str | None = None
    """CamelCase reason."""
    message: str | None = None
    """For people."""
    fix: str | None = None
    """What to do about it."""
    exit_code: int | None = None
    """Exit code of the command."""
    signal: int | None = None
    """Signal that ended it."""
    retryable: bool | None = None
    """Whether another try could do better."""
    placement: dict[str, Any] | None = None
    """Offering, isolation and process."""
    timings: dict[str, Any] | None = None
    """Times of its life, RFC 3339."""
    outputs: list[OutputFile] = Field(default_factory=list)
    """Files collected from it; the first some hundred, the Job's ``outputs`` subresource has all."""
    outputs_total: OutputsTotal | None = None
    """How many there are, where that is not all."""
    peak_memory_bytes: int | None = None
    """Highest memory use."""
    progress: dict[str, Any] | None = None
    """What the command reported: stage, units, metrics, tasks; and how many of its events were ignored, by why."""
    checkpoints: dict[str, Any] | None = None
    """How many checkpoints the command saved (``count``); ``seq``, ``time``, ``size``, ``trigger`` of the newest."""
    funding: dict[str, Any] | None = None
    """Where it costs something: how many slices of money it has taken (``slices``), and ``untilTime`` they last."""
    cost: Cost | None = None
    """What it has cost, where it costs something."""


ATTEMPT = Kind(
    name="Attempt",
    plural="attempts",
    singular="attempt",
    version="v1",
    scope="Project",
    spec_model=AttemptSpec,
    status_model=AttemptStatus,
    summary="One try of a Job's command, or one run of a Sandbox, on one machine.",
    columns=(
        NAME,
        PHASE,
        Column("Reason", "status.reason", description="Why it ended"),
        Column("Exit", "status.exitCode", description="Exit code"),
        Column("Index", "spec.slot", wide=True, description="Completion index"),
        AGE,
        Column("Node", "spec.node", wide=True, description="Host that owns it"),
    ),
    verbs=("get", "list", "watch"),
    subresources=("log",),
    immutable=("job", "sandbox", "epoch", "slot", "rank"),
    phases={
        "Pending": ("Starting", "Running", "Failed", "Cancelled", "Lost"),
        "Starting": ("Running", "Failed", "Cancelled", "Lost", "Succeeded"),
        "Running": ("Succeeded", "Failed", "Cancelled", "Lost"),
        "Succeeded": (),
        "Failed": (),
        "Cancelled": (),
        "Lost": (),
    },
    selectable_fields=("status.phase", "spec.job", "spec.node"),
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "Attempt",
        "metadata": {"name": "hello-1"},
        "spec": {"job": "hello", "epoch": 1},
    },
)
