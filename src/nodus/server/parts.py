"""The parts behind the API of one server process, made and started in the order in which they need each other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from nodus.server.compute.local.buildhost import LocalBuilds
from nodus.server.compute.local.logstore import LogWriter
from nodus.server.controllers import service as controllers
from nodus.server.controllers.budget import BudgetController
from nodus.server.controllers.environment import EnvironmentController
from nodus.server.controllers.image import ImageController
from nodus.server.controllers.trainingjob import TrainingJobController
from nodus.server.controllers.volume import VolumeController
from nodus.server.grading import EnvironmentLibrary, GradingService, StoredManifests
from nodus.server.grading.builds import Builds, BuildStore, Recipe
from nodus.server.grading.builds.pip import PipRecipe
from nodus.server.grading.oci.recipe import LOOPBACK, ImageRecipe
from nodus.server.services import Services
from nodus.server.settings import LOOPBACK_HOSTS
from nodus.server.training.models import ModelService
from nodus.server.training.service import TrainingService
from nodus.server.volumes import VolumeFiles

log = logging.getLogger(__name__)

BUILD_LOG_BYTES = 4 << 20


def build(services: Services) -> None:
    """Give ``services`` the parts that its role runs; nothing is started yet."""
    settings, store = services.settings, services.store
    services.models = ModelService.from_environment(settings.data_dir, settings.default_model, settings.source_hosts)
    kept = BuildStore(settings.data_dir / "builds")
    # where only this machine's users reach the server, its registries are theirs too
    own = LOOPBACK if settings.host in LOOPBACK_HOSTS else ()
    recipes: dict[str, Recipe] = {
        "pip": PipRecipe(LocalBuilds(settings.source_hosts)),
        "image": ImageRecipe((*settings.source_hosts, *own)),
    }
    services.builds = Builds(kept, recipes, partial(LogWriter, limit_bytes=BUILD_LOG_BYTES), services.clock)
    library = EnvironmentLibrary(settings.data_dir / "environments", store.blobs.path, kept)
    backend = controllers.make_backend(settings.data_dir, store)
    services.grading = GradingService(
        library, StoredManifests(store), backend.graders, services.clock, allow_unsafe=settings.allow_unsafe_sandbox
    )
    services.training = TrainingService(store, services.grading, services.prices)
    if "controllers" in settings.roles:
        services.backend = backend


@contextlib.asynccontextmanager
async def running(services: Services) -> AsyncIterator[None]:
    """Run graders and controllers until the block ends, then stop them in the opposite order."""
    async with contextlib.AsyncExitStack() as stack:
        await services.grading.start()
        stack.push_async_callback(services.grading.close)
        stack.push_async_callback(services.models.close)
        if "controllers" in services.settings.roles:
            await services.builds.start()
            stack.push_async_callback(services.builds.close)
            await stack.enter_async_context(controllers.running(services, _controllers(services)))
        checking = asyncio.create_task(_check_isolation(services), name="isolation")
        stack.callback(checking.cancel)
        yield


async def _check_isolation(services: Services) -> None:
    """Find out early how this machine isolates, so that ``/readyz`` says it before a run needs it."""
    isolation = await services.grading.isolation()
    if not isolation.ok:
        problem = "; ".join(isolation.problems)
        services.checks["sandbox"] = lambda: problem
        log.warning("untrusted code can't be isolated here: %s", problem, extra={"fix": isolation.fix})


def _controllers(services: Services) -> list[Any]:
    files = VolumeFiles(services.settings.data_dir / "volumes", services.store.blobs)
    return [
        BudgetController(),
        ImageController(services.builds),
        EnvironmentController(services.grading),
        VolumeController(services, services.models, files),
        TrainingJobController(services.store, services.grading, services.training),
    ]
