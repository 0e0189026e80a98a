"""The path from a draft to an admitted object, shared by create, patch, replace and dry run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodus.core.errors import BadRequest
from nodus.server.api.call import Call
from nodus.server.api.owners import check_references
from nodus.server.api.reading import require_project
from nodus.server.kinds import admission_of
from nodus.server.kinds.base import Draft
from nodus.server.services import Services

if TYPE_CHECKING:
    from sqlalchemy import Connection


async def resolve_draft(services: Services, draft: Draft) -> None:
    """Decode the spec and run the look-ups that may take time, outside of any transaction.

    Raises:
        Invalid: something required is missing, so that nothing further can be checked.
    """
    admission = admission_of(draft.kind)
    spec = admission.prepare(draft)
    if spec is None:
        draft.raise_causes()
        return
    await admission.resolve(services, draft, spec)


def admit_draft(conn: Connection, services: Services, draft: Draft) -> None:
    """Check a draft against the store and fill its defaults.

    Raises:
        Invalid: with every mistake that was found in the draft, here or before.
    """
    assert draft.model is not None
    known = len(draft.causes)
    require_project(conn, draft.project)
    check_references(conn, draft)
    admission_of(draft.kind).admit(conn, services, draft, draft.model)
    try:
        draft.raise_causes()
    finally:
        del draft.causes[known:]  # a retried transaction finds them again


def preview_of(conn: Connection, services: Services, draft: Draft) -> dict[str, Any]:
    """The status that a dry run of the draft shows."""
    assert draft.model is not None
    return admission_of(draft.kind).preview(conn, services, draft, draft.model)


def is_dry_run(call: Call) -> bool:
    """Whether ``?dryRun=All`` asks for a rehearsal, which the audit trail has no part of.

    Raises:
        BadRequest: another value.
    """
    value = call.query("dryRun")
    if value not in (None, "All"):
        raise BadRequest(f"dryRun={value!r} is not known", fix="Use dryRun=All.")
    call.audited = call.audited or value is not None
    return value is not None
