"""What users write against, pinned: a change here is a change for them."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import nodus
from nodus import errors
from nodus.client.handles import Environment, Handle
from nodus.client.jobs import Distributed, Job
from nodus.client.outputs import Outputs
from nodus.client.process import Output, Process
from nodus.client.sandbox import Sandbox
from nodus.client.sandboxfiles import SandboxFiles
from nodus.client.secrets import Secret
from nodus.client.training import TrainingJob
from nodus.client.volumes import BatchUpload, Volume
from nodus.core.errors import all_errors
from nodus.recipes import rl


def test_names_of_nodus() -> None:
    assert nodus.__all__ == [
        "Applied",
        "Change",
        "Client",
        "Distributed",
        "Environment",
        "Job",
        "Plan",
        "Process",
        "RetryPolicy",
        "Sandbox",
        "Secret",
        "TrainingJob",
        "View",
        "Volume",
        "__version__",
        "checkpoint",
        "cluster",
        "errors",
        "log",
        "progress",
        "recipes",
        "restored",
        "runtime",
        "self",
        "state_dir",
    ]
    for name in nodus.__all__:
        assert getattr(nodus, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nope'"):
        _ = nodus.Nope  # type: ignore[attr-defined]


def test_errors_are_all_there() -> None:
    assert set(errors.__all__) <= set(dir(errors))
    # Raised inside the server or the trainer only.
    inner = {"StoreError", "StaleLease", "StateMismatch"}
    ours = {
        cls.__name__ for cls in all_errors() if cls.__module__ in ("nodus.core.errors.reasons", "nodus.recipes.errors")
    }
    assert ours - inner <= set(errors.__all__)


HANDLES: dict[type[Any], set[str]] = {
    Handle: {
        "client",
        "kind",
        "name",
        "project",
        "metadata",
        "spec",
        "status",
        "phase",
        "raw",
        "from_name",
        "refresh",
        "delete",
        "events",
        "patch",
    },
    nodus.Client: {
        "get",
        "list",
        "events",
        "logs",
        "watch",
        "wait_for",
        "create",
        "create_many",
        "plan",
        "apply",
        "patch",
        "replace",
        "delete",
        "whoami",
        "server_info",
        "ready",
        "close",
    },
    nodus.View: {"name", "project", "uid", "labels", "phase", "to_dict"},
    TrainingJob: {
        "create",
        "preview",
        "from_example",
        "updates",
        "watch",
        "wait",
        "tasks",
        "metrics",
        "prompts",
        "summary",
        "outputs",
        "cancel",
        "done",
        "raise_if_failed",
    },
    Job: {
        "create",
        "run",
        "wait",
        "logs",
        "attempts",
        "outputs",
        "cancel",
        "suspend",
        "resume",
        "done",
        "raise_if_failed",
        "exit_code",
        "estimate",
    },
    Environment: {"create", "reference", "wait_ready"},
    Secret: {"create", "from_dict", "from_dotenv", "keys", "version"},
    Volume: {
        "from_name",
        "import_from",
        "wait_ready",
        "put",
        "put_file",
        "put_directory",
        "write_file",
        "remove_file",
        "batch_upload",
        "clear",
        "restore",
        "commit",
        "reload",
        "revisions",
        "list",
        "listdir",
        "read_file",
        "stream",
        "get",
    },
    BatchUpload: {"put_file", "put_directory", "write_file", "remove_file"},
    Outputs: {"list", "entries", "download", "read", "fetch"},
    Sandbox: {"create", "wait_running", "exec", "processes", "stop", "start", "logs"},
    Process: {"wait", "check", "write", "close_stdin", "signal", "resize", "cancel", "follow", "returncode"},
    SandboxFiles: {
        "read",
        "read_text",
        "write",
        "list",
        "mkdir",
        "remove",
        "upload",
        "download",
        "uploading",
        "downloading",
    },
}


@pytest.mark.parametrize("cls", HANDLES, ids=lambda cls: cls.__name__)
def test_members_of_handles(cls: type[Any]) -> None:
    inherited = HANDLES[Handle] if issubclass(cls, Handle) and cls is not Handle else set()
    own = set(dir(cls)) - (set(dir(dict)) if issubclass(cls, dict) else set())
    public = {name for name in own if not name.startswith("_")} | {"client", "raw", "kind"} & HANDLES[cls]
    assert public - inherited - {"client", "raw"} == HANDLES[cls] - {"client", "raw"} - inherited


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (
            TrainingJob,
            [
                "create",
                "from_example",
                "from_name",
                "refresh",
                "delete",
                "wait",
                "watch",
                "updates",
                "tasks",
                "metrics",
                "prompts",
                "cancel",
            ],
        ),
        (Job, ["create", "run", "from_name", "wait", "logs", "attempts", "cancel", "suspend", "resume"]),
        (Environment, ["create", "from_name", "wait_ready"]),
        (Secret, ["create", "from_dict", "from_dotenv"]),
        (Volume, [name for name in sorted(HANDLES[Volume]) if name != "batch_upload"]),
        (Outputs, ["list", "download", "read"]),
        (Sandbox, sorted(HANDLES[Sandbox])),
        (Process, ["wait", "check", "write", "close_stdin", "signal", "resize", "cancel"]),
        (Output, ["read", "read_bytes"]),
        (SandboxFiles, ["read", "read_text", "write", "list", "mkdir", "remove", "upload", "download"]),
        (nodus.Client, [name for name in sorted(HANDLES[nodus.Client]) if name != "close"]),
    ],
)
def test_blocking_calls_have_twins(cls: type[Any], names: list[str]) -> None:
    for name in names:
        wrapped = inspect.getattr_static(cls, name, None) or inspect.getattr_static(Handle, name)
        function = wrapped.__wrapped__
        assert inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function), name


def test_gang_is_as_in_a_manifest() -> None:
    gang = Distributed(total_gpus=8, gpus_per_node=4, launcher="Torchrun", startup_timeout=900)
    assert gang.spec() == {"totalGPUs": 8, "gpusPerNode": 4, "launcher": "Torchrun", "startupTimeout": "900s"}


def defaults(function: Any) -> dict[str, Any]:
    """Return a signature's defaults by name."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def test_defaults_of_train_are_the_guides() -> None:
    assert defaults(rl.train) == {
        "reward": None,
        "model": None,
        "test_tasks": None,
        "group_size": 8,
        "groups_per_step": 4,
        "max_tokens": 256,
        "learning_rate": 4e-5,
        "steps": 50,
        "temperature": 1.0,
        "seed": None,
        "gpu": None,
        "max_cost": None,
        "lora": None,
        "pip": (),
        "train_tasks": None,
        "held_out_tasks": None,
        "name": None,
        "project": None,
        "client": None,
    }


def _own_docstring(member: Any) -> str:
    return str(getattr(getattr(member, "__wrapped__", member), "__doc__", None) or "")


CLASSES = [name for name in nodus.__all__ if isinstance(getattr(nodus, name), type)]


@pytest.mark.parametrize("name", CLASSES)
def test_public_classes_are_described_with_an_example(name: str) -> None:
    cls = getattr(nodus, name)
    assert re.search(r"^ *Example::?$", str(cls.__doc__), re.MULTILINE), f"nodus.{name} has no example"
    undescribed = [
        member
        for member in dir(cls)
        if not member.startswith("_") and not hasattr(dict, member) and not hasattr(tuple, member)
        if callable(found := inspect.getattr_static(cls, member)) or hasattr(found, "__wrapped__")
        if not _own_docstring(found)
    ]
    assert not undescribed


def test_every_call_of_the_client_has_an_example() -> None:
    calls = {name: inspect.getattr_static(nodus.Client, name) for name in HANDLES[nodus.Client] - {"close"}}
    assert [name for name, call in calls.items() if "Example::" not in _own_docstring(call)] == []
