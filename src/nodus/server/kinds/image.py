"""Admission of Image: the server makes them; one that an Environment runs from stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodus.core.errors import Conflict
from nodus.core.kinds import ENVIRONMENT, IMAGE
from nodus.core.kinds.image import ImageSpec
from nodus.server.kinds.base import Admission
from nodus.server.store import objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.services import Services
    from nodus.server.store.objects import Object


class ImageAdmission(Admission[ImageSpec]):
    """Keeps what runs may be using."""

    def deleting(self, conn: Connection, services: Services, obj: Object) -> None:
        """Refuse the deletion of a finished Image whose Environment is there."""
        environment = objects.find(conn, ENVIRONMENT, obj.project, str(obj.spec["environment"]))
        owned = environment is not None and environment.uid in obj.controllers
        if owned and obj.status.get("phase") == "Ready":
            raise Conflict(
                f"image {obj.name} is what {obj.spec['environment']}@{obj.spec['version']} runs from",
                fix=f"Delete the environment: nodus delete environment/{obj.spec['environment']}.",
            )


ADMISSIONS = (ImageAdmission(IMAGE),)
