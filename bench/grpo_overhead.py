"""Seconds of a GRPO optimizer step: our trainer against TRL's plain GRPOTrainer with the same configuration.

The configuration is the quickstart's: SmolLM2-135M, fp32, 8 completions of at most 12 tokens for each of 4 additions,
LoRA on all linear layers. Ours samples, submits the completions over a unix socket, learns, measures the KL divergence
and reports the step; the peer calls a Python function for its rewards. Both run in this process, a few steps in turn. A
learning rate of almost nothing keeps the model, and so the length of its replies, what it is. Timed from the start of a
step to the start of the next, so that what happens between steps counts.

    python -m bench.grpo_overhead [--model DIR]
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from bench._harness import Figure, measure

FIGURE = Figure(name="grpo-overhead", unit="s/step", goal=0.9)
PARAMETERS: dict[str, Any] = {
    "steps": 2,
    "batchSize": 8,
    "gradientAccumulation": 4,
    "numGenerations": 8,
    "learningRate": 1e-9,
    "lrScheduler": "linear",
    "warmupRatio": 0,
    "maxCompletionLength": 12,
    "sampling": {"temperature": 1.0},
    "lora": {"r": 8, "alpha": 16, "dropout": 0.0},
    "gradientCheckpointing": False,
    # A round trains a few steps and must not stop to save them.
    "saveSteps": 1000,
}


def prompt(a: int, b: int) -> str:
    """The arithmetic environment's prompt."""
    return f"What is {a} + {b}? Reply with only the number."


def grade(task_id: str, completion: str) -> float | None:
    """1 for the right sum as the last integer, 0 for another, None for none."""
    _, a, b = task_id.split("-")
    found = re.findall(r"-?\d+", completion)
    return float(int(found[-1]) == int(a) + int(b)) if found else None


def main() -> int:
    """Make both trainers ready, step them in turn, print the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="model directory; made from the local library when absent")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nodus-bench-") as folder:
        model_dir = options.model or _library_model(Path(folder) / "model")
        pairs = [(a, b) for a in range(2, 21) for b in range(2, 21)]
        random.Random(42).shuffle(pairs)
        return _measure(Path(folder), model_dir, pairs[:160])


def _library_model(directory: Path) -> Path:
    from nodus.trainer.library import SMOLLM2_135M, export

    export(SMOLLM2_135M, directory)
    return directory


def _measure(folder: Path, model_dir: Path, pairs: list[tuple[int, int]]) -> int:
    from nodus.testing.trainer_run import TrainerRun

    rows = [{"taskId": f"add-{a}-{b}", "prompt": prompt(a, b), "metadata": {}} for a, b in pairs]
    run = TrainerRun(folder / "run", model_dir, PARAMETERS)
    with run.server(rows, [], grade) as server:
        ours = _ours(run)
        peer = _peer(model_dir, pairs, str(folder / "peer"))

        def our_steps() -> float:
            server.verdicts.clear()  # every round samples its first steps anew, which one run never does
            return _step_seconds(ours)

        return measure(FIGURE, ours=our_steps, peer=lambda: _step_seconds(peer))


def _ours(run: Any) -> Any:
    from nodus.trainer.attempt import AttemptClient
    from nodus.trainer.checkpoints import State
    from nodus.trainer.models import detect_device
    from nodus.trainer.run import Run
    from nodus.trainer.tasks import grpo

    spec = Run.load(run.environ("bench"))
    attempt = AttemptClient(spec.socket, spec.project, spec.name, spec.attempt)
    state = State(spec.state_dir, spec.binding(), 2)
    state.open()
    tasks, _ = attempt.tasks()
    trainer = grpo.prepare(spec, attempt, state, detect_device(1), tasks, []).trainer
    # What a whole run does once at its end is not a step's time.
    trainer._save_checkpoint = lambda *_: None
    return trainer


def _peer(model_dir: Path, pairs: list[tuple[int, int]], output_dir: str) -> Any:
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from nodus.trainer.grpo_config import Device, grpo_arguments, lora_arguments
    from nodus.trainer.parameters import GRPO_LORA, Values

    values = Values(PARAMETERS, GRPO_LORA)
    rows = [{"prompt": [{"role": "user", "content": prompt(a, b)}], "task": f"add-{a}-{b}"} for a, b in pairs]

    def reward(completions: list[Any], task: list[str], **_: Any) -> list[float]:
        return [grade(name, c[0]["content"]) or 0.0 for name, c in zip(task, completions, strict=True)]

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model_dir, dtype="float32"),
        args=GRPOConfig(**grpo_arguments(values, Device(), output_dir)),
        reward_funcs=reward,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(model_dir, padding_side="left"),
        peft_config=LoraConfig(**(lora_arguments(values) or {})),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _step_seconds(trainer: Any) -> float:
    """Mean seconds from a step's start to the next one's, over a short training."""
    from transformers import TrainerCallback

    starts: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            starts.append(time.perf_counter())

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            starts.append(time.perf_counter())

    clock = Clock()
    trainer.add_callback(clock)
    trainer._step = 0
    trainer.train()
    trainer.remove_callback(clock)
    return (starts[-1] - starts[0]) / (len(starts) - 1)


if __name__ == "__main__":
    raise SystemExit(main())
