"""Run ``nodus-env`` from a mounted directory: ``python -S -P /opt/nodus/nodus/grader``."""

import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[2])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

from nodus.grader.main import main  # noqa: E402 - the path above comes first

if __name__ == "__main__":
    raise SystemExit(main())
