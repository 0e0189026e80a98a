"""The grading service of a server, without a server: same sandboxes, same runner, nothing kept."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from nodus.core.errors import GraderFailed
from nodus.server.compute.local.graders import LocalGraders
from nodus.server.envtools.subjects import Subject
from nodus.server.grading.manifests import MemoryManifests
from nodus.server.grading.service import GradingService


class NoSandbox(GraderFailed):
    """This machine can't isolate untrusted code, so none is run."""


@contextlib.asynccontextmanager
async def grading(subject: Subject) -> AsyncIterator[GradingService]:
    """Give a grading service for one environment, and end every grader of it afterwards.

    Raises:
        NoSandbox: Where no sandbox can be had; with the fix.
    """
    service = GradingService(subject.library, MemoryManifests(), LocalGraders())
    try:
        isolation = await service.isolation()
        if not isolation.ok:
            raise NoSandbox(
                f"this machine cannot isolate untrusted code: {'; '.join(isolation.problems)}",
                fix=f"{isolation.fix or 'Run it on Linux with bubblewrap'}. `nodus doctor` checks it.",
            )
        yield service
    finally:
        await service.close()
