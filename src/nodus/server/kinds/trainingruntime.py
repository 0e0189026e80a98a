"""Admission of TrainingRuntime: its parameters must be a JSON Schema that its own defaults satisfy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodus.core.kinds import TRAINING_RUNTIME
from nodus.core.kinds.decode import encode
from nodus.core.kinds.training import TrainingRuntimeSpec
from nodus.server.compute.local import images
from nodus.server.kinds.base import Admission, Draft
from nodus.server.training import parameters

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.services import Services


class TrainingRuntimeAdmission(Admission[TrainingRuntimeSpec]):
    """Checks the schema, and that the image is one this installation can run."""

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: TrainingRuntimeSpec) -> None:
        """Note what is wrong with schema, defaults or image."""
        draft.causes.extend(parameters.schema_causes(encode(spec)))
        if not images.is_managed(spec.image):
            known = ", ".join(images.MANAGED)
            draft.reject("spec.image", f"{spec.image!r}: only managed images can be run yet ({known})")
        if draft.creating:
            draft.status = {"phase": "Ready", "managed": draft.project == "nodus"}


ADMISSIONS = (TrainingRuntimeAdmission(TRAINING_RUNTIME),)
