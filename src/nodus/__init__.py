"""Nodus: a self-hosted platform for post-training language models.

Example::

    import nodus
    from nodus.recipes import rl

    run = rl.train(tasks, reward, max_cost=2)
    run.watch()
    run.outputs.download("./outputs")

Names are imported when they are first used, so that ``import nodus`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodus._version import __version__

if TYPE_CHECKING:
    from nodus import checkpoint, cluster, errors, log, recipes, runtime
    from nodus.client.client import Client
    from nodus.client.handles import Environment
    from nodus.client.http import RetryPolicy
    from nodus.client.jobs import Distributed, Job
    from nodus.client.outcomes import Applied, Plan
    from nodus.client.process import Process
    from nodus.client.sandbox import Sandbox
    from nodus.client.secrets import Secret
    from nodus.client.training import TrainingJob
    from nodus.client.views import View
    from nodus.client.volumes import Volume
    from nodus.client.watching import Change
    from nodus.runtime import progress, restored, self, state_dir

__all__ = [
    "Applied",
    "Change",
    "Client",
    "Distributed",
    "Environment",
    "Job",
    "Plan",
    "Process",
    "RetryPolicy",
    "Sandbox",
    "Secret",
    "TrainingJob",
    "View",
    "Volume",
    "__version__",
    "checkpoint",
    "cluster",
    "errors",
    "log",
    "progress",
    "recipes",
    "restored",
    "runtime",
    "self",
    "state_dir",
]

_HOMES = {
    "Applied": "nodus.client.outcomes",
    "Change": "nodus.client.watching",
    "Client": "nodus.client.client",
    "Distributed": "nodus.client.jobs",
    "Environment": "nodus.client.handles",
    "Job": "nodus.client.jobs",
    "Plan": "nodus.client.outcomes",
    "Process": "nodus.client.process",
    "RetryPolicy": "nodus.client.http",
    "Sandbox": "nodus.client.sandbox",
    "Secret": "nodus.client.secrets",
    "TrainingJob": "nodus.client.training",
    "View": "nodus.client.views",
    "Volume": "nodus.client.volumes",
    "checkpoint": "",
    "cluster": "",
    "errors": "",
    "log": "",
    "progress": "nodus.runtime",
    "recipes": "",
    "restored": "nodus.runtime",
    "runtime": "",
    "self": "nodus.runtime",
    "state_dir": "nodus.runtime",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'nodus' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name) if home else import_module(f"nodus.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
