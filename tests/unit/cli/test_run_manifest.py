"""What Job the flags of `nodus run` make, and what a Job's end comes to as an exit code."""

from __future__ import annotations

from typing import Any

import click
import pytest

from nodus.cli.commands import run
from nodus.cli.runview import exit_code


def job(*arguments: str) -> dict[str, Any]:
    """Return the manifest that a command line makes."""
    made: dict[str, Any] = {}

    @click.pass_context
    def keep(ctx: click.Context, words: tuple[str, ...], **flags: Any) -> None:
        connection = ("context", "org", "project", "verbose")
        made.update(run.manifest(words, {key: flags[key] for key in flags if key not in connection}))

    command = click.Command(
        "run", params=run.command.params, callback=keep, context_settings=run.command.context_settings
    )
    command.main(list(arguments), standalone_mode=False)
    return made


def spec(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = job(*arguments)["spec"]
    return found


def test_least_that_can_be_said() -> None:
    assert job("--", "echo", "-n", "hi") == {
        "apiVersion": "nodus.dev/v1",
        "kind": "Job",
        "metadata": {"generateName": "run-"},
        "spec": {"command": ["echo", "-n", "hi"], "ttlSecondsAfterFinished": 2592000},
    }


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--keep", {}),
        ("--gpu H100:8", {"resources": {"gpu": "H100:8"}}),
        ("--cpu 4 --memory 16Gi --disk 200Gi", {"resources": {"cpu": "4", "memory": "16Gi", "disk": "200Gi"}}),
        (
            "--nodes 2 --launcher torchrun --network global --transport auto --startup-timeout 15m",
            {
                "distributed": {
                    "nodes": 2, "launcher": "Torchrun", "network": "Global", "transport": "Auto",
                    "startupTimeout": "15m0s",
                }
            },
        ),
        ("--total-gpus 16 --gpus-per-node 8", {"distributed": {"totalGPUs": 16, "gpusPerNode": 8}}),
        ("--launcher bogus", {"distributed": {"launcher": "Bogus"}}),
        ("--max-cost 2.00 --timeout 2h", {"maxCostUSD": "2.00", "timeout": "2h"}),
        ("--expected-duration 5m --complete-by 2030-01-01T00:00:00Z",
         {"expectedDuration": "5m", "completeByTime": "2030-01-01T00:00:00Z"}),
        ("--env A=b --env C=d=e --env E=", {"env": [
            {"name": "A", "value": "b"}, {"name": "C", "value": "d=e"}, {"name": "E", "value": ""}]}),
        ("--secret s --secret t@3", {"secrets": ["s", {"name": "t", "version": 3}]}),
        ("--volume a:/a --volume b:/b:ro --volume c@2:/c", {"volumes": [
            {"volume": "a", "mountPath": "/a"}, {"volume": "b", "mountPath": "/b", "readOnly": True},
            {"volume": "c", "mountPath": "/c", "revision": 2}]}),
        ("--output n=/workspace/n", {"outputs": [{"name": "n", "path": "/workspace/n"}]}),
        ("--interruptible --region us,eu --profile cost",
         {"placement": {"interruptible": "Prefer", "regions": ["us", "eu"], "profile": "Cost"}}),
        ("--interruptible=never", {"placement": {"interruptible": "Never"}}),
        ("--checkpoint /a --checkpoint /b --continuity restartable",
         {"recovery": {"checkpoint": {"paths": ["/a", "/b"]}, "continuity": "Restartable"}}),
        ("--completions 8 --parallelism 2 --backoff-limit 1", {"completions": 8, "parallelism": 2, "backoffLimit": 1}),
        (
            "--git https://example.com/x.git --git-ref v1 --git-path sub",
            {"source": {"git": {"repo": "https://example.com/x.git", "ref": "v1", "path": "sub"}}},
        ),
        ("--no-warm --image nodus/base --workdir /d",
         {"scaledownWindow": "0s", "image": "nodus/base", "workingDir": "/d"}),
    ],
)  # fmt: skip
def test_flags_are_fields(flags: str, expected: dict[str, Any]) -> None:
    found = spec(*flags.split(), "--", "x")
    del found["command"]
    found.pop("ttlSecondsAfterFinished", None)
    assert found == expected


def test_labels_and_name_are_metadata() -> None:
    metadata = job("--name", "n", "-l", "a=b,c=d", "--label", "e=f", "--", "x")["metadata"]
    assert metadata == {"name": "n", "labels": {"a": "b", "c": "d", "e": "f"}}


@pytest.mark.parametrize(
    "flags",
    ["--env A", "--env =x", "--volume a", "--volume a:b", "--volume a:/b:rx", "--output n", "--output n=rel",
     "--secret s@x", "--label a", "--timeout soon", "--interruptible=sometimes", "--completions 0", "--git-ref x"],
)  # fmt: skip
def test_what_can_not_be_read_is_wrong_usage(flags: str) -> None:
    with pytest.raises(click.UsageError):
        job(*flags.split(), "--", "x")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ({"phase": "Succeeded", "exitCode": 0}, 0),
        ({"phase": "Failed", "reason": "BackoffLimitExceeded", "exitCode": 7}, 7),
        ({"phase": "Failed", "reason": "OOMKilled", "exitCode": 137}, 137),
        ({"phase": "Failed", "reason": "StateMismatch", "exitCode": 3}, 3),
        ({"phase": "Failed", "reason": "DeadlineExceeded", "exitCode": 137}, 124),
        ({"phase": "Failed", "reason": "StartFailed"}, 125),
        ({"phase": "Failed", "reason": "AttemptLost", "exitCode": 1}, 125),
        ({"phase": "Failed", "reason": "SourceNotFound"}, 125),
        ({"phase": "Cancelled", "reason": "Cancelled"}, 125),
    ],
)
def test_end_is_an_exit_code(status: dict[str, Any], code: int) -> None:
    assert exit_code({"status": status}) == code
