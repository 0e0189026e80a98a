"""The environments that ship with Nodus: each module has ``tasks(split)`` and ``reward(completion, answer)``."""
