"""``nodus create KIND NAME``: objects made from flags, each kind declared once.

A generator writes what its flags say and leaves the rest to the server: defaults and refusals are the same as for a
manifest. `nodus create secret` and `nodus create apikey` have modules of their own, for what they must keep quiet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from nodus.cli.options import did, dry_run_option, output_option, print_results
from nodus.cli.session import Session, connected, object_label
from nodus.client.http import new_key
from nodus.client.kinds import GROUP, find_kind
from nodus.client.resources import Applied, JsonObject


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag and the field it fills."""

    name: str
    """Without dashes, such as ``max-cost``."""
    path: str
    """Below ``spec``, such as ``limits.rpm``."""
    help: str
    metavar: str = "TEXT"
    type: Any = str
    """What click converts the value with."""
    multiple: bool = False
    required: bool = False
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Generator:
    """A kind that flags can make."""

    kind: str
    help: str
    example: str
    flags: tuple[Flag, ...]
    version: str = "v1"

    @property
    def name(self) -> str:
        """The command's name."""
        return self.kind.lower()


_COST = Flag("max-cost", "maxCostUSD", "Most it may cost, in dollars.", "USD")
_AGENT = Flag("agent", "agent", "The Agent; of this project, or a template of project nodus.", "NAME", required=True)
_ROLES = click.Choice(["Owner", "Admin", "Developer", "Viewer"], case_sensitive=False)
_MODES = click.Choice(["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"])

GENERATORS: tuple[Generator, ...] = (
    Generator(
        "Volume",
        "Create an empty volume.",
        "nodus create volume support-chats --size 1Gi",
        (
            Flag("size", "size", "Most it may hold, such as 100Gi.", "SIZE"),
            Flag("access-mode", "accessMode", "Who may mount it at once.", "|".join(_MODES.choices), _MODES),
        ),
    ),
    Generator(
        "Project",
        "Create a project.",
        "nodus create project research --description 'Reward models'",
        (Flag("description", "description", "For people."),),
    ),
    Generator(
        "Member",
        "Create a member; `nodus admin login-link` lets them log in.",
        "nodus create member ada --role Developer --email ada@example.com --in-project research",
        (
            Flag("role", "role", "What they may do; Developer when unset.", "|".join(_ROLES.choices), _ROLES),
            Flag("email", "email", "For people; nothing is sent to it.", "ADDRESS"),
            Flag("display-name", "displayName", "For people."),
            Flag("in-project", "projects", "Project they reach; repeatable, all when unset.", "NAME", multiple=True),
        ),
    ),
    Generator(
        "ServiceAccount",
        "Create an account for a program; `nodus create token` makes its keys.",
        "nodus create serviceaccount nightly --scope trainingjobs:read --scope trainingjobs:write",
        (
            Flag("scope", "scopes", "What its keys may do at most; repeatable.", "SCOPE", multiple=True),
            Flag("description", "description", "For people."),
        ),
    ),
    Generator(
        "Sandbox",
        "Create a sandbox to run commands in.",
        "nodus create sandbox dev --cpu 2 --memory 4Gi --idle-timeout 10m",
        (
            Flag("image", "image", "Container image.", "IMAGE", default="nodus/agent-tools"),
            Flag("cpu", "resources.cpu", "Cores, such as 2.", "CORES"),
            Flag("memory", "resources.memory", "Memory, such as 16Gi.", "SIZE"),
            Flag("disk", "resources.disk", "Disk, such as 50Gi.", "SIZE"),
            Flag("gpu", "resources.gpu", "Accelerator, such as L4 or H100:8.", "TYPE[:COUNT]"),
            Flag("idle-timeout", "lifecycle.idleTimeout", "Stop after this long without work.", "DURATION"),
            Flag("secret", "secrets", "Secret whose keys become variables; repeatable.", "NAME", multiple=True),
            _COST,
        ),
    ),
    Generator(
        "AgentRun",
        "Start a run of an agent.",
        'nodus create agentrun triage --agent researcher --prompt "Summarize the logs"',
        (
            _AGENT,
            Flag("prompt", "input", "The first prompt.", required=True),
            Flag("parallelism", "parallelism", "Most subagents at once; 0 lets the agent's limit decide.", "N", int),
        ),
    ),
    Generator(
        "AgentGroup",
        "Create a group that runs many tasks of one agent.",
        "nodus create agentgroup reviews --agent reviewer --max-active 2 --max-cost 0.60",
        (
            _AGENT,
            Flag("max-active", "limits.maxActive", "Most runs at once.", "N", int),
            Flag("max-pending", "limits.maxPending", "Most unfinished runs it takes in.", "N", int),
            _COST,
        ),
    ),
    Generator(
        "InferenceEndpoint",
        "Give a model its own address and limits.",
        "nodus create inferenceendpoint support-bot --model nodus/gpt-oss-120b --rpm 120 --max-cost 50",
        (
            Flag("model", "model", "The model it serves.", "MODEL", required=True),
            Flag("rpm", "limits.rpm", "Requests a minute.", "N", int),
            Flag("tpm", "limits.tpm", "Tokens a minute.", "N", int),
            Flag("max-concurrent", "limits.maxConcurrent", "Requests at once.", "N", int),
            Flag("allowed-key", "allowedKeys", "Name of a key that may call it; repeatable.", "NAME", multiple=True),
            _COST,
        ),
    ),
)  # fmt: skip


def generator_command(generator: Generator) -> click.Command:
    """Return the ``nodus create`` command of a generator; hidden while this client doesn't know the kind."""

    @connected()
    def run(session: Session, /, name: str, dry_run: str, output: str | None, **given: Any) -> None:
        document = manifest(generator.kind, name, spec_of(generator.flags, given), generator.version)
        create_one(session, document, dry_run, output)

    run = dry_run_option("Only say what would be created; `client` sends nothing.")(run)
    run = output_option("json", "yaml", "name", "estimate")(run)
    for flag in reversed(generator.flags):
        # Newer versions of click take a default of None for a value that is there.
        default: dict[str, Any] = {} if flag.default is None else {"default": flag.default, "show_default": True}
        run = click.option(
            f"--{flag.name}",
            flag.name.replace("-", "_"),
            type=flag.type,
            multiple=flag.multiple,
            required=flag.required,
            **default,
            metavar=flag.metavar,
            help=flag.help,
        )(run)
    run = click.argument("name")(run)
    text = f"{generator.help}\n\n\b\nExample:\n  {generator.example}\n"
    return click.command(generator.name, help=text, hidden=find_kind(generator.kind) is None)(run)


def spec_of(flags: tuple[Flag, ...], given: Mapping[str, Any]) -> JsonObject:
    """Return the spec that the given flags describe; flags that were left out leave no trace."""
    spec: JsonObject = {}
    for flag in flags:
        value = given[flag.name.replace("-", "_")]
        if value is None or value == ():
            continue
        *parents, key = flag.path.split(".")
        part = spec
        for parent in parents:
            part = part.setdefault(parent, {})
        part[key] = list(value) if isinstance(value, tuple) else value
    return spec


def manifest(kind: str, name: str, spec: JsonObject, version: str = "v1") -> JsonObject:
    """Return an object to be created."""
    return {"apiVersion": f"{GROUP}/{version}", "kind": kind, "metadata": {"name": name}, "spec": spec}


def create_one(session: Session, document: JsonObject, dry_run: str, output: str | None) -> JsonObject:
    """Create an object, or say what would come of it; print it as asked, and return the answer."""
    obj, outcome = created(session, document, dry_run)
    if output is not None:
        print_results([obj], output, dry_run)
    else:
        print(f"{object_label(obj)} {did(outcome, dry_run)}")
    return obj


def created(session: Session, document: JsonObject, dry_run: str, idempotency_key: str | None = None) -> Applied:
    """Create an object and return the server's answer; a dry run's answer where that is asked for."""
    if dry_run == "client":
        metadata = dict(document.get("metadata") or {})
        kind = find_kind(str(document["kind"]))
        if kind is None or kind.namespaced:
            metadata.setdefault("namespace", session.project)
        return Applied(document | {"metadata": metadata}, "created")
    if dry_run == "server":
        return Applied(session.run(session.resources.plan(document)).object, "created")
    key = idempotency_key or new_key("create").replace("sdk:", "nodus-", 1)
    return session.run(session.resources.create_or_find(document, idempotency_key=key))
