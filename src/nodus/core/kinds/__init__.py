"""Every kind of object, declared once and found by name, plural or short name."""

from __future__ import annotations

from nodus.core.errors import NotFound
from nodus.core.kinds.base import Column, Kind, Model
from nodus.core.kinds.billing import BILLING_ACCOUNT, BUDGET, TRANSACTION, USAGE_RECORD
from nodus.core.kinds.environment import ENVIRONMENT
from nodus.core.kinds.identity import API_KEY, AUDIT_EVENT, MEMBER, SERVICE_ACCOUNT, SSH_KEY
from nodus.core.kinds.image import IMAGE
from nodus.core.kinds.job import ATTEMPT, JOB
from nodus.core.kinds.organization import EVENT, OFFERING, ORGANIZATION, PROJECT
from nodus.core.kinds.sandbox import PROCESS, SANDBOX
from nodus.core.kinds.storage import SECRET, VOLUME
from nodus.core.kinds.training import TRAINING_JOB, TRAINING_RUNTIME

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        ORGANIZATION,
        PROJECT,
        MEMBER,
        API_KEY,
        SERVICE_ACCOUNT,
        SSH_KEY,
        AUDIT_EVENT,
        BUDGET,
        BILLING_ACCOUNT,
        USAGE_RECORD,
        TRANSACTION,
        SECRET,
        VOLUME,
        ENVIRONMENT,
        IMAGE,
        TRAINING_RUNTIME,
        TRAINING_JOB,
        JOB,
        ATTEMPT,
        SANDBOX,
        PROCESS,
        EVENT,
        OFFERING,
    )
}
"""Kinds by CamelCase name."""


def find_kind(word: str) -> Kind:
    """Return the kind that ``word`` names: its name in any case, its plural, its singular or a short name.

    Raises:
        NotFound: When no kind has that name; the message lists the plurals.
    """
    lowered = word.lower()
    for kind in KINDS.values():
        if lowered in (kind.name.lower(), kind.plural, kind.singular, *kind.short_names):
            return kind
    plurals = ", ".join(sorted(kind.plural for kind in KINDS.values()))
    raise NotFound(f"the server doesn't have a resource type {word!r}", fix=f"Use one of: {plurals}.")


__all__ = [
    "API_KEY",
    "ATTEMPT",
    "AUDIT_EVENT",
    "BILLING_ACCOUNT",
    "BUDGET",
    "ENVIRONMENT",
    "EVENT",
    "IMAGE",
    "JOB",
    "KINDS",
    "MEMBER",
    "OFFERING",
    "ORGANIZATION",
    "PROCESS",
    "PROJECT",
    "SANDBOX",
    "SECRET",
    "SERVICE_ACCOUNT",
    "SSH_KEY",
    "TRAINING_JOB",
    "TRAINING_RUNTIME",
    "TRANSACTION",
    "USAGE_RECORD",
    "VOLUME",
    "Column",
    "Kind",
    "Model",
    "find_kind",
]
