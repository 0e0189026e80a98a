"""Budget, BillingAccount, UsageRecord and Transaction: what may be spent, what there is, and where it went."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictInt

from nodus.core.kinds.base import AGE, NAME, USD, Column, Condition, Kind, Model, dollars

DEFAULT_THRESHOLDS = (50, 80, 100)
"""Percent of a Budget's limit that are told, where it names none."""
_LABEL = "nodus.dev/created-by"


def _check_thresholds(percents: list[int]) -> list[int]:
    if percents != sorted(set(percents)):
        raise ValueError(f"{percents} is not in rising order; write each percentage once, like [50, 80, 100]")
    return percents


class BudgetSelector(Model):
    """Which objects by their labels."""

    match_labels: dict[str, str] = Field(min_length=1, max_length=20)
    """Labels that an object has, all of them. ``nodus.dev/created-by`` is who made it: ``usr_`` and the member."""


class BudgetScope(Model):
    """Whose spend a Budget counts: what fits all that is given; everybody's where nothing is."""

    project: str | None = Field(default=None, min_length=1, max_length=63)
    """A project."""
    member: str | None = Field(default=None, min_length=1, max_length=253)
    """A member by name: what they made with any of their keys."""
    selector: BudgetSelector | None = None
    """Objects with these labels. What a TrainingJob runs counts by the TrainingJob's labels."""


class BudgetSpec(Model):
    """A limit on spend."""

    limit_usd: USD = Field(alias="limitUSD")
    """Most that may be spent in a period, in dollars. It may be raised and lowered; below what is spent already it
    stops all further spend."""
    period: Literal["Monthly", "Total"] = "Monthly"
    """Monthly counts anew with each month, in UTC; Total counts for good. From the Budget's creation on."""
    scope: BudgetScope | None = None
    """Whose spend it counts; that of the whole organization when left out."""
    action: Literal["Block", "Notify"] = "Block"
    """Block refuses what the limit leaves no room for; Notify only counts and tells."""
    thresholds: Annotated[
        list[Annotated[StrictInt, Field(ge=1, le=1000)]],
        AfterValidator(_check_thresholds),
        Field(max_length=10, default_factory=lambda: list(DEFAULT_THRESHOLDS)),
    ]
    """Percentages of the limit; an Event tells when so much is spent, once a period."""


class BudgetStatus(Model):
    """What a Budget has counted in this period."""

    phase: Literal["Active", "Exhausted"] | None = None
    """Exhausted when nothing is left of the limit, else Active."""
    period: str | None = None
    """The month that is counted, such as ``2026-11``; absent for Total."""
    spent_usd: USD | None = Field(default=None, alias="spentUSD")
    """Spent."""
    held_usd: USD | None = Field(default=None, alias="heldUSD")
    """Set aside for what runs now."""
    remaining_usd: USD | None = Field(default=None, alias="remainingUSD")
    """What is left of the limit."""
    percent_used: int | None = None
    """Spent, in percent of the limit, rounded down."""
    thresholds_reached: list[int] | None = None
    """Percentages that were told in this period."""
    conditions: list[Condition] | None = None
    """``Reconciled`` is False while its thresholds can't be told; what it blocks does not depend on that."""


def _scope(wire: Mapping[str, Any], now: datetime) -> str | None:
    scope = (wire.get("spec") or {}).get("scope") or {}
    labels = dict((scope.get("selector") or {}).get("matchLabels") or {})
    member = scope.get("member") or str(labels.pop(_LABEL, "")).removeprefix("usr_")
    parts = [f"project={scope['project']}" if scope.get("project") else "", f"member={member}" if member else ""]
    found = [part for part in (*parts, *(f"{key}={value}" for key, value in sorted(labels.items()))) if part]
    return ",".join(found) or "all"


def _used(wire: Mapping[str, Any], now: datetime) -> str | None:
    percent = (wire.get("status") or {}).get("percentUsed")
    return None if percent is None else f"{percent}%"


BUDGET = Kind(
    name="Budget",
    plural="budgets",
    singular="budget",
    version="v1",
    scope="Org",
    spec_model=BudgetSpec,
    status_model=BudgetStatus,
    summary="A limit on what a project, a member, objects with a label, or everybody may spend.",
    columns=(
        NAME,
        Column("Scope", _scope, description="Whose spend it counts"),
        Column("Period", "spec.period", description="Monthly or Total"),
        Column("Limit", dollars("spec.limitUSD"), description="Most that may be spent"),
        Column("Spent", dollars("status.spentUSD"), description="Spent in this period"),
        Column("Held", dollars("status.heldUSD"), description="Set aside for what runs now"),
        Column("Used", _used, description="Spent, in percent of the limit"),
        Column("Action", "spec.action", description="Block or Notify"),
        Column("Phase", "status.phase", wide=True, description="Active or Exhausted"),
        AGE,
    ),
    immutable=("period", "scope"),
    phases={"Active": ("Exhausted",), "Exhausted": ("Active",)},
    selectable_fields=("status.phase", "spec.scope.project", "spec.scope.member", "spec.period", "spec.action"),
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "Budget",
        "metadata": {"name": "research"},
        "spec": {
            "limitUSD": "2000.00",
            "period": "Monthly",
            "scope": {"project": "research"},
            "action": "Block",
            "thresholds": [50, 80, 100],
        },
    },
)


class AutoRecharge(Model):
    """Buying credits by itself; there is no payment provider here, so it is off."""

    enabled: bool = False
    """Whether it is on."""


class BillingAccountSpec(Model):
    """Nothing of it can be set."""

    auto_recharge: AutoRecharge | None = None
    """Off."""


class MonthToDate(Model):
    """What a month has cost so far."""

    month: str | None = None
    """Such as ``2026-11``, in UTC."""
    spent_usd: USD | None = Field(default=None, alias="spentUSD")
    """Spent."""
    covered_usd: USD | None = Field(default=None, alias="coveredUSD")
    """What Nodus bore itself; no part of ``spentUSD``."""


class BillingAccountStatus(Model):
    """The organization's credits."""

    phase: Literal["Active"] | None = None
    """Active."""
    available_usd: USD | None = Field(default=None, alias="availableUSD")
    """What can be spent now."""
    pending_usd: USD | None = Field(default=None, alias="pendingUSD")
    """Set aside for what runs now."""
    spent_usd: USD | None = Field(default=None, alias="spentUSD")
    """Spent since the start."""
    grants_usd: USD | None = Field(default=None, alias="grantsUSD")
    """What is left of all grants: available and pending together."""
    granted_usd: USD | None = Field(default=None, alias="grantedUSD")
    """Sum of all grants."""
    purchased_usd: USD | None = Field(default=None, alias="purchasedUSD")
    """What is left of credits that were bought; nothing can be bought here."""
    month_to_date: MonthToDate | None = None
    """This month."""


ACCOUNT_NAME = "default"
"""The one BillingAccount."""
BILLING_ACCOUNT = Kind(
    name="BillingAccount",
    plural="billingaccounts",
    singular="billingaccount",
    version="v1",
    scope="Org",
    spec_model=BillingAccountSpec,
    status_model=BillingAccountStatus,
    summary="The organization's credits: granted, held, spent. There is one, and grants alone change it.",
    columns=(
        NAME,
        Column("Available", dollars("status.availableUSD"), description="What can be spent now"),
        Column("Held", dollars("status.pendingUSD"), description="Set aside for what runs now"),
        Column("Month", dollars("status.monthToDate.spentUSD"), description="Spent in this month"),
        Column("Spent", dollars("status.spentUSD"), description="Spent since the start"),
    ),
    verbs=("get", "list"),
    subresources=("deals", "grants", "prices", "redemptions", "sessions"),
    phases={"Active": ()},
    selectable_fields=(),
    example={"apiVersion": "nodus.dev/v1", "kind": "BillingAccount", "metadata": {"name": ACCOUNT_NAME}},
)


class BilledObject(Model):
    """What a line of the books is about."""

    kind: str | None = None
    """Its kind."""
    name: str | None = None
    """Its name."""
    project: str | None = None
    """Its project."""
    uid: str | None = None
    """Its uid; names are used again."""


class UsageRecordSpec(Model):
    """Something that was used and what it cost; these fields stand at the top of the object."""

    project: str | None = None
    """Project of the object."""
    object_: BilledObject | None = Field(default=None, alias="object")
    """On whose bill it is: the TrainingJob, and not its Job."""
    meter: str | None = None
    """What was used, such as ``ComputeSeconds``."""
    segment: str | None = None
    """Part of a run's time: Boot, Running, Restore or Teardown."""
    offering: str | None = None
    """The capacity or model that was used."""
    quantity: str | None = None
    """How much, as a decimal."""
    unit: str | None = None
    """Of the quantity, such as ``seconds``."""
    amount_usd: USD | None = Field(default=None, alias="amountUSD")
    """What was charged, exact to nine places."""
    covered_usd: USD | None = Field(default=None, alias="coveredUSD")
    """What Nodus bore itself, where it did; then nothing was charged."""
    period_start_time: str | None = None
    """When the use began, as far as the quantity is a time."""
    period_end_time: str | None = None
    """When it was charged."""
    pricebook_version: str | None = None
    """Prices that it was charged by."""
    transaction: str | None = None
    """The Transaction that charged it."""


class UsageRecordStatus(Model):
    """UsageRecords have no status."""


def _object_label(field: str) -> Any:
    def show(wire: Mapping[str, Any], now: datetime) -> str | None:
        found = wire.get(field) or {}
        return f"{str(found['kind']).lower()}/{found.get('name', '')}" if found.get("kind") else None

    return show


def _signed(wire: Mapping[str, Any], now: datetime) -> str | None:
    amount = wire.get("amountUSD")
    return None if amount is None else f"-${amount[1:]}" if amount.startswith("-") else f"${amount}"


USAGE_RECORD = Kind(
    name="UsageRecord",
    plural="usagerecords",
    singular="usagerecord",
    version="v1",
    scope="Org",
    spec_model=UsageRecordSpec,
    status_model=UsageRecordStatus,
    flat=True,
    summary="Something that was used and what it cost. Read from the books; nothing changes it.",
    columns=(
        Column("Start", "periodStartTime", description="When the use began"),
        Column("Object", _object_label("object"), description="On whose bill it is"),
        Column("Meter", "meter", description="What was used"),
        Column("Segment", "segment", description="Part of a run's time"),
        Column("Quantity", "quantity", description="How much"),
        Column("Amount", dollars("amountUSD"), description="What was charged"),
        Column("Unit", "unit", wide=True, description="Of the quantity"),
        Column("Offering", "offering", wide=True, description="The capacity or model that was used"),
        Column("Covered", dollars("coveredUSD"), wide=True, description="What Nodus bore itself"),
        Column("Transaction", "transaction", wide=True, description="The Transaction that charged it"),
    ),
    verbs=("get", "list"),
    selectable_fields=("project", "meter", "segment", "offering", "object.kind", "object.name", "object.uid"),
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "UsageRecord",
        "metadata": {"name": "usage-7", "creationTimestamp": "2026-01-31T12:10:00Z"},
        "project": "default",
        "object": {
            "kind": "TrainingJob",
            "name": "my-grpo",
            "project": "default",
            "uid": "01a22a45-76ec-71aa-9446-e635d25e483b",
        },
        "meter": "ComputeSeconds",
        "segment": "Running",
        "offering": "local-cpu",
        "quantity": "600",
        "unit": "seconds",
        "amountUSD": "0.013333334",
        "periodStartTime": "2026-01-31T12:00:00Z",
        "periodEndTime": "2026-01-31T12:10:00Z",
        "transaction": "transaction-7",
    },
)

TransactionType = Literal["Grant", "Hold", "Capture", "Release", "Cover"]


class TransactionSpec(Model):
    """A line of the books; these fields stand at the top of the object."""

    time: str | None = None
    """When it was written."""
    type: TransactionType | None = None
    """Grant adds credits, Capture spends what was held; Hold sets credits aside and Release gives them back; Cover is
    what Nodus bore itself. Lists have grants and captures unless a field selector asks for a type."""
    amount_usd: str | None = Field(default=None, alias="amountUSD")
    """Dollars; below zero for captures."""
    balance_after_usd: str | None = Field(default=None, alias="balanceAfterUSD")
    """Credits that were not spent, after it; what was set aside included. Absent for keys of some projects."""
    reference: BilledObject | None = None
    """On whose bill it is."""
    cause: str | None = None
    """Under what it was booked, once: of a grant what the request gave, else what was paid for."""
    description: str | None = None
    """For people."""
    project: str | None = None
    """Project of the object."""


class TransactionStatus(Model):
    """Transactions have no status."""


TRANSACTION = Kind(
    name="Transaction",
    plural="transactions",
    singular="transaction",
    version="v1",
    scope="Org",
    spec_model=TransactionSpec,
    status_model=TransactionStatus,
    flat=True,
    summary="A line of the books: credits that were granted, held, spent or given back. Nothing changes it.",
    columns=(
        Column("Time", "time", description="When it was written"),
        Column("Type", "type", description="Grant, Capture, Hold, Release or Cover"),
        Column("Amount", _signed, description="Dollars; below zero for captures"),
        Column("Balance", dollars("balanceAfterUSD"), description="Credits that were not spent, after it"),
        Column("Reference", _object_label("reference"), description="On whose bill it is"),
        Column("Cause", "cause", wide=True, description="Under what it was booked"),
        Column("Description", "description", wide=True, description="For people"),
    ),
    verbs=("get", "list"),
    selectable_fields=("type", "project", "reference.kind", "reference.name", "reference.uid", "cause"),
    example={
        "apiVersion": "nodus.dev/v1",
        "kind": "Transaction",
        "metadata": {"name": "transaction-7", "creationTimestamp": "2026-01-31T12:10:00Z"},
        "time": "2026-01-31T12:10:00Z",
        "type": "Capture",
        "amountUSD": "-0.013333334",
        "balanceAfterUSD": "24.986666666",
        "reference": {
            "kind": "TrainingJob",
            "name": "my-grpo",
            "project": "default",
            "uid": "01a22a45-76ec-71aa-9446-e635d25e483b",
        },
        "cause": "compute/local-cpu",
        "description": "600 s of running",
        "project": "default",
    },
)
