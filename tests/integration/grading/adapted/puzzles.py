"""A Reasoning Gym dataset: a mix of families, some of whose scorers evaluate the reply."""

from typing import Any


def load_environment() -> Any:
    import reasoning_gym
    from reasoning_gym.composite import DatasetSpec

    families = (
        "letter_counting",
        "countdown",
        "graph_color",
        "string_insertion",
        "knights_knaves",
        "simple_integration",
    )
    mix = [DatasetSpec(name=name, weight=1.0, config={}) for name in families]
    return reasoning_gym.create_dataset("composite", size=60, seed=9, datasets=mix)
