"""Paths and manifests that the API tests share."""

from __future__ import annotations

from typing import Any

V1, BETA = "/apis/nodus.dev/v1", "/apis/nodus.dev/v1beta1"
JOBS = f"{V1}/namespaces/default/jobs"
SECRETS = f"{V1}/namespaces/default/secrets"
VOLUMES = f"{V1}/namespaces/default/volumes"
TRAINING_JOBS = f"{BETA}/namespaces/default/trainingjobs"
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}


def job(name: str | None = "j1", **spec: Any) -> dict[str, Any]:
    """A Job's manifest."""
    metadata = {"name": name} if name else {}
    return {"apiVersion": "nodus.dev/v1", "kind": "Job", "metadata": metadata, "spec": {"command": ["true"], **spec}}


def causes(status: dict[str, Any]) -> dict[str, str]:
    """Message by field of a Status."""
    return {cause["field"]: cause["message"] for cause in status["details"]["causes"]}
