"""How long `nodus get` takes in a shell, beside the published command line in the same run against the same server.

The goals are the ones users feel: a list of 20 objects within 0.15 s, and at most five times as long as the published
program, which is compiled (a ratio of 0.2 or more). It is a black box in an environment of its own that
``NODUS_PUBLISHED_CLIENT`` names; without it only our own time is measured. Every run is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench._harness import Figure, report

NODUS = str(Path(sys.executable).with_name("nodus"))
PUBLISHED = os.environ.get("NODUS_PUBLISHED_CLIENT")
WALL = Figure(name="cli-get", unit="s", goal=0.15, goal_of="ours")
RATIO = Figure(name="cli-get-published", unit="s", goal=0.2)
HELP = Figure(name="cli-help", unit="s", goal=0.15, goal_of="ours")
ROUNDS, WARMUP = 21, 3
VOLUMES = 20


def main() -> int:
    """Measure and print a line for each figure."""
    with tempfile.TemporaryDirectory(prefix="nodus-bench-") as folder:
        environment = _environment(Path(folder))
        _run([NODUS, "up", "--detach", "--port", "0"], environment)
        try:
            for number in range(VOLUMES):
                _run([NODUS, "create", "volume", f"volume-{number}"], environment)
            environment |= _credentials(environment)
            _measure(environment)
        finally:
            _run([NODUS, "down"], environment)
    return 0


def _measure(environment: dict[str, str]) -> None:
    listing = ["get", "volumes"]
    sides = {"ours": [NODUS, *listing], "help": [NODUS, "--help"]}
    if PUBLISHED:
        sides["peer"] = [f"{PUBLISHED}/bin/nodus", *listing]
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(WARMUP + ROUNDS):
        # Flipping the order each round cancels a drift of the machine's speed.
        for name in sorted(sides, reverse=number % 2 == 1):
            seconds = _run(sides[name], environment)
            if number >= WARMUP:
                samples[name].append(seconds)
    report(WALL, samples["ours"])
    if PUBLISHED:
        report(RATIO, samples["ours"], samples["peer"])
    else:
        print("# NODUS_PUBLISHED_CLIENT names no environment: nothing to compare with", file=sys.stderr)
    report(HELP, samples["help"])


def _environment(folder: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NODUS_")}
    return kept | {"HOME": str(folder), "NODUS_CONFIG": str(folder / "config"), "NODUS_DATA_DIR": str(folder / "data")}


def _credentials(environment: dict[str, str]) -> dict[str, str]:
    """Address and key as variables, which both programs read."""
    token = subprocess.run([NODUS, "auth", "token"], env=environment, check=True, capture_output=True).stdout
    state = subprocess.run([NODUS, "status", "-o", "json"], env=environment, check=True, capture_output=True).stdout
    return {"NODUS_API_KEY": json.loads(token)["status"]["token"], "NODUS_API_URL": json.loads(state)["url"]}


def _run(command: list[str], environment: dict[str, str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
