"""Environment: a versioned set of tasks with a grader."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from nodus.core.kinds.base import AGE, NAME, PHASE, Column, Condition, Duration, Kind, Model, Quantity, joined

Mode = Literal["Train", "Evaluate"]


class PipPackage(Model):
    """A pip package at an exact version."""

    name: str
    """Distribution name."""
    version: str
    """Exact version."""
    index: str | None = None
    """Index that holds the package; its dependencies come from the default one."""


class SourcePackage(Model):
    """A bundle of sources."""

    blob: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    """A tar.gz of at most 512 KiB."""
    module: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")
    """Module with ``tasks`` and ``reward``."""


class CatalogPackage(Model):
    """An environment that ships with Nodus."""

    module: str
    """Module below the grader's catalog."""
    data: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$")
    """Digest of the operator's data, for one whose data does not ship."""


class Package(Model):
    """Where tasks and grader come from: exactly one of these."""

    image: str | None = None
    """OCI image by digest."""
    pip: PipPackage | None = None
    """A pip package."""
    source: SourcePackage | None = None
    """A bundle of sources."""
    catalog: CatalogPackage | None = None
    """Ships with Nodus; only in project ``nodus``."""
    loader: str | None = None
    """``load_environment``, or ``module:function``."""


class Licenses(Model):
    """Licences of an environment."""

    code: str | None = None
    """Of the code."""
    data: str | None = None
    """Of the tasks."""


class Grader(Model):
    """How completions are judged."""

    name: str
    """Name of the grader."""
    kind: Literal["Program", "ExactMatch"]
    """A program in a sandbox, or a comparison inside Nodus."""
    description: str | None = None
    """What it accepts."""


class SplitSize(Model):
    """Size of a split."""

    size: int = Field(ge=0)
    """Tasks."""


class Splits(Model):
    """Declared splits."""

    train: SplitSize | None = None
    """Tasks to train on."""
    test: SplitSize | None = None
    """Held-out tasks."""


class EnvironmentSandbox(Model):
    """Limits of the grader."""

    cpu: int | float | None = None
    """Cores."""
    image: str | None = None
    """Image the grader runs in."""
    memory: Quantity | None = None
    """Memory; 1Gi when unset."""
    timeout: Duration | None = None
    """Wall time of one grading; 10s when unset."""


class EnvironmentExample(Model):
    """A TrainingJob to start from, with measured results."""

    name: str
    """Name within the environment."""
    mode: Literal["Train", "Evaluate"] = "Train"
    """Mode."""
    runtime: str
    """Runtime."""
    model: dict[str, Any]
    """Base model."""
    tasks: int | None = None
    """Held-out tasks."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Parameters."""
    baseline: dict[str, Any] | None = None
    """Measured pass rate before."""
    trained: dict[str, Any] | None = None
    """Measured pass rate after."""
    change_pp: float | int | None = Field(default=None, alias="changePP")
    """Measured change in points."""
    runtime_seconds: float | int | None = None
    """Measured duration."""
    measured_on: dict[str, Any] | None = None
    """Date and offering."""


class EnvironmentSpec(Model):
    """Tasks, splits and graders of one version."""

    version: str = Field(pattern=r"^\d+\.\d+\.\d+([-+.][0-9A-Za-z.+-]+)?$")
    """Version; package and graders can't change under it."""
    package: Package
    """Where tasks and grader come from."""
    category: str | None = None
    """Reasoning, Math, Code, Custom, ..."""
    modes: list[Mode] = Field(default=["Train", "Evaluate"])
    """What it may be used for."""
    reward_type: Literal["Binary", "Scalar"] | None = None
    """Kind of reward."""
    summary: str | None = None
    """One sentence."""
    publisher: str | None = None
    """Who made it."""
    readiness: str | None = None
    """How finished it is."""
    licenses: Licenses | None = None
    """Licences."""
    source_url: str | None = Field(default=None, alias="sourceURL")
    """Where it comes from."""
    graders: list[Grader] = Field(default_factory=list)
    """Graders."""
    splits: Splits | None = None
    """Declared sizes."""
    sample_task: str | dict[str, Any] | None = None
    """One prompt, to show."""
    requirements: dict[str, Any] | None = None
    """GPU and memory it needs."""
    held_out_measures: list[str] = Field(default_factory=list)
    """What the held-out split measures."""
    sandbox: EnvironmentSandbox | None = None
    """Limits of the grader."""
    examples: list[EnvironmentExample] = Field(default_factory=list)
    """TrainingJobs to start from."""


class SplitCounts(Model):
    """Sizes of the splits."""

    train: int = 0
    """Tasks to train on."""
    test: int = 0
    """Held-out tasks."""


class GraderFacts(Model):
    """What grades: verdicts may differ with another."""

    python: str | None = None
    """Version of Python."""
    libraries: dict[str, str] = Field(default_factory=dict)
    """Libraries that rewards may import, with their versions."""


class EnvironmentStatus(Model):
    """Whether it can be used."""

    phase: Literal["Pending", "Ready", "Failed"] | None = None
    """Pending, Ready or Failed."""
    reason: str | None = None
    """Why it failed."""
    message: str | None = None
    """The failing step and what it printed."""
    digest: str | None = None
    """Digest of package and graders."""
    image: str | None = None
    """Image it was built into."""
    splits: SplitCounts | None = None
    """Sizes found."""
    ecosystem: str | None = None
    """What it is made with: functions, verifiers, openenv, ..."""
    episodes: bool | None = None
    """Whether it answers the model's turns, so that an episode may have several; set parameters.maxTurns."""
    max_turns: int | None = None
    """Most turns of an episode, where the environment knows its own."""
    tools: bool | None = None
    """Whether the model may call tools, so that its chat template must offer them."""
    grader: GraderFacts | None = None
    """The Python and the libraries that grade; unset where Nodus compares answers itself."""
    published: str | None = None
    """The newest version that was Ready: its package and graders can't change any more."""
    checked: str | None = None
    """Digest of what the last check was about."""
    conditions: list[Condition] = Field(default_factory=list)
    """Observed conditions (Verified)."""


def _first_line(wire: Mapping[str, Any], now: datetime) -> str | None:
    return str((wire.get("status") or {}).get("message") or "").partition("\n")[0] or None


ENVIRONMENT = Kind(
    name="Environment",
    plural="environments",
    singular="environment",
    version="v1",
    scope="Project",
    spec_model=EnvironmentSpec,
    status_model=EnvironmentStatus,
    summary="A versioned set of tasks with a grader.",
    columns=(
        NAME,
        Column("Version", "spec.version", description="Version"),
        Column("Category", "spec.category", description="Field of the tasks"),
        Column("Modes", joined("spec.modes"), description="What it may be used for"),
        PHASE,
        Column("Digest", "status.digest", wide=True, description="Digest of package and graders"),
        Column("Age", AGE.path, wide=True, description="Time since creation"),
        Column("Message", _first_line, wide=True, description="Why it is in that phase"),
    ),
    phases={"Pending": ("Ready", "Failed"), "Ready": ("Pending", "Failed"), "Failed": ("Pending", "Ready")},
    selectable_fields=("status.phase", "spec.category", "spec.version"),
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "Environment",
        "metadata": {"name": "reverse-words"},
        "spec": {
            "version": "1.0.0",
            "package": {"source": {"blob": "sha256:" + "0" * 64, "module": "nodus_task"}},
            "category": "Custom",
            "modes": ["Train", "Evaluate"],
            "rewardType": "Binary",
        },
    },
)
