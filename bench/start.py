"""How long it takes until something happens: `nodus up` to ready, `nodus get tj`, `import nodus`.

There is no peer; the goals are the ones users feel: 2 s, 0.20 s and 0.15 s. Every command is a process of its own, as
in a shell. The server is started on a data directory that exists, which is what every start but the first does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench._harness import Figure, measure

NODUS = [str(Path(sys.executable).with_name("nodus"))]
UP = Figure(name="start-up", unit="s", goal=2.0)
GET = Figure(name="start-get", unit="s", goal=0.20)
IMPORT = Figure(name="start-import", unit="s", goal=0.15)


def main() -> int:
    """Measure all three and print a line for each."""
    with tempfile.TemporaryDirectory(prefix="nodus-bench-") as folder:
        environment = _environment(Path(folder))
        try:
            measure(UP, ours=lambda: _up(environment))
            _run([*NODUS, "up", "--detach", "--port", "0"], environment)
            measure(GET, ours=lambda: _run([*NODUS, "get", "tj"], environment), rounds=15)
        finally:
            _run([*NODUS, "down"], environment)
        measure(IMPORT, ours=lambda: _run([sys.executable, "-c", "import nodus"], environment), rounds=15)
    return 0


def _environment(folder: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NODUS_")}
    return kept | {"NODUS_CONFIG": str(folder / "config"), "NODUS_DATA_DIR": str(folder / "data")}


def _up(environment: dict[str, str]) -> float:
    """Start a detached server, stop it again, and return the seconds until the command said that it is ready."""
    seconds = _run([*NODUS, "up", "--detach", "--port", "0"], environment)
    _run([*NODUS, "down"], environment)
    return seconds


def _run(command: list[str], environment: dict[str, str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
