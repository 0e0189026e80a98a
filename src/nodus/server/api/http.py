"""Reading requests and writing responses: strict JSON in, Status errors out.

Everything hostile a body can hold is refused here with a typed 4xx, so that the code behind never sees it: bad UTF-8,
duplicate keys, NaN and infinities, endless nesting, NUL characters, lone surrogates.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

import orjson
from starlette.requests import Request
from starlette.responses import Response

from nodus.core.errors import BadRequest, Cause, Invalid, NodusError, RequestEntityTooLarge

_strict = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_ascii = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
JSON_BODY_LIMIT_BYTES = 1024 * 1024
JSON_BODY_TIMEOUT_S = 30.0
MAX_JSON_DEPTH = 64


METHOD_OF = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}
"""The HTTP method of each verb."""


class SlowBody(BadRequest):
    """The body did not come in time; the connection is given up with the answer."""

    headers: ClassVar[Mapping[str, str]] = {"Connection": "close"}


async def read_body(request: Request, limit_bytes: int = JSON_BODY_LIMIT_BYTES) -> bytes:
    """Return the whole body.

    Raises:
        RequestEntityTooLarge: it is longer than ``limit_bytes``; the rest is not read.
        BadRequest: the client went away half-way, or took too long.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit_bytes:
        _too_large(limit_bytes)
    body, more = bytearray(), True
    try:
        async with asyncio.timeout(JSON_BODY_TIMEOUT_S):
            while more:  # not request.stream(): its layers cost more than most bodies
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise BadRequest("the request body ended early")
                chunk, more = message.get("body", b""), message.get("more_body", False)
                if len(body) + len(chunk) > limit_bytes:
                    _too_large(limit_bytes)
                body += chunk
    except TimeoutError as error:
        raise SlowBody(
            f"the request body did not come within {JSON_BODY_TIMEOUT_S:g} seconds", fix="Send it in one go."
        ) from error
    return bytes(body)


def _too_large(limit_bytes: int) -> NoReturn:
    raise RequestEntityTooLarge(
        f"the request body is over {limit_bytes} bytes",
        fix="Send large content as a blob (POST /blobs/v1/namespaces/PROJECT/uploads) and refer to it.",
        details={"limitBytes": limit_bytes},
    )


async def read_json(request: Request, limit_bytes: int = JSON_BODY_LIMIT_BYTES, *, empty: Any = None) -> Any:
    """Return the body as a JSON value; ``empty`` when there is no body and a default was given.

    Raises:
        BadRequest: it is not JSON as RFC 8259 has it.
        Invalid: it is JSON with a value no object of ours can hold.
    """
    body = await read_body(request, limit_bytes)
    if not body.strip():
        if empty is not None:
            return empty
        raise BadRequest("the request has no body", fix="Send a JSON object.")
    return parse_json(body)


async def read_object(
    request: Request, limit_bytes: int = JSON_BODY_LIMIT_BYTES, *, optional: bool = False
) -> dict[str, Any]:
    """Return the body as a JSON object.

    Raises:
        BadRequest: as :func:`read_json`, or the value is not an object.
    """
    value = await read_json(request, limit_bytes, empty={} if optional else None)
    if not isinstance(value, dict):
        raise BadRequest(f"the body is a JSON {json_type(value)}; an object is expected")
    return value


def parse_json(body: bytes) -> Any:
    """Decode strict JSON; see :func:`read_json` for the errors."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8 (byte {error.start})") from error
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise BadRequest(f"the JSON is nested deeper than {MAX_JSON_DEPTH} levels") from error
    except json.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from error
    except ValueError as error:  # an integer with thousands of digits
        raise BadRequest("the JSON holds a number with too many digits") from error
    if not _harmless(body):
        _check_values(value)
    return value


_LONG_NUMBER = re.compile(rb"[0-9]{19}")


def _harmless(body: bytes) -> bool:
    """Whether a body can't hold what :func:`_check_values` looks for: no escapes, no long numbers, little nesting."""
    return (
        b"\\u" not in body
        and body.count(b"{") + body.count(b"[") <= MAX_JSON_DEPTH
        and _LONG_NUMBER.search(body) is None
    )


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BadRequest(f"the key {twice[:100]!r} stands twice in one JSON object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise BadRequest(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadRequest(f"the number {text[:40]} is too large")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_finite)


def _check_values(value: Any) -> None:
    """Walk without recursion; refuse what the store or the wire could not hold, naming every path."""
    causes: list[Cause] = []
    pending: list[tuple[Any, tuple[str | int, ...]]] = [(value, ())]
    while pending:
        item, path = pending.pop()
        if len(path) > MAX_JSON_DEPTH:
            raise BadRequest(f"the JSON is nested deeper than {MAX_JSON_DEPTH} levels")
        if isinstance(item, dict):
            for key, child in item.items():
                _check_text(key, path, causes)
                pending.append((child, (*path, key)))
        elif isinstance(item, list):
            pending.extend((child, (*path, number)) for number, child in enumerate(item))
        elif isinstance(item, str):
            _check_text(item, path, causes)
        elif isinstance(item, int) and not -(2**63) <= item < 2**63:
            causes.append(Cause(dotted(path), "FieldValueInvalid", "the number does not fit 64 bits"))
    if causes:
        raise Invalid(f"{len(causes)} value{'s' if len(causes) > 1 else ''} can't be stored", causes=causes[:100])


def _check_text(text: str, path: tuple[str | int, ...], causes: list[Cause]) -> None:
    if "\x00" in text:
        causes.append(Cause(dotted(path), "FieldValueInvalid", "text can't hold the NUL character"))
    elif not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            causes.append(Cause(dotted(path), "FieldValueInvalid", "text can't hold half of a surrogate pair"))


def dotted(path: tuple[str | int, ...]) -> str:
    """Write a path as ``spec.volumes[0].name``; unprintable parts are escaped."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            shown = part if part.isprintable() else ascii(part)[1:-1]
            out += f".{shown}" if out else shown
    return out


def json_type(value: Any) -> str:
    """The JSON name of a decoded value's type, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    names: dict[type, str] = {str: "string", list: "array", dict: "object"}
    return names.get(type(value), type(value).__name__)


def json_bytes(value: Any) -> bytes:
    """Encode a response body."""
    try:
        found = orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME)
    except TypeError:  # keys that are numbers, integers of more than 64 bits, lone surrogates
        return _spelled_out(value)
    # It writes NaN as null, which the standard library refuses.
    return _spelled_out(value) if b"null" in found else found


def _spelled_out(value: Any) -> bytes:
    try:
        return _strict(value).encode()
    except UnicodeEncodeError:
        # A lone surrogate, which came in as an escape: so it goes out, and spoils no list that it is in.
        return _ascii(value).encode()


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None, media_type: str = "application/json"
) -> Response:
    """A JSON response."""
    return Response(json_bytes(value), status, dict(headers or {}), media_type)


def error_response(error: NodusError, request_id: str, headers: Mapping[str, str] | None = None) -> Response:
    """The Status response of an error, with Retry-After where the error says when."""
    found = dict(headers or {})
    if error.retry_after_s is not None:
        found["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.status == 401:
        found["WWW-Authenticate"] = 'Bearer realm="nodus"'
    if error.status == 405 and "allow" not in {name.lower() for name in found}:
        found["Allow"] = ", ".join(sorted({METHOD_OF.get(word, word) for word in error.details.get("allowed", ())}))
    return json_response(error.to_status(request_id), error.status, found)
