"""OpenAPI 3.1 of the whole API, made from the kinds, their models and the routes.

``/openapi/v3`` is an index in Kubernetes' form: a path for each group version and one for what belongs to none.
``/openapi.json`` is everything in one document. They are made once a process; the URLs in the index carry a digest, so
that clients may keep a document for as long as they like.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from starlette.responses import Response

from nodus._version import __version__
from nodus.core.errors import NotFound
from nodus.core.kinds import KINDS, USAGE_RECORD, Kind
from nodus.server.api.call import Call
from nodus.server.api.changing import JSON_PATCH, MERGE_PATCH
from nodus.server.api.creating import BATCH_LIMIT
from nodus.server.api.http import json_bytes, json_response
from nodus.server.api.routes import SUBRESOURCES, Operation, Param, Schema, Subresource
from nodus.server.api.schemas import COMMON, group_version_kind, kind_schemas, reference

INDEX = "/openapi/v3"
SERVER = "server"
"""Name of the document of what belongs to no group version."""
WHOLE = "openapi.json"
JSON = "application/json"

Document = dict[str, Any]

_PARAMETERS = {
    "namespace": "The project.",
    "project": "The project.",
    "name": "Name of the object.",
    "sha256": "Digest of the bytes, 64 hex digits.",
    "version": "v1 or v1beta1.",
    "path": "Path below, which may contain slashes.",
}
_PAGE = {"minimum": 1, "maximum": 10_000}
_SECONDS = {"minimum": 0, "maximum": 86_400}
_VERSION = {"pattern": "^[0-9]{1,18}$"}
_SELECTORS = (
    Param("labelSelector", "Only objects with such labels: `a=b,c!=d,e in (f,g),h,!i`."),
    Param("fieldSelector", "Only objects with such fields: `metadata.name=x,status.phase!=Failed`."),
)
_LIST = (
    *_SELECTORS,
    Param("limit", "Most items of the answer; the rest is asked for with `continue`.", "integer", limits=_PAGE),
    Param("continue", "The `metadata.continue` of the page before."),
    Param("watch", "Stream changes, one JSON object a line, instead of a list.", "boolean"),
    Param(
        "resourceVersion",
        "Watch: begin after this version; unset begins with what is there, as ADDED.",
        limits=_VERSION,
    ),
    Param("allowWatchBookmarks", "Watch: also send BOOKMARK events, at least every 30 s.", "boolean"),
    Param("timeoutSeconds", "Watch: end the stream after so long.", "integer", limits=_SECONDS),
)
_BOOKS = (
    *_SELECTORS[1:],
    *_LIST[2:4],
    Param("since", "Only lines from then on: a duration back from now (`30d`), a date, or an RFC 3339 time."),
    Param("until", "Only lines before then; likewise."),
)
_GROUP_BY = Param(
    "groupBy",
    "Answer with sums, a UsageSummary: `project`, `kind`, `object`, `meter`, `day`, `segment`, `offering`, `rank`, "
    "`member`, `label:KEY`, with commas.",
)
_SUMMARY: Schema = {
    "type": "object",
    "required": ["kind", "rows", "totalUSD"],
    "properties": {
        "kind": {"type": "string", "enum": ["UsageSummary"]},
        "groupBy": {"type": "array", "items": {"type": "string"}},
        "rows": {"type": "array", "items": {"type": "object", "required": ["group", "amountUSD"]}},
        "totalUSD": {"type": "string"},
        "coveredUSD": {"type": "string"},
    },
}
_DRY_RUN = Param("dryRun", "`All` checks and answers as usual, and stores nothing.", limits={"enum": ["All"]})


def documents(operations: Sequence[Operation]) -> dict[str, Document]:
    """Return each document by the name that the index gives it.

    Args:
        operations: the routes beside the kinds' own.
    """
    found: dict[str, Document] = {}
    for version in dict.fromkeys(kind.version for kind in KINDS.values()):
        kinds = [kind for kind in KINDS.values() if kind.version == version]
        paths = {path: item for kind in kinds for path, item in _kind_paths(kind).items()}
        found[f"apis/nodus.dev/{version}"] = _document(f"Nodus nodus.dev/{version}", paths, kind_schemas(kinds))
    found[SERVER] = _document("Nodus, beside the kinds", _operation_paths(operations), {})
    return found


def whole(operations: Sequence[Operation]) -> Document:
    """Return everything in one document."""
    paths = {path: item for document in documents(operations).values() for path, item in document["paths"].items()}
    return _document("Nodus", paths, kind_schemas(KINDS.values()))


def _document(title: str, paths: Mapping[str, Any], schemas: Mapping[str, Any]) -> Document:
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "security": [{"key": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted({**schemas, **COMMON}.items())),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "An API key, or the token of an attempt."}
            },
            "responses": {
                "Error": {
                    "description": "What went wrong; the reason names the class of error.",
                    "content": {JSON: {"schema": reference("Status")}},
                }
            },
        },
    }


# Paths --------------------------------------------------------------------------------------------------------


def _kind_paths(kind: Kind) -> Document:
    base = f"/apis/{kind.api_version}"
    collection = f"{base}/namespaces/{{namespace}}/{kind.plural}" if kind.namespaced else f"{base}/{kind.plural}"
    item = collection + "/{name}"
    paths = {collection: _collection(kind, collection), item: _item(kind, item)}
    if kind.namespaced:
        everywhere = f"{base}/{kind.plural}"
        paths[everywhere] = {"get": _list(kind, everywhere, f"List or watch {kind.plural} of all projects.")}
    for sub in SUBRESOURCES:
        if kind in sub.kinds:
            path = f"{item}/{sub.path.replace(':path', '')}"
            paths.setdefault(path, {})[sub.method.lower()] = _subresource(kind, path, sub)
    return {path: methods for path, methods in paths.items() if methods}


def _collection(kind: Kind, path: str) -> Document:
    verbs = "List or watch" if "watch" in kind.verbs else "List"
    found = {"get": _list(kind, path, f"{verbs} {kind.plural}.")}
    if "create" in kind.verbs:
        found["post"] = _verb(
            kind, "create", path, 201, f"Create {_a(kind)}, or up to {BATCH_LIMIT} in one {kind.name}List.",
            answer={"anyOf": [reference(kind.name), reference(f"{kind.name}List")]},
            bodies={JSON: {"anyOf": [_named(kind), reference(f"{kind.name}List")]}},
            query=(_DRY_RUN,),
            headers=("Idempotency-Key", "If-Match"),
        )  # fmt: skip
    return found


def _named(kind: Kind) -> Document:
    """An object to create: it has a name, or the beginning of one."""
    metadata = {"anyOf": [{"required": ["name"]}, {"required": ["generateName"]}]}
    return {"allOf": [reference(kind.name), {"properties": {"metadata": metadata}}]}


def _list(kind: Kind, path: str, summary: str) -> Document:
    query, answer = _BOOKS if kind.flat else _LIST, reference(f"{kind.name}List")
    if kind is USAGE_RECORD:
        query, answer = (*query, _GROUP_BY), {"anyOf": [answer, _SUMMARY]}
    return _verb(kind, "list", path, 200, summary, answer=answer, query=query)


def _item(kind: Kind, path: str) -> Document:
    shown, one = reference(kind.name), _a(kind)
    found: Document = {}
    if "get" in kind.verbs:
        found["get"] = _verb(kind, "get", path, 200, f"Get {one}.", answer=shown)
    if "update" in kind.verbs:
        found["put"] = _verb(
            kind, "replace", path, 200, f"Replace {one}.", answer=shown, bodies={JSON: shown}, query=(_DRY_RUN,)
        )
    if "patch" in kind.verbs:
        bodies = {MERGE_PATCH: {"type": "object"}, JSON_PATCH: reference("JSONPatch")}
        summary = f"Change fields of {one}."
        found["patch"] = _verb(kind, "patch", path, 200, summary, answer=shown, bodies=bodies, query=(_DRY_RUN,))
    if "delete" in kind.verbs:
        bodies = {JSON: reference("DeleteOptions")}
        summary = f"Delete {one} and what it owns."
        found["delete"] = _verb(
            kind, "delete", path, 200, summary, answer=reference("Status"), bodies=bodies, query=(_DRY_RUN,)
        )
        found["delete"]["requestBody"]["required"] = False
    return found


def _a(kind: Kind) -> str:
    return f"{'an' if kind.name[0] in 'AEIO' else 'a'} {kind.name}"


def _verb(
    kind: Kind, verb: str, path: str, status: int, summary: str, *, answer: Schema,
    bodies: Mapping[str, Schema] | None = None, query: Iterable[Param] = (), headers: Iterable[str] = (),
) -> Document:  # fmt: skip
    scope = "AllProjects" if kind.namespaced and "{namespace}" not in path else ""
    return {
        "operationId": f"{verb}{kind.name}{scope}",
        "summary": summary,
        "tags": [kind.name],
        "parameters": [*_path_parameters(path), *map(_query, query), *map(_header, headers)],
        **_body(bodies),
        "responses": _responses(status, JSON, answer),
        "x-kubernetes-action": {"create": "post", "replace": "put"}.get(verb, verb),
        "x-kubernetes-group-version-kind": group_version_kind(kind),
    }


def _subresource(kind: Kind, path: str, sub: Subresource) -> Document:
    words = "".join(word.capitalize() for word in sub.path.replace("{", "").replace(":path}", "").split("/"))
    return {
        "operationId": f"{sub.method.lower()}{kind.name}{words.replace('}', '')}",
        "summary": sub.summary,
        "tags": [kind.name],
        "parameters": [*_path_parameters(path), *map(_query, sub.query)],
        **_body(_bodies(sub.body)),
        "responses": _responses(sub.status, *_answered(sub.answer)),
    }


def _operation_paths(operations: Iterable[Operation]) -> Document:
    found: Document = {}
    for operation in operations:
        path = operation.path.replace(":path", "")
        for method in operation.methods:
            made = {
                "operationId": method.lower() + "".join(word for word in path.title() if word.isalnum()),
                "summary": operation.summary,
                "tags": ["Server"],
                "parameters": [*_path_parameters(path), *map(_query, operation.query)],
                **_body(_bodies(operation.body)),
                "responses": _responses(operation.status, *_answered(operation.answer)),
            }
            found.setdefault(path, {})[method.lower()] = {**made, "security": []} if operation.public else made
    return found


def _bodies(schema: Schema | None) -> Mapping[str, Schema] | None:
    if schema is None:
        return None
    return {"application/octet-stream" if schema.get("format") == "binary" else JSON: schema}


def _answered(schema: Schema | None) -> tuple[str, Schema]:
    return ("*/*", {}) if schema is None else (JSON, schema)


def _body(bodies: Mapping[str, Schema] | None) -> Document:
    if bodies is None:
        return {}
    content = {media: {"schema": schema} for media, schema in bodies.items()}
    return {"requestBody": {"required": True, "content": content}}


def _responses(status: int, media: str, schema: Schema) -> Document:
    found: Document = {"description": "Done."}
    if status < 300:
        found["content"] = {media: {"schema": schema}}
    responses: Document = {str(status): found, "default": {"$ref": "#/components/responses/Error"}}
    if status == 201:
        responses["200"] = {**found, "description": "It was done before; this is the answer."}
    return dict(sorted(responses.items()))


def _path_parameters(path: str) -> list[Document]:
    names = [part.partition("}")[0] for part in path.split("{")[1:]]
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PARAMETERS.get(name, f"The {name}."),
            "schema": {"type": "string"},
        }
        for name in names
    ]


def _query(param: Param) -> Document:
    found = {
        "name": param.name,
        "in": "query",
        "description": param.description,
        "schema": {"type": param.type, **param.limits},
    }
    return {**found, "required": True} if param.required else found


_HEADERS = {
    "Idempotency-Key": "The same key and body within 24 h get the same answer.",
    "If-Match": "The `ETag` of a dry run: create only if the plan is still the same.",
}


def _header(name: str) -> Document:
    return {"name": name, "in": "header", "description": _HEADERS[name], "schema": {"type": "string"}}


# Routes -------------------------------------------------------------------------------------------------------


async def index(call: Call) -> Response:
    """``GET /openapi/v3``: where the OpenAPI document of each group version is."""
    paths = {name: {"serverRelativeURL": f"{INDEX}/{name}?hash={made.digest}"} for name, made in _served().items()}
    return json_response({"paths": {name: where for name, where in paths.items() if name != WHOLE}})


async def of_version(call: Call) -> Response:
    """``GET /openapi/v3/apis/nodus.dev/{version}``: OpenAPI 3.1 of one group version."""
    return _answer(call, f"apis/nodus.dev/{call.params['version']}")


async def of_server(call: Call) -> Response:
    """``GET /openapi/v3/server``: OpenAPI 3.1 of what belongs to no group version."""
    return _answer(call, SERVER)


async def everything(call: Call) -> Response:
    """``GET /openapi.json``: OpenAPI 3.1 of the whole API."""
    return _answer(call, WHOLE)


@dataclass(frozen=True, slots=True)
class _Made:
    body: bytes
    digest: str


@cache
def _served() -> dict[str, _Made]:
    from nodus.server.api.app import HEALTH, OPERATIONS  # late: that module has these routes among its own

    operations = (*HEALTH, *OPERATIONS)
    found = {**documents(operations), WHOLE: whole(operations)}
    made = {name: json_bytes(value) for name, value in found.items()}
    return {name: _Made(body, hashlib.sha256(body).hexdigest()[:32]) for name, body in made.items()}


def _answer(call: Call, name: str) -> Response:
    made = _served().get(name)
    if made is None:
        raise NotFound(f"there is no OpenAPI document {name[:100]!r}", fix=f"{INDEX} lists them.")
    tag = f'"{made.digest}"'
    lasts = "max-age=31536000, immutable" if call.query("hash") == made.digest else "no-cache"
    headers = {"ETag": tag, "Cache-Control": f"private, {lasts}"}
    if tag in (part.strip() for part in call.request.headers.get("if-none-match", "").split(",")):
        return Response(b"", 304, headers)
    return Response(made.body, 200, headers, JSON)
