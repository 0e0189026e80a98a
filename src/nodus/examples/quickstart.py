"""Teach a small model to add, on this machine: ``python -m nodus.examples.quickstart``.

Trains a LoRA adapter with GRPO on the server's default model over ``nodus/arithmetic@2.0.0`` and shows what it learnt:
the pass rate on held-out tasks before and after, and the replies themselves. Results are left in ``./outputs``.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nodus.core.errors import NodusError

if TYPE_CHECKING:
    from rich.console import Console

    from nodus.client.client import Client
    from nodus.client.training import TrainingJob

ENVIRONMENT = "nodus/arithmetic@2.0.0"
EXPECTED_POINTS = 35.0
"""Mean lift over seeds that was measured; see docs/quickstart.md."""
LEAST_POINTS = 25.0
"""Lift that no seed should stay below."""


def local_client() -> Client:
    """Return the client of the server on this machine, also where another server's context is the current one."""
    from nodus.client.client import Client
    from nodus.client.config import config_path, local_context

    data_dir = Path(os.environ.get("NODUS_DATA_DIR") or Path.home() / ".nodus" / "data").expanduser().absolute()
    here = local_context(config_path(), data_dir)
    chosen = any(os.environ.get(name) for name in ("NODUS_API_URL", "NODUS_API_KEY", "NODUS_CONTEXT"))
    return Client() if chosen or here.api_key is None else Client(context=here.name)


def start(seed: int, steps: int) -> TrainingJob:
    """Start the run: 40 steps of 4 tasks with 8 replies each, 128 held-out tasks."""
    from nodus.recipes import rl

    return rl.train(
        ENVIRONMENT,
        client=local_client(),
        steps=steps,
        group_size=8,
        groups_per_step=4,
        max_tokens=12,
        temperature=1.0,
        learning_rate=4e-4,
        lr_scheduler="linear",
        warmup_ratio=0.0,
        lora={"r": 8, "alpha": 16, "dropout": 0.0, "target_modules": "all-linear"},
        train_tasks=160,
        held_out_tasks=128,
        evaluation_batch_size=32,
        gradient_checkpointing=False,
        logging_steps=1,
        save_steps=10,
        seed=seed,
        max_cost=2,
    )


def follow(run: TrainingJob, console: Console) -> None:
    """Show progress bars and the live table until the run ends."""
    if not console.is_terminal:
        run.watch()
        return
    from nodus.client.following import LiveDisplay

    with LiveDisplay(run, console) as view:
        for update in run.updates(every=1.0):
            view.show(update)
    run.raise_if_failed()


def verdict(change_pp: float | None) -> str:
    """Return what to make of the lift, honestly."""
    if change_pp is None:
        return "[yellow]The two pass rates can't be compared; the reason stands above.[/]"
    if change_pp >= EXPECTED_POINTS:
        return (
            f"[green]The model learnt: {change_pp:+.1f} points, where {EXPECTED_POINTS:g} are expected on average.[/]"
        )
    if change_pp >= LEAST_POINTS:
        return (
            f"[yellow]{change_pp:+.1f} points: less than the {EXPECTED_POINTS:g} expected on average, and within what "
            f"single seeds give ({LEAST_POINTS:g} or more).[/]"
        )
    return (
        f"[red]{change_pp:+.1f} points: this run fell short of the {LEAST_POINTS:g} that every seed should reach.[/] "
        "Something is off; the log (`nodus logs`) and training.svg are where to look."
    )


def show(run: TrainingJob, console: Console, target: Path) -> None:
    """Print cost, files, replies and what to make of it."""
    from nodus.examples.report import no_contrast, print_cost_and_files, print_replies, save_results

    save_results(run, target, f"{run.name}: GRPO on {ENVIRONMENT}")
    print_cost_and_files(console, run, target)
    print_replies(console, run)
    comparison = run.summary.get("comparison") or {}
    change = comparison.get("changePP") if comparison.get("comparable") else None
    console.print()
    console.print(verdict(None if change is None else float(change)), highlight=False)
    reason = no_contrast(run)
    if reason:
        console.print(f"[yellow]{reason}[/]", highlight=False)
    console.print(
        "\nThe server goes on running. Stop it with [bold]nodus down[/]; look around with "
        f"[bold]nodus describe tj/{run.name}[/].",
        highlight=False,
    )


def main(argv: list[str] | None = None) -> int:
    """Run the example and return the exit code."""
    from nodus.examples.report import make_console, print_error

    parser = argparse.ArgumentParser(prog="python -m nodus.examples.quickstart", description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("outputs"), help="where results go (default: ./outputs)")
    parser.add_argument("--seed", type=int, default=42, help="which tasks, and in which order (default: 42)")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps (default: 40)")
    options = parser.parse_args(argv)
    console = make_console()
    try:
        run = start(options.seed, options.steps)
        console.print(
            f"[bold]{run.name}[/]: GRPO with LoRA on {run.spec.model.uri} over {ENVIRONMENT}", highlight=False
        )
        follow(run, console)
        show(run, console, options.output)
    except NodusError as error:
        print_error(console, error)
        return 1
    except KeyboardInterrupt:
        console.print("\nStopped watching; the run goes on: [bold]nodus get tj -w[/], [bold]nodus cancel tj/NAME[/].")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
