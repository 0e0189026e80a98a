"""From a Sandbox's spec to what a compute backend runs: pure, but for the values it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodus.core.durations import parse_duration
from nodus.server.compute.base import MemberSpec
from nodus.server.compute.processes import ProcessSpec
from nodus.server.controllers import memberspec

if TYPE_CHECKING:
    from nodus.server.store.objects import Object

WORKSPACE = "/workspace"
SANDBOX_LABEL = "nodus.dev/sandbox"
"""On attempts and processes: the Sandbox's name."""
GRACE_S = 10.0
LOG_LIMIT_BYTES = 50 * 1024 * 1024


def build(sandbox: Object, attempt: Object, resolved: memberspec.Resolved, workspace: str) -> MemberSpec:
    """Return what the backend runs for an attempt of a Sandbox.

    Args:
        sandbox: The Sandbox.
        attempt: Its attempt.
        resolved: Its Secrets' values and the attempt's token.
        workspace: Host directory of its files.

    Raises:
        StartRefused: When a Secret lacks a key that is referred to.
    """
    spec = sandbox.spec
    request = memberspec.request_of(spec)
    return MemberSpec(
        key=attempt.uid,
        command=[*spec.get("command", ()), *spec.get("args", ())],
        image=spec.get("image") or "nodus/agent-tools",
        token=resolved.token,
        env={**memberspec.environment(spec, resolved.secrets), **_variables(sandbox, attempt)},
        files=memberspec.secret_files(spec, resolved.secrets),
        cpu=request.cpu,
        memory_bytes=request.memory_bytes,
        gpus=request.gpus,
        workspace_dir=workspace,
        cwd=WORKSPACE,
        grace_s=GRACE_S,
        log_limit_bytes=LOG_LIMIT_BYTES,
        processes=True,
    )


def _variables(sandbox: Object, attempt: Object) -> dict[str, str]:
    return {
        "NODUS_ATTEMPT": attempt.name,
        "NODUS_ATTEMPT_EPOCH": str(attempt.spec["epoch"]),
        "NODUS_SANDBOX": sandbox.name,
        "NODUS_PROJECT": sandbox.project or "",
        "NODUS_RUNTIME_SOCKET": "/run/nodus/api.sock",
        "NODUS_EVENTS_SOCKET": "/run/nodus/events.sock",
    }


def process_spec(sandbox_spec: dict[str, Any], process: Object, size: tuple[int, int] | None = None) -> ProcessSpec:
    """Return what runs for a Process.

    Args:
        sandbox_spec: Spec of its Sandbox.
        process: The Process.
        size: Rows and columns of its terminal.
    """
    spec = process.spec
    timeout = spec.get("timeout")
    return ProcessSpec(
        key=process.uid,
        command=list(spec["command"]),
        env={variable["name"]: str(variable.get("value") or "") for variable in spec.get("env") or ()},
        cwd=spec.get("workingDir") or sandbox_spec.get("workingDir") or WORKSPACE,
        tty=bool(spec.get("tty")),
        stdin=bool(spec.get("stdin")),
        timeout_s=parse_duration(timeout) if timeout else None,
        size=size,
    )
