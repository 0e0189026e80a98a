"""Money as clients read it: the organization's credits, UsageRecords and Transactions, all from the books.

Whoever may read a kind sees the lines of the projects in reach. Lines of no project (grants) and balances are the
organization's, and shown to those who reach all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nodus.core.errors import BadRequest
from nodus.core.kinds import BILLING_ACCOUNT, TRANSACTION, USAGE_RECORD, Kind
from nodus.core.kinds.billing import ACCOUNT_NAME
from nodus.core.money import format_usd, parse_usd
from nodus.core.selectors import Requirement, matches_fields
from nodus.core.validity import moment_of
from nodus.server.api.call import Call, field_terms, not_found
from nodus.server.billing import lines
from nodus.server.billing.budgets import month_of
from nodus.server.store import billed, books, ledger, pagetokens, statements
from nodus.server.store.codec import from_us, to_us
from nodus.server.store.context import now_us

if TYPE_CHECKING:
    from sqlalchemy import Connection

SERVED = (BILLING_ACCOUNT, USAGE_RECORD, TRANSACTION)
"""Kinds whose objects are made from the books."""
_PAGE = 1000
_CHUNK = 200
_MOST_GROUPS = 10
_MOST_OBJECTS = 1000
"""More are not handed to the database one by one; lines are compared after reading."""
_SUMMED = ("project", "meter", "segment", "offering", "object.kind", "object.name", "object.uid")
"""Fields that a selector over sums may have: what sums still know of their lines."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list, in wire form."""

    items: list[dict[str, Any]]
    resource_version: int
    continue_: str | None = None


async def list_(call: Call, kind: Kind) -> Page:
    """A page of UsageRecords or Transactions, newest first, or the one BillingAccount.

    Raises:
        BadRequest: a selector, a time or a token can't be read.
    """
    if kind is BILLING_ACCOUNT:
        return Page([await call.services.store.read(account, call)], 0)
    asked = _asked(call, kind)
    wanted, token = call.number("limit", 1, 10_000) or _PAGE, call.query("continue")
    return await call.services.store.read(_page, call, kind, asked, wanted, token)


async def get(call: Call, kind: Kind, name: str) -> dict[str, Any]:
    """One object of a kind that is made from the books.

    Raises:
        NotFound: there is none of that name, or it is of a project out of reach.
    """
    return await call.services.store.read(_get, call, kind, name)


async def summary(call: Call) -> dict[str, Any]:
    """Usage summed by the keys of ``groupBy``.

    Raises:
        BadRequest: a key, a selector or a time can't be read.
    """
    keys = _group_keys(call.query("groupBy") or "")
    asked = _asked(call, USAGE_RECORD)
    odd = next((term.key for term in asked.terms if term.key not in _SUMMED), None)
    if odd is not None:
        raise BadRequest(f"sums can't be selected by {odd!r}", fix=f"Use {', '.join(_SUMMED)}.")
    rows = await call.services.store.read(_sums, asked, keys)
    total, covered = (sum(parse_usd(row.get(name, "0")) for row in rows) for name in ("amountUSD", "coveredUSD"))
    found: dict[str, Any] = {
        "kind": "UsageSummary", "apiVersion": lines.API_VERSION, "metadata": {}, "groupBy": keys, "rows": rows,
        "totalUSD": format_usd(total), "coveredUSD": format_usd(covered) if covered else None,
    }  # fmt: skip
    return {key: value for key, value in found.items() if value is not None}


# What is asked for --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which lines are wanted."""

    terms: tuple[Requirement, ...]
    types: tuple[str, ...]
    projects: tuple[str, ...] | None
    since_us: int | None
    until_us: int | None


def _asked(call: Call, kind: Kind) -> _Asked:
    terms = field_terms(call, kind)
    now = call.services.clock.now()
    since, until = (_moment(call, name, now) for name in ("since", "until"))
    projects: tuple[str, ...] | None = call.principal.projects or None
    for term in terms:
        if term.key == "project" and term.operator in ("=", "in"):
            projects = tuple(name for name in term.values if projects is None or name in projects)
    types: tuple[str, ...] = ("Charge", "Cover")
    if kind is TRANSACTION:
        names = [name for name in lines.TYPES if all(t.matches(name) for t in terms if t.key == "type")]
        listed = names if any(term.key == "type" for term in terms) else lines.LISTED
        types = tuple(lines.TYPES[name] for name in listed)
    return _Asked(terms, types, projects, since, until)


def _moment(call: Call, name: str, now: datetime) -> int | None:
    """A parameter that is a time, or a duration back from now, in microseconds since the epoch."""
    text = call.query(name)
    if text is None:
        return None
    try:
        return to_us(moment_of(text, now))
    except ValueError as error:
        raise BadRequest(f"{name}={error}") from error


def _group_keys(text: str) -> list[str]:
    keys = [part.strip() for part in text.split(",") if part.strip()]
    odd = [key for key in keys if key not in lines.GROUPS and (not key.startswith(lines.LABEL) or key == lines.LABEL)]
    if odd:
        known = f"{', '.join(lines.GROUPS)} or label:KEY"
        raise BadRequest(f"usage can't be grouped by {odd[0][:60]!r}", fix=f"Group by {known}.")
    if len(set(keys)) != len(keys) or len(keys) > _MOST_GROUPS:
        raise BadRequest(f"groupBy={text[:60]!r} has a key twice, or more than {_MOST_GROUPS}")
    return keys


# What is found ------------------------------------------------------------------------------------------------------


def _objects(conn: Connection, terms: Sequence[Requirement], prefix: str) -> list[str] | None:
    """Uids of the objects that the terms ask for; None where they ask for none in particular, or for very many."""
    found: dict[str, list[str]] = {}
    for term in terms:
        if term.key.startswith(prefix) and term.operator in ("=", "in"):
            found.setdefault(term.key.removeprefix(prefix), []).extend(term.values)
    if len(found.get("uid", ())) in range(1, _MOST_OBJECTS):
        return found["uid"]
    uids = billed.named(conn, found.get("kind"), found.get("name")) if found else None
    return None if uids is None or len(uids) > _MOST_OBJECTS else uids


def _page(conn: Connection, call: Call, kind: Kind, asked: _Asked, wanted: int, token: str | None) -> Page:
    prefix = "object." if kind is USAGE_RECORD else "reference."
    uids = _objects(conn, asked.terms, prefix)
    found: list[tuple[books.Transfer, dict[str, Any]]] = []
    more: str | None = None
    while more is None:
        page = books.transactions(
            conn, types=asked.types, project=asked.projects, object=uids, since_us=asked.since_us,
            until_us=asked.until_us, limit=min(_CHUNK, wanted + 1), continue_=token,
        )  # fmt: skip
        for line, wire in _wires(conn, kind, page.items):
            if not matches_fields(asked.terms, wire):
                continue
            if len(found) == wanted:
                more = pagetokens.encode(found[-1][0].seq)
                break
            found.append((line, wire))
        token = page.continue_
        if token is None:
            break
    if kind is TRANSACTION and not call.principal.projects:
        left = statements.left_after(conn, [line.seq for line, _ in found])
        found = [(line, {**wire, "balanceAfterUSD": format_usd(left[line.seq])}) for line, wire in found]
    return Page([wire for _, wire in found], found[0][0].seq if found else 0, more)


def _wires(conn: Connection, kind: Kind, some: Sequence[books.Transfer]) -> list[tuple[books.Transfer, dict[str, Any]]]:
    about = billed.find(conn, (line.object for line in some if line.object))
    if kind is USAGE_RECORD:
        return [(line, lines.usage_record(line, about.get(line.object))) for line in some]
    return [(line, lines.transaction(line, about.get(line.object), None)) for line in some]


def _get(conn: Connection, call: Call, kind: Kind, name: str) -> dict[str, Any]:
    if kind is BILLING_ACCOUNT:
        if name != ACCOUNT_NAME:
            raise not_found(kind, name)
        return account(conn, call)
    prefix, types = ("usage-", ("Charge", "Cover")) if kind is USAGE_RECORD else ("transaction-", None)
    number = name.removeprefix(prefix)
    known = number != name and number.isascii() and number.isdecimal() and len(number) < 19
    line = books.line(conn, int(number)) if known else None
    if line is None or (types is not None and line.type not in types):
        raise not_found(kind, name)
    if call.principal.projects and line.project not in call.principal.projects:
        raise not_found(kind, name)
    ((_, wire),) = _wires(conn, kind, [line])
    if kind is TRANSACTION and not call.principal.projects:
        wire["balanceAfterUSD"] = format_usd(statements.left_after(conn, [line.seq])[line.seq])
    return wire


def _sums(conn: Connection, asked: _Asked, keys: Sequence[str]) -> list[dict[str, Any]]:
    uids = _objects(conn, asked.terms, "object.")
    by_object = not {"kind", "object", "member"}.isdisjoint(keys) or any(key.startswith(lines.LABEL) for key in keys)
    by_object = by_object or any(term.key.startswith("object.") for term in asked.terms)
    found = statements.sums(
        conn, by_object=by_object, by_day="day" in keys, project=asked.projects, object=uids,
        since_us=asked.since_us, until_us=asked.until_us,
    )  # fmt: skip
    about = billed.find(conn, (one.object for one in found if one.object))
    named = [(one, about.get(one.object)) for one in found]
    return lines.rows([(one, of) for one, of in named if matches_fields(asked.terms, lines.described(one, of))], keys)


def account(conn: Connection, call: Call) -> dict[str, Any]:
    """The BillingAccount, as far as the caller may know of it."""
    found = ledger.balance(conn)
    status: dict[str, Any] = {"phase": "Active", "availableUSD": format_usd(found.available)}
    if not call.principal.projects:
        now = from_us(now_us(conn))
        month = statements.spent(conn, to_us(now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)))
        status |= {
            "pendingUSD": format_usd(found.held),
            "spentUSD": format_usd(found.spent),
            "grantsUSD": format_usd(found.granted - found.spent),
            "grantedUSD": format_usd(found.granted),
            "purchasedUSD": format_usd(0),
            "monthToDate": {
                "month": month_of(now), "spentUSD": format_usd(month.paid), "coveredUSD": format_usd(month.covered)
            },
        }  # fmt: skip
    return {
        "apiVersion": BILLING_ACCOUNT.api_version, "kind": BILLING_ACCOUNT.name,
        "metadata": {"name": ACCOUNT_NAME, "resourceVersion": "0"}, "spec": {}, "status": status,
    }  # fmt: skip
