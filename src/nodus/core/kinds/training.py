"""TrainingRuntime and TrainingJob: what can be trained, and one training run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from nodus.core.kinds.base import (
    AGE,
    NAME,
    PHASE,
    RUN_PHASES,
    USD,
    Column,
    Condition,
    Duration,
    Kind,
    Model,
    RunState,
    dollars,
)
from nodus.core.kinds.job import AttemptCounts
from nodus.core.kinds.resources import Distributed, Estimate, OutputFile, OutputPath, Placement, Resources, RunStatus

Task = Literal["SFT", "Pretrain", "DPO", "ORPO", "KTO", "Reward", "GRPO", "Distill", "Evaluate"]
Mode = Literal["Train", "Evaluate"]
Seconds = Annotated[float, Field(ge=0, le=10**6, allow_inf_nan=False)]


class Preset(Model):
    """Resources for a model and method."""

    model: str
    """Repository, such as ``Qwen/Qwen3-0.6B``."""
    method: str
    """Full, LoRA or QLoRA."""
    quantization: str | None = None
    """``nf4`` or none."""
    resources: Resources
    """What such a run gets."""


class RuntimeRequires(Model):
    """Inputs a runtime needs."""

    model: bool = True
    """A base model."""
    data: bool = False
    """A dataset Volume."""
    environment: bool = False
    """An Environment."""
    teacher: bool = False
    """A teacher model."""


class RuntimeDefaults(Model):
    """What a run gets that its spec leaves unset."""

    parameters: dict[str, Any] = Field(default_factory=dict)
    """Parameter defaults."""
    resources: Resources | None = None
    """Resources without a matching preset."""
    init_command: list[str] | None = None
    """Run before the trainer."""
    sidecars: list[dict[str, Any]] = Field(default_factory=list)
    """Helper processes."""


class ReferenceRun(Model):
    """The run that an accelerator's times were measured at; unset parameters are the runtime's defaults."""

    model: str | None = None
    """Repository of its model."""
    batch_size: int | None = Field(default=None, ge=1)
    """Its ``batchSize``."""
    gradient_accumulation: int | None = Field(default=None, ge=1)
    """Its ``gradientAccumulation``."""
    max_completion_length: int | None = Field(default=None, ge=1)
    """Its ``maxCompletionLength``."""


class RuntimeEstimate(Model):
    """Measured times, by accelerator; CPU stands for none."""

    seconds_per_step: dict[str, Seconds] = Field(default_factory=dict)
    """Seconds of one optimizer step."""
    seconds_per_task: dict[str, Seconds] = Field(default_factory=dict)
    """Seconds of one evaluated task."""
    reference: dict[str, ReferenceRun] = Field(default_factory=dict)
    """What they were measured at; estimates are scaled from it."""


class RuntimeCheckpointing(Model):
    """Where the trainer keeps its recovery state."""

    path: str = "/nodus/state"
    """Directory in the run."""
    strategy: str = "HFTrainer"
    """Format of the checkpoints."""


class TrainingRuntimeSpec(Model):
    """A trainer image with its parameters, presets and measured times."""

    image: str
    """Managed image or OCI image by digest."""
    command: list[str] = Field(default_factory=list)
    """How the trainer is started; the image's own when empty."""
    task: Task
    """What it trains."""
    modes: list[Mode] = Field(default=["Train"])
    """Modes it runs in."""
    launcher: str = "Plain"
    """Plain, Torchrun, Accelerate or Deepspeed."""
    parameters: dict[str, Any]
    """JSON Schema of ``spec.parameters`` of its TrainingJobs."""
    defaults: RuntimeDefaults = Field(default_factory=RuntimeDefaults)
    """What a run gets that its spec leaves unset."""
    presets: list[Preset] = Field(default_factory=list)
    """Resources by model, method and quantization; the first match counts."""
    estimate: RuntimeEstimate = Field(default_factory=RuntimeEstimate)
    """Measured times."""
    outputs: list[OutputPath] = Field(default_factory=list)
    """What a run leaves behind."""
    requires: RuntimeRequires = Field(default_factory=RuntimeRequires)
    """Inputs it needs."""
    checkpointing: RuntimeCheckpointing | None = None
    """Recovery state."""
    environment_tasks: Literal["AttemptAPI"] | None = None
    """Set when the trainer fetches tasks and submits gradings through the attempt API."""
    summary: str | None = None
    """One sentence for lists."""


class TrainingRuntimeStatus(Model):
    """Whether the runtime can be used."""

    phase: Literal["Ready", "Failed"] | None = None
    """Ready or Failed."""
    image_digest: str | None = None
    """Digest of the trainer and its pinned stack."""
    managed: bool | None = None
    """Whether it belongs to the catalog."""
    conditions: list[Condition] = Field(default_factory=list)
    """Observed conditions."""


TRAINING_RUNTIME = Kind(
    name="TrainingRuntime",
    plural="trainingruntimes",
    singular="trainingruntime",
    version="v1beta1",
    scope="Project",
    spec_model=TrainingRuntimeSpec,
    status_model=TrainingRuntimeStatus,
    summary="A trainer image with a parameter schema, presets and measured step times.",
    columns=(
        NAME,
        Column("Task", "spec.task", description="What it trains"),
        Column("Image", "spec.image", description="Trainer image"),
        PHASE,
        Column("Digest", "status.imageDigest", wide=True, description="Digest of the trainer"),
    ),
    phases={"Ready": ("Failed",), "Failed": ("Ready",)},
    selectable_fields=("status.phase", "spec.task"),
    example={
        "apiVersion": "nodus.dev/v1beta1",
        "kind": "TrainingRuntime",
        "metadata": {"name": "my-runtime"},
        "spec": {"image": "nodus/grpo-lora:2.0.0", "task": "GRPO", "parameters": {"type": "object"}},
    },
)


class ModelVolume(Model):
    """A model in one of the project's Volumes."""

    name: str
    """The Volume's name."""
    revision: int | None = Field(default=None, ge=1)
    """Fixed at creation when unset."""


class ModelSource(Model):
    """Where a model comes from: a URI or a Volume."""

    uri: str | None = Field(default=None, min_length=1)
    """``hf://OWNER/NAME[@40-hex commit]`` or ``library://NAME``."""
    volume: ModelVolume | None = None
    """A Volume of the project."""
    secret: str | None = None
    """Secret with a token for gated repositories."""


class DataSource(Model):
    """A dataset in a Volume."""

    volume: str
    """The Volume's name."""
    path: str | None = None
    """File inside; all files of the format when unset."""
    revision: int | None = Field(default=None, ge=1)
    """Fixed at creation when unset."""
    format: Literal["Auto", "JSONL", "JSON", "CSV"] = "Auto"
    """File format."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Names the runtime expects, mapped to the dataset's."""
    validation_fraction: float | int | None = Field(default=None, ge=0, lt=1)
    """Part held out for validation."""


class EnvironmentRef(Model):
    """Tasks and grader of a run."""

    name: str
    """``[nodus/]NAME@VERSION``."""
    train_tasks: int | None = Field(default=None, ge=1)
    """Tasks from the train split."""
    held_out_tasks: int | None = Field(default=None, ge=1)
    """Tasks from the test split, never trained on."""
    seed: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """Which tasks, and in which order; 42 when unset."""


class Evaluation(Model):
    """Scoring of the held-out tasks before and after."""

    baseline: bool | None = None
    """Before training."""
    final: bool | None = None
    """After training."""
    min_comparison_tasks: int | None = Field(default=None, ge=1)
    """Least scored tasks for a comparison; 16 when unset."""


class Grading(Model):
    """Graders of a run."""

    max_parallel: int | None = Field(default=None, ge=1, le=64)
    """Graders at once; the machine's cores when unset."""


class MLflowTracking(Model):
    """Metrics to an MLflow server."""

    uri: str
    """Tracking URI."""
    secret: str | None = None
    """Secret with MLFLOW_TRACKING_TOKEN or _USERNAME and _PASSWORD."""
    experiment: str | None = None
    """Experiment name."""


class WandbTracking(Model):
    """Metrics to Weights & Biases."""

    connection: str
    """A Connection of the project."""


class Tracking(Model):
    """Metrics to servers of yours."""

    mlflow: MLflowTracking | None = None
    """MLflow."""
    wandb: WandbTracking | None = None
    """Weights & Biases."""


class ExportTo(Model):
    """A copy of the result."""

    volume: str
    """A Ready ReadWriteOnce Volume."""


class TrainingJobSpec(Model):
    """What to train, on what, and how."""

    runtime: str
    """``nodus/NAME`` or a TrainingRuntime of the project."""
    mode: Mode = "Train"
    """Train, or Evaluate only."""
    task: Task | None = None
    """Another task of the runtime, such as Pretrain."""
    model: ModelSource | None = None
    """Base model."""
    teacher: ModelSource | None = None
    """Teacher, for distillation."""
    data: DataSource | None = None
    """Dataset."""
    environment: EnvironmentRef | None = None
    """Tasks and grader."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Checked against the runtime's schema."""
    evaluation: Evaluation | None = None
    """Scoring before and after."""
    grading: Grading | None = None
    """Graders."""
    resources: Resources | None = None
    """Wins over the preset, field by field."""
    distributed: Distributed | None = None
    """A gang of nodes."""
    placement: Placement | None = None
    """Where it may run."""
    export_to: ExportTo | None = None
    """A copy of the result."""
    expected_duration: Duration | None = None
    """For the estimate."""
    max_cost_usd: USD | None = Field(default=None, alias="maxCostUSD")
    """Cap on the whole run; may only rise."""
    tracking: Tracking | None = None
    """Metrics to servers of yours."""
    state: RunState = "Running"
    """What the user wants: Running, Suspended or Cancelled."""


class EvaluationSummary(Model):
    """Scores of one pass over the held-out tasks. Rates are decimal strings."""

    tasks: int = 0
    """Held-out tasks."""
    passed: int = 0
    """Graded Correct."""
    failed: int = 0
    """Graded Incorrect or InvalidOutput."""
    errors: int = 0
    """Could not be graded; in no rate."""
    in_progress: bool = False
    """Not all tasks are scored yet."""
    pass_rate: str | None = None
    """Passed out of scored, 0 to 1."""
    mean_reward: str | None = None
    """Mean reward of the scored tasks."""
    worst_pass_rate: str | None = None
    """As if every unscored task had failed."""
    best_pass_rate: str | None = None
    """As if every unscored task had passed."""
    samples_per_task: int | None = None
    """Completions per task, where there are several."""
    pass_at_k: str | None = None
    """Tasks of which one sample passed, where there are several."""


class Comparison(Model):
    """Before against after, in percentage points."""

    comparable: bool = False
    """Same tasks and enough of them on both sides."""
    measurable: bool = False
    """The change is at least the resolution."""
    change_pp: str | None = Field(default=None, alias="changePP")
    """Change of the pass rate."""
    resolution_pp: str | None = Field(default=None, alias="resolutionPP")
    """Change that one task makes."""
    reason: str | None = None
    """Comparable, SmallestStep, TooFewTasks, DifferentTasks, NonePassed, AllPassed or IncompleteEvents."""
    note: str | None = None
    """For people."""
    tasks: int | None = None
    """Tasks scored on both sides."""
    unscored: int | None = None
    """Tasks that lack a score on a side."""
    gained: int | None = None
    """Tasks that went from wrong to right."""
    lost: int | None = None
    """Tasks that went from right to wrong."""
    interval_pp: list[str] | None = Field(default=None, alias="intervalPP")
    """95 % interval of the change, paired by task: low, high."""
    bounds_pp: list[str] | None = Field(default=None, alias="boundsPP")
    """The change had every unscored task gone worst or best: low, high."""
    p_value: str | None = None
    """Exact McNemar test."""


class Summary(Model):
    """Result of a run with an Environment."""

    baseline: EvaluationSummary | None = None
    """Before training."""
    evaluation: EvaluationSummary | None = None
    """After training."""
    comparison: Comparison | None = None
    """Before against after."""


class Diagnostics(Model):
    """Whether the run could learn at all."""

    reward_signal: Literal["ContrastObserved", "NoRewardContrast", "InsufficientEvidence"] | None = None
    """Whether groups had differing rewards."""
    weights_changed: bool | None = None
    """Whether the trained weights differ from the first ones."""
    message: str | None = None
    """What to do about it."""


class TrainingMetrics(Model):
    """Newest metrics. Rates are decimal strings."""

    step: int | None = None
    """Steps done."""
    total_steps: int | None = None
    """Steps in all."""
    loss: str | None = None
    """Loss of the newest step."""
    reward: str | None = None
    """Mean reward of the newest step."""
    kl: str | None = None
    """KL to the base model."""
    tokens_per_second: str | None = None
    """Completion tokens per second."""
    gpu_memory_bytes: int | None = None
    """Highest GPU memory use."""


class Provenance(Model):
    """What the run was made of."""

    managed: bool | None = None
    """Whether the runtime is a catalog one."""
    runtime_digest: str | None = None
    """Trainer and its stack."""
    environment_digest: str | None = None
    """Tasks and grader."""
    model_revision: str | None = None
    """Pinned revision."""
    model_digest: str | None = None
    """Digest of the model's files."""
    model_source: dict[str, Any] | None = None
    """Repository and commit it was imported from, or package, version and the GGUF's sha256 of the local library."""
    parameters_sha256: str | None = Field(default=None, alias="parametersSHA256")
    """Digest of the merged parameters."""
    configuration_digest: str | None = None
    """Digest of everything a checkpoint is bound to."""


class Progress(Model):
    """Stage of a run."""

    stage: str | None = None
    """CachingModel, Baseline, Training, Evaluating or Exporting."""


class TrainingJobStatus(RunStatus):
    """How the run is doing."""

    job: str | None = None
    """Name of the Job, once it exists."""
    compiled_job: dict[str, Any] | None = None
    """Spec of the Job it compiles to; set in dry runs."""
    progress: Progress | None = None
    """Stage."""
    metrics: TrainingMetrics | None = None
    """Newest metrics."""
    summary: Summary | None = None
    """Scores and comparison."""
    diagnostics: Diagnostics | None = None
    """Reward signal and weights."""
    provenance: Provenance | None = None
    """What it was made of."""
    outputs: list[OutputFile] = Field(default_factory=list)
    """Result files."""
    attempts: AttemptCounts | None = None
    """Attempts of its Job."""
    pinned: dict[str, Any] | None = None
    """References fixed at admission: model, environment and data revisions."""


TRAINING_JOB = Kind(
    name="TrainingJob",
    plural="trainingjobs",
    singular="trainingjob",
    short_names=("tj",),
    version="v1beta1",
    scope="Project",
    spec_model=TrainingJobSpec,
    status_model=TrainingJobStatus,
    summary="One training run: a runtime, a model, tasks or data, and parameters.",
    columns=(
        NAME,
        Column("Runtime", "spec.runtime", description="Runtime it runs on"),
        PHASE,
        Column("Stage", "status.progress.stage", description="What it is doing"),
        Column("Change", "status.summary.comparison.changePP", description="Change of the pass rate, points"),
        Column("Cost", dollars("status.cost.totalUSD"), description="Cost so far"),
        AGE,
        Column("Reason", "status.reason", wide=True, description="Why it is in that phase"),
        Column("Step", "status.metrics.step", wide=True, description="Steps done"),
    ),
    subresources=("log", "outputs", "taskevents", "tasks", "gradings", "steps"),
    immutable=(
        "runtime",
        "mode",
        "task",
        "model",
        "teacher",
        "data",
        "environment",
        "parameters",
        "evaluation",
        "resources",
        "distributed",
        "placement",
        "tracking",
    ),
    raise_only=("maxCostUSD",),
    phases=RUN_PHASES,
    selectable_fields=("status.phase", "spec.runtime"),
    example={
        "apiVersion": "nodus.dev/v1beta1",
        "kind": "TrainingJob",
        "metadata": {"name": "my-grpo-lora"},
        "spec": {
            "runtime": "nodus/grpo-lora",
            "model": {"uri": "library://smollm2-135m-instruct"},
            "environment": {"name": "nodus/arithmetic@2.0.0", "trainTasks": 160, "heldOutTasks": 64, "seed": 42},
            "parameters": {"steps": 40, "numGenerations": 8, "batchSize": 8},
            "maxCostUSD": "5.00",
        },
    },
)

__all__ = [
    "TRAINING_JOB",
    "TRAINING_RUNTIME",
    "Estimate",
    "TrainingJobSpec",
    "TrainingJobStatus",
    "TrainingRuntimeSpec",
]
