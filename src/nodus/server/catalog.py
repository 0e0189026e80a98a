"""The catalog: YAML files become objects of project ``nodus`` when a server starts.

An object is written only when its file changed, so that a restart changes nothing; a new version of an Environment
keeps the old ones resolvable. Offerings are not files: they are what this machine has.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodus.core.errors import NodusError
from nodus.core.kinds import ENVIRONMENT, KINDS, OFFERING, Kind
from nodus.core.kinds.decode import decode
from nodus.core.money import format_usd
from nodus.server import machine
from nodus.server.api.auth import CATALOG_PROJECT
from nodus.server.controllers.service import node_id
from nodus.server.kinds.base import same_spec
from nodus.server.store import objects, versions
from nodus.server.store.context import lock_objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from nodus.server.billing.pricebook import PriceBook
    from nodus.server.catalogdata import Optional
    from nodus.server.services import Services
    from nodus.server.settings import Settings
    from nodus.server.store.objects import Object

log = logging.getLogger(__name__)

OBJECT_DIRECTORIES = ("runtimes", "environments")
OPTIONAL_DIRECTORY = "environments/data"
"""Environments whose data does not ship: listed where the operator has it."""
ENVIRONMENTS = "environments"
"""Where environments' files are kept, below the data directory."""
_FIRST_PHASE = {"Environment": "Pending", "TrainingRuntime": "Ready"}


class CatalogError(NodusError):
    """A catalog file is wrong: a fault of the installation."""

    reason, status = "CatalogError", 500


def read_catalog(root: Path | None = None, directories: Sequence[str] = OBJECT_DIRECTORIES) -> list[dict[str, Any]]:
    """Every object of the catalog's files, checked.

    Args:
        root: directory with ``runtimes/`` and ``environments/``; default the one that is installed.
        directories: which of its directories are read.

    Raises:
        CatalogError: naming the file and the fields.
    """
    import yaml  # late: a few milliseconds

    base = root or Path(str(resources.files("nodus"))) / "catalog"
    found: list[dict[str, Any]] = []
    for directory in directories:
        for path in sorted((base / directory).glob("*.yaml")):
            loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
            for document in yaml.load_all(path.read_text(encoding="utf-8"), Loader=loader):
                if document is not None:
                    _check(path, document)
                    found.append(document)
    return found


def _check(path: Path, document: dict[str, Any]) -> None:
    kind = KINDS.get(str(document.get("kind")))
    if kind is None or document.get("apiVersion") != kind.api_version:
        raise CatalogError(f"{path.name}: apiVersion and kind name nothing")
    _, causes = decode(kind.spec_model, document.get("spec"))
    if causes:
        raise CatalogError(f"{path.name}: " + "; ".join(f"{cause.field}: {cause.message}" for cause in causes[:5]))


def load(conn: Connection, services: Services, documents: list[dict[str, Any]]) -> list[str]:
    """Bring the catalog's objects and this machine's offerings up to date; return what changed, ``kind/name`` each."""
    lock_objects(conn)
    changed = [name for document in documents if (name := _upsert(conn, document)) is not None]
    changed += _load_offerings(conn, services)
    return changed


def optional(settings: Settings) -> list[Optional]:
    """Return the environments whose data does not ship, with what the operator has of it (a second).

    Args:
        settings: say where the data is.
    """
    from nodus.server import catalogdata  # late: the grader's sources are read

    manifests = read_catalog(directories=(OPTIONAL_DIRECTORY,))
    return catalogdata.found(manifests, settings.catalog_data, settings.data_dir / ENVIRONMENTS)


def load_optional(conn: Connection, services: Services, found: list[Optional]) -> None:
    """Bring up to date what `optional` found; what can't be used is Failed, and not listed where it never was."""
    lock_objects(conn)
    for one in found:
        name = one.document["metadata"]["name"]
        if one.problem is None:
            _upsert(conn, dict(one.document), services.settings.data_dir / ENVIRONMENTS)
            continue
        there = objects.find(conn, ENVIRONMENT, CATALOG_PROJECT, name)
        if there is None and not one.listed:
            continue
        there = there or objects.create(conn, ENVIRONMENT, CATALOG_PROJECT, name, one.document["spec"], status={})
        failed = {"phase": "Failed", "reason": "CatalogDataMissing", "message": one.problem}
        objects.update_status(conn, there.uid, {**there.status, **failed, "checked": _fingerprint(there.spec)})
        log.warning("the catalog's %s can't be used: %s", name, one.problem)


def _upsert(conn: Connection, document: dict[str, Any], root: Path = Path()) -> str | None:
    kind = KINDS[document["kind"]]
    name, spec = document["metadata"]["name"], document["spec"]
    labels = document["metadata"].get("labels", {})
    annotations = document["metadata"].get("annotations", {})
    old = objects.find(conn, kind, CATALOG_PROJECT, name)
    if old is None:
        status = _status(kind, name, {"phase": _FIRST_PHASE.get(kind.name, "Ready")}, spec, root)
        obj = objects.create(
            conn, kind, CATALOG_PROJECT, name, spec, labels=labels, annotations=annotations, status=status
        )
    else:
        obj = old
        if not same_spec(kind, old.spec, spec) or old.labels != labels:
            obj = objects.update(conn, old, spec=spec, labels=labels, annotations=annotations)
        obj = objects.update_status(conn, obj.uid, _status(kind, name, obj.status, spec, root))
    if kind.name == "Environment":
        _keep_version(conn, obj)
    return f"{kind.singular}/{name}" if old is None or obj.resource_version != old.resource_version else None


def _status(kind: Kind, name: str, status: dict[str, Any], spec: dict[str, Any], root: Path) -> dict[str, Any]:
    """The status with what an object is in this installation: digests of a trainer and its stack, or of a grader."""
    if kind.name == "Environment":
        from nodus.server.grading.environments import catalog_status  # late: the grader's sources are read

        kept = {key: value for key, value in status.items() if key not in ("reason", "message")}
        return {**kept, **catalog_status(name, spec, root), "checked": _fingerprint(spec)}
    if kind.name != "TrainingRuntime":
        return status
    from nodus.server.compute.local import images  # late: computes digests of the installation

    return {**status, "phase": "Ready", "managed": True, "imageDigest": images.digest(spec["image"])}


def _fingerprint(spec: dict[str, Any]) -> str:
    from nodus.server.controllers.environment import fingerprint  # late: the controller imports graders

    return fingerprint(spec)


def _keep_version(conn: Connection, obj: Object) -> None:
    version = str(obj.spec["version"])
    if versions.find(conn, obj.uid, version) != obj.spec:
        versions.put(conn, obj.uid, version, obj.spec)


def _load_offerings(conn: Connection, services: Services) -> list[str]:
    """What this machine offers, and nothing that it offered before and has no more."""
    node = node_id(services.settings.data_dir)
    wanted = dict(_offerings(node, services.prices))
    changed: list[str] = []
    for old in objects.list_(conn, OFFERING, None).items:
        if old.name not in wanted and old.spec.get("node") in (None, node):
            objects.delete(conn, old, "Background")
            changed.append(f"offering/{old.name}")
    for name, spec in wanted.items():
        there = objects.find(conn, OFFERING, None, name)
        if there is None:
            objects.create(conn, OFFERING, None, name, spec, status={"phase": "Available"})
        elif there.spec != spec:
            objects.update(conn, there, spec=spec)
        else:
            continue
        changed.append(f"offering/{name}")
    return changed


def _offerings(node: str, prices: PriceBook) -> Iterator[tuple[str, dict[str, Any]]]:
    """This machine's offerings by name; the price is of an hour of the whole."""
    here = machine.describe()
    common = {
        "cpu": here.cores,
        "memory": here.memory,
        "regionClass": "local",
        "interruptible": False,
        "node": node,
    }
    cores = format_usd(prices.hour_of(None) * here.cores)
    yield "local-cpu", {**common, "count": 0, "priceUSDPerHour": cores}
    for gpu in here.gpus:
        accelerator = {"family": gpu.family, "memory": gpu.memory, "count": gpu.count}
        price = format_usd(prices.hour_of(gpu.family) * gpu.count)
        yield (
            f"local-{gpu.stem}-x{gpu.count}",
            {**common, "accelerator": accelerator, "count": gpu.count, "priceUSDPerHour": price},
        )
