"""Grants of credits, the price book, and what is refused for want of a payment provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from nodus.core.errors import Cause, Forbidden, Invalid, Unsupported
from nodus.core.ids import new_id
from nodus.core.kinds import BILLING_ACCOUNT
from nodus.core.kinds.billing import ACCOUNT_NAME
from nodus.core.money import MAX_NANOS, format_usd, parse_usd
from nodus.server.api import auditing, billing
from nodus.server.api.call import Call, not_found
from nodus.server.api.http import json_response, read_object
from nodus.server.billing.payments import no_provider
from nodus.server.store import audit, books, ledger
from nodus.server.store.codec import clean
from nodus.server.store.context import lock_objects

if TYPE_CHECKING:
    from sqlalchemy import Connection

_FIELDS = ("amountUSD", "reference", "note")
_REFERENCE_LENGTH = 200
_NOTE_LENGTH = 250


async def grant(call: Call) -> Response:
    """``POST .../grants``: add credits, for an Owner; the same reference again adds nothing."""
    _check_account(call, "create")
    if call.principal.role != "Owner" or call.principal.projects:
        raise Forbidden(
            "only an Owner, with a key that reaches all projects, grants credits",
            fix="Ask an Owner to run `nodus admin grant`.",
            details={"role": call.principal.role},
        )
    amount, reference, note = _wanted_grant(await read_object(call.request), call)
    return json_response(await call.services.store.write(_grant, call, amount, reference, note), 201)


def _wanted_grant(body: dict[str, Any], call: Call) -> tuple[int, str, str]:
    unknown = [Cause(key[:100], "FieldValueNotSupported", "unknown field") for key in body if key not in _FIELDS]
    causes, amount = unknown[:10], 0
    key = call.request.headers.get("idempotency-key")
    reference, note = body.get("reference") or key or new_id("grant"), body.get("note", "")
    try:
        amount = parse_usd(body.get("amountUSD"))
        if not 0 < amount <= MAX_NANOS:
            raise ValueError(f"an amount from 0.000000001 to {format_usd(MAX_NANOS)} is expected")
    except ValueError as error:
        causes.append(Cause("amountUSD", "FieldValueInvalid", str(error)[:300]))
    for name, value, most in (("reference", reference, _REFERENCE_LENGTH), ("note", note, _NOTE_LENGTH)):
        if not isinstance(value, str) or len(value) > most or clean(value) != value:
            causes.append(Cause(name, "FieldValueInvalid", f"text of at most {most} characters is expected"))
    if causes:
        raise Invalid("the grant can't be made as asked", fix="Correct the fields listed.", causes=causes)
    return amount, str(reference), str(note)


def _grant(conn: Connection, call: Call, amount: int, reference: str, note: str) -> dict[str, Any]:
    lock_objects(conn)
    fresh = books.granted(conn, f"grant/{reference}") is None
    ledger.grant(conn, amount, f"grant/{reference}", note)
    if fresh:
        target = audit.Target(BILLING_ACCOUNT.name, ACCOUNT_NAME, subresource="grants")
        audit.record(conn, auditing.actor_of(call), "grant", target)
    call.audited = True
    return {
        **billing.account(conn, call),
        "grant": {"amountUSD": format_usd(amount), "reference": reference, "added": fresh},
    }


async def prices(call: Call) -> Response:
    """``GET .../prices``: the price book in force."""
    _check_account(call, "get")
    return json_response(call.services.prices.to_wire())


# What needs a payment provider --------------------------------------------------------------------------------------


async def redeem(call: Call) -> Response:
    """Refused: there is no payment provider, so there are no codes."""
    raise _refused(call, "no code can be redeemed", "create")


async def portal(call: Call) -> Response:
    """Refused: there is no payment provider, so there is no portal."""
    raise _refused(call, "there is no billing portal", "create")


async def deals(call: Call) -> Response:
    """Refused: there is no payment provider, so there are no offers."""
    raise _refused(call, "there are no partner offers", "get")


async def recharge(call: Call) -> Response:
    """Refused: there is no payment provider, so nothing is bought by itself."""
    raise _refused(call, "no credits are bought by themselves", "patch")


def _refused(call: Call, what: str, verb: str) -> Unsupported:
    _check_account(call, verb)
    return no_provider(what)


def _check_account(call: Call, verb: str) -> None:
    call.principal.require(verb, BILLING_ACCOUNT, None, call.params["name"])
    if call.params["name"] != ACCOUNT_NAME:
        raise not_found(BILLING_ACCOUNT, call.params["name"][:63])
