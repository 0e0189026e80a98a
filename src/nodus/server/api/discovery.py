"""Discovery: which kinds there are, in the aggregated form and in the older one a version."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from nodus.core.errors import NotFound
from nodus.core.kinds import KINDS, Kind
from nodus.server.api.call import Call
from nodus.server.api.http import json_response
from nodus.server.api.routes import SUBRESOURCES

GROUP = "nodus.dev"
VERSIONS = ("v1", "v1beta1")
_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def _wants_aggregated(call: Call) -> bool:
    parts = {part.strip().lower() for part in call.request.headers.get("accept", "").split(",", 1)[0].split(";")}
    return {"g=apidiscovery.k8s.io", "v=v2", "as=apigroupdiscoverylist"} <= parts


async def core(call: Call) -> Response:
    """``GET /api``: there is no core group."""
    if _wants_aggregated(call):
        return _aggregated([])
    return json_response({"kind": "APIVersions", "versions": []})


async def group(call: Call) -> Response:
    """``GET /apis/nodus.dev``: the group and its versions."""
    return json_response({"kind": "APIGroup", "apiVersion": "v1", **_group()})


def _group() -> dict[str, Any]:
    found = [{"groupVersion": f"{GROUP}/{version}", "version": version} for version in VERSIONS]
    return {"name": GROUP, "versions": found, "preferredVersion": found[0]}


async def groups(call: Call) -> Response:
    """``GET /apis``: the group and its versions, with all resources when asked for."""
    if _wants_aggregated(call):
        versions = [
            {"version": version, "freshness": "Current", "resources": [_discovered(kind) for kind in _kinds(version)]}
            for version in VERSIONS
        ]
        return _aggregated([{"metadata": {"name": GROUP}, "versions": versions}])
    return json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group()]})


async def resources(call: Call) -> Response:
    """``GET /apis/nodus.dev/{version}``: the resources of one version."""
    version = call.params["version"]
    if version not in VERSIONS:
        raise NotFound(f"the API has no version {version[:60]!r}", fix="It has v1 and v1beta1.")
    found: list[dict[str, Any]] = []
    for kind in _kinds(version):
        entry = {"name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.name}
        found.append({**entry, "verbs": list(kind.verbs), "shortNames": list(kind.short_names)})
        found.extend(
            {**entry, "name": f"{kind.plural}/{sub}", "singularName": "", "verbs": verbs}
            for sub, verbs in _subresources(kind).items()
        )
    return json_response(
        {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{version}", "resources": found}
    )


_VERB_OF = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def _subresources(kind: Kind) -> dict[str, list[str]]:
    """What a kind has below its objects, each with its verbs."""
    found: dict[str, set[str]] = {name: set() for name in kind.subresources}
    for sub in SUBRESOURCES:
        if kind in sub.kinds:
            found.setdefault(sub.first, set()).add(_VERB_OF[sub.method])
    return {name: sorted(verbs) for name, verbs in found.items()}


def _aggregated(items: list[dict[str, Any]]) -> Response:
    body = {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}
    return json_response(body, media_type=_AGGREGATED)


def _kinds(version: str) -> list[Kind]:
    return [kind for kind in KINDS.values() if kind.version == version]


def _discovered(kind: Kind) -> dict[str, Any]:
    return {
        "resource": kind.plural,
        "responseKind": _response_kind(kind),
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "shortNames": list(kind.short_names),
        "verbs": list(kind.verbs),
        "subresources": [
            {"subresource": sub, "responseKind": _response_kind(kind), "verbs": verbs}
            for sub, verbs in _subresources(kind).items()
        ],
    }


def _response_kind(kind: Kind) -> dict[str, str]:
    return {"group": GROUP, "version": kind.version, "kind": kind.name}
