"""Examples to run and to start from: ``python -m nodus.examples.quickstart``, ``python -m nodus.examples.rl``."""
