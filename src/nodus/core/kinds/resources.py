"""Parts of specs that several kinds share: resources, env, volumes, money and placement."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from nodus.core.kinds.base import USD, Condition, Duration, Model, Quantity

_OR_TEXT = ConfigDict(json_schema_extra={"anyOf": [{"type": "object"}, {"type": "string"}]})
"""Of a model that a string may stand for."""


class Gpu(Model):
    """GPUs a run asks for; the shorthand ``"H100:8"`` means one type and a count."""

    model_config = _OR_TEXT

    type: list[str] = Field(default_factory=list)
    """Accepted accelerator types, any spelling of the catalog; empty means any."""
    count: int = Field(default=1, ge=0, le=64)
    """GPUs per node."""
    exact: bool | None = None
    """Refuse a larger type."""
    interconnect: str | None = None
    """Required interconnect, such as ``NVLink``."""
    min_memory: Quantity | None = None
    """Least memory per GPU."""


def read_gpu(value: Any) -> Any:
    """Turn the shorthand ``TYPE[:COUNT]`` into its object form; other values pass through."""
    if not isinstance(value, str):
        return value
    kind, _, count = value.partition(":")
    if not kind or (count and not count.isdigit()):
        raise ValueError(f'{value!r} is not a GPU; write it like "H100" or "H100:8"')
    return {"type": [kind], "count": int(count or 1)}


class Resources(Model):
    """What one node of a run gets."""

    cpu: int | float | str | None = None
    """CPU cores, a number or a quantity; 1 when unset."""
    memory: Quantity | None = None
    """Memory, such as ``16Gi``."""
    disk: Quantity | None = None
    """Scratch disk."""
    gpu: Annotated[Gpu, BeforeValidator(read_gpu)] | None = None
    """GPUs; an object or ``"TYPE:COUNT"``."""
    nodes: int | None = Field(default=None, ge=1, le=8)
    """Machines; TrainingJobs only."""


class SecretKeyRef(Model):
    """A key of a Secret."""

    name: str
    """The Secret's name."""
    key: str
    """The key inside it."""
    version: int | None = Field(default=None, ge=1)
    """A fixed version; unset takes the latest at start."""


class EnvValueFrom(Model):
    """Where an environment variable's value comes from."""

    secret_key_ref: SecretKeyRef
    """The Secret and key."""


class EnvVar(Model):
    """One environment variable: a plain value or a reference."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Variable name."""
    value: str | None = None
    """Plain value; never a credential."""
    value_from: EnvValueFrom | None = None
    """A Secret's value."""


class SecretRef(Model):
    """A Secret whose keys become environment variables or files; a bare name stands for it."""

    model_config = _OR_TEXT

    name: str
    """The Secret's name."""
    version: int | None = Field(default=None, ge=1)
    """A fixed version; unset takes the latest at start."""
    mount: bool = False
    """Make each key a read-only file ``/run/secrets/NAME/KEY`` instead of a variable."""


def read_secret(value: Any) -> Any:
    """Turn a bare secret name into its object form; other values pass through."""
    return {"name": value} if isinstance(value, str) else value


SecretReference = Annotated[SecretRef, BeforeValidator(read_secret)]


class VolumeMount(Model):
    """A Volume inside a run."""

    volume: str
    """The Volume's name."""
    mount_path: str = Field(pattern=r"^/")
    """Absolute path in the run."""
    read_only: bool = False
    """Mount without writing."""
    revision: int | None = Field(default=None, ge=1)
    """A fixed revision; read-only."""


class OutputPath(Model):
    """Files a run leaves behind."""

    name: str
    """Name under which the files are listed."""
    path: str = Field(pattern=r"^/")
    """Absolute path of the file or directory in the run."""
    from_ranks: str | None = None
    """Which ranks of a gang are collected."""
    sink: str | None = None
    """Where they go besides the blob store."""


class OutputsTotal(Model):
    """How much a run left, where its status lists only the first files; the ``outputs`` subresource has all."""

    files: int = 0
    """Files."""
    bytes: int | None = None
    """Their size, of an Attempt."""
    written: list[str] | None = None
    """Names of the declared outputs that there is anything of, of an Attempt."""
    digest: str | None = None
    """Digest of the whole list, of an Attempt."""


class OutputFile(Model):
    """A collected file."""

    name: str
    """Name, the path below the declared output."""
    path: str | None = None
    """Where it was in the run."""
    sha256: str | None = None
    """Digest, 64 hex digits."""
    size: int | None = None
    """Bytes (Jobs)."""
    size_bytes: int | None = None
    """Bytes (TrainingJobs)."""
    index: int | None = None
    """Completion index."""
    rank: int | None = None
    """Gang rank."""


class Cost(Model):
    """What a run has cost."""

    total_usd: USD = Field(default="0.00", alias="totalUSD")
    """Settled so far."""
    held_usd: USD | None = Field(default=None, alias="heldUSD")
    """Held for work under way."""
    limit_usd: USD | None = Field(default=None, alias="limitUSD")
    """The cap."""
    rate_usd_per_hour: USD | None = Field(default=None, alias="rateUSDPerHour")
    """Current rate."""
    final: bool = False
    """Nothing more will be charged."""


class Notice(Model):
    """A warning or a blocking reason of an estimate."""

    code: str
    """CamelCase code."""
    message: str
    """For people."""
    fix: str | None = None
    """What to do."""


class Percentiles(Model):
    """A median and a high estimate."""

    p50: str
    """Median."""
    p90: str
    """Nine times of ten below."""


class Startup(Model):
    """Time to the start of the command."""

    cold: Percentiles | None = None
    """On a machine that has to be had first."""
    warm: Percentiles | None = None
    """On one that is at hand."""


class Measured(Model):
    """Runs on this installation that an estimate rests on."""

    time: str
    """When the newest of them ended, RFC 3339."""
    runs: int
    """How many; the newest 20 at most."""


class Estimate(Model):
    """What a run is expected to take."""

    cost_usd: Percentiles | None = Field(default=None, alias="costUSD")
    """Cost to completion in dollars; unset where the time is not known and something costs."""
    duration: Percentiles | None = None
    """Time to completion."""
    hold_usd: USD | None = Field(default=None, alias="holdUSD")
    """Held before it starts; of a Job with completions, before each index does."""
    gang_hold_usd: USD | None = Field(default=None, alias="gangHoldUSD")
    """Held before all nodes of a distributed Job start."""
    concurrent_hold_usd: USD | None = Field(default=None, alias="concurrentHoldUSD")
    """Held while as many indexes run as run at once."""
    overhead_usd: dict[str, USD] | None = Field(default=None, alias="overheadUSD")
    """Parts of the cost beside the work itself, where they were measured: ``startup``, ``grading``."""
    rate_usd_per_hour: USD | None = Field(default=None, alias="rateUSDPerHour")
    """What an hour costs; of a Job with completions, an hour of each index."""
    accelerator: str | None = None
    """What the times are those of: a family, or ``CPU``."""
    seconds_per_step: float | None = None
    """Time of an optimizer step."""
    steps: int | None = None
    """Optimizer steps."""
    seconds_per_task: float | None = None
    """Time of an evaluated task."""
    evaluated_tasks: int | None = None
    """Tasks evaluated, over all passes."""
    measured: Measured | None = None
    """Set where the times are those of runs on this installation."""
    startup: Startup | None = None
    """Time to the start of the command."""
    placement_preview: dict[str, Any] | None = None
    """Offering that would be used."""
    topology: dict[str, int] | None = None
    """Nodes and GPUs of each."""
    pricebook_version: str | None = None
    """Prices it was made with."""
    valid_until: str | None = None
    """Until when it is shown as current, RFC 3339. Creating with ``If-Match`` fails once prices or machines changed."""
    warnings: list[Notice] = Field(default_factory=list)
    """Things to know."""
    blocking_reasons: list[Notice] = Field(default_factory=list)
    """Things that keep it from starting."""


class Distributed(Model):
    """A gang of nodes."""

    nodes: int | None = Field(default=None, ge=1, le=8)
    """Machines."""
    total_gpus: int | None = Field(default=None, ge=1, alias="totalGPUs")
    """GPUs in all."""
    gpus_per_node: int | None = Field(default=None, ge=1, le=8, alias="gpusPerNode")
    """GPUs on each machine."""
    launcher: str | None = None
    """Plain, Torchrun, Ray, Verl, Accelerate or Deepspeed."""
    network: str | None = None
    """Colocated, Regional or Global."""
    transport: str | None = None
    """Direct or Auto."""
    startup_timeout: Duration | None = None
    """How long assembly waits."""
    max_assembly_retries: int | None = Field(default=None, ge=0, le=10)
    """Further tries of an assembly."""


class Egress(Model):
    """What a run may reach outside."""

    policy: Literal["Open", "Deny", "AllowList"] | None = None
    """Everything, nothing, or what ``allow`` and ``presets`` name."""
    allow: list[str] = Field(default_factory=list)
    """Host names."""
    presets: list[str] = Field(default_factory=list)
    """Named sets of hosts."""


class Network(Model):
    """A run's network."""

    egress: Egress | None = None
    """What it may reach; nothing when unset."""


class Placement(Model):
    """Where a run may go."""

    interruptible: Literal["Allow", "Prefer", "Never"] | None = None
    """Use of interruptible capacity."""
    regions: list[str] | None = None
    """Region classes."""
    profile: str | None = None
    """Cost, Balanced or Speed."""
    offerings: list[str] | None = None
    """Offerings by name."""
    pool: str | None = None
    """A pool by name."""
    max_rate_usd_per_hour: USD | None = Field(default=None, alias="maxRateUSDPerHour")
    """Highest rate."""
    queue_timeout: Duration | None = None
    """How long to stay queued."""


class RunStatus(Model):
    """Status parts of everything that runs to completion."""

    phase: str | None = None
    """Where the run is."""
    reason: str | None = None
    """CamelCase reason of the phase."""
    message: str | None = None
    """For people."""
    fix: str | None = None
    """What to do about a failure."""
    cost: Cost | None = None
    """Cost so far."""
    estimate: Estimate | None = None
    """What it was expected to take when it was created, or would take in a dry run."""
    start_time: str | None = None
    """When it first ran."""
    completion_time: str | None = None
    """When it ended."""
    conditions: list[Condition] = Field(default_factory=list)
    """Observed conditions."""
    observed_generation: int | None = None
    """Generation of the spec this status speaks of."""
