"""Admission of TrainingRuntime: its parameters must be a JSON Schema that its own defaults satisfy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodus.core.kinds import TRAINING_RUNTIME
from nodus.core.kinds.training import TrainingRuntimeSpec
from nodus.server.kinds.base import Admission, Draft

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.services import Services

MANAGED_PREFIX = "nodus/"


class TrainingRuntimeAdmission(Admission[TrainingRuntimeSpec]):
    """Checks the schema, and that the image is one this installation can run."""

    def admit(self, conn: Connection, services: Services, draft: Draft, spec: TrainingRuntimeSpec) -> None:
        """Note what is wrong with schema, defaults or image."""
        from jsonschema import Draft202012Validator  # late: 40 ms, and only needed here
        from jsonschema.exceptions import SchemaError

        try:
            Draft202012Validator.check_schema(spec.parameters)
        except SchemaError as error:
            where = "".join(f".{part}" for part in error.absolute_path)
            draft.reject(f"spec.parameters{where}", f"is not JSON Schema: {error.message[:200]}")
        if not spec.image.startswith(MANAGED_PREFIX):
            draft.reject("spec.image", f"{spec.image!r}: only managed images ({MANAGED_PREFIX}...) can be run yet")
        if draft.creating:
            draft.status = {"phase": "Ready", "managed": draft.project == "nodus"}


ADMISSIONS = (TrainingRuntimeAdmission(TRAINING_RUNTIME),)
