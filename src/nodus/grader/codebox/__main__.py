"""Serve from a mounted directory: ``python -S -P /opt/nodus/nodus/grader/codebox --control-fd N``."""

import os.path
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

from nodus.grader.codebox.server import main  # noqa: E402 - the path above comes first

if __name__ == "__main__":
    raise SystemExit(main())
