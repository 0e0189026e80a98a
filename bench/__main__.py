"""Run benches by name and, with --record, write their lines into docs/performance.md.

Called by scripts/bench. Without names, runs all of them, one after another: they share the machine's cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench._harness import machine

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
HEADER = "| figure | ours | peer | ratio | unit | goal | met | measured |\n|---|---|---|---|---|---|---|---|"


def names() -> list[str]:
    """Every bench, as `make bench-NAME` spells it."""
    return sorted(path.stem.replace("_", "-") for path in (ROOT / "bench").glob("[a-z]*.py"))


def run(name: str) -> list[dict[str, object]]:
    """Run one bench and return its figures; its stderr goes through.

    Raises:
        SystemExit: If it exits with another status than 0 or prints no JSON line.
    """
    module = f"bench.{name.replace('-', '_')}"
    done = subprocess.run([sys.executable, "-m", module], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    sys.stdout.write(done.stdout)
    sys.stdout.flush()
    figures = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    if done.returncode or not figures:
        raise SystemExit(f"bench-{name} failed with status {done.returncode} and {len(figures)} figures")
    return figures


def record(figures: list[dict[str, object]]) -> None:
    """Replace the figures' rows in docs/performance.md, keeping those of other benches."""
    text = TABLE.read_text()
    before, rest = text.split(BEGIN)
    table, after = rest.split(END)
    rows = {line.split("|")[1].strip(): line for line in table.strip().splitlines()[2:]}
    for figure in figures:
        cells = [figure[key] for key in ("name", "ours", "peer", "ratio", "unit", "goal")]
        shown = ["-" if cell is None else str(cell) for cell in cells]
        rows[str(figure["name"])] = f"| {' | '.join(shown)} | {'yes' if figure['met'] else 'no'} | {machine()} |"
    TABLE.write_text(f"{before}{BEGIN}\n{HEADER}\n" + "\n".join(rows[key] for key in sorted(rows)) + f"\n{END}{after}")


def main(arguments: list[str]) -> int:
    """Run the benches named in `arguments` (all without a name)."""
    wanted = [argument for argument in arguments if not argument.startswith("-")] or names()
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        raise SystemExit(f"no bench named {', '.join(unknown)}; there are: {', '.join(names())}")
    figures = [figure for name in wanted for figure in run(name)]
    if "--record" in arguments:
        record(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
