"""Compute backends: where the members of an Attempt run."""
