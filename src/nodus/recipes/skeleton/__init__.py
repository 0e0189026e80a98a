"""What ``nodus env init`` writes: the package of an environment that lists and grades from the first minute."""

from __future__ import annotations

from nodus.recipes.skeleton.kinds import KINDS
from nodus.recipes.skeleton.package import Skeleton, SkeletonRefused, skeleton, write

__all__ = ["KINDS", "Skeleton", "SkeletonRefused", "skeleton", "write"]
