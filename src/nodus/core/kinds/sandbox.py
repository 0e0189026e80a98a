"""Sandbox: an isolated place to run commands in, kept between them; Process: one command in it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from nodus.core.kinds.base import AGE, NAME, PHASE, USD, Column, Condition, Duration, Kind, Model, dollars
from nodus.core.kinds.resources import Cost, EnvVar, Estimate, Network, Resources, SecretReference

SandboxState = Literal["Running", "Stopped"]


class Lifecycle(Model):
    """When a Sandbox stops by itself."""

    idle_timeout: Duration | None = None
    """Stopped after this long without a running process, an open terminal or a call; never when unset."""
    on_idle: Literal["Stop", "Delete"] = "Stop"
    """What happens when it was idle for so long: Stop keeps `/workspace`, Delete keeps nothing."""
    max_lifetime: Duration | None = None
    """Stopped this long after it was started, whatever runs in it; never when unset."""


class Continuity(Model):
    """What of a Sandbox survives a stop."""

    mode: str | None = None
    """Only Workspace, which is also the default: the files in `/workspace`."""


class SandboxSpec(Model):
    """What the Sandbox is made of."""

    image: str = "nodus/agent-tools"
    """A managed image, such as ``nodus/agent-tools``."""
    command: list[str] = Field(default_factory=list)
    """Program and arguments that run for as long as the Sandbox does; its end is the Sandbox's. None is needed."""
    args: list[str] = Field(default_factory=list)
    """Appended to the command."""
    working_dir: str | None = Field(default=None, pattern=r"^/")
    """Working directory of processes that name none; /workspace when unset."""
    env: list[EnvVar] = Field(default_factory=list)
    """Environment variables of every process."""
    secrets: list[SecretReference] = Field(default_factory=list)
    """Secrets whose keys become environment variables; names, or objects with a version."""
    resources: Resources | None = None
    """CPU, memory, disk and GPUs; 1 CPU and 2Gi when unset."""
    lifecycle: Lifecycle | None = None
    """When it stops by itself."""
    continuity: Continuity | None = None
    """What survives a stop."""
    network: Network | None = None
    """What it may reach; nothing."""
    max_cost_usd: USD | None = Field(default=None, alias="maxCostUSD")
    """Cap on all it may cost."""
    state: SandboxState = "Running"
    """What the user wants: Running or Stopped."""


class SandboxAttempt(Model):
    """The attempt that a Sandbox runs as."""

    name: str
    """Its name."""
    epoch: int
    """1 for the first start, and one more for each next."""
    node: str | None = None
    """The host it runs on."""


class SandboxStatus(Model):
    """How the Sandbox is doing."""

    phase: str | None = None
    """Where it is."""
    activity: Literal["Active", "Idle"] | None = None
    """Whether a process runs or somebody is at a terminal of it."""
    last_activity_time: str | None = None
    """When something last went on, RFC 3339."""
    attempt: SandboxAttempt | None = None
    """What it runs as, or last did."""
    stop_reason: str | None = None
    """Why it stopped: Stopped (by its user), Idle, MaxLifetime or CommandExited."""
    reason: str | None = None
    """CamelCase reason of the phase."""
    message: str | None = None
    """For people."""
    fix: str | None = None
    """What to do about a failure."""
    exit_code: int | None = None
    """Exit code of its own command."""
    process_count: int | None = None
    """How many processes were started in it."""
    recoveries: int | None = None
    """Starts after an attempt was lost."""
    observed_start: str | None = None
    """The request to start that was last followed."""
    image: dict[str, Any] | None = None
    """Resolved image: reference, digest, user."""
    estimate: Estimate | None = None
    """Set in a dry run."""
    cost: Cost | None = None
    """Cost so far."""
    start_time: str | None = None
    """When it last began to run."""
    stop_time: str | None = None
    """When it last stopped."""
    conditions: list[Condition] = Field(default_factory=list)
    """Observed conditions."""
    observed_generation: int | None = None
    """Generation of the spec this status speaks of."""


SANDBOX = Kind(
    name="Sandbox",
    plural="sandboxes",
    singular="sandbox",
    version="v1",
    scope="Project",
    spec_model=SandboxSpec,
    status_model=SandboxStatus,
    summary="An isolated place to run commands in, whose files stay between them.",
    short_names=("sb",),
    columns=(
        NAME,
        PHASE,
        Column("Activity", "status.activity", description="Whether anything goes on in it"),
        Column("Reason", "status.reason", description="Why it is in that phase"),
        Column("Cost", dollars("status.cost.totalUSD"), description="Cost so far"),
        AGE,
        Column("Image", "spec.image", wide=True, description="Image it runs"),
        Column("Idle-Timeout", "spec.lifecycle.idleTimeout", wide=True, description="Stops after this idle time"),
    ),
    subresources=("files", "log", "processes"),
    immutable=(
        "image",
        "command",
        "args",
        "workingDir",
        "env",
        "secrets",
        "resources",
        "continuity",
        "network",
    ),
    raise_only=("maxCostUSD",),
    phases={
        "Pending": ("Starting", "Running", "Stopping", "Stopped", "Failed", "Terminating"),
        "Starting": ("Pending", "Running", "Recovering", "Stopping", "Stopped", "Failed", "Terminating"),
        "Running": ("Recovering", "Stopping", "Stopped", "Failed", "Terminating"),
        "Recovering": ("Starting", "Running", "Stopping", "Stopped", "Failed", "Terminating"),
        "Stopping": ("Pending", "Stopped", "Failed", "Terminating"),
        "Stopped": ("Pending", "Starting", "Running", "Terminating"),
        "Failed": ("Pending", "Starting", "Running", "Stopped", "Terminating"),
        "Terminating": (),
    },
    selectable_fields=("status.phase", "spec.image"),
    actions=("start",),
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "Sandbox",
        "metadata": {"name": "dev"},
        "spec": {
            "image": "nodus/agent-tools",
            "resources": {"cpu": 1, "memory": "1Gi"},
            "lifecycle": {"idleTimeout": "10m"},
        },
    },
)


class ProcessSpec(Model):
    """What runs."""

    command: list[str] = Field(default_factory=list)
    """Program and arguments; run as written, without a shell."""
    tty: bool = False
    """Whether it gets a terminal; its output is one stream then."""
    stdin: bool = False
    """Whether it gets input; without, it reads the end of it at once."""
    env: list[EnvVar] = Field(default_factory=list)
    """Environment variables on top of the Sandbox's; plain values only."""
    working_dir: str | None = Field(default=None, pattern=r"^/")
    """Working directory; the Sandbox's when unset."""
    timeout: Duration | None = None
    """Killed after this long."""
    sandbox: str | None = None
    """The Sandbox it runs in; set by the server."""
    attempt: str | None = None
    """Uid of the attempt it runs in; set by the server."""
    number: int | None = None
    """Its number among the Sandbox's processes, from 1; set by the server."""
    state: Literal["Running", "Cancelled"] = "Running"
    """What the user wants: Running or Cancelled."""


class ProcessStatus(Model):
    """How it went."""

    phase: str | None = None
    """Where it is."""
    exit_code: int | None = None
    """Exit code; 128 and the signal's number when a signal ended it."""
    reason: str | None = None
    """Why it failed: NonZeroExitCode, DeadlineExceeded, SandboxStopped, SandboxLost or StartFailed."""
    message: str | None = None
    """For people."""
    start_time: str | None = None
    """When it began."""
    completion_time: str | None = None
    """When it ended."""


def _command_line(wire_object: Mapping[str, Any], now: datetime) -> str | None:
    """Return the command for the COMMAND column, on one line and not too long."""
    words = " ".join(str(word) for word in (wire_object.get("spec") or {}).get("command") or ())
    words = " ".join(words.split())
    return words if len(words) <= 60 else words[:57] + "..."


PROCESS = Kind(
    name="Process",
    plural="processes",
    singular="process",
    version="v1",
    scope="Project",
    spec_model=ProcessSpec,
    status_model=ProcessStatus,
    summary="A command that was run in a Sandbox.",
    columns=(
        NAME,
        PHASE,
        Column("Sandbox", "spec.sandbox", description="Where it runs"),
        Column("Command", _command_line, description="What runs"),
        Column("Exit", "status.exitCode", description="Exit code"),
        AGE,
        Column("Reason", "status.reason", wide=True, description="Why it failed"),
    ),
    verbs=("delete", "get", "list", "patch", "update", "watch"),
    subresources=("attach", "log", "output", "signals", "stdin"),
    immutable=("command", "tty", "stdin", "env", "workingDir", "timeout", "sandbox", "attempt", "number"),
    phases={
        "Pending": ("Running", "Succeeded", "Failed", "Cancelled"),
        "Running": ("Succeeded", "Failed", "Cancelled"),
        "Succeeded": (),
        "Failed": (),
        "Cancelled": (),
    },
    selectable_fields=("status.phase", "spec.sandbox"),
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "Process",
        "metadata": {"name": "sb-dev-1"},
        "spec": {"command": ["python3", "--version"], "sandbox": "dev", "number": 1},
        "status": {"phase": "Succeeded", "exitCode": 0},
    },
)
