"""Run ``nodus-env`` from a mounted directory: ``python -S -P /opt/nodus/nodus/grader``."""

import os.path
import sys

_HERE = os.path.dirname(os.path.realpath(__file__))
_ROOT = os.path.dirname(os.path.dirname(_HERE))
# Python searches the directory that it runs first, and what is called code or tasks here is none of an environment's
sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != _HERE]
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

from nodus.grader.main import main  # noqa: E402 - the path above comes first

if __name__ == "__main__":
    raise SystemExit(main())
