"""Grading: task manifests and verdicts, from environments that run in sandboxes.

:class:`~nodus.server.grading.service.GradingService` is the way in; everything else here is a part of it.
"""

from nodus.server.grading.compiled import BadBundle
from nodus.server.grading.environments import EnvironmentLibrary, ResolvedEnvironment
from nodus.server.grading.manifests import Manifest, ManifestStore, MemoryManifests, StoredManifests, Task
from nodus.server.grading.service import GradingService
from nodus.server.grading.verdicts import Completion, Verdict

__all__ = [
    "BadBundle",
    "Completion",
    "EnvironmentLibrary",
    "GradingService",
    "Manifest",
    "ManifestStore",
    "MemoryManifests",
    "ResolvedEnvironment",
    "StoredManifests",
    "Task",
    "Verdict",
]
