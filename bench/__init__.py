"""Figures, each a program: `scripts/bench NAME` runs `bench/NAME.py`, which ends with one JSON line a figure."""
