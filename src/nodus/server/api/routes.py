"""What routes are made of, and every subresource: declared once, read by the router, discovery, OpenAPI and the docs.

A route's handler says in the first line of its docstring what the route does; the reference pages show that line.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from nodus.core.errors import BadRequest, MethodNotAllowed, NotFound
from nodus.core.kinds import (
    BILLING_ACCOUNT,
    IMAGE,
    JOB,
    KINDS,
    PROCESS,
    SANDBOX,
    SERVICE_ACCOUNT,
    TRAINING_JOB,
    VOLUME,
    Kind,
)
from nodus.server.api import (
    accounts,
    attach,
    attempt_api,
    attempt_bodies,
    grants,
    imagelogs,
    outputs,
    processes,
    runlogs,
    sandboxfiles,
    sandboxlogs,
    volumes,
    volumeuploads,
)
from nodus.server.api.call import Call, kind_of

Schema = Mapping[str, Any]
"""A JSON schema."""
Verb = str


@dataclass(frozen=True, slots=True)
class Param:
    """A query parameter of a route; ``limits`` are further keywords of its schema."""

    name: str
    description: str
    type: str = "string"
    required: bool = False
    limits: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """A path outside of the generic verbs.

    Attributes:
        path: template, such as ``/blobs/v1/namespaces/{project}/uploads``.
        handler: takes a :class:`Call`; of a public route the request and the services.
        methods: HTTP methods; HEAD comes with GET.
        public: needs no key.
        query: query parameters.
        body: schema of the request body, when it has one.
        answer: schema of the answer; None for an answer that is not JSON.
        status: HTTP status of success.
    """

    path: str
    handler: Callable[..., Awaitable[Response]]
    methods: tuple[str, ...] = ("GET",)
    public: bool = False
    query: tuple[Param, ...] = ()
    body: Schema | None = None
    answer: Schema | None = field(default_factory=lambda: {"type": "object"})
    status: int = 200

    @property
    def summary(self) -> str:
        """What it does, in one line."""
        return summary_of(self.handler)


@dataclass(frozen=True, slots=True)
class Subresource:
    """A method on a path below an object.

    Attributes:
        path: below the object, such as ``outputs/{path:path}``; what the braces capture is passed to the handler.
        method: HTTP method.
        handler: takes the :class:`Call`, the kind and what the path captured.
        kinds: which kinds have it.
        query: query parameters.
        body: schema of the request body, when it has one.
        answer: schema of the answer; None for an answer that is not JSON.
        status: HTTP status of success.
        verb: what the audit trail calls it; by the method when unset.
    """

    path: str
    method: str
    handler: Callable[..., Awaitable[Response]]
    kinds: tuple[Kind, ...]
    query: tuple[Param, ...] = ()
    body: Schema | None = None
    answer: Schema | None = field(default_factory=lambda: {"type": "object"})
    status: int = 200
    verb: str = ""

    @property
    def first(self) -> str:
        """The name that kinds and discovery list."""
        return self.path.partition("/")[0]

    @property
    def summary(self) -> str:
        """What it does, in one line."""
        return summary_of(self.handler)

    def match(self, path: str) -> tuple[str, ...] | None:
        """Return what a path captures, or None when it is another one."""
        found = _pattern(self.path).fullmatch(path)
        return None if found is None else found.groups()


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{\w+(:path)?\}", template)
    text = re.escape(parts[0])
    for deep, literal in zip(parts[1::2], parts[2::2], strict=True):
        text += ("(.+)" if deep else "([^/]+)") + re.escape(literal)
    return re.compile(text, re.DOTALL)


def summary_of(handler: Callable[..., Any]) -> str:
    """Return the first sentence of a handler's docstring, without the path it begins with."""
    text = " ".join((handler.__doc__ or "").split("\n\n")[0].split())
    text = re.sub(r"^``[^`]*``:\s*", "", text)
    return text[:1].upper() + text[1:]


def _plain(handler: Callable[..., Awaitable[Response]]) -> Callable[..., Awaitable[Response]]:
    """A handler that serves one kind only and is not told which."""

    @functools.wraps(handler)
    async def call_it(call: Call, kind: Kind, *captured: str) -> Response:
        return await handler(call, *captured)

    return call_it


_RUNS = (JOB, TRAINING_JOB)
_TRAINING = (TRAINING_JOB,)
_LOGGED = tuple(kind for kind in KINDS.values() if "log" in kind.subresources and kind not in (SANDBOX, PROCESS, IMAGE))
_ITEMS: Schema = {
    "type": "object",
    "required": ["items"],
    "properties": {"items": {"type": "array", "items": {"type": "object"}}, "continue": {"type": "string"}},
}
_PAGE = (
    Param("limit", "Most items of the answer.", "integer"),
    Param("after", "The `continue` of the page before."),
)
_PATH = Param("path", "Path of the file in the volume.", required=True)

_FOLLOW = (
    Param("follow", "Go on until it ends.", "boolean"),
    Param("tailLines", "Only the last lines.", "integer"),
    Param("sinceSeconds", "Only what was written in the last seconds.", "integer"),
    Param("timestamps", "Put its time before each line.", "boolean"),
)
_FILE = Param("path", "Absolute path in the sandbox.", required=True)
_BINARY: Schema = {"type": "string", "format": "binary"}

_SANDBOXES: tuple[Subresource, ...] = (
    Subresource("processes", "GET", processes.collection, (SANDBOX,), answer=_ITEMS),
    Subresource("processes", "POST", processes.start, (SANDBOX,), body={"type": "object"}, status=201, verb="exec"),
    Subresource("files", "GET", sandboxfiles.get, (SANDBOX,), answer=None, query=(_FILE,)),
    Subresource(
        "files", "PUT", sandboxfiles.put, (SANDBOX,), body=_BINARY, status=201, verb="write",
        query=(
            _FILE, Param("mode", "File mode in octal; that of the file as it is, or 644, when unset."),
            Param("expectedSHA256", "Write only if the bytes, or the file as it is, have this digest."),
        ),
    ),
    Subresource(
        "files", "DELETE", sandboxfiles.delete, (SANDBOX,), verb="remove",
        query=(_FILE, Param("recursive", "A directory with what is in it.", "boolean")),
    ),
    Subresource(
        "log", "GET", sandboxlogs.log, (SANDBOX,), answer=None,
        query=(*_FOLLOW, Param("process", "A process, by its number.", "integer")),
    ),
    Subresource("log", "GET", sandboxlogs.log, (PROCESS,), answer=None, query=_FOLLOW),
    Subresource(
        "output", "GET", processes.output, (PROCESS,), answer=None,
        query=(
            Param("after", "Begin at this offset, which counts both streams together.", "integer"),
            Param("stream", "Only stdout, or stderr."), Param("wait", "How long to wait for some, such as 30s."),
        ),
    ),
    Subresource("stdin", "POST", processes.stdin, (PROCESS,), body={"type": "object"}, verb="stdin"),
    Subresource("signals", "POST", processes.signals, (PROCESS,), body={"type": "object"}, verb="signal"),
    Subresource("attach", "GET", attach.explain, (PROCESS,), status=101, answer=None),
)  # fmt: skip

SUBRESOURCES: tuple[Subresource, ...] = (
    *_SANDBOXES,
    Subresource(
        "log", "GET", runlogs.log, _LOGGED, answer=None,
        query=(
            Param("follow", "Go on until the run ends.", "boolean"),
            Param("tailLines", "Only the last lines.", "integer"),
            Param("sinceSeconds", "Only what was written in the last seconds.", "integer"),
            Param("timestamps", "Put its time before each line.", "boolean"),
            Param("attempt", "Name or number of an attempt; the newest when unset."),
            Param("index", "Completion index.", "integer"),
            Param("rank", "Rank in a gang.", "integer"),
            Param("offsetBytes", "Begin there; for the log of an attempt.", "integer"),
        ),
    ),
    Subresource(
        "log", "GET", imagelogs.log, (IMAGE,), answer=None,
        query=(
            Param("follow", "Go on until the build ends.", "boolean"),
            Param("tailLines", "Only the last lines.", "integer"),
            Param("sinceSeconds", "Only what was written in the last seconds.", "integer"),
            Param("timestamps", "Put its time before each line.", "boolean"),
        ),
    ),
    Subresource("outputs", "GET", outputs.outputs, _RUNS, answer=_ITEMS, query=_PAGE),
    Subresource(
        "outputs/{path:path}", "GET", outputs.output, _RUNS, answer=None, status=302,
        query=(Param("index", "Completion index.", "integer"), Param("rank", "Rank in a gang.", "integer")),
    ),
    Subresource(
        "taskevents", "GET", attempt_api.get_taskevents, _TRAINING, answer=_ITEMS,
        query=(
            Param("eventType", "Only events of this type, such as Metrics or Task."),
            Param("phase", "Only of this phase: Baseline, Training or Evaluation."),
            Param("attempt", "Only of this attempt."),
            *_PAGE,
        ),
    ),
    Subresource("taskevents", "POST", attempt_api.post_taskevents, _TRAINING, body={"type": "object"}),
    Subresource("tasks", "POST", attempt_api.tasks, _TRAINING, body={"type": "object"}),
    Subresource(
        "gradings", "POST", attempt_api.gradings, _TRAINING,
        body=attempt_bodies.GRADINGS, answer=attempt_bodies.VERDICTS,
    ),
    Subresource(
        "steps", "POST", attempt_api.steps, _TRAINING, body=attempt_bodies.STEPS, answer=attempt_bodies.REPLIES
    ),
    Subresource("tokens", "POST", accounts.mint, (SERVICE_ACCOUNT,), body={"type": "object"}, status=201),
    Subresource(
        "grants", "POST", _plain(grants.grant), (BILLING_ACCOUNT,), status=201, verb="grant",
        body={
            "type": "object", "required": ["amountUSD"],
            "properties": {
                "amountUSD": {"type": "string", "description": "Dollars, such as 25.00."},
                "reference": {"type": "string", "description": "The same again adds nothing."},
                "note": {"type": "string", "description": "For people."},
            },
        },
    ),
    Subresource(
        "prices", "GET", _plain(grants.prices), (BILLING_ACCOUNT,),
        answer={
            "type": "object",
            "properties": {
                "version": {"type": "string"},
                "prices": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {name: {"type": "string"} for name in ("item", "priceUSD", "per")},
                    },
                },
            },
        },
    ),
    Subresource(
        "redemptions", "POST", _plain(grants.redeem), (BILLING_ACCOUNT,), body={"type": "object"}, verb="redeem"
    ),
    Subresource("sessions", "POST", _plain(grants.portal), (BILLING_ACCOUNT,), body={"type": "object"}, verb="open"),
    Subresource("deals", "GET", _plain(grants.deals), (BILLING_ACCOUNT,)),
    Subresource("revisions", "GET", _plain(volumes.revisions), (VOLUME,), answer=_ITEMS),
    Subresource(
        "files", "GET", _plain(volumes.files), (VOLUME,), answer=_ITEMS,
        query=(
            Param("path", "A file or directory; the whole volume when unset."),
            Param("revision", "A revision; the newest when unset.", "integer"),
            Param("links", "Give each file a link to its bytes, good for 15 minutes.", "boolean"),
            *_PAGE,
        ),
    ),
    Subresource(
        "uploads", "POST", _plain(volumeuploads.begin_upload), (VOLUME,), status=201, verb="upload",
        body={
            "type": "object",
            "properties": {
                "mode": {"enum": ["Write", "Read", "Clear", "Restore"]},
                "revision": {"type": "integer"}, "bytes": {"type": "integer"}, "files": {"type": "integer"},
            },
        },
    ),
    Subresource(
        "uploads/{upload}", "PUT", _plain(volumeuploads.commit_upload), (VOLUME,), verb="commit",
        body={"type": "object", "required": ["commit"], "properties": {"commit": {"type": "object"}}},
    ),
    Subresource("uploads/{upload}", "DELETE", _plain(volumeuploads.drop_upload), (VOLUME,), verb="discard"),
    Subresource(
        "uploads/{upload}/files", "POST", _plain(volumeuploads.declare_files), (VOLUME,), answer=_ITEMS, verb="upload",
        body={
            "type": "object", "required": ["files"],
            "properties": {"files": {"type": "array", "items": {"type": "object"}}},
        },
    ),
    Subresource(
        "uploads/{upload}/files", "PUT", _plain(volumeuploads.put_file), (VOLUME,), status=201, verb="upload",
        query=(
            _PATH, Param("mode", "File mode in octal; 644 when unset."),
            Param("sha256", "Digest of the whole file, to check."),
            Param("size", "Of the whole file, where the body is a piece of it.", "integer"),
            Param("offset", "Where the piece begins.", "integer"),
        ),
        body={"type": "string", "format": "binary"},
    ),
    Subresource(
        "uploads/{upload}/bundle", "POST", _plain(volumeuploads.put_bundle), (VOLUME,), status=201, verb="upload",
        body={"type": "string", "format": "binary"},
    ),
    Subresource(
        "uploads/{upload}/files", "DELETE", _plain(volumeuploads.delete_file), (VOLUME,), query=(_PATH,), verb="remove"
    ),
)  # fmt: skip


async def subresource(call: Call) -> Response:
    """``.../{plural}/{name}/{sub}``: what a kind has besides its objects."""
    kind = kind_of(call.params)
    path = call.params["sub"]
    first = path.partition("/")[0]
    here = [sub for sub in SUBRESOURCES if kind in sub.kinds and sub.first == first]
    if not here or (kind.namespaced and call.project is None):
        raise NotFound(
            f"{kind.plural} have no {first[:60]!r}",
            fix=f"They have: {', '.join(kind.subresources) or 'nothing below'}.",
        )
    matching = [(sub, captured) for sub in here if (captured := sub.match(path)) is not None]
    for sub, captured in matching:
        if sub.method == call.method:
            if call.method != "GET" and call.query("dryRun"):
                # Whoever asks for a rehearsal must not get the thing itself.
                raise BadRequest(f"{kind.plural}/{first} has no dry run", fix="Leave dryRun out to do it.")
            call.verb = sub.verb
            return await sub.handler(call, kind, *captured)
    if not matching:
        raise NotFound(f"{kind.plural} have no {path[:60]!r}", fix=f"Below {first} there is no such path.")
    raise no_method(call, [sub.method for sub, _ in matching])


def no_method(call: Call, allowed: list[str]) -> MethodNotAllowed:
    """The error for a method that a path does not take."""
    return MethodNotAllowed(f"{call.request.method} does not fit this path", details={"allowed": sorted(set(allowed))})
