"""``python -m nodus.trainer``."""

import sys

from nodus.trainer.main import main

if __name__ == "__main__":
    sys.exit(main())
