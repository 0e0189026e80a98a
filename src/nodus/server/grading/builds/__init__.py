"""Building Environments' packages: what Images are made by.

A recipe (one for each packaging) fills a directory, in steps, and says what decides its content. The service runs
recipes, keeps their logs, and keeps what they built under the digest of its content, once for all Environments of it.
"""

from nodus.server.grading.builds.base import Build, BuildFailed, BuildStopped, Built, Order, Recipe, Report, Step
from nodus.server.grading.builds.keeping import BuildStore
from nodus.server.grading.builds.service import Builds, BuildState

__all__ = [
    "Build",
    "BuildFailed",
    "BuildState",
    "BuildStopped",
    "BuildStore",
    "Builds",
    "Built",
    "Order",
    "Recipe",
    "Report",
    "Step",
]
