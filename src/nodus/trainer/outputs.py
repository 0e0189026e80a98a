"""What a run leaves under ``$NODUS_OUTPUT_DIR``: weights, results, where they came from, and a manifest of it all."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nodus.core.digests import digest_of
from nodus.trainer.attempt import Task
from nodus.trainer.chat import CHAT_TEMPLATE_ARGUMENTS
from nodus.trainer.evaluation import Scores
from nodus.trainer.files import manifest_of, read_json, write_json
from nodus.trainer.grpo_config import Device, effective
from nodus.trainer.run import Run

SAMPLES = 16
"""Held-out tasks whose replies before and after are shown in results.json."""
_SHOWN = ("completion", "verdict", "reward", "turns", "messages")
"""What is shown of each reply, and of each episode."""
_STACK = ("torch", "transformers", "trl", "peft", "accelerate")


def clear(output_dir: Path) -> None:
    """Empty the output directory: an attempt that died while writing leaves nothing to the next."""
    output_dir.mkdir(parents=True, exist_ok=True)
    for path in output_dir.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def write_weights(model: Any, tokenizer: Any, output_dir: Path, model_uri: str | None) -> str:
    """Write the adapter, or the whole model when there is none, with the tokenizer beside it.

    Args:
        model: The trained model, unwrapped.
        tokenizer: Its tokenizer.
        output_dir: Where the directory is made.
        model_uri: What an adapter names as its base in place of the path the base was mounted at.

    Returns:
        The directory's name: ``adapter`` or ``model``.
    """
    name = "adapter" if hasattr(model, "peft_config") else "model"
    model.save_pretrained(output_dir / name)
    if name == "adapter" and model_uri:
        # Rewritten afterwards: PEFT looks the base model up where the config says while it saves.
        config = output_dir / name / "adapter_config.json"
        base = model_uri.removeprefix("hf://").split("@")[0]
        write_json(config, {**(read_json(config) or {}), "base_model_name_or_path": base})
    # PEFT writes a model card of blanks; what it would say is in provenance.json.
    (output_dir / name / "README.md").unlink(missing_ok=True)
    tokenizer.save_pretrained(output_dir / name)
    return name


def write_results(
    run: Run,
    *,
    baseline: Scores | None,
    final: Scores | None,
    tasks: Sequence[Task],
    training: Mapping[str, Any] | None,
) -> None:
    """Write results.json: the figures of both evaluations, their difference, and sample replies.

    Args:
        run: The run.
        baseline: Before training; None when not asked for.
        final: After training, or the only one of an evaluation run.
        tasks: The held-out tasks.
        training: Figures of the training; None where nothing was trained.
    """
    results: dict[str, Any] = {"trainingJob": run.name, "mode": run.mode}
    if training is not None:
        results["training"] = dict(training)
    if baseline is not None:
        results["baseline"] = baseline.counts()
    if final is not None:
        results["evaluation"] = final.counts()
    if baseline is not None and final is not None:
        results["comparison"] = comparison(baseline, final, run.evaluation.min_comparison_tasks)
    samples = _samples(tasks, baseline, final)
    if samples:
        results["samples"] = samples
    write_json(run.output_dir / "results.json", results)


def comparison(baseline: Scores, final: Scores, min_tasks: int) -> dict[str, Any]:
    """The change over the tasks that both evaluations scored, in percentage points; None below ``min_tasks`` tasks."""
    before = {row["taskId"]: row["outcome"] for row in baseline.rows if row["outcome"] != "Error"}
    after = {row["taskId"]: row["outcome"] for row in final.rows if row["outcome"] != "Error"}
    both = before.keys() & after.keys()
    passed = [sum(side[task] == "Passed" for task in both) for side in (before, after)]
    enough = len(both) >= max(min_tasks, 1)
    return {
        "tasks": len(both),
        "passedBefore": passed[0],
        "passedAfter": passed[1],
        "changePP": round(100 * (passed[1] - passed[0]) / len(both), 2) if enough else None,
    }


def _samples(tasks: Sequence[Task], baseline: Scores | None, final: Scores | None) -> list[dict[str, Any]]:
    sides = {"before": baseline, "after": final}
    rows = {side: {row["taskId"]: row for row in scores.rows} for side, scores in sides.items() if scores is not None}
    if not rows:
        return []
    shown = []
    for task in tasks[:SAMPLES]:
        replies = {
            side: {key: by_task[task.id][key] for key in _SHOWN if key in by_task[task.id]}
            for side, by_task in rows.items()
            if task.id in by_task
        }
        shown.append({"taskId": task.id, "prompt": task.prompt, **replies})
    return shown


def write_provenance(run: Run, device: Device, chat_template: str | None, *, attention: str) -> None:
    """Write provenance.json: everything that the weights and the figures follow from."""
    write_json(
        run.output_dir / "provenance.json",
        {
            "trainingJob": run.name,
            "project": run.project,
            "attempt": run.attempt,
            "runtime": dict(run.runtime),
            "environment": dict(run.environment),
            "model": {**run.model, "source": read_json(run.model_dir / "nodus-provenance.json")},
            "configurationDigest": run.configuration_digest,
            "parameters": dict(run.raw_parameters),
            "parametersSHA256": digest_of(dict(run.raw_parameters)).removeprefix("sha256:"),
            "effective": {**effective(run.parameters, device), "attention": attention},
            "chatTemplate": {
                "digest": digest_of(chat_template) if chat_template else None,
                "arguments": CHAT_TEMPLATE_ARGUMENTS,
            },
            "stack": {
                "python": platform.python_version(),
                "machine": platform.machine(),
                **{name: importlib.metadata.version(name) for name in _STACK},
            },
        },
    )


def write_manifest(output_dir: Path) -> None:
    """Write manifest.json, last: the sha256 and size of every other file."""
    files = manifest_of(output_dir, leave_out=frozenset({"manifest.json"}))
    write_json(output_dir / "manifest.json", {"files": files})
