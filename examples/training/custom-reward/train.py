"""The same task without a manifest: one call packages the reward, builds the environment and starts the run."""

from reverse_words import reward, tasks

from nodus.recipes import rl


def main() -> None:
    """Start the run, follow it and fetch what it made."""
    run = rl.train(tasks("train"), reward, test_tasks=tasks("test"), steps=50, max_cost=2)
    run.watch()
    run.outputs.download("./outputs")


if __name__ == "__main__":
    main()
