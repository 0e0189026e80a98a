"""Which kinds there are and where they live, as the client needs it: names, plural, version, scope.

The table repeats what ``nodus.core.kinds`` declares, because importing those models costs more than the whole of
``nodus get``; a test keeps the two equal. Kinds that are not in it are looked up in the server's discovery documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from nodus.client.http import Api
from nodus.core.errors import NotFound

GROUP = "nodus.dev"


@dataclass(frozen=True, slots=True)
class KindInfo:
    """Where a kind's objects are found."""

    kind: str
    plural: str
    version: str
    namespaced: bool
    short_names: tuple[str, ...] = ()

    @property
    def singular(self) -> str:
        """Lower-case name, as printed before the slash."""
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of its objects."""
        return f"{GROUP}/{self.version}"

    def path(self, project: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of the collection, an object, or a subresource; all projects where project is None."""
        scope = f"/namespaces/{project}" if self.namespaced and project is not None else ""
        parts = [f"/apis/{GROUP}/{self.version}{scope}/{self.plural}", name, subresource]
        return "/".join(part for part in parts if part is not None)


class OfKind(Protocol):
    """A class that stands for a kind, such as ``nodus.Job``."""

    kind: ClassVar[str]


Kindly = str | KindInfo | type[OfKind]
"""What names a kind: its name, plural, singular or short name in any case; its record; a class of handles."""

BUILT_IN: tuple[KindInfo, ...] = (
    KindInfo("APIKey", "apikeys", "v1", False),
    KindInfo("AuditEvent", "auditevents", "v1", False),
    KindInfo("Attempt", "attempts", "v1", True),
    KindInfo("BillingAccount", "billingaccounts", "v1", False),
    KindInfo("Budget", "budgets", "v1", False),
    KindInfo("Environment", "environments", "v1", True),
    KindInfo("Event", "events", "v1", False),
    KindInfo("Image", "images", "v1", True),
    KindInfo("Job", "jobs", "v1", True),
    KindInfo("Member", "members", "v1", False),
    KindInfo("Offering", "offerings", "v1", False, ("gpus",)),
    KindInfo("Organization", "organizations", "v1", False, ("org",)),
    KindInfo("Process", "processes", "v1", True),
    KindInfo("Project", "projects", "v1", False),
    KindInfo("SSHKey", "sshkeys", "v1", False),
    KindInfo("Sandbox", "sandboxes", "v1", True, ("sb",)),
    KindInfo("Secret", "secrets", "v1", True),
    KindInfo("ServiceAccount", "serviceaccounts", "v1", True, ("sa",)),
    KindInfo("TrainingJob", "trainingjobs", "v1beta1", True, ("tj",)),
    KindInfo("TrainingRuntime", "trainingruntimes", "v1beta1", True),
    KindInfo("Transaction", "transactions", "v1", False),
    KindInfo("UsageRecord", "usagerecords", "v1", False),
    KindInfo("Volume", "volumes", "v1", True),
)


def find_kind(name: str, kinds: Iterable[KindInfo] = BUILT_IN) -> KindInfo | None:
    """Return the kind that a kind name, plural, singular or short name means; case does not matter."""
    wanted = name.lower()
    for info in kinds:
        if wanted in (info.singular, info.plural, *info.short_names):
            return info
    return None


async def resolve_kind(api: Api, name: str) -> KindInfo:
    """Return the kind of that name, asking the server about one that the table lacks.

    Raises:
        NotFound: When the server doesn't know it either; names the kinds that are close.
    """
    known = find_kind(name)
    if known is not None:
        return known
    served = await discover(api)
    found = find_kind(name, served)
    if found is not None:
        return found
    from difflib import get_close_matches

    names = [spelling for info in served for spelling in (info.singular, info.plural, *info.short_names)]
    close = get_close_matches(name.lower(), names, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else "`nodus api-resources` lists the kinds; objects are KIND/NAME."
    raise NotFound(f"the server doesn't have a resource type {name!r}", fix=hint)


async def discover(api: Api) -> list[KindInfo]:
    """Return every kind the server serves, from its discovery documents."""
    found: list[KindInfo] = []
    for version in ("v1", "v1beta1"):
        document = await api.call("GET", f"/apis/{GROUP}/{version}")
        found.extend(
            _from_discovery(version, item) for item in document.get("resources") or [] if "/" not in item["name"]
        )
    return found


def _from_discovery(version: str, item: Mapping[str, Any]) -> KindInfo:
    return KindInfo(
        str(item["kind"]), str(item["name"]), version, bool(item.get("namespaced")), tuple(item.get("shortNames") or ())
    )
