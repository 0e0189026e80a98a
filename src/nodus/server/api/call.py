"""One authenticated request, and what its route says of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from nodus.core.errors import BadRequest, NotFound
from nodus.core.ids import name_problem
from nodus.core.kinds import EVENT, IMAGE, KINDS, Kind
from nodus.core.kinds.fields import check_field_selector
from nodus.core.selectors import Requirement, parse_selector
from nodus.server.api.auth import Principal
from nodus.server.billing import payments
from nodus.server.services import Services

# Events are named after their object, with a digest behind a dot.
_DOTTED_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
_BY_PLURAL: dict[tuple[str, str], Kind] = {(kind.version, kind.plural): kind for kind in KINDS.values()}


@dataclass(slots=True)
class Call:
    """What a handler gets: who asks, for what, and the parts of the server to answer with."""

    request: Request
    services: Services
    principal: Principal
    params: dict[str, str]
    """Parameters of the route's path."""
    audited: bool = False
    """Its write is in the audit trail, or it wrote nothing."""
    verb: str = ""
    """What the audit trail calls it, where the method does not say."""

    @property
    def method(self) -> str:
        """HTTP method; HEAD reads as GET."""
        return "GET" if self.request.method == "HEAD" else self.request.method

    @property
    def project(self) -> str | None:
        """The project in the path."""
        return self.params.get("project")

    def query(self, name: str) -> str | None:
        """A query parameter, ``None`` when absent or empty.

        Raises:
            BadRequest: it holds a NUL character, which no store takes.
        """
        if not self.request.scope["query_string"]:
            return None
        value = self.request.query_params.get(name)
        if value and "\x00" in value:
            raise BadRequest(f"the query parameter {name} holds a NUL character")
        return value or None

    def flag(self, name: str) -> bool:
        """A boolean query parameter.

        Raises:
            BadRequest: it is neither true nor false.
        """
        value = (self.query(name) or "false").lower()
        if value not in ("true", "false", "1", "0"):
            raise BadRequest(f"{name}={value!r} is neither true nor false")
        return value in ("true", "1")

    def number(self, name: str, least: int = 0, most: int = 2**53) -> int | None:
        """An integer query parameter.

        Raises:
            BadRequest: it is no integer from ``least`` to ``most``.
        """
        value = self.query(name)
        if value is None:
            return None
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18 and least <= int(value) <= most):
            raise BadRequest(f"{name}={value!r} is not a whole number from {least} to {most}")
        return int(value)


def field_terms(call: Call, kind: Kind) -> tuple[Requirement, ...]:
    """The terms of the request's field selector.

    Raises:
        BadRequest: it can't be read, or it asks for a field or phase that the kind does not have.
    """
    terms = parse_selector(call.query("fieldSelector") or "")
    check_field_selector(kind, terms)
    return terms


def kind_of(params: dict[str, str]) -> Kind:
    """The kind that ``{version}`` and ``{plural}`` name.

    Raises:
        NotFound: there is none, or it is not of the scope that the path says.
        Unsupported: servers that sell credits have it.
    """
    version, plural = params["version"], params["plural"]
    if plural in payments.PLURALS:
        raise payments.no_provider("no credits can be bought")
    kind = _BY_PLURAL.get((version, plural))
    if kind is None or ("project" in params and not kind.namespaced):
        other = next((k for k in KINDS.values() if k.plural == plural), None)
        fix = "`nodus api-resources` lists the kinds."
        if other is not None:
            where = "namespaces/PROJECT/" if other.namespaced else ""
            fix = f"Write apiVersion: {other.api_version}; its path is /apis/{other.api_version}/{where}{plural}."
        raise NotFound(f"the server has no resource type {plural!r} here", fix=fix)
    return kind


def checked_name(kind: Kind, name: str) -> str:
    """A name from a path.

    Raises:
        NotFound: no object can have it; so none has.
    """
    if kind in (EVENT, IMAGE) and len(name) <= 253 and _DOTTED_NAME.fullmatch(name):
        return name
    plain, _, version = name.partition("@")
    if name_problem(plain) or (version and not version.replace(".", "").replace("-", "").isalnum()):
        raise not_found(kind, name)
    return name


def not_found(kind: Kind, name: str) -> NotFound:
    """The error for an object that is not there, worded as the CLI shows it."""
    shown = name if name.isprintable() else ascii(name)[1:-1]
    details: dict[str, Any] = {"name": shown, "group": "nodus.dev", "kind": kind.plural}
    return NotFound(f'{kind.plural} "{shown}" not found', details=details)
